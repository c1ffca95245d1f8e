// SPDX-License-Identifier: Apache-2.0
#include "protocols/wire/udp.h"

#include <catch2/catch.hpp>
#include <utility>

using namespace weft;

TEST_CASE("UDP source port of a flow label") {
  for (const auto& [label, port] : {std::pair{0x00000u, 0xC000u},
                                    {0x00001u, 0xC001u},
                                    {0x03FFFu, 0xFFFFu},
                                    {0x04000u, 0xC001u},
                                    {0x12345u, 0xE341u},
                                    {0xABCDEu, 0xFCF4u},
                                    {0xFFFFFu, 0xFFC0u}}) {
    CHECK(udp_source_port(label) == port);
  }
}

TEST_CASE("flow label of a pair of QPNs, and the port it gives") {
  struct Vector {
    uint32_t local, remote, label, port;
  };
  for (const Vector& v :
       {Vector{0x11, 0x12, 0x00132, 0xC132}, {0x118, 0xd2, 0x0E5B0, 0xE5B3}, {1024, 1025, 0x00401, 0xC401}}) {
    CHECK(flow_label_of_qpns(v.local, v.remote) == v.label);
    CHECK(flow_label_of_qpns(v.remote, v.local) == v.label);
    CHECK(udp_source_port(v.label) == v.port);
  }
  CHECK(flow_label_of_qpns(0xFFFFFF, 0xFFFFFF) <= 0xFFFFF);
}
