// SPDX-License-Identifier: Apache-2.0
//
// A bounded queue between two threads, one producing and one consuming; neither ever waits for the other.
//
//   SpscRing<Event, 256> ring;  if (!ring.push(e)) ++lost;   // producer: false when full
//   Event e;  while (ring.pop(e)) ...;                       // consumer
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weft::engine {

template <typename T, size_t kCapacity>
class SpscRing {
  static_assert((kCapacity & (kCapacity - 1)) == 0);

 public:
  bool push(const T& value) {
    const uint64_t producer = producer_.load(std::memory_order_relaxed);
    if (producer - consumer_.load(std::memory_order_acquire) == kCapacity) return false;
    entries_[producer % kCapacity] = value;
    producer_.store(producer + 1, std::memory_order_release);
    return true;
  }
  bool pop(T& out) {
    const uint64_t consumer = consumer_.load(std::memory_order_relaxed);
    if (producer_.load(std::memory_order_acquire) == consumer) return false;
    out = entries_[consumer % kCapacity];
    consumer_.store(consumer + 1, std::memory_order_release);
    return true;
  }
  bool empty() const {
    return producer_.load(std::memory_order_acquire) == consumer_.load(std::memory_order_relaxed);
  }

 private:
  alignas(64) std::atomic<uint64_t> producer_{0};
  alignas(64) std::atomic<uint64_t> consumer_{0};
  alignas(64) std::array<T, kCapacity> entries_{};
};

}  // namespace weft::engine
