// SPDX-License-Identifier: Apache-2.0
//
// The shared-memory port: layout of the memfd between a program's NIC engine and the daemon (DESIGN D4, nic_rules 2, 3).
//
//   transmit slots   LIFO pool owned by the process; a published slot belongs to the daemon until it comes back on
//                    the `tx_return` ring. One descriptor ring per priority (8).
//   receive slots    LIFO pool owned by the daemon; a delivered slot belongs to the process until it comes back on
//                    the `rx_return` ring. One descriptor ring.
//
// A slot is kHeadroom bytes of headroom, then the payload at that fixed offset. The frame's headers (Ethernet up to the
// last extended header) END at the payload, i.e. they start at kHeadroom − header_bytes. No ICRC bytes, no FCS; pad
// bytes count as payload. Indices run freely (uint32, never masked in memory); the ring position is index & (size − 1).
//
// Every word a process can write is hostile to the daemon: it keeps geometry, ownership and its own indices in private
// memory, and reads each shared word exactly once into a local.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "protocols/base/metrics.h"

namespace weft::attach {

inline constexpr uint32_t kPriorities = 8;
inline constexpr uint32_t kHeadroom = 256;
inline constexpr uint32_t kCacheLine = 64;

struct SlotDescriptor {
  uint32_t slot;
  uint16_t header_bytes;   ///< 1..kHeadroom
  uint16_t flags;          ///< kSlot… bits
  uint32_t payload_bytes;  ///< 0..slot_payload, pad included
  uint32_t reserved;
};
static_assert(sizeof(SlotDescriptor) == 16);

/// The producer's and the consumer's index of one ring, a cache line each.
struct RingIndices {
  alignas(kCacheLine) std::atomic<uint32_t> producer;
  alignas(kCacheLine) std::atomic<uint32_t> consumer;
};
static_assert(sizeof(RingIndices) == 2 * kCacheLine);

/// First bytes of the memfd. Written by both sides as noted.
struct PortControl {
  alignas(kCacheLine) std::atomic<uint32_t> poll_seq;          ///< process: +1 at every inline poll or thread pass
  alignas(kCacheLine) std::atomic<uint32_t> process_sleeping;  ///< process: 1 while its thread sleeps and nobody polls
  alignas(kCacheLine) RingIndices tx[kPriorities];
  RingIndices tx_return;  ///< daemon produces uint32 slot numbers
  RingIndices rx;         ///< daemon produces SlotDescriptors
  RingIndices rx_return;  ///< process produces uint32 slot numbers
  /// daemon: 1 while it does not look at this port even when it is awake, because the port was quiet: a publisher then
  /// writes its kick pipe whatever StatusPage says. Keeps hundreds of idle ports from costing the busy ones anything.
  alignas(kCacheLine) std::atomic<uint32_t> unwatched;
  alignas(kCacheLine) CounterBlock counters;  ///< process: what its engine counted
};

/// The read-only page that all clients of a daemon map (kStatus).
struct StatusPage {
  std::atomic<uint32_t> daemon_sleeping;  ///< 1 while the data plane sleeps: a publisher then writes its kick pipe
  std::atomic<uint32_t> daemon_alive;     ///< 1 until the daemon ends in an orderly way
  uint32_t version;
  uint32_t reserved;
};

/// Why a frame of (or for) a QP was not delivered; what patient timers and "because" texts are made of (DECISIONS 12).
enum class NoticeReason : uint32_t {
  kNone = 0,
  kFaultDrop = 1,      ///< a fault stage dropped it; `fault` says which
  kNoSuchQpn = 2,      ///< nobody owns that QPN (any more)
  kNoRoute = 3,
  kBadFrame = 4,       ///< malformed or bad ICRC
  kLinkDown = 5,
  kPeerDied = 6,       ///< the process that owned `qpn` at `address` is gone
  kOverflow = 7,       ///< the ring overflowed: every QP is charged
  kBufferDrop = 8,
};

struct Notice {
  uint32_t address;   ///< IPv4 of the frame's destination, host order
  uint32_t qpn;       ///< its destination QPN
  uint32_t psn_first;
  uint32_t psn_last;
  NoticeReason reason;
  uint32_t place;     ///< link or switch id
  uint32_t fault;     ///< fault id or 0
  uint32_t reserved;
};
static_assert(sizeof(Notice) == 32);

inline constexpr uint32_t kNoticeEntries = 256;

/// The read-only memfd of a port (kNotices). The daemon overwrites old entries; a reader that finds itself more than
/// kNoticeEntries behind has lost some and treats that as kOverflow.
/// A notice is about me as sender when (address, qpn) is a QP's peer; as receiver when qpn is my own QPN (a lost answer).
struct NoticeRing {
  alignas(kCacheLine) std::atomic<uint32_t> producer;
  alignas(kCacheLine) Notice entry[kNoticeEntries];
};

/// Offsets of everything in the port memfd, from its geometry.
struct PortLayout {
  uint32_t tx_slots;
  uint32_t rx_slots;
  uint32_t slot_payload;
  uint32_t slot_bytes;        ///< kHeadroom + slot_payload
  uint32_t tx_ring_offset;    ///< kPriorities rings of tx_slots SlotDescriptors
  uint32_t tx_return_offset;  ///< tx_slots uint32
  uint32_t rx_ring_offset;    ///< rx_slots SlotDescriptors
  uint32_t rx_return_offset;  ///< rx_slots uint32
  uint32_t tx_slot_offset;    ///< page-aligned
  uint32_t rx_slot_offset;
  uint32_t total;             ///< page-aligned
};

inline constexpr uint32_t kDefaultTxSlots = 256;
inline constexpr uint32_t kDefaultRxSlots = 256;
inline constexpr uint32_t kDefaultSlotPayload = 4096;
inline constexpr uint32_t kAnswerReserve = 4;  ///< transmit slots kept for answers, per priority

constexpr uint32_t align_up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

/// Slots must be powers of two in [32, 4096]; slot_payload a multiple of 64 in [256, 16384]. page: the system's.
constexpr PortLayout port_layout(uint32_t tx_slots, uint32_t rx_slots, uint32_t slot_payload, uint32_t page = 4096) {
  PortLayout l{};
  l.tx_slots = tx_slots;
  l.rx_slots = rx_slots;
  l.slot_payload = slot_payload;
  l.slot_bytes = kHeadroom + slot_payload;
  l.tx_ring_offset = align_up(sizeof(PortControl), kCacheLine);
  l.tx_return_offset = l.tx_ring_offset + kPriorities * tx_slots * static_cast<uint32_t>(sizeof(SlotDescriptor));
  l.rx_ring_offset = align_up(l.tx_return_offset + tx_slots * 4, kCacheLine);
  l.rx_return_offset = l.rx_ring_offset + rx_slots * static_cast<uint32_t>(sizeof(SlotDescriptor));
  l.tx_slot_offset = align_up(l.rx_return_offset + rx_slots * 4, page);
  l.rx_slot_offset = align_up(l.tx_slot_offset + tx_slots * l.slot_bytes, page);
  l.total = align_up(l.rx_slot_offset + rx_slots * l.slot_bytes, page);
  return l;
}
static_assert(port_layout(256, 256, 4096).total < 3u << 20);

}  // namespace weft::attach
