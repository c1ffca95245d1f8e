// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

ib_uverbs_create_qp good_create(Client& c, const Cq& cq, void* response) {
  ib_uverbs_create_qp in = {};
  in.response = reinterpret_cast<uint64_t>(response);
  in.pd_handle = c.pd;
  in.send_cq_handle = in.recv_cq_handle = cq.handle;
  in.max_send_wr = in.max_recv_wr = 10;
  in.max_send_sge = in.max_recv_sge = 1;
  in.qp_type = 2;
  return in;
}

}  // namespace

TEST_CASE("CREATE_QP refuses what it cannot keep, and reports what it gives", "[nic][abi][qp]") {
  Rig rig(1);
  Client c(rig, 0);
  const Cq cq = c.create_cq();
  uint64_t response[8] = {};
  const auto good = good_create(c, cq, response);
  auto attempt = [&](auto change) {
    ib_uverbs_create_qp in = good;
    change(in);
    return c.plain(IB_USER_VERBS_CMD_CREATE_QP, &in, sizeof in, 64);
  };
  for (const uint8_t type : {8, 9, 10, 0xff}) CHECK(attempt([&](auto& in) { in.qp_type = type; }) == -EOPNOTSUPP);
  for (const uint8_t type : {0, 1, 5, 77}) CHECK(attempt([&](auto& in) { in.qp_type = type; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.max_send_wr = 16385; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.max_recv_wr = UINT32_MAX; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.max_send_sge = 33; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.max_recv_sge = 33; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.max_inline_data = 513; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.is_srq = 1; }) == -EINVAL);  // names no SRQ
  CHECK(attempt([](auto& in) { in.pd_handle = 77; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.send_cq_handle = in.pd_handle; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.response = 8; }) == -EFAULT);
  CHECK(rig.node(0).platform->rings_mapped == 1);
  CHECK(c.destroy_cq(cq) > 0);  // no failed attempt holds on to it

  const Cq other = c.create_cq();
  const Qp qp =
      c.create_qp(other, other, {.send_wr = 100, .recv_wr = 50, .send_sge = 3, .recv_sge = 2, .inline_data = 100});
  CHECK(qp.max_send_wr == 127);
  CHECK(qp.max_recv_wr == 63);
  CHECK(qp.max_inline == 112);
  CHECK(qp.max_send_sge == 7);  // scatter list and inline data share the element
  CHECK(qp.max_recv_sge == 2);
  CHECK(qp.send.head()->log2_elem_size == 9);
  CHECK(qp.receive.head()->log2_elem_size == 7);
  const Qp none = c.create_qp(other, other, {.send_wr = 0, .recv_wr = 0, .send_sge = 0, .recv_sge = 0});
  CHECK(c.destroy_qp(none) > 0);
}

TEST_CASE("The extended CREATE_QP makes the same QP, and refuses what it alone can ask for", "[nic][abi][qp]") {
  Rig rig(1);
  Client c(rig, 0);
  const Cq cq = c.create_cq();
  struct {
    ib_uverbs_ex_create_qp_resp core;
    mminfo rq, sq;
  } out = {};
  static_assert(sizeof out == 72);
  struct {
    ib_uverbs_cmd_hdr head;
    ib_uverbs_ex_cmd_hdr more;
    ib_uverbs_ex_create_qp body;
  } good = {};
  good.head = {IB_USER_VERBS_EX_CMD_CREATE_QP | IB_USER_VERBS_CMD_FLAG_EXTENDED, sizeof good.body / 8, 5};
  good.more.response = reinterpret_cast<uint64_t>(&out);
  good.more.provider_out_words = 4;
  good.body.pd_handle = c.pd;
  good.body.send_cq_handle = good.body.recv_cq_handle = cq.handle;
  good.body.max_send_wr = good.body.max_recv_wr = 10;
  good.body.max_send_sge = good.body.max_recv_sge = 1;
  good.body.qp_type = 4;
  auto attempt = [&](auto change) {
    auto in = good;
    change(in.body);
    return c.raw(&in, sizeof in);
  };
  CHECK(attempt([](auto& in) { in.create_flags = 2; }) == -EOPNOTSUPP);
  CHECK(attempt([](auto& in) { in.comp_mask = 1; }) == -EOPNOTSUPP);
  CHECK(attempt([](auto& in) { in.source_qpn = 5; }) == -EOPNOTSUPP);
  CHECK(attempt([](auto& in) { in.reserved = 1; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.qp_type = 8; }) == -EOPNOTSUPP);
  CHECK(attempt([](auto& in) { in.max_send_wr = 16385; }) == -EINVAL);
  CHECK(attempt([](auto& in) { in.pd_handle = 77; }) == -EINVAL);
  CHECK(rig.node(0).platform->rings_mapped == 1);
  REQUIRE(attempt([](auto&) {}) == sizeof good);
  CHECK(out.core.response_length == sizeof out.core);
  CHECK(out.core.base.max_send_wr == 15);
  CHECK(out.core.base.qpn >> 14 == 1);
  CHECK(out.rq.size != 0);
  CHECK(out.sq.offset != out.rq.offset);
  Qp qp;
  qp.handle = out.core.base.qp_handle;
  CHECK(c.destroy_qp(qp) > 0);
}

