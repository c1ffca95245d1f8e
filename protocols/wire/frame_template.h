// SPDX-License-Identifier: Apache-2.0
//
// The fast way from a TransportHeader to bytes: everything up to UDP is prepared once per QP or AH, each frame patches
// lengths, IP id and checksum and writes its transport headers.
//
//   FrameTemplate t;
//   t.prepare(address);                                   // once
//   const uint32_t n = t.encode(header, payload_bytes, port.headroom_end(slot));
//   memset(payload + payload_bytes, 0, pad_of(payload_bytes));   // the caller's: pad bytes count as payload
//   port.publish(slot, priority, n, payload_bytes + pad_of(payload_bytes));
//
// The headers end at `end`. IPv4: DF, consecutive ids, UDP checksum 0. Lengths in IP and UDP include the pad and the
// four ICRC bytes, which a port does not carry (protocols/attach/port_layout.h). header.pad is ignored; the pad count
// comes from payload_bytes. One thread at a time.
#pragma once

#include <array>
#include <cstdint>

#include "protocols/wire/ethernet.h"
#include "protocols/wire/gid.h"
#include "protocols/wire/opcode.h"
#include "protocols/wire/transport_header.h"

namespace weft {

inline constexpr uint32_t kIcrcBytes = 4;
/// Ethernet, tag, IPv6, UDP: what precedes the BTH at most.
inline constexpr uint32_t kMaxPrefixBytes = 14 + 4 + 40 + 8;
inline constexpr uint32_t kMaxHeaderBytes = kMaxPrefixBytes + kMaxTransportBytes;

/// Bytes that fill a payload up to a multiple of four. IBTA Vol 1, 9.2.4.
constexpr uint32_t pad_of(uint32_t payload_bytes) { return (0u - payload_bytes) & 3u; }

/// Where frames go and how they are marked. IPv4 iff both GIDs are v4-mapped.
struct FrameAddress {
  MacAddress destination_mac{};
  MacAddress source_mac{};
  GidBytes source_gid{};
  GidBytes destination_gid{};
  bool tagged = false;
  uint16_t vlan_tci = 0;
  uint8_t traffic_class = 0;  ///< TOS or traffic class: DSCP 6, ECN 2
  uint8_t ttl = 64;
  uint32_t flow_label = 0;  ///< IPv6 header only; the port comes from udp_sport
  uint16_t udp_sport = 0xC000;
};

class FrameTemplate {
 public:
  void prepare(const FrameAddress& address);
  bool prepared() const { return prefix_bytes_ != 0; }
  /// Writes headers that end at `end` and returns their number of bytes (0, and nothing written, for an opcode that is
  /// not known). All of the kMaxHeaderBytes before `end` may be overwritten. payload_bytes is without pad; with it and
  /// the headers it must stay under 64 KiB.
  uint32_t encode(const TransportHeader& header, uint32_t payload_bytes, uint8_t* end);
  /// What encode will return for this opcode.
  uint32_t header_bytes(Opcode opcode) const {
    const OpcodeInfo& info = opcode_info(static_cast<uint8_t>(opcode));
    return info.known ? prefix_bytes_ + info.header_bytes : 0;
  }

 private:
  /// Ends at the array's end, so that one copy of constant size serves every kind of prefix.
  std::array<uint8_t, kMaxPrefixBytes> prefix_{};
  uint8_t prefix_bytes_ = 0;
  bool ipv4_ = false;
  uint16_t next_id_ = 0;
  uint32_t header_sum_ = 0;  ///< IPv4 words except length, id and checksum
};

/// BTH and extended headers of a known opcode, forward from `out`; pad count from header.pad. Returns their bytes.
uint32_t write_transport(const TransportHeader& header, uint8_t* out);

}  // namespace weft
