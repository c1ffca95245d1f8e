// SPDX-License-Identifier: Apache-2.0
//
// The engine's lock: a futex word, no allocation, no cancellation point, no libpthread.
//
//   lock()      waits; for commands and the background thread only
//   try_lock()  for posting and polling; failing and unlocking are sequentially consistent, because who fails leaves a
//               mark before and the holder looks for marks after (nic_rules 8)
//   unlock()
//
// Ulrich Drepper, "Futexes Are Tricky", mutex 2. Private to the process: a forked child must not touch it (nic_rules
// 4).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace weft::nic {

class FutexLock {
 public:
  bool try_lock() {
    uint32_t expected = kFree;
    return word_.compare_exchange_strong(expected, kHeld, std::memory_order_seq_cst);
  }

  void lock() {
    if (try_lock()) return;
    while (word_.exchange(kContended, std::memory_order_acquire) != kFree) futex(FUTEX_WAIT_PRIVATE, kContended);
  }

  void unlock() {
    if (word_.exchange(kFree, std::memory_order_seq_cst) == kContended) futex(FUTEX_WAKE_PRIVATE, 1);
  }

  bool is_held() const { return word_.load(std::memory_order_relaxed) != kFree; }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kHeld = 1;
  static constexpr uint32_t kContended = 2;

  // The library's callers look at errno after a call that succeeded; a futex that returns EAGAIN must not show there.
  void futex(int operation, uint32_t value) {
    const int saved = errno;
    syscall(SYS_futex, &word_, operation, value, nullptr, nullptr, 0);
    errno = saved;
  }

  std::atomic<uint32_t> word_{kFree};
};

class LockGuard {
 public:
  explicit LockGuard(FutexLock& lock) : lock_(lock) { lock_.lock(); }
  ~LockGuard() { lock_.unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  FutexLock& lock_;
};

}  // namespace weft::nic
