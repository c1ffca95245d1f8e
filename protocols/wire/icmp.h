// SPDX-License-Identifier: Apache-2.0
//
// ICMP echo (RFC 792) and what IPv6 neighbours say to each other (RFC 4443, RFC 4861) as values, and the checksum that
// both carry.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "protocols/base/bytes.h"
#include "protocols/wire/ethernet.h"
#include "protocols/wire/gid.h"
#include "protocols/wire/ipv4.h"

namespace weft {

inline constexpr uint8_t kIpProtocolIcmp = 1;
inline constexpr uint8_t kIpProtocolIcmpv6 = 58;
inline constexpr uint8_t kIcmpEchoReply = 0;
inline constexpr uint8_t kIcmpEchoRequest = 8;
inline constexpr uint8_t kIcmpv6EchoRequest = 128;
inline constexpr uint8_t kIcmpv6EchoReply = 129;
inline constexpr uint8_t kNeighbourSolicitation = 135;
inline constexpr uint8_t kNeighbourAdvertisement = 136;

/// Of every ICMP and ICMPv6 message the first eight bytes.
struct IcmpHeader {
  uint8_t type = 0;
  uint8_t code = 0;
  Be16 checksum;
  Be32 rest;  ///< echo: identifier and sequence; advertisement: flags
};
static_assert(sizeof(IcmpHeader) == 8 && alignof(IcmpHeader) == 1);

inline constexpr uint32_t kAdvertisementSolicited = 1u << 30;
inline constexpr uint32_t kAdvertisementOverride = 1u << 29;

/// Solicitation or advertisement with the one option that matters here. RFC 4861, 4.3, 4.4, 4.6.1.
struct NeighbourMessage {
  IcmpHeader icmp;
  GidBytes target{};
  uint8_t option = 0;  ///< 1 source, 2 target link-layer address
  uint8_t option_words = 1;
  MacAddress mac{};
};
static_assert(sizeof(NeighbourMessage) == 32 && alignof(NeighbourMessage) == 1);

/// One's complement sum as RFC 1071 wants it, of `bytes` behind what was summed up before.
inline uint64_t checksum_add(uint64_t sum, Bytes bytes) {
  size_t i = 0;
  for (; i + 2 <= bytes.size(); i += 2) sum += static_cast<uint32_t>(bytes[i]) << 8 | bytes[i + 1];
  if (i < bytes.size()) sum += static_cast<uint32_t>(bytes[i]) << 8;
  return sum;
}
inline bool checksum_good(uint64_t sum) { return fold_checksum(sum) == 0xFFFF; }
inline uint16_t checksum_of(uint64_t sum) { return static_cast<uint16_t>(~fold_checksum(sum)); }

/// What ICMPv6 sums beside its message. RFC 8200, 8.1.
inline uint64_t pseudo_header_sum(const GidBytes& source, const GidBytes& destination, uint32_t bytes, uint8_t protocol) {
  return checksum_add(checksum_add(bytes + static_cast<uint64_t>(protocol), source), destination);
}

/// ff02::1:ffXX:XXXX, where those listen who may have the address. RFC 4291, 2.7.1.
constexpr GidBytes solicited_node(const GidBytes& gid) {
  return {0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, gid[13], gid[14], gid[15]};
}

}  // namespace weft
