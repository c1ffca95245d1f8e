// SPDX-License-Identifier: Apache-2.0
//
// Every limit that QUERY_DEVICE advertises: as many as it says, one more is refused, and destroying one makes room.
// What is in use cannot be destroyed, and what belongs to another protection domain cannot be used.
#include <catch2/catch.hpp>
#include <vector>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

ib_uverbs_query_device_resp query_device(Client& c) {
  ib_uverbs_query_device_resp out = {};
  ib_uverbs_query_device in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  REQUIRE(c.plain(IB_USER_VERBS_CMD_QUERY_DEVICE, &in, sizeof in, sizeof out) == 16);
  return out;
}

long try_pd(Client& c, uint32_t& handle) {
  ib_uverbs_alloc_pd in = {};
  ib_uverbs_alloc_pd_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  const long result = c.plain(IB_USER_VERBS_CMD_ALLOC_PD, &in, sizeof in, 4);
  handle = out.pd_handle;
  return result;
}

long dealloc_pd(Client& c, uint32_t handle) { return c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &handle, 4, 0); }

long try_ah(Client& c, uint32_t& handle) {
  struct {
    uint32_t handle, ah_num, reserved;
  } out = {};
  ib_uverbs_create_ah in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.pd_handle = c.pd;
  memcpy(in.attr.grh.dgid, c.rig.node(0).welcome.gids[1], 16);
  in.attr.grh.sgid_index = 1;
  in.attr.is_global = 1;
  in.attr.port_num = 1;
  const long result = c.plain(IB_USER_VERBS_CMD_CREATE_AH, &in, sizeof in, 12);
  handle = out.handle;
  return result;
}

long destroy_ah(Client& c, uint32_t handle) { return c.plain(IB_USER_VERBS_CMD_DESTROY_AH, &handle, 4, 0); }

long try_cq(Client& c, uint32_t& handle) {
  struct {
    ib_uverbs_create_cq_resp core;
    mminfo map;
  } out = {};
  ib_uverbs_create_cq in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.cqe = 1;
  in.comp_channel = -1;
  const long result = c.plain(IB_USER_VERBS_CMD_CREATE_CQ, &in, sizeof in, 24);
  handle = out.core.cq_handle;
  return result;
}

long destroy_cq(Client& c, uint32_t handle) {
  Cq cq;
  cq.handle = handle;
  return c.destroy_cq(cq);
}

long try_qp(Client& c, uint32_t cq, uint32_t& handle) {
  struct {
    ib_uverbs_create_qp_resp core;
    mminfo rq, sq;
  } out = {};
  ib_uverbs_create_qp in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.pd_handle = c.pd;
  in.send_cq_handle = in.recv_cq_handle = cq;
  in.max_send_wr = in.max_recv_wr = in.max_send_sge = in.max_recv_sge = 1;
  in.qp_type = 2;
  const long result = c.plain(IB_USER_VERBS_CMD_CREATE_QP, &in, sizeof in, 64);
  handle = out.core.qp_handle;
  return result;
}

long destroy_qp(Client& c, uint32_t handle) {
  Qp qp;
  qp.handle = handle;
  return c.destroy_qp(qp);
}

/// `already` of `limit` exist. One more than the limit is refused with `error`; a destroyed one makes room, twice.
template <typename Create, typename Destroy>
void fill(uint32_t limit, uint32_t already, long error, Create create, Destroy destroy) {
  std::vector<uint32_t> handles;
  uint32_t handle = 0;
  for (uint32_t i = already; i < limit; ++i) {
    if (create(handle) <= 0) FAIL("only " << i << " of " << limit);
    handles.push_back(handle);
  }
  for (int round = 0; round < 2; ++round) {
    CHECK(create(handle) == error);
    REQUIRE(destroy(handles.back()) > 0);
    CHECK(create(handles.back()) > 0);
  }
  for (const uint32_t h : handles) {
    if (destroy(h) <= 0) FAIL("a handle cannot be destroyed");
  }
}

}  // namespace

