// SPDX-License-Identifier: Apache-2.0
//
// GIDs as RoCE v2 uses them: an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d. IBTA annex A17.
#pragma once

#include <array>
#include <cstdint>

namespace weft {

using GidBytes = std::array<uint8_t, 16>;

constexpr GidBytes gid_of_ipv4(uint32_t address) {
  GidBytes gid{};
  gid[10] = gid[11] = 0xFF;
  for (unsigned i = 0; i < 4; ++i) gid[12 + i] = static_cast<uint8_t>(address >> (24 - 8 * i));
  return gid;
}

constexpr bool gid_is_ipv4(const GidBytes& gid) {
  for (unsigned i = 0; i < 10; ++i) {
    if (gid[i] != 0) return false;
  }
  return gid[10] == 0xFF && gid[11] == 0xFF;
}

/// The last four bytes, host order. Meaningful when gid_is_ipv4.
constexpr uint32_t ipv4_of_gid(const GidBytes& gid) {
  return static_cast<uint32_t>(gid[12]) << 24 | static_cast<uint32_t>(gid[13]) << 16 |
         static_cast<uint32_t>(gid[14]) << 8 | gid[15];
}

constexpr bool gid_is_multicast(const GidBytes& gid) {
  return gid[0] == 0xFF || (gid_is_ipv4(gid) && (gid[12] & 0xF0) == 0xE0);
}

/// Modified EUI-64 of a MAC: ff:fe in the middle, the universal/local bit inverted. RFC 4291, appendix A.
constexpr uint64_t eui64_of_mac(const std::array<uint8_t, 6>& mac) {
  const std::array<uint8_t, 8> id{static_cast<uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xFF, 0xFE, mac[3], mac[4], mac[5]};
  uint64_t value = 0;
  for (const uint8_t byte : id) value = value << 8 | byte;
  return value;
}

/// fe80::EUI-64, GID 0 of every port.
constexpr GidBytes link_local_gid(const std::array<uint8_t, 6>& mac) {
  GidBytes gid{0xFE, 0x80};
  const uint64_t id = eui64_of_mac(mac);
  for (unsigned i = 0; i < 8; ++i) gid[8 + i] = static_cast<uint8_t>(id >> (56 - 8 * i));
  return gid;
}

}  // namespace weft
