// SPDX-License-Identifier: Apache-2.0
//
// Memory regions and their keys. A key is (index + 1) << 8 | 8 bits that change whenever the index is used again; lkey
// and rkey are the same number, as with the kernel's soft-RoCE.
//
//   add(pd, region...)      takes a region and gives its key; 0 when the table is full
//   find(key)               by key, or nullptr
//   user_address(...)       the one check of every access: key, protection domain, rights, bounds without overflow
//
// Not thread-safe: the engine's lock.
#pragma once

#include <cstdint>

#include "nic/engine/arena.h"

namespace weft::nic {

/// Access rights, numbered as ibv_access_flags.
enum Access : uint32_t {
  kAccessLocalWrite = 1,
  kAccessRemoteWrite = 2,
  kAccessRemoteRead = 4,
  kAccessRemoteAtomic = 8,
  kAccessWindowBind = 16,
  kAccessZeroBased = 32,
};

struct MemoryRegion {
  uint64_t start = 0;  ///< the program's address
  uint64_t length = 0;
  uint64_t iova = 0;  ///< the address that requests name
  uint32_t pd = 0;
  uint32_t access = 0;
  uint32_t key = 0;
  uint32_t windows = 0;  ///< memory windows bound to it
};

class MrTable {
 public:
  bool open(uint32_t capacity);
  /// The region with a fresh key, still to be filled in; nullptr when the table is full.
  MemoryRegion* add();
  void remove(uint32_t key);
  MemoryRegion* find(uint32_t key) const;
  /// The program's address of [va, va + bytes) under `key`, or nullptr when any check fails. bytes 0 checks the key and
  /// the rights only.
  uint8_t* user_address(uint32_t key, uint64_t va, uint64_t bytes, uint32_t rights, uint32_t pd) const;
  uint32_t used() const { return regions_.used(); }

 private:
  Pool<MemoryRegion> regions_;
  uint8_t* generation_ = nullptr;  ///< low byte of the last key of each index
};

}  // namespace weft::nic
