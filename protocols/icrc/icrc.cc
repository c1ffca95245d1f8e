// SPDX-License-Identifier: Apache-2.0
#include "protocols/icrc/icrc.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

#include "protocols/wire/bth.h"
#include "protocols/wire/ethernet.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/udp.h"

namespace weft {
namespace {

/// CRC-32 of eight bytes of ones, as ISA-L takes it (complemented): the masked LRH.
constexpr uint32_t kLrhSeed = ~0xDEBB20E3u;

uint32_t crc(uint32_t seed, Bytes bytes) {
  return bytes.empty() ? seed : crc32_gzip_refl(seed, bytes.data(), bytes.size());
}

/// Sets what switches may change to ones. `ip` begins at the IP header and is writable.
void mask_variant_fields(MutableBytes ip, bool ipv4) {
  const auto ones = [ip](size_t offset, size_t bytes) {
    if (offset + bytes <= ip.size()) std::memset(ip.data() + offset, 0xFF, bytes);
  };
  size_t udp = 0;
  if (ipv4) {
    ones(offsetof(Ipv4Header, tos), 1);
    ones(offsetof(Ipv4Header, ttl), 1);
    ones(offsetof(Ipv4Header, checksum), 2);
    udp = sizeof(Ipv4Header);
  } else {
    if (!ip.empty()) ip[0] |= 0x0F;  // low nibble: upper half of the traffic class; the version stays
    ones(1, 3);                      // rest of the class, flow label
    ones(offsetof(Ipv6Header, hop_limit), 1);
    udp = sizeof(Ipv6Header);
  }
  ones(udp + offsetof(UdpHeader, checksum), 2);
  ones(udp + sizeof(UdpHeader) + offsetof(BthHeader, reserved), 1);
}

}  // namespace

uint32_t icrc(Bytes headers, Bytes payload) {
  size_t ip_offset = sizeof(EthernetHeader);
  const auto ether_type = [headers](size_t offset) {
    return offset + 2 <= headers.size() ? static_cast<uint16_t>(headers[offset] << 8 | headers[offset + 1]) : 0;
  };
  uint16_t type = static_cast<uint16_t>(ether_type(offsetof(EthernetHeader, type)));
  if (type == kEtherTypeVlan) {
    type = static_cast<uint16_t>(ether_type(ip_offset + offsetof(VlanTag, type)));
    ip_offset += sizeof(VlanTag);
  }
  const Bytes ip = headers.subspan(std::min(ip_offset, headers.size()));
  // All variant fields lie in the first bytes; the rest needs no copy.
  uint8_t copy[sizeof(Ipv6Header) + sizeof(UdpHeader) + sizeof(BthHeader)];
  const size_t copied = std::min(ip.size(), sizeof(copy));
  if (copied != 0) std::memcpy(copy, ip.data(), copied);
  mask_variant_fields({copy, copied}, type == kEtherTypeIpv4);
  uint32_t value = crc(kLrhSeed, {copy, copied});
  value = crc(value, ip.subspan(copied));
  return crc(value, payload);
}

void store_icrc(uint32_t value, uint8_t* trailer) {
  for (unsigned i = 0; i < kIcrcBytes; ++i) trailer[i] = static_cast<uint8_t>(value >> (8 * i));
}

uint32_t load_icrc(const uint8_t* trailer) {
  uint32_t value = 0;
  for (unsigned i = 0; i < kIcrcBytes; ++i) value |= static_cast<uint32_t>(trailer[i]) << (8 * i);
  return value;
}

bool icrc_good(const RoceFrame& parsed, Bytes frame) {
  const size_t body = parsed.payload_bytes + parsed.transport.pad;
  if (frame.size() < parsed.header_bytes + body + kIcrcBytes) return false;
  return icrc(frame.first(parsed.header_bytes), frame.subspan(parsed.header_bytes, body)) ==
         load_icrc(frame.data() + parsed.header_bytes + body);
}

}  // namespace weft
