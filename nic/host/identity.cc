// SPDX-License-Identifier: Apache-2.0
#include "nic/host/identity.h"

#include <algorithm>
#include <bit>
#include <cstdio>

#include "protocols/base/assert.h"

namespace weft::host {
namespace {

constexpr Mac mac_of(uint32_t host, uint32_t nic) {
  return {0x02, 0x57, static_cast<uint8_t>(nic), static_cast<uint8_t>(host >> 16), static_cast<uint8_t>(host >> 8),
          static_cast<uint8_t>(host)};
}

// RFC 4291, appendix A: the universal/local bit is inverted.
constexpr uint64_t eui64_of(const Mac& mac) {
  uint64_t eui = mac[0] ^ 0x02u;
  for (const uint8_t byte : {mac[1], mac[2], uint8_t{0xFF}, uint8_t{0xFE}, mac[3], mac[4], mac[5]}) eui = (eui << 8) | byte;
  return eui;
}

constexpr Gid link_local_gid(uint64_t eui) {
  Gid gid{0xFE, 0x80};
  for (size_t i = 0; i < 8; ++i) gid[8 + i] = static_cast<uint8_t>(eui >> (8 * (7 - i)));
  return gid;
}

constexpr Gid v4_mapped_gid(uint32_t ipv4) {
  Gid gid{};
  gid[10] = gid[11] = 0xFF;
  for (size_t i = 0; i < 4; ++i) gid[12 + i] = static_cast<uint8_t>(ipv4 >> (8 * (3 - i)));
  return gid;
}

bool is_v4_mapped(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t b) { return b == 0; }) && gid[10] == 0xFF && gid[11] == 0xFF;
}

uint32_t ipv4_of(const Gid& gid) {
  return static_cast<uint32_t>(gid[12]) << 24 | static_cast<uint32_t>(gid[13]) << 16 | static_cast<uint32_t>(gid[14]) << 8 |
         gid[15];
}

}  // namespace

AddressPlan::AddressPlan(uint32_t hosts, uint32_t nics, uint32_t gid_holes, uint32_t first)
    : hosts_(hosts), nics_(nics), gid_holes_(gid_holes), first_(first), stride_(std::bit_floor(hosts) * 2) {
  WEFT_ASSERT(hosts >= 1 && hosts <= kMaxHosts && nics >= 1 && nics <= 32 && gid_holes <= kMaxGidHoles);
  WEFT_ASSERT(fits(hosts, nics, first));
}

bool AddressPlan::fits(uint32_t hosts, uint32_t nics, uint32_t first) {
  constexpr uint32_t kLast = 0x1FFFE;  // the one before the broadcast address of 198.18.0.0/15
  return first <= kLast && first + (nics - 1) * std::bit_floor(hosts) * 2 + hosts <= kLast;
}

NicIdentity AddressPlan::nic(uint32_t host, uint32_t nic) const {
  WEFT_ASSERT(host < hosts_ && nic < nics_);
  NicIdentity id;
  id.host = host;
  id.nic = nic;
  id.mac = mac_of(first_ + host, nic);
  id.ipv4 = kFabricNet + first_ + nic * stride_ + host + 1;
  id.guid = eui64_of(id.mac);
  id.gids = {link_local_gid(id.guid), v4_mapped_gid(id.ipv4)};
  id.gid_holes = gid_holes_;
  return id;
}

std::optional<NicIdentity> AddressPlan::find_ipv4(uint32_t ipv4) const {
  if (ipv4 <= kFabricNet + first_) return std::nullopt;
  const uint32_t offset = ipv4 - kFabricNet - first_ - 1;
  const uint32_t host_index = offset % stride_;
  const uint32_t nic_index = offset / stride_;
  if (host_index >= hosts_ || nic_index >= nics_) return std::nullopt;
  return nic(host_index, nic_index);
}

std::optional<NicIdentity> AddressPlan::find(const Gid& gid) const {
  if (is_v4_mapped(gid)) return find_ipv4(ipv4_of(gid));
  if (gid[0] != 0xFE || gid[1] != 0x80) return std::nullopt;
  const uint32_t nic_index = gid[10];
  const uint32_t host_index = (static_cast<uint32_t>(gid[13]) << 16 | static_cast<uint32_t>(gid[14]) << 8 | gid[15]) - first_;
  if (host_index >= hosts_ || nic_index >= nics_) return std::nullopt;
  NicIdentity id = nic(host_index, nic_index);
  if (id.gids[0] != gid) return std::nullopt;
  return id;
}

std::optional<Mac> multicast_mac(const Gid& gid) {
  if (gid[0] == 0xFF) return Mac{0x33, 0x33, gid[12], gid[13], gid[14], gid[15]};
  if (is_v4_mapped(gid) && (gid[12] & 0xF0) == 0xE0) {
    return Mac{0x01, 0x00, 0x5E, static_cast<uint8_t>(gid[13] & 0x7F), gid[14], gid[15]};
  }
  return std::nullopt;
}

std::string text_of_ipv4(uint32_t ipv4) {
  char text[16];
  std::snprintf(text, sizeof text, "%u.%u.%u.%u", ipv4 >> 24, (ipv4 >> 16) & 255, (ipv4 >> 8) & 255, ipv4 & 255);
  return text;
}

std::string text_of_mac(const Mac& mac) {
  char text[18];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
  return text;
}

std::string text_of_gid(const Gid& gid) {
  std::string text;
  for (size_t i = 0; i < gid.size(); i += 2) {
    char group[6];
    std::snprintf(group, sizeof group, "%s%02x%02x", i == 0 ? "" : ":", gid[i], gid[i + 1]);
    text += group;
  }
  return text;
}

std::string text_of_guid(uint64_t guid) {
  char text[20];
  std::snprintf(text, sizeof text, "%04x:%04x:%04x:%04x", static_cast<unsigned>(guid >> 48),
                static_cast<unsigned>(guid >> 32) & 0xFFFF, static_cast<unsigned>(guid >> 16) & 0xFFFF,
                static_cast<unsigned>(guid) & 0xFFFF);
  return text;
}

}  // namespace weft::host
