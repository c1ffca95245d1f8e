// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/route.h"

#include <catch2/catch.hpp>
#include <cerrno>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::nic;

TEST_CASE("Addresses are checked against the NIC's GID table", "[nic][route]") {
  test::Rig rig(2);
  const attach::Welcome& nic = rig.node(0).welcome;
  AddressAttributes a;
  a.dgid = gid_of_ipv4(rig.node(1).welcome.ipv4);
  a.sgid_index = 1;
  a.is_global = 1;
  a.port_num = 1;
  CHECK(check_address(nic, a) == 0);
  SECTION("no GRH") { a.is_global = 0; }
  SECTION("another port") { a.port_num = 2; }
  SECTION("an index beyond the table") { a.sgid_index = 2; }
  SECTION("an index far beyond") { a.sgid_index = 255; }
  SECTION("the other address family") { a.sgid_index = 0; }
  SECTION("no destination") { a.dgid = {}; }
  SECTION("no such service level") { a.sl = 16; }
  CHECK(check_address(nic, a) == EINVAL);
}

TEST_CASE("In a sparse table only the entries in use are addresses", "[nic][route]") {
  test::Rig rig(2);
  attach::Welcome nic = rig.node(0).welcome;
  nic.gid_first = 5;
  AddressAttributes a;
  a.dgid = gid_of_ipv4(rig.node(1).welcome.ipv4);
  a.is_global = 1;
  a.port_num = 1;
  for (uint32_t index = 0; index < 256; ++index) {
    a.sgid_index = static_cast<uint8_t>(index);
    CHECK(check_address(nic, a) == (index == 6 ? 0 : EINVAL));
  }
}

TEST_CASE("The priority: DSCP by its class, or the SL", "[nic][route]") {
  CHECK(priority_of(0, 0) == 0);
  CHECK(priority_of(0, 7) == 7);
  CHECK(priority_of(0, 15) == 7);
  CHECK(priority_of(26 << 2, 1) == 3);
  CHECK(priority_of((26 << 2) | 2, 1) == 3);
  CHECK(priority_of(255, 0) == 7);
  CHECK(priority_of(2, 5) == 0);  // ECN bits alone are a traffic class
}
