// SPDX-License-Identifier: Apache-2.0
//
// Which threads stand between an ibv_next_poll that found nothing and its ibv_end_poll, and on which CQ: libweft has no
// thread-local storage to keep that in.
//
//   mark(cq)   this thread's next_poll on `cq` found nothing
//   take(cq)   whether it had; forgets it
//
// Lock-free. A mark is a cell of the one bucket that (thread, CQ) hashes to; only that thread looks for it. A mark that
// finds its bucket full is lost: it takes more than kCells threads in this place at once, all in one bucket of many.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace weft::preload::drained_polls {

inline constexpr uint32_t kBuckets = 128;
inline constexpr uint32_t kCells = 8;

struct alignas(64) Bucket {
  std::atomic<uint64_t> cell[kCells];
};
inline constinit Bucket buckets[kBuckets];

/// Never 0. Both parts are addresses of objects of at least 16 bytes: mixed, two pairs hardly ever agree.
inline uint64_t token_of(const void* cq) {
  const uint64_t mixed = reinterpret_cast<uintptr_t>(cq) ^ static_cast<uint64_t>(pthread_self()) << 17;
  return mixed * 0x9E3779B97F4A7C15u | 1;
}

inline Bucket& bucket_of(uint64_t token) { return buckets[token >> 32 & (kBuckets - 1)]; }

inline void mark(const void* cq) {
  const uint64_t token = token_of(cq);
  Bucket& bucket = bucket_of(token);
  // One that was never taken (a thread that did not call end_poll) is this one now.
  for (const std::atomic<uint64_t>& cell : bucket.cell) {
    if (cell.load(std::memory_order_relaxed) == token) return;
  }
  for (std::atomic<uint64_t>& cell : bucket.cell) {
    uint64_t free = 0;
    if (cell.compare_exchange_strong(free, token, std::memory_order_relaxed)) return;
  }
}

inline bool take(const void* cq) {
  const uint64_t token = token_of(cq);
  for (std::atomic<uint64_t>& cell : bucket_of(token).cell) {
    if (cell.load(std::memory_order_relaxed) != token) continue;
    cell.store(0, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace weft::preload::drained_polls
