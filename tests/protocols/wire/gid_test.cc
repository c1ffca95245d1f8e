// SPDX-License-Identifier: Apache-2.0
#include "protocols/wire/gid.h"

#include <catch2/catch.hpp>

using namespace weft;

TEST_CASE("IPv4 addresses as GIDs") {
  const GidBytes gid = gid_of_ipv4(0xC6120001);
  CHECK(gid == GidBytes{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 198, 18, 0, 1});
  CHECK(gid_is_ipv4(gid));
  CHECK(ipv4_of_gid(gid) == 0xC6120001);
  CHECK_FALSE(gid_is_multicast(gid));
  CHECK(gid_is_multicast(gid_of_ipv4(0xEF010101)));
  GidBytes nearly = gid;
  nearly[0] = 1;
  CHECK_FALSE(gid_is_ipv4(nearly));
  nearly = gid;
  nearly[10] = 0;
  CHECK_FALSE(gid_is_ipv4(nearly));
}

TEST_CASE("EUI-64 and the link-local GID of a MAC") {
  CHECK(eui64_of_mac({0x02, 0x57, 0x00, 0x00, 0x00, 0x01}) == 0x005700FFFE000001u);
  CHECK(eui64_of_mac({0x52, 0x54, 0x00, 0x12, 0x34, 0x56}) == 0x505400FFFE123456u);
  const GidBytes gid = link_local_gid({0x52, 0x54, 0x00, 0x12, 0x34, 0x56});
  CHECK(gid == GidBytes{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0x00, 0xFF, 0xFE, 0x12, 0x34, 0x56});
  CHECK_FALSE(gid_is_ipv4(gid));
  CHECK_FALSE(gid_is_multicast(gid));
  CHECK(gid_is_multicast({0xFF, 0x0E}));
}
