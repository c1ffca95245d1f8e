// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/mr_table.h"

namespace weft::nic {

bool MrTable::open(uint32_t capacity) {
  generation_ = static_cast<uint8_t*>(map_memory(round_up(capacity, 4096)));
  return generation_ != nullptr && regions_.open(capacity);
}

MemoryRegion* MrTable::add() {
  uint32_t index = 0;
  MemoryRegion* region = regions_.take(index);
  if (region == nullptr) return nullptr;
  // The step is odd, so that all 256 values come round; a stale key is then wrong for 255 registrations.
  generation_[index] = static_cast<uint8_t>(generation_[index] + 0x35);
  region->key = (index + 1) << 8 | generation_[index];
  return region;
}

void MrTable::remove(uint32_t key) {
  if (find(key) != nullptr) regions_.give((key >> 8) - 1);
}

MemoryRegion* MrTable::find(uint32_t key) const {
  MemoryRegion* region = regions_.at((key >> 8) - 1);
  return region != nullptr && region->key == key ? region : nullptr;
}

uint8_t* MrTable::user_address(uint32_t key, uint64_t va, uint64_t bytes, uint32_t rights, uint32_t pd) const {
  const MemoryRegion* region = find(key);
  if (region == nullptr || region->pd != pd || (region->access & rights) != rights) return nullptr;
  if (bytes == 0) return reinterpret_cast<uint8_t*>(region->start);
  const uint64_t offset = va - region->iova;
  if (va < region->iova || offset > region->length || bytes > region->length - offset) return nullptr;
  return reinterpret_cast<uint8_t*>(region->start + offset);
}

}  // namespace weft::nic