TEST_CASE("Every advertised number of objects can be made, and not one more", "[nic][abi][limits]") {
  Rig rig(1, {.qpn_log2 = 8});
  Client c(rig, 0);
  const auto device = query_device(c);
  SECTION("protection domains") {
    fill(
        device.max_pd, 1, -ENOMEM, [&](uint32_t& h) { return try_pd(c, h); },
        [&](uint32_t h) { return dealloc_pd(c, h); });
  }
  SECTION("address handles") {
    fill(
        device.max_ah, 0, -ENOMEM, [&](uint32_t& h) { return try_ah(c, h); },
        [&](uint32_t h) { return destroy_ah(c, h); });
  }
  SECTION("completion queues") {
    fill(
        device.max_cq, 0, -ENOMEM, [&](uint32_t& h) { return try_cq(c, h); },
        [&](uint32_t h) { return destroy_cq(c, h); });
    CHECK(rig.node(0).platform->rings_mapped == 0);
  }
  SECTION("queue pairs") {
    CHECK(device.max_qp == 128);  // half of the range of numbers
    uint32_t cq = 0;
    REQUIRE(try_cq(c, cq) > 0);
    fill(
        device.max_qp, 0, -ENOMEM, [&](uint32_t& h) { return try_qp(c, cq, h); },
        [&](uint32_t h) { return destroy_qp(c, h); });
    CHECK(rig.node(0).platform->rings_mapped == 1);
  }
}

TEST_CASE("Limits hold for all contexts of a process together, and closing one gives back what it had",
          "[nic][abi][limits]") {
  Rig rig(1, {.qpn_log2 = 6});
  Client kept(rig, 0);
  const uint32_t limit = static_cast<uint32_t>(query_device(kept).max_qp);
  uint32_t cq = 0, handle = 0;
  REQUIRE(try_cq(kept, cq) > 0);
  {
    Client other(rig, 0);
    uint32_t other_cq = 0;
    REQUIRE(try_cq(other, other_cq) > 0);
    for (uint32_t i = 0; i < limit; ++i) REQUIRE(try_qp(other, other_cq, handle) > 0);
    CHECK(try_qp(kept, cq, handle) == -ENOMEM);
  }
  for (uint32_t i = 0; i < limit; ++i) REQUIRE(try_qp(kept, cq, handle) > 0);
  CHECK(try_qp(kept, cq, handle) == -ENOMEM);
}

TEST_CASE("The caps of a QP go up to what is advertised", "[nic][abi][limits]") {
  Rig rig(2);
  Client c(rig, 0);
  const auto device = query_device(c);
  const Cq cq = c.create_cq(static_cast<uint32_t>(device.max_cqe));
  CHECK(cq.cqe >= static_cast<uint32_t>(device.max_cqe));
  const auto wr = static_cast<uint32_t>(device.max_qp_wr), sges = static_cast<uint32_t>(device.max_sge);
  const Qp qp = c.create_qp(cq, cq, {.send_wr = wr, .recv_wr = wr, .send_sge = sges, .recv_sge = sges});
  CHECK(qp.max_send_wr >= wr);
  CHECK(qp.max_recv_wr >= wr);
  CHECK(qp.max_send_sge == sges);
  CHECK(qp.max_recv_sge == sges);
  REQUIRE(c.to_init(qp) > 0);
  ConnectOptions o;
  o.rd_atomic = static_cast<uint8_t>(device.max_qp_rd_atom);
  CHECK(c.to_rtr(qp, 5, 1, o, 0) > 0);
  CHECK(c.to_rts(qp, o, 0) > 0);
}

