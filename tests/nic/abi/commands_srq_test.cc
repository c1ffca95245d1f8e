// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

TEST_CASE("CREATE_SRQ keeps to its limits and gives what it says", "[nic][abi][srq]") {
  Rig rig(1);
  Client c(rig, 0);
  Srq srq;
  CHECK(c.try_create_srq({.max_wr = 0}, srq) == -EINVAL);
  CHECK(c.try_create_srq({.max_wr = 32768}, srq) == -EINVAL);
  CHECK(c.try_create_srq({.max_sge = 33}, srq) == -EINVAL);
  CHECK(c.try_create_srq({.pd = 777}, srq) == -EINVAL);
  CHECK(rig.node(0).platform->rings_mapped == 0);
  REQUIRE(c.try_create_srq({.max_wr = 100, .max_sge = 3, .limit = 50}, srq) == 40);
  CHECK(srq.max_wr == 127);
  CHECK(srq.max_sge == 3);
  CHECK(srq.ring.head()->log2_elem_size == 7);
  const auto now = c.query_srq(srq);
  CHECK(now.max_wr == 127);
  CHECK(now.max_sge == 3);
  CHECK(now.srq_limit == 0);
  const uint32_t pd = c.pd;
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &pd, 4, 0) == -EBUSY);
  REQUIRE(c.destroy_srq(srq) == 24);
  CHECK(c.destroy_srq(srq) == -EINVAL);
  CHECK(rig.node(0).platform->rings_mapped == 0);
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &pd, 4, 0) > 0);
}

TEST_CASE("max_srq is a limit, and what was destroyed makes room", "[nic][abi][srq]") {
  Rig rig(1);
  Client c(rig, 0);
  const uint32_t limit = rig.device(0).limits().max_srq;
  std::vector<uint32_t> handles;
  auto create = [&]() {
    CreatedSrq out = {};
    ib_uverbs_create_srq in = {};
    in.response = reinterpret_cast<uint64_t>(&out);
    in.pd_handle = c.pd;
    in.max_wr = in.max_sge = 1;
    const long result = c.plain(IB_USER_VERBS_CMD_CREATE_SRQ, &in, sizeof in, sizeof out);
    if (result > 0) handles.push_back(out.handle);
    return result;
  };
  for (uint32_t i = 0; i < limit; ++i) REQUIRE(create() > 0);
  CHECK(create() == -ENOMEM);
  Srq last;
  last.handle = handles.back();
  REQUIRE(c.destroy_srq(last) > 0);
  CHECK(create() > 0);
}

TEST_CASE("The extended command makes basic SRQs and no others", "[nic][abi][srq]") {
  Rig rig(1);
  Client c(rig, 0);
  CreatedSrq out = {};
  auto create = [&](uint32_t type) {
    ib_uverbs_create_xsrq in = {};
    in.response = reinterpret_cast<uint64_t>(&out);
    in.pd_handle = c.pd;
    in.max_wr = in.max_sge = 1;
    in.srq_type = type;
    return c.plain(IB_USER_VERBS_CMD_CREATE_XSRQ, &in, sizeof in, sizeof out);
  };
  CHECK(create(0) == 56);
  CHECK(out.max_wr == 1);
  CHECK(out.map.size > 0);
  CHECK(create(1) == -EOPNOTSUPP);
  CHECK(create(2) == -EOPNOTSUPP);
  CHECK(create(3) == -EINVAL);
}

TEST_CASE("MODIFY_SRQ changes size and limit together or not at all", "[nic][abi][srq]") {
  Rig rig(1);
  Client c(rig, 0);
  Srq srq = c.create_srq({.max_wr = 15});
  for (uint64_t i = 0; i < 10; ++i) c.post_srq_recv(srq, i, {});
  CHECK(c.modify_srq(srq, 4, 0, 0) == -EINVAL);
  CHECK(c.modify_srq(srq, 2, 0, 16) == -EINVAL);
  CHECK(c.modify_srq(srq, 1, 0, 0) == -EINVAL);
  CHECK(c.modify_srq(srq, 1, 9, 0) == -EINVAL);      // ten are posted
  CHECK(c.modify_srq(srq, 1, 32768, 0) == -EINVAL);  // more than max_srq_wr
  CHECK(c.modify_srq(srq, 3, 20, 32) == -EINVAL);
  CHECK(c.query_srq(srq).max_wr == 15);
  REQUIRE(c.modify_srq(srq, 3, 20, 31) > 0);
  CHECK(c.query_srq(srq).max_wr == 31);
  CHECK(c.query_srq(srq).srq_limit == 31);
  CHECK(c.modify_srq(srq, 1, 10, 0) == -EINVAL);  // below the limit that is armed
  REQUIRE(c.modify_srq(srq, 2, 0, 0) > 0);
  CHECK(c.modify_srq(srq, 1, 10, 0) > 0);
  CHECK(c.query_srq(srq).max_wr == 15);
  CHECK(rig.node(0).platform->rings_mapped == 1);
  ib_uverbs_modify_srq in = {};
  in.srq_handle = srq.handle;
  in.attr_mask = 1;
  in.max_wr = 20;
  CHECK(c.plain(IB_USER_VERBS_CMD_MODIFY_SRQ, &in, sizeof in, 0) == -EINVAL);  // nowhere to put the new ring's place
}

TEST_CASE("A resized SRQ keeps its requests and their order", "[nic][abi][srq]") {
  Rig rig(2);
  Client a(rig, 0), b(rig, 1);
  Srq srq = b.create_srq({.max_wr = 15});
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq();
  const Qp from = a.create_qp(a_cq, a_cq), to = b.create_qp(b_cq, b_cq, {.srq = &srq});
  connect(a, from, b, to);
  uint64_t posted = 0, taken = 0;
  auto post = [&](uint32_t n) {
    while (n-- != 0) b.post_srq_recv(srq, posted++, {});
  };
  auto take = [&](uint32_t n) {
    for (; n-- != 0; ++taken) {
      REQUIRE(a.post(from, {.wr_id = taken}) > 0);
      expect_wc(rig, b, b_cq, taken);
      expect_wc(rig, a, a_cq, taken);
    }
  };
  for (const uint32_t size : {40u, 15u, 100u, 12u}) {
    post(11);
    take(6);
    REQUIRE(b.modify_srq(srq, 1, size, 0) > 0);
    post(3);
    take(8);
  }
  CHECK(taken == posted);
}
