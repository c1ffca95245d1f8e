// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <cerrno>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {
const GidBytes kGroup = gid_of_ipv4(0xEF010203);
}

TEST_CASE("Attach and detach: who may, what twice means, what a bound QP refuses", "[abi][multicast]") {
  Rig rig(1);
  Client client(rig, 0);
  const Cq cq = client.create_cq();
  QpOptions options;
  options.type = 4;
  const Qp qp = client.create_qp(cq, cq, options);
  const Qp other = client.create_qp(cq, cq, options);
  options.type = 2;
  const Qp rc = client.create_qp(cq, cq, options);
  auto& joined = rig.node(0).platform->groups;

  CHECK(client.multicast(rc, kGroup, true) == -EINVAL);
  CHECK(client.multicast(qp, gid_of_ipv4(0xC6120001), true) == -EINVAL);
  CHECK(client.multicast(qp, GidBytes{}, true) == -EINVAL);
  CHECK(client.multicast(qp, kGroup, false) == -EINVAL);
  Qp unknown = qp;
  unknown.handle = 0xABCD;
  CHECK(client.multicast(unknown, kGroup, true) == -EINVAL);
  CHECK(joined.empty());

  CHECK(client.multicast(qp, kGroup, true) == 32);
  CHECK(client.multicast(qp, kGroup, true) == 32);
  CHECK(joined.count(kGroup) == 1);
  CHECK(client.multicast(other, kGroup, true) == 32);
  CHECK(joined.count(kGroup) == 2);
  CHECK(client.destroy_qp(qp) == -EBUSY);
  CHECK(client.multicast(qp, kGroup, false) == 32);
  CHECK(client.multicast(qp, kGroup, false) == -EINVAL);
  CHECK(client.destroy_qp(qp) > 0);
  CHECK(joined.count(kGroup) == 1);
}

TEST_CASE("What the fabric refuses leaves no membership", "[abi][multicast]") {
  Rig rig(1);
  Client client(rig, 0);
  const Cq cq = client.create_cq();
  QpOptions options;
  options.type = 4;
  const Qp qp = client.create_qp(cq, cq, options);
  rig.node(0).platform->multicast_error = ENOMEM;
  CHECK(client.multicast(qp, kGroup, true) == -ENOMEM);
  rig.node(0).platform->multicast_error = 0;
  CHECK(client.multicast(qp, kGroup, false) == -EINVAL);
  CHECK(client.destroy_qp(qp) > 0);
}

TEST_CASE("A context that ends leaves its groups", "[abi][multicast]") {
  Rig rig(1);
  {
    Client client(rig, 0);
    const Cq cq = client.create_cq();
    QpOptions options;
    options.type = 4;
    for (int i = 0; i < 3; ++i) {
      const Qp qp = client.create_qp(cq, cq, options);
      REQUIRE(client.multicast(qp, kGroup, true) == 32);
      REQUIRE(client.multicast(qp, gid_of_ipv4(0xEF010204), true) == 32);
    }
    CHECK(rig.node(0).platform->groups.size() == 6);
  }
  CHECK(rig.node(0).platform->groups.empty());
}

TEST_CASE("QPs of one group are limited as advertised", "[abi][multicast]") {
  Rig rig(1);
  Client client(rig, 0);
  const Cq cq = client.create_cq();
  QpOptions options;
  options.type = 4;
  std::vector<Qp> qps;
  for (int i = 0; i < 57; ++i) qps.push_back(client.create_qp(cq, cq, options));
  for (int i = 0; i < 56; ++i) REQUIRE(client.multicast(qps[static_cast<size_t>(i)], kGroup, true) == 32);
  CHECK(client.multicast(qps[56], kGroup, true) == -ENOMEM);
  CHECK(client.multicast(qps[0], kGroup, false) == 32);
  CHECK(client.multicast(qps[56], kGroup, true) == 32);
}