TEST_CASE("MODIFY_QP checks values before states", "[nic][abi][qp]") {
  Rig rig(2);
  Client c(rig, 0);
  const Cq cq = c.create_cq();
  const Qp qp = c.create_qp(cq, cq);
  auto init = [&](uint32_t mask, auto change) {
    ib_uverbs_modify_qp in = {};
    in.qp_state = 1;
    in.port_num = 1;
    change(in);
    return c.modify(qp, mask, in);
  };
  CHECK(init(0x39, [](auto& in) { in.port_num = 2; }) == -EINVAL);
  CHECK(init(0x39 | 1u << 25, [](auto&) {}) == -EOPNOTSUPP);
  CHECK(init(0x39 | 1u << 14, [](auto&) {}) == -EINVAL);
  CHECK(init(0x39, [](auto& in) { in.qp_state = 7; }) == -EINVAL);
  CHECK(init(0x29, [](auto&) {}) == -EINVAL);
  CHECK(init(0x3b, [](auto&) {}) == -EINVAL);
  CHECK(c.query_state(qp) == 0);
  CHECK(init(0x39, [](auto&) {}) > 0);
  CHECK(rig.node(0).platform->last_state == 1);

  auto rtr = [&](auto change) {
    ib_uverbs_modify_qp in = {};
    in.qp_state = 2;
    c.fill_address(1, 1, in.dest);
    in.path_mtu = 3;
    in.max_dest_rd_atomic = 1;
    change(in);
    return c.modify(qp, 0x129181, in);
  };
  CHECK(rtr([](auto& in) { in.path_mtu = 0; }) == -EINVAL);
  CHECK(rtr([](auto& in) { in.path_mtu = 6; }) == -EINVAL);
  CHECK(rtr([](auto& in) { in.max_dest_rd_atomic = 129; }) == -EINVAL);
  CHECK(rtr([](auto& in) { in.dest.sgid_index = 9; }) == -EINVAL);
  CHECK(rtr([](auto& in) { in.dest.port_num = 2; }) == -EINVAL);
  CHECK(rtr([](auto& in) { in.dest.is_global = 0; }) == -EINVAL);
  CHECK(rtr([](auto& in) { in.dest.dgid[15] = 99; }) == -ETIMEDOUT);
  CHECK(c.query_state(qp) == 1);
  CHECK(rtr([](auto&) {}) > 0);
  CHECK(c.ring_doorbell(qp) == -EINVAL);
  auto rts = [&](auto change) {
    ib_uverbs_modify_qp in = {};
    in.qp_state = 3;
    change(in);
    return c.modify(qp, 0x12e01, in);
  };
  CHECK(rts([](auto& in) { in.timeout = 32; }) == -EINVAL);
  CHECK(rts([](auto& in) { in.retry_cnt = 8; }) == -EINVAL);
  CHECK(rts([](auto& in) { in.rnr_retry = 8; }) == -EINVAL);
  CHECK(rts([](auto& in) { in.max_rd_atomic = 200; }) == -EINVAL);
  CHECK(rts([](auto&) {}) > 0);
  CHECK(c.ring_doorbell(qp) > 0);
}

TEST_CASE("QUERY_QP returns what MODIFY_QP set", "[nic][abi][qp]") {
  Rig rig(2);
  Pair p(rig, {.signal_all = true},
         {.mtu = 4, .timeout = 13, .retry = 5, .rnr_retry = 6, .min_rnr_timer = 9, .rd_atomic = 5});
  ib_uverbs_query_qp_resp out = {};
  ib_uverbs_query_qp in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.qp_handle = p.a_qp.handle;
  REQUIRE(p.a.plain(IB_USER_VERBS_CMD_QUERY_QP, &in, sizeof in, 128) == 24);
  CHECK(out.qp_state == 3);
  CHECK(out.cur_qp_state == 3);
  CHECK(out.path_mtu == 4);
  CHECK(out.timeout == 13);
  CHECK(out.retry_cnt == 5);
  CHECK(out.rnr_retry == 6);
  CHECK(out.min_rnr_timer == 9);
  CHECK(out.max_rd_atomic == 8);  // rounded up, as soft-RoCE does
  CHECK(out.max_dest_rd_atomic == 8);
  CHECK(out.dest_qp_num == p.b_qp.qpn);
  CHECK(out.rq_psn == 0xFFFFF0);
  CHECK(out.sq_psn == 0xFFFFE0);
  CHECK(out.qp_access_flags == 0xf);
  CHECK(out.port_num == 1);
  CHECK(out.sq_sig_all == 1);
  CHECK(memcmp(out.dest.dgid, rig.node(1).welcome.gids[1], 16) == 0);
  CHECK(out.dest.is_global == 1);
}

TEST_CASE("A QP destroyed while its address resolves is not modified afterwards", "[nic][abi][qp]") {
  Rig rig(2);
  Client c(rig, 0);
  const Cq cq = c.create_cq();
  const Qp qp = c.create_qp(cq, cq);
  REQUIRE(c.to_init(qp) > 0);
  rig.while_resolving = [&] { REQUIRE(c.destroy_qp(qp) > 0); };
  CHECK(c.to_rtr(qp, 1, 1, {}, 0) == -EINVAL);
}

TEST_CASE("POST_SEND answers bad_wr 0 and refuses works of its own", "[nic][abi][qp]") {
  Rig rig(2);
  Pair p(rig);
  ib_uverbs_post_send_resp out = {77};
  ib_uverbs_post_send in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.qp_handle = p.a_qp.handle;
  in.wqe_size = 128;
  CHECK(p.a.plain(IB_USER_VERBS_CMD_POST_SEND, &in, sizeof in, 4) == 32);
  CHECK(out.bad_wr == 0);
  in.wr_count = 1;
  CHECK(p.a.plain(IB_USER_VERBS_CMD_POST_SEND, &in, sizeof in, 4) == -EINVAL);
  in.wr_count = 0;
  in.response = 8;
  CHECK(p.a.plain(IB_USER_VERBS_CMD_POST_SEND, &in, sizeof in, 4) == -EFAULT);
}
