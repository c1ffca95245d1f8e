// SPDX-License-Identifier: Apache-2.0
#include "protocols/wire/ipv4.h"

#include <catch2/catch.hpp>

using namespace weft;

TEST_CASE("header checksum: the ICRC golden frame of 192.168.0.7") {
  Ipv4Header ip;
  ip.tos = 1;
  ip.total_length = 20 + 8 + 12 + 20 + 4;
  ip.id = 1144;
  ip.fragment = kIpv4DontFragment;
  ip.source = 0xC0A80007;
  ip.destination = 0xC0A80007;
  CHECK(ipv4_checksum(ip) == 0xB4D5);
  ip.checksum = 0xB4D5;
  CHECK(ipv4_checksum_good(ip));
  CHECK(ipv4_checksum(ip) == 0xB4D5);
  ip.ttl = 63;
  CHECK_FALSE(ipv4_checksum_good(ip));
}

TEST_CASE("an update of one word gives the checksum of the whole header") {
  Ipv4Header ip;
  ip.source = 0x0A000001;
  ip.destination = 0x0A000002;
  ip.total_length = 66;
  for (uint32_t id = 0; id < 0x10000; id += 13) {
    ip.id = static_cast<uint16_t>(id);
    ip.checksum = ipv4_checksum(ip);
    Ipv4Header marked = ip;
    marked.tos = static_cast<uint8_t>(id >> 8 | 3);
    const uint16_t before = static_cast<uint16_t>(ip.version_ihl << 8 | ip.tos);
    const uint16_t after = static_cast<uint16_t>(marked.version_ihl << 8 | marked.tos);
    marked.checksum = ipv4_checksum_update(ip.checksum, before, after);
    REQUIRE(ipv4_checksum_good(marked));
    REQUIRE(marked.checksum == ipv4_checksum(marked));
  }
}
