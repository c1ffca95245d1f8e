// SPDX-License-Identifier: Apache-2.0
//
// Packets as the pipeline sees them: a 32-bit reference into an arena of 64-byte descriptors. Switches, links and NICs
// decide on the descriptor; where the bytes are, if there are any, is a side table of the live mode.
//
//   PacketArena arena;  arena.reserve(65536);
//   PacketRef p = arena.allocate();            // kNoPacket when the arena is full
//   arena[p].priority = 3;  arena.release(p);
//
// PacketList is a FIFO threaded through PacketDescriptor::next; a packet is in at most one list. Nothing here allocates
// after reserve(). One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "protocols/base/assert.h"
#include "protocols/base/time.h"

namespace weft {

using PacketRef = uint32_t;
inline constexpr PacketRef kNoPacket = UINT32_MAX;

inline constexpr uint32_t kPriorityCount = 8;
inline constexpr uint32_t kNoEndpoint = UINT32_MAX;
/// A destination that is a group of endpoints: this bit and the group's number. IBTA Vol 1, 10.5.
inline constexpr uint32_t kGroupDestination = 1u << 31;
inline constexpr uint32_t kMulticastQpn = 0xFFFFFF;  ///< destination QPN of every multicast packet
constexpr bool is_group(uint32_t destination) { return destination >= kGroupDestination && destination != kNoEndpoint; }

/// What is decided about a frame once, at ingress. Integers in host order; addresses are dense indices where the
/// fabric knows them, so that no hop looks anything up.
struct PacketDescriptor {
  PacketRef next = kNoPacket;        ///< list link; belongs to the list that holds the packet
  uint32_t wire_bytes = 0;           ///< Ethernet header to ICRC, both included; no FCS
  uint32_t source = kNoEndpoint;     ///< dense endpoint (NIC) index
  uint32_t destination = kNoEndpoint;
  uint32_t source_address = 0;       ///< IPv4 identity of the source endpoint, also for IPv6 frames
  uint32_t destination_address = 0;
  uint32_t dest_qpn = 0;
  uint32_t psn = 0;
  uint32_t flow_hash = 0;
  uint32_t seat = 0;                 ///< who sent it: tag of the process's port, 0 when nobody's
  uint8_t opcode = 0;                ///< BTH opcode
  uint8_t priority = 0;
  uint8_t ecn = 0;                   ///< two bits of the TOS byte
  uint8_t flags = 0;                 ///< kPacket… bits
  uint16_t ingress_port = 0;         ///< of the switch that holds it
  uint16_t header_bytes = 0;
  Instant head{};                    ///< arrival of the first bit at the present place
  Instant tail{};                    ///< arrival of the last
};
static_assert(sizeof(PacketDescriptor) == 64);
static_assert(std::is_trivially_copyable_v<PacketDescriptor>);

inline constexpr uint8_t kPacketAnswer = 1;    ///< goes back to a requester: ACK, READ response, atomic answer
inline constexpr uint8_t kPacketIpv6 = 2;
inline constexpr uint8_t kPacketIcrcChecked = 4;  ///< carries a computed ICRC that the receiver verifies

class PacketArena {
 public:
  PacketArena() = default;
  ~PacketArena();
  PacketArena(const PacketArena&) = delete;
  PacketArena& operator=(const PacketArena&) = delete;

  /// Maps room for `capacity` packets (huge pages where the system gives them). Once. False: out of memory.
  [[nodiscard]] bool reserve(uint32_t capacity);

  PacketRef allocate() {
    PacketRef packet = free_;
    if (packet != kNoPacket) {
      free_ = packets_[packet].next;
    } else if (untouched_ < capacity_) {
      packet = untouched_++;
    } else {
      return kNoPacket;
    }
    ++live_;
    return packet;
  }
  void release(PacketRef packet) {
    WEFT_ASSERT(packet < untouched_ && live_ > 0);
    packets_[packet].next = free_;
    free_ = packet;
    --live_;
  }

  PacketDescriptor& operator[](PacketRef packet) { return packets_[packet]; }
  const PacketDescriptor& operator[](PacketRef packet) const { return packets_[packet]; }
  void prefetch(PacketRef packet) const { __builtin_prefetch(packets_ + packet); }

  uint32_t capacity() const { return capacity_; }
  uint32_t live() const { return live_; }
  uint32_t available() const { return capacity_ - live_; }

 private:
  PacketDescriptor* packets_ = nullptr;
  size_t mapped_bytes_ = 0;
  uint32_t capacity_ = 0;
  uint32_t untouched_ = 0;  ///< packets from here on were never used: a small fabric touches little memory
  uint32_t live_ = 0;
  PacketRef free_ = kNoPacket;
};

/// Makes further references to a frame, for those who replicate. The bytes, where there are any, are shared or copied.
class PacketCopies {
 public:
  /// kNoPacket: no memory; the packet itself is as before.
  virtual PacketRef clone(PacketRef packet) = 0;

 protected:
  ~PacketCopies() = default;
};

struct PacketList {
  PacketRef head = kNoPacket;
  PacketRef tail = kNoPacket;
  uint32_t packets = 0;

  bool empty() const { return head == kNoPacket; }
  void push(PacketArena& arena, PacketRef packet) {
    arena[packet].next = kNoPacket;
    if (head == kNoPacket) {
      head = packet;
    } else {
      arena[tail].next = packet;
    }
    tail = packet;
    ++packets;
  }
  /// Back to where it came from; for a packet that was popped and could not go.
  void push_front(PacketArena& arena, PacketRef packet) {
    arena[packet].next = head;
    if (head == kNoPacket) tail = packet;
    head = packet;
    ++packets;
  }
  PacketRef pop(PacketArena& arena) {
    const PacketRef packet = head;
    if (packet == kNoPacket) return kNoPacket;
    head = arena[packet].next;
    if (head == kNoPacket) {
      tail = kNoPacket;
    } else {
      arena.prefetch(head);
    }
    --packets;
    return packet;
  }
};

}  // namespace weft
