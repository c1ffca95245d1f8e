// SPDX-License-Identifier: Apache-2.0
//
// How a message becomes packets (IBTA Vol 1, 9.4.2, 9.7.2): first and middle packets carry exactly the path MTU, the
// last one 1..MTU bytes, a message of at most one MTU (zero bytes too) is a single ONLY packet. Pure functions of
// integers.
#pragma once

#include <cstdint>

#include "protocols/transport/work.h"

namespace weft {

inline constexpr uint32_t kMaxMessageBytes = 1u << 31;
inline constexpr uint32_t kAtomicWriteBytes = 8;  ///< IBTA Vol 1, annex A19

/// True for 256, 512, 1024, 2048 and 4096.
constexpr bool is_path_mtu(uint32_t bytes) { return bytes >= 256 && bytes <= 4096 && (bytes & (bytes - 1)) == 0; }

/// Packets, and so PSNs, of a message; at least one.
constexpr uint32_t packets_of(uint32_t message_bytes, uint32_t mtu_bytes) {
  return message_bytes <= mtu_bytes ? 1 : static_cast<uint32_t>((uint64_t{message_bytes} + mtu_bytes - 1) / mtu_bytes);
}

/// Payload of packet `index` of a message.
constexpr uint32_t payload_of(uint32_t message_bytes, uint32_t mtu_bytes, uint32_t index) {
  const uint64_t start = uint64_t{index} * mtu_bytes;
  const uint64_t left = message_bytes > start ? message_bytes - start : 0;
  return static_cast<uint32_t>(left < mtu_bytes ? left : mtu_bytes);
}

/// READ and the atomics: answered by a packet of their own, limited in number, never completed by a plain acknowledge.
constexpr bool is_read_or_atomic(WorkOpcode opcode) {
  return opcode == WorkOpcode::kRead || opcode == WorkOpcode::kCompareSwap || opcode == WorkOpcode::kFetchAdd ||
         opcode == WorkOpcode::kAtomicWrite;
}
/// Works that never leave the NIC: they take their turn in the queue and no PSN.
constexpr bool is_local(WorkOpcode opcode) {
  return opcode == WorkOpcode::kLocalInvalidate || opcode == WorkOpcode::kBindWindow;
}
constexpr bool is_write(WorkOpcode opcode) { return opcode == WorkOpcode::kWrite || opcode == WorkOpcode::kWriteImm; }
constexpr bool is_send(WorkOpcode opcode) {
  return opcode == WorkOpcode::kSend || opcode == WorkOpcode::kSendImm || opcode == WorkOpcode::kSendInvalidate;
}

/// The RC opcode of one packet of a SEND or WRITE. UC's are these plus 0x20.
constexpr Opcode message_opcode(WorkOpcode work, bool first, bool last) {
  const bool write = is_write(work);
  if (!last) {
    if (write) return first ? Opcode::kRcWriteFirst : Opcode::kRcWriteMiddle;
    return first ? Opcode::kRcSendFirst : Opcode::kRcSendMiddle;
  }
  switch (work) {
    case WorkOpcode::kWrite:
      return first ? Opcode::kRcWriteOnly : Opcode::kRcWriteLast;
    case WorkOpcode::kWriteImm:
      return first ? Opcode::kRcWriteOnlyImm : Opcode::kRcWriteLastImm;
    case WorkOpcode::kSendImm:
      return first ? Opcode::kRcSendOnlyImm : Opcode::kRcSendLastImm;
    case WorkOpcode::kSendInvalidate:
      return first ? Opcode::kRcSendOnlyInvalidate : Opcode::kRcSendLastInvalidate;
    default:
      return first ? Opcode::kRcSendOnly : Opcode::kRcSendLast;
  }
}

/// What a SEND or WRITE request packet is, whichever of RC and UC it belongs to.
struct MessagePacket {
  bool valid = false;  ///< a SEND or WRITE packet
  bool write = false;
  bool first = false;  ///< first or only
  bool last = false;   ///< last or only
  bool immediate = false;
  bool invalidate = false;
};

/// `rc_opcode` has the transport's prefix removed (UC: opcode − 0x20).
constexpr MessagePacket classify_message(uint8_t rc_opcode) {
  switch (static_cast<Opcode>(rc_opcode)) {
    case Opcode::kRcSendFirst:
      return {true, false, true, false, false, false};
    case Opcode::kRcSendMiddle:
      return {true, false, false, false, false, false};
    case Opcode::kRcSendLast:
      return {true, false, false, true, false, false};
    case Opcode::kRcSendLastImm:
      return {true, false, false, true, true, false};
    case Opcode::kRcSendOnly:
      return {true, false, true, true, false, false};
    case Opcode::kRcSendOnlyImm:
      return {true, false, true, true, true, false};
    case Opcode::kRcSendLastInvalidate:
      return {true, false, false, true, false, true};
    case Opcode::kRcSendOnlyInvalidate:
      return {true, false, true, true, false, true};
    case Opcode::kRcWriteFirst:
      return {true, true, true, false, false, false};
    case Opcode::kRcWriteMiddle:
      return {true, true, false, false, false, false};
    case Opcode::kRcWriteLast:
      return {true, true, false, true, false, false};
    case Opcode::kRcWriteLastImm:
      return {true, true, false, true, true, false};
    case Opcode::kRcWriteOnly:
      return {true, true, true, true, false, false};
    case Opcode::kRcWriteOnlyImm:
      return {true, true, true, true, true, false};
    default:
      return {};
  }
}

}  // namespace weft