TEST_CASE("What is in use is not destroyed", "[nic][abi][limits]") {
  Rig rig(1);
  Client c(rig, 0);
  uint64_t memory[8] = {};
  SECTION("a PD by its MR") {
    const Mr mr = c.reg_mr(memory, sizeof memory);
    CHECK(dealloc_pd(c, c.pd) == -EBUSY);
    REQUIRE(c.dereg_mr(mr) > 0);
  }
  SECTION("a PD by its AH") {
    uint32_t ah = 0;
    REQUIRE(try_ah(c, ah) > 0);
    CHECK(dealloc_pd(c, c.pd) == -EBUSY);
    REQUIRE(destroy_ah(c, ah) > 0);
    CHECK(destroy_ah(c, ah) == -EINVAL);
  }
  SECTION("a PD and both CQs by a QP, in any state") {
    const Cq send = c.create_cq(), receive = c.create_cq();
    const Qp qp = c.create_qp(send, receive);
    const uint8_t state = GENERATE(uint8_t{0}, uint8_t{1}, uint8_t{6});
    if (state != 0) REQUIRE(c.to_init(qp) > 0);
    if (state == 6) REQUIRE(c.to_state(qp, 6) > 0);
    CHECK(dealloc_pd(c, c.pd) == -EBUSY);
    CHECK(c.destroy_cq(send) == -EBUSY);
    CHECK(c.destroy_cq(receive) == -EBUSY);
    REQUIRE(c.destroy_qp(qp) > 0);
    CHECK(c.destroy_qp(qp) == -EINVAL);
    CHECK(c.destroy_cq(send) > 0);
    CHECK(c.destroy_cq(receive) > 0);
  }
  CHECK(dealloc_pd(c, c.pd) > 0);
  CHECK(dealloc_pd(c, c.pd) == -EINVAL);
}

TEST_CASE("Objects of another protection domain are of no use", "[nic][abi][limits]") {
  Rig rig(2);
  Client a(rig, 0), b(rig, 1);
  const uint32_t own = a.pd, foreign = a.alloc_pd();
  std::vector<uint8_t> source(64, 1), target(64, 0);
  a.pd = foreign;
  const Mr foreign_mr = a.reg_mr(source.data(), 64);
  a.pd = own;
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq();
  SECTION("an MR as the source of a SEND") {
    const Qp qa = a.create_qp(a_cq, a_cq), qb = b.create_qp(b_cq, b_cq);
    connect(a, qa, b, qb);
    REQUIRE(a.post(qa, {.wr_id = 1, .sges = {sge(source.data(), 64, foreign_mr.lkey)}}) > 0);
    expect_wc(rig, a, a_cq, 1, kLocProt);
  }
  SECTION("an MR as the target of a peer's WRITE") {
    const Qp qa = a.create_qp(a_cq, a_cq), qb = b.create_qp(b_cq, b_cq);
    connect(a, qa, b, qb);
    const Mr local = b.reg_mr(target.data(), 64);
    REQUIRE(b.post(qb, {.opcode = kWrite,
                        .wr_id = 1,
                        .remote_addr = reinterpret_cast<uint64_t>(source.data()),
                        .rkey = foreign_mr.rkey,
                        .sges = {sge(target.data(), 64, local.lkey)}}) > 0);
    expect_wc(rig, b, b_cq, 1, kRemAccess);
  }
  SECTION("an AH for a datagram") {
    a.pd = foreign;
    const uint32_t ah = a.create_ah(1);
    a.pd = own;
    const Qp qa = a.create_qp(a_cq, a_cq, {.type = 4});
    REQUIRE(a.to_init(qa) > 0);
    REQUIRE(a.to_rtr(qa, 0, 0, {}, 0) > 0);
    REQUIRE(a.to_rts(qa, {}, 0) > 0);
    REQUIRE(a.post(qa, {.wr_id = 1, .remote_qpn = 5, .remote_qkey = 1, .ah_num = ah}) > 0);
    expect_wc(rig, a, a_cq, 1, kLocQpOp);
    CHECK(a.query_state(qa) == 5);
  }
}
