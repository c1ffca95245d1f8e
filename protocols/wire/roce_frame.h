// SPDX-License-Identifier: Apache-2.0
//
// A RoCE v2 frame as a value, and the way there and back.
//
//   RoceFrame f;
//   if (ParseError e = parse_headers(headers, payload_bytes, f); e != ParseError::kOk) count(e);
//   uint32_t n = encode_headers(f, end);       // the same bytes again, ending at `end`
//
// parse_headers  a frame as a port carries it: Ethernet up to the last extended header in one piece, payload (pad
//                included) elsewhere, no ICRC. `headers` must hold exactly the headers.
// parse_roce     a frame in one piece, with the four ICRC bytes (from outside, captures) or without; bytes after the IP
//                packet (Ethernet's own padding) are ignored.
//
// What is not RoCE v2 or is malformed is an enum, never an exception; every byte is hostile. `out` is complete when
// kOk, else partly filled. The ICRC is not checked here (protocols/icrc). Several threads may parse at once.
#pragma once

#include <cstdint>

#include "protocols/base/bytes.h"
#include "protocols/wire/ethernet.h"
#include "protocols/wire/frame_template.h"
#include "protocols/wire/gid.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/transport_header.h"

namespace weft {

enum class ParseError : uint8_t {
  kOk = 0,
  kTruncated,    ///< shorter than its headers or its IP length say
  kNotIp,        ///< EtherType is neither IPv4 nor IPv6
  kBadIpHeader,  ///< version or header length (options are not RoCE)
  kBadIpChecksum,
  kFragment,
  kNotUdp,
  kNotRoce,     ///< another UDP port
  kBadLength,   ///< IP, UDP and frame lengths disagree, or payload where the opcode has none
  kBadVersion,  ///< BTH TVer is not 0
  kUnknownOpcode,
  kBadPad,  ///< more pad than payload, or payload with pad not a multiple of four
  kCount,
};
/// "bad-ip-checksum" and so on: the name of a drop reason.
const char* parse_error_name(ParseError error);

struct RoceFrame {
  MacAddress destination_mac{};
  MacAddress source_mac{};
  bool tagged = false;
  bool ipv4 = false;  ///< else IPv6
  uint16_t vlan_tci = 0;
  GidBytes source_gid{};  ///< v4-mapped for IPv4
  GidBytes destination_gid{};
  uint32_t source_ipv4 = 0;  ///< host order; 0 for IPv6
  uint32_t destination_ipv4 = 0;
  uint8_t traffic_class = 0;  ///< DSCP 6, ECN 2
  uint8_t ttl = 64;
  uint16_t ip_id = 0;                        ///< IPv4 only
  uint16_t ip_fragment = kIpv4DontFragment;  ///< IPv4 only: flags and offset
  uint32_t flow_label = 0;                   ///< IPv6 only
  uint16_t udp_sport = 0;
  uint16_t udp_checksum = 0;
  TransportHeader transport;

  uint16_t ip_offset = 0;         ///< from the start of the frame
  uint16_t transport_offset = 0;  ///< of the BTH
  uint16_t header_bytes = 0;      ///< Ethernet up to the last extended header; the payload's offset in one-piece frames
  uint32_t payload_bytes = 0;     ///< without pad (transport.pad)

  uint8_t dscp() const { return traffic_class >> 2; }
  Ecn ecn() const { return static_cast<Ecn>(traffic_class & 3); }
};

enum class IcrcBytes : uint8_t { kPresent, kAbsent };

/// payload_bytes: pad included.
[[nodiscard]] ParseError parse_headers(Bytes headers, uint32_t payload_bytes, RoceFrame& out);
[[nodiscard]] ParseError parse_roce(Bytes frame, IcrcBytes icrc, RoceFrame& out);

/// The headers of `frame`, ending at `end`; lengths (from payload_bytes) and IPv4 checksum are computed, everything
/// else is written as the value says. Returns their bytes, 0 for an unknown opcode. At most kMaxHeaderBytes.
uint32_t encode_headers(const RoceFrame& frame, uint8_t* end);

/// Switch rewrites in place; both keep checksum and ICRC right. False, and nothing changed, when `frame` is no IP
/// frame, or for decrement_ttl when the frame has no hop left.
bool rewrite_ecn(MutableBytes frame, Ecn ecn);
bool decrement_ttl(MutableBytes frame);

}  // namespace weft
