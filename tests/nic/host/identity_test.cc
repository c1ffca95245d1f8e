// SPDX-License-Identifier: Apache-2.0
#include "nic/host/identity.h"

#include <catch2/catch.hpp>
#include <set>

using namespace weft::host;

TEST_CASE("Addresses follow the rule") {
  const AddressPlan plan(2, 2);  // S is 4
  const NicIdentity h1 = plan.nic(1, 0);
  CHECK(text_of_ipv4(h1.ipv4) == "198.18.0.2");
  CHECK(text_of_mac(h1.mac) == "02:57:00:00:00:01");
  CHECK(text_of_guid(h1.guid) == "0057:00ff:fe00:0001");
  CHECK(text_of_gid(h1.gids[0]) == "fe80:0000:0000:0000:0057:00ff:fe00:0001");
  CHECK(text_of_gid(h1.gids[1]) == "0000:0000:0000:0000:0000:ffff:c612:0002");
  const NicIdentity second = plan.nic(1, 1);
  CHECK(text_of_ipv4(second.ipv4) == "198.18.0.6");
  CHECK(text_of_mac(second.mac) == "02:57:01:00:00:01");
  CHECK(second.device() == "rxe1");
  CHECK(second.netdev() == "weft1");
  CHECK(text_of_ipv4(AddressPlan(4, 2).nic(0, 1).ipv4) == "198.18.0.9");  // S is above 4: 8
}

TEST_CASE("Every NIC of the largest fabric has its own address in 198.18/15 and is found by it") {
  const AddressPlan plan(kMaxHosts, 32);
  std::set<uint32_t> seen;
  for (uint32_t host = 0; host < kMaxHosts; host += 7) {
    for (uint32_t nic = 0; nic < 32; ++nic) {
      const NicIdentity id = plan.nic(host, nic);
      REQUIRE(id.ipv4 >> 17 == kFabricNet >> 17);
      REQUIRE(seen.insert(id.ipv4).second);
      for (const Gid& gid : id.gids) {
        const auto found = plan.find(gid);
        REQUIRE(found);
        REQUIRE(found->host == host);
        REQUIRE(found->nic == nic);
      }
    }
  }
}

TEST_CASE("Strangers are not found") {
  const AddressPlan plan(3, 2);
  CHECK_FALSE(plan.find_ipv4(kFabricNet));
  CHECK_FALSE(plan.find_ipv4(kFabricNet + 4));  // host 3 of 3
  CHECK(plan.find_ipv4(kFabricNet + 3));
  CHECK_FALSE(plan.find_ipv4(kFabricNet + 9));  // NIC 2 of 2
  CHECK_FALSE(plan.find_ipv4(0x0A000001));
  CHECK_FALSE(plan.find_ipv4(UINT32_MAX));
  CHECK_FALSE(plan.find(Gid{}));
  Gid almost = plan.nic(0, 0).gids[0];
  almost[11] ^= 1;
  CHECK_FALSE(plan.find(almost));
  almost = plan.nic(0, 0).gids[0];
  almost[2] = 1;
  CHECK_FALSE(plan.find(almost));
}

TEST_CASE("A fabric that starts later shares no address with the one before it") {
  const AddressPlan plan(2, 2, 0, 16);
  const NicIdentity id = plan.nic(1, 1);
  CHECK(text_of_ipv4(id.ipv4) == "198.18.0.22");
  CHECK(text_of_mac(id.mac) == "02:57:01:00:00:11");
  for (const Gid& gid : id.gids) {
    const auto found = plan.find(gid);
    REQUIRE(found);
    CHECK(found->host == 1);
    CHECK(found->nic == 1);
  }
  const AddressPlan before(2, 2);
  for (const Gid& gid : before.nic(0, 0).gids) CHECK_FALSE(plan.find(gid));
  for (const Gid& gid : id.gids) CHECK_FALSE(before.find(gid));
}

TEST_CASE("Multicast GIDs map to group addresses") {
  Gid v6{0xFF, 0x12};
  v6[12] = 0xC0;
  v6[15] = 9;
  CHECK(multicast_mac(v6) == Mac{0x33, 0x33, 0xC0, 0, 0, 9});
  Gid v4{};
  v4[10] = v4[11] = 0xFF;
  v4[12] = 239;
  v4[13] = 0x81;
  v4[15] = 5;
  CHECK(multicast_mac(v4) == Mac{0x01, 0x00, 0x5E, 0x01, 0, 5});
  v4[12] = 10;
  CHECK_FALSE(multicast_mac(v4));
  CHECK_FALSE(multicast_mac(Gid{}));
}
