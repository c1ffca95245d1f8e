// SPDX-License-Identifier: Apache-2.0
//
// What each BTH opcode means for the shape of a frame. IBTA Vol 1, tables 38 and 39.
//
//   const OpcodeInfo& info = opcode_info(opcode);
//   if (!info.known) ...;
//   info.extended       bit per extended header, in wire order
//   info.header_bytes   BTH and extended headers together
//
// RC, UC, RD, UD and XRC opcodes are known as far as their headers go, and CNP; others are not.
#pragma once

#include <array>
#include <cstdint>

namespace weft {

/// Extended headers, lowest bit first on the wire.
enum ExtendedHeader : uint16_t {
  kHasRdeth = 1 << 0,
  kHasDeth = 1 << 1,
  kHasXrceth = 1 << 2,
  kHasFeth = 1 << 3,
  kHasReth = 1 << 4,
  kHasAtomic = 1 << 5,
  kHasAeth = 1 << 6,
  kHasAtomicAck = 1 << 7,
  kHasImmediate = 1 << 8,
  kHasInvalidate = 1 << 9,
  kHasCnp = 1 << 10,
};

/// Where a packet stands in its message.
enum class MessagePart : uint8_t { kFirst, kMiddle, kLast, kOnly };

struct OpcodeInfo {
  bool known = false;
  bool response = false;  ///< READ response, ACK, ATOMIC ACK: goes to the requester
  bool payload = false;   ///< may carry payload
  MessagePart part = MessagePart::kOnly;
  uint16_t extended = 0;
  uint16_t header_bytes = 0;
};

constexpr uint32_t extended_bytes(uint16_t extended) {
  constexpr std::array<uint8_t, 11> kSizes{4, 8, 4, 4, 16, 28, 4, 8, 4, 4, 16};
  uint32_t total = 0;
  for (unsigned i = 0; i < kSizes.size(); ++i) total += (extended >> i & 1) != 0 ? kSizes[i] : 0;
  return total;
}

inline constexpr uint32_t kBthBytes = 12;

/// The low five bits of an opcode, as RC uses them; the other services are subsets with headers in front.
constexpr OpcodeInfo reliable_operation(uint8_t operation) {
  using Part = MessagePart;
  // clang-format off
  switch (operation) {
    case 0x00: return {true, false, true, Part::kFirst, 0, 0};               // SEND
    case 0x01: return {true, false, true, Part::kMiddle, 0, 0};
    case 0x02: return {true, false, true, Part::kLast, 0, 0};
    case 0x03: return {true, false, true, Part::kLast, kHasImmediate, 0};
    case 0x04: return {true, false, true, Part::kOnly, 0, 0};
    case 0x05: return {true, false, true, Part::kOnly, kHasImmediate, 0};
    case 0x06: return {true, false, true, Part::kFirst, kHasReth, 0};        // RDMA WRITE
    case 0x07: return {true, false, true, Part::kMiddle, 0, 0};
    case 0x08: return {true, false, true, Part::kLast, 0, 0};
    case 0x09: return {true, false, true, Part::kLast, kHasImmediate, 0};
    case 0x0a: return {true, false, true, Part::kOnly, kHasReth, 0};
    case 0x0b: return {true, false, true, Part::kOnly, kHasReth | kHasImmediate, 0};
    case 0x0c: return {true, false, false, Part::kOnly, kHasReth, 0};        // RDMA READ
    case 0x0d: return {true, true, true, Part::kFirst, kHasAeth, 0};
    case 0x0e: return {true, true, true, Part::kMiddle, 0, 0};
    case 0x0f: return {true, true, true, Part::kLast, kHasAeth, 0};
    case 0x10: return {true, true, true, Part::kOnly, kHasAeth, 0};
    case 0x11: return {true, true, false, Part::kOnly, kHasAeth, 0};
    case 0x12: return {true, true, false, Part::kOnly, kHasAeth | kHasAtomicAck, 0};
    case 0x13: return {true, false, false, Part::kOnly, kHasAtomic, 0};
    case 0x14: return {true, false, false, Part::kOnly, kHasAtomic, 0};
    case 0x16: return {true, false, true, Part::kLast, kHasInvalidate, 0};   // SEND with invalidate
    case 0x17: return {true, false, true, Part::kOnly, kHasInvalidate, 0};
    case 0x1c: return {true, false, false, Part::kOnly, kHasFeth | kHasReth, 0};
    case 0x1d: return {true, false, true, Part::kOnly, kHasReth, 0};         // ATOMIC WRITE: 8 bytes of payload
    default: return {};
  }
  // clang-format on
}

constexpr OpcodeInfo make_opcode_info(uint8_t opcode) {
  const uint8_t operation = opcode & 0x1F;
  OpcodeInfo info;
  switch (opcode & 0xE0) {
    case 0x00:  // RC
      info = reliable_operation(operation);
      break;
    case 0x20:  // UC: SEND and WRITE only
      if (operation <= 0x0b) info = reliable_operation(operation);
      break;
    case 0x40:  // RD: every packet names its EE context, requests the source QP too
      if (operation <= 0x14) {
        info = reliable_operation(operation);
        info.extended |= info.response ? kHasRdeth : kHasRdeth | kHasDeth;
      }
      break;
    case 0x60:  // UD
      if (operation == 0x04 || operation == 0x05) {
        info = reliable_operation(operation);
        info.extended |= kHasDeth;
      }
      break;
    case 0x80:
      if (operation == 0x01) info = {true, false, false, MessagePart::kOnly, kHasCnp, 0};
      break;
    case 0xA0:  // XRC: requests name the SRQ
      if (operation <= 0x17) {
        info = reliable_operation(operation);
        if (info.known && !info.response) info.extended |= kHasXrceth;
      }
      break;
    default:
      break;
  }
  if (info.known) info.header_bytes = static_cast<uint16_t>(kBthBytes + extended_bytes(info.extended));
  return info;
}

inline constexpr std::array<OpcodeInfo, 256> kOpcodes = [] {
  std::array<OpcodeInfo, 256> table{};
  for (unsigned i = 0; i < 256; ++i) table[i] = make_opcode_info(static_cast<uint8_t>(i));
  return table;
}();

constexpr const OpcodeInfo& opcode_info(uint8_t opcode) { return kOpcodes[opcode]; }

/// BTH and extended headers of the largest opcode (RD atomic).
inline constexpr uint32_t kMaxTransportBytes = [] {
  uint32_t most = 0;
  for (const OpcodeInfo& info : kOpcodes) most = info.header_bytes > most ? info.header_bytes : most;
  return most;
}();
static_assert(kMaxTransportBytes == 12 + 4 + 8 + 28);

}  // namespace weft
