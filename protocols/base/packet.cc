// SPDX-License-Identifier: Apache-2.0
#include "protocols/base/packet.h"

#include <sys/mman.h>

namespace weft {

PacketArena::~PacketArena() {
  if (packets_ != nullptr) munmap(packets_, mapped_bytes_);
}

bool PacketArena::reserve(uint32_t capacity) {
  WEFT_ASSERT(packets_ == nullptr && capacity > 0 && capacity < kNoPacket);
  mapped_bytes_ = static_cast<size_t>(capacity) * sizeof(PacketDescriptor);
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  // A hint only: descriptors are touched at random, and TLB misses cost a quarter of the event rate.
  madvise(memory, mapped_bytes_, MADV_HUGEPAGE);
  packets_ = static_cast<PacketDescriptor*>(memory);
  capacity_ = capacity;
  return true;
}

}  // namespace weft
