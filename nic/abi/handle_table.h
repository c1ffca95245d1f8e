// SPDX-License-Identifier: Apache-2.0
//
// The handles of one context: one name space for all kinds of objects, the lookup checks the kind (kernel_abi B.2).
// value is the object's index or key; handles go round before one comes again, so that a stale one is found out.
// Lookups need no lock; everything else the engine's.
#pragma once

#include <atomic>
#include <cstdint>

#include "nic/engine/arena.h"

namespace weft::abi {

enum class HandleKind : uint32_t { kFree = 0, kPd, kMr, kMw, kAh, kCq, kQp, kSrq };

class HandleTable {
 public:
  static constexpr uint32_t kCapacity = 1u << 16;
  static constexpr uint32_t kNone = UINT32_MAX;

  bool open() {
    entries_ = static_cast<std::atomic<uint64_t>*>(nic::map_memory(kBytes));
    return entries_ != nullptr;
  }
  void close() { nic::unmap_memory(entries_, kBytes); }

  /// kNone when all are taken.
  uint32_t add(HandleKind kind, uint32_t value) {
    for (uint32_t tried = 0; tried < kCapacity; ++tried) {
      const uint32_t handle = next_++ % kCapacity;
      if (entries_[handle].load(std::memory_order_relaxed) != 0) continue;
      entries_[handle].store(static_cast<uint64_t>(kind) << 32 | value, std::memory_order_release);
      if (handle >= high_water_) high_water_ = handle + 1;
      return handle;
    }
    return kNone;
  }
  void remove(uint32_t handle) { entries_[handle].store(0, std::memory_order_release); }

  bool find(uint32_t handle, HandleKind kind, uint32_t& value) const {
    if (handle >= kCapacity) return false;
    const uint64_t entry = entries_[handle].load(std::memory_order_acquire);
    value = static_cast<uint32_t>(entry);
    return entry >> 32 == static_cast<uint32_t>(kind);
  }

  /// Calls visit(handle, value) for every handle of that kind; visit may remove it.
  template <typename Visit>
  void for_each(HandleKind kind, Visit visit) const {
    for (uint32_t handle = 0; handle < high_water_; ++handle) {
      uint32_t value = 0;
      if (find(handle, kind, value)) visit(handle, value);
    }
  }

 private:
  static constexpr size_t kBytes = kCapacity * sizeof(std::atomic<uint64_t>);
  std::atomic<uint64_t>* entries_ = nullptr;
  uint32_t next_ = 0;
  uint32_t high_water_ = 0;
};

}  // namespace weft::abi
