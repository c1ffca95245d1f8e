// SPDX-License-Identifier: Apache-2.0
//
// The transport part of a RoCEv2 frame as a plain value: BTH and the extended headers its opcode calls for.
// What the machines of rc/, uc/ and ud/ take and give; the codecs of wire/ turn it into bytes and back, the packet
// descriptor keeps the part a switch needs. Integers are in host order. Source: IBTA Vol 1, chapter 9.
#pragma once

#include <cstdint>

namespace weft {

/// BTH opcodes. IBTA Vol 1, table 38; CNP from annex A17 (0x81 on the wire).
enum class Opcode : uint8_t {
  kRcSendFirst = 0x00,
  kRcSendMiddle = 0x01,
  kRcSendLast = 0x02,
  kRcSendLastImm = 0x03,
  kRcSendOnly = 0x04,
  kRcSendOnlyImm = 0x05,
  kRcWriteFirst = 0x06,
  kRcWriteMiddle = 0x07,
  kRcWriteLast = 0x08,
  kRcWriteLastImm = 0x09,
  kRcWriteOnly = 0x0a,
  kRcWriteOnlyImm = 0x0b,
  kRcReadRequest = 0x0c,
  kRcReadResponseFirst = 0x0d,
  kRcReadResponseMiddle = 0x0e,
  kRcReadResponseLast = 0x0f,
  kRcReadResponseOnly = 0x10,
  kRcAcknowledge = 0x11,
  kRcAtomicAcknowledge = 0x12,
  kRcCompareSwap = 0x13,
  kRcFetchAdd = 0x14,
  kRcSendLastInvalidate = 0x16,
  kRcSendOnlyInvalidate = 0x17,
  kRcFlush = 0x1c,
  kRcAtomicWrite = 0x1d,
  kUcSendFirst = 0x20,
  kUcSendMiddle = 0x21,
  kUcSendLast = 0x22,
  kUcSendLastImm = 0x23,
  kUcSendOnly = 0x24,
  kUcSendOnlyImm = 0x25,
  kUcWriteFirst = 0x26,
  kUcWriteMiddle = 0x27,
  kUcWriteLast = 0x28,
  kUcWriteLastImm = 0x29,
  kUcWriteOnly = 0x2a,
  kUcWriteOnlyImm = 0x2b,
  kUdSendOnly = 0x64,
  kUdSendOnlyImm = 0x65,
  kCnp = 0x81,
};

inline constexpr uint32_t kPsnMask = 0xFFFFFF;
inline constexpr uint32_t kQpnMask = 0xFFFFFF;

/// a − b on the 24-bit circle, in [−2^23, 2^23).
constexpr int32_t psn_difference(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(((a - b) & kPsnMask) << 8) >> 8;
}

struct Reth {
  uint64_t va = 0;
  uint32_t rkey = 0;
  uint32_t length = 0;
};
struct Aeth {
  uint8_t syndrome = 0;  ///< IBTA 9.7.5.2.8: 000 ACK, 001 RNR NAK + timer, 011 NAK + code
  uint32_t msn = 0;      ///< 24 bits
};
struct AtomicEth {
  uint64_t va = 0;
  uint32_t rkey = 0;
  uint64_t swap_add = 0;
  uint64_t compare = 0;
};
struct Deth {
  uint32_t qkey = 0;
  uint32_t source_qpn = 0;
};

inline constexpr uint8_t kSyndromeAck = 0x1f;  ///< end-to-end credits not in use
inline constexpr uint8_t kSyndromeRnr = 0x20;  ///< low five bits: timer code
inline constexpr uint8_t kNakSequence = 0x60;
inline constexpr uint8_t kNakInvalidRequest = 0x61;
inline constexpr uint8_t kNakRemoteAccess = 0x62;
inline constexpr uint8_t kNakRemoteOperation = 0x63;

/// One frame's transport headers. Which of the extended ones are meaningful follows from `opcode`.
struct TransportHeader {
  Opcode opcode = Opcode::kRcSendOnly;
  bool solicited = false;
  bool migration = true;  ///< MigReq: 1 = migrated, what every sender without APM sets; kept for byte-exact re-emission
  bool ack_request = false;
  bool fecn = false;
  bool becn = false;
  uint8_t pad = 0;        ///< 0..3 bytes after the payload; codecs compute it, parsers report it
  uint16_t pkey = 0xFFFF;
  uint32_t dest_qpn = 0;  ///< 24 bits
  uint32_t psn = 0;       ///< 24 bits
  uint32_t immediate = 0;      ///< ImmDt, as the number the bytes spell in network order
  uint32_t invalidate_rkey = 0;  ///< IETH
  Reth reth;
  Aeth aeth;
  AtomicEth atomic;
  uint64_t atomic_original = 0;  ///< AtomicAckETH
  Deth deth;
  uint8_t reserved6 = 0;         ///< BTH resv6a, the ICRC does not cover it; kept for byte-exact re-emission
  uint32_t xrc_srqn = 0;         ///< XRCETH, 24 bits
  uint32_t ee_context = 0;       ///< RDETH, 24 bits
  uint32_t flush = 0;            ///< FETH: placement type and selectivity level
};

}  // namespace weft
