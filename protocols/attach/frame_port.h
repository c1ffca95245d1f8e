// SPDX-License-Identifier: Apache-2.0
//
// The daemon's end of something that frames come from and go to, as a host's NIC sees it: a process's shared-memory port
// now, ports to the outside later. switch/dpdk implements it, nic/host uses it, scenarios/engine puts them together.
//
//   take      frames that the other side published, oldest first; their headers are a private copy, so that what was
//             checked is what is forwarded, whatever the process does to its slot meanwhile
//   deliver   copies frames to the other side and releases those it accepted; fewer than asked means no room now
//   collect   looks for slots that came back; true when the other side took something since the last call
//   notice    tells the process about a frame that went no further
//
// Called by the data-plane thread only, per burst. Nothing is visible to the process until the owner publishes.
#pragma once

#include <cstdint>
#include <span>

#include "protocols/attach/port_layout.h"
#include "protocols/base/packet.h"

namespace weft::attach {

struct TakenFrame {
  PacketRef packet;
  uint32_t header_bytes;   ///< as published; the copy holds at most kMaxFrameHeaderBytes of them
  uint32_t payload_bytes;  ///< pad included, ICRC not
  const uint8_t* headers;  ///< at most kMaxFrameHeaderBytes, a private copy, valid as long as the packet
};

/// More than any RoCE v2 frame has. A frame with longer headers is malformed.
inline constexpr uint32_t kMaxFrameHeaderBytes = 192;
inline constexpr uint32_t kBurst = 32;

class FramePort {
 public:
  virtual uint32_t take(uint8_t priority, std::span<TakenFrame> out) = 0;
  virtual uint32_t deliver(std::span<const PacketRef> packets) = 0;
  virtual bool collect() = 0;
  virtual void notice(const Notice& entry) = 0;

 protected:
  ~FramePort() = default;
};

/// The bytes behind packets, where there are bytes.
class FrameBytes : public PacketCopies {
 public:
  virtual std::span<const uint8_t> headers(PacketRef packet) const = 0;
  virtual std::span<const uint8_t> payload(PacketRef packet) const = 0;
  /// Copies the payload to switch memory so that its slot returns. False: no memory, it stays where it is.
  virtual bool park(PacketRef packet) = 0;
  /// Gives the packet and its bytes back.
  virtual void release(PacketRef packet) = 0;

 protected:
  ~FrameBytes() = default;
};

}  // namespace weft::attach
