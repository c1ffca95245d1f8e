// SPDX-License-Identifier: Apache-2.0
//
// The live side table: for each packet of the arena, where its bytes are.
//
//   headers   always in the entry itself: a private copy, made when the frame was taken
//   payload   small: in the entry, behind the headers, and the sender's slot has gone back
//             by reference: in a slot of the sender's port, which stays with us until release or park
//             parked: in an mbuf, the switch's packet memory
//
// Holding a slot holds the port: see ProcessPort::idle().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocols/attach/frame_port.h"
#include "protocols/base/packet.h"
#include "switch/dpdk/packet_memory.h"

namespace weft::dpdk {

class ProcessPort;

enum class Where : uint8_t { kInline, kSlot, kMbuf };

struct alignas(64) LiveFrame {
  const uint8_t* payload = nullptr;
  union {
    ProcessPort* port = nullptr;  ///< kSlot: whose slot
    rte_mbuf* mbuf;               ///< kMbuf
  };
  uint32_t slot = 0;
  uint32_t payload_bytes = 0;
  uint32_t icrc = 0;  ///< where kPacketIcrcChecked is set
  uint16_t header_bytes = 0;
  Where where = Where::kInline;
  uint8_t spare = 0;
  uint8_t bytes[224]{};  ///< headers, then a small payload
};
static_assert(sizeof(LiveFrame) == 256);

class FrameStore final : public attach::FrameBytes {
 public:
  /// Headers and payload together up to this size are copied at once: an ACK never occupies its sender's slot.
  static constexpr uint32_t kInlineBytes = sizeof(LiveFrame::bytes);

  FrameStore() = default;
  ~FrameStore();
  FrameStore(const FrameStore&) = delete;
  FrameStore& operator=(const FrameStore&) = delete;

  bool open(uint32_t packets, const PacketMemorySettings& memory, std::string& error);

  PacketArena& arena() { return arena_; }
  const PacketArena& arena() const { return arena_; }
  LiveFrame& at(PacketRef packet) { return frames_[packet]; }
  const LiveFrame& at(PacketRef packet) const { return frames_[packet]; }

  std::span<const uint8_t> headers(PacketRef packet) const override {
    return {frames_[packet].bytes, frames_[packet].header_bytes};
  }
  std::span<const uint8_t> payload(PacketRef packet) const override {
    return {frames_[packet].payload, frames_[packet].payload_bytes};
  }
  bool park(PacketRef packet) override;
  /// Parks the payload, unless it is small, and shares it.
  PacketRef clone(PacketRef packet) override;
  void release(PacketRef packet) override;

  /// Ports with indices to publish; each adds itself once. The live driver publishes and empties it.
  std::vector<ProcessPort*>& unpublished() { return unpublished_; }

  uint64_t parked() const { return parked_; }
  uint64_t cloned() const { return cloned_; }
  uint64_t park_failures() const { return park_failures_; }
  const PacketMemory& memory() const { return memory_; }

 private:
  PacketArena arena_;
  PacketMemory memory_;
  LiveFrame* frames_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::vector<ProcessPort*> unpublished_;
  uint64_t parked_ = 0;
  uint64_t cloned_ = 0;
  uint64_t park_failures_ = 0;
};

}  // namespace weft::dpdk
