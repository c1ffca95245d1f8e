// SPDX-License-Identifier: Apache-2.0
#include "switch/dpdk/frame_store.h"

#include <string.h>
#include <sys/mman.h>

#include "switch/dpdk/process_port.h"

namespace weft::dpdk {

FrameStore::~FrameStore() {
  if (frames_ != nullptr) munmap(frames_, mapped_bytes_);
}

bool FrameStore::open(uint32_t packets, const PacketMemorySettings& memory, std::string& error) {
  WEFT_ASSERT(frames_ == nullptr);
  if (!memory_.open(memory, error)) return false;
  mapped_bytes_ = static_cast<size_t>(packets) * sizeof(LiveFrame);
  void* mapped = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED || !arena_.reserve(packets)) {
    if (mapped != MAP_FAILED) munmap(mapped, mapped_bytes_);
    error = "no memory for packet descriptors";
    return false;
  }
  frames_ = static_cast<LiveFrame*>(mapped);
  return true;
}

bool FrameStore::park(PacketRef packet) {
  LiveFrame& frame = frames_[packet];
  if (frame.where != Where::kSlot) return true;
  rte_mbuf* const mbuf = memory_.allocate(frame.payload_bytes);
  if (mbuf == nullptr) {
    ++park_failures_;
    return false;
  }
  uint8_t* const data = PacketMemory::data(mbuf);
  memcpy(data, frame.payload, frame.payload_bytes);
  frame.port->return_slot(frame.slot);
  frame.mbuf = mbuf;
  frame.payload = data;
  frame.where = Where::kMbuf;
  ++parked_;
  return true;
}

PacketRef FrameStore::clone(PacketRef packet) {
  if (!park(packet)) return kNoPacket;
  const PacketRef copy = arena_.allocate();
  if (copy == kNoPacket) return kNoPacket;
  arena_[copy] = arena_[packet];
  arena_[copy].next = kNoPacket;
  const LiveFrame& from = frames_[packet];
  LiveFrame& to = frames_[copy];
  to = from;
  if (from.where == Where::kMbuf) {
    PacketMemory::hold(from.mbuf);
  } else {
    to.payload = to.bytes + to.header_bytes;
  }
  ++cloned_;
  return copy;
}

void FrameStore::release(PacketRef packet) {
  LiveFrame& frame = frames_[packet];
  switch (frame.where) {
    case Where::kInline: break;
    case Where::kSlot: frame.port->return_slot(frame.slot); break;
    case Where::kMbuf: PacketMemory::release(frame.mbuf); break;
  }
  frame.where = Where::kInline;
  arena_.release(packet);
}

}  // namespace weft::dpdk
