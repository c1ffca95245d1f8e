// SPDX-License-Identifier: Apache-2.0
//
// What each state does with work requests and frames (IBTA Vol 1, 10.3.1), and which attributes take effect when.
#include <sys/socket.h>

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr uint32_t kNoEvent = 99, kCommEstablished = 4, kSqDrained = 5;

uint32_t next_event(Client& c) {
  ib_uverbs_async_event_desc record = {};
  if (recv(c.async_fd, &record, sizeof record, MSG_DONTWAIT) != sizeof record) return kNoEvent;
  return record.event_type;
}

/// A UD or UC pair; UD works need the address.
struct Datagrams {
  explicit Datagrams(Rig& rig, uint8_t type) : p(rig, {.type = type == 4 ? uint8_t{3} : type}), rig_(rig) {
    if (type != 4) return;
    qa = p.a.create_qp(p.a_cq, p.a_cq, {.type = 4});
    qb = p.b.create_qp(p.b_cq, p.b_cq, {.type = 4});
    for (Client* c : {&p.a, &p.b}) {
      const Qp& q = c == &p.a ? qa : qb;
      REQUIRE(c->to_init(q) > 0);
      REQUIRE(c->to_rtr(q, 0, 0, {}, 0) > 0);
      REQUIRE(c->to_rts(q, {}, 77) > 0);
    }
    address = p.a.create_ah(1);
  }
  const Qp& from() const { return address == 0 ? p.a_qp : qa; }
  const Qp& to() const { return address == 0 ? p.b_qp : qb; }
  Post send(uint64_t wr_id) const {
    return {.wr_id = wr_id, .remote_qpn = to().qpn, .remote_qkey = 0x11111111, .ah_num = address};
  }

  Pair p;
  Qp qa, qb;
  uint32_t address = 0;
  Rig& rig_;
};

}  // namespace

TEST_CASE("A send error of UC and UD stops the send queue only, until it is sent back to RTS", "[nic][qp][sqe]") {
  const uint8_t type = GENERATE(uint8_t{3}, uint8_t{4});
  Rig rig(2);
  Datagrams d(rig, type);
  Pair& p = d.p;
  std::vector<uint8_t> memory(4096, 7), target(4096, 0);
  const Mr mr = p.a.reg_mr(memory.data(), memory.size());
  const Mr into = p.b.reg_mr(target.data(), target.size());
  const auto one = sge(target.data(), 4096, into.lkey);
  for (uint64_t i = 0; i < 3; ++i) p.b.post_recv(d.to(), 50 + i, {one});

  REQUIRE(p.a.post(d.from(), d.send(1), false) == 0);
  Post bad = d.send(2);
  bad.sges = {sge(memory.data(), 16, mr.lkey ^ 0x80)};
  REQUIRE(p.a.post(d.from(), bad, false) == 0);
  REQUIRE(p.a.post(d.from(), d.send(3)) > 0);
  expect_wc(rig, p.a, p.a_cq, 1);
  expect_wc(rig, p.a, p.a_cq, 2, kLocProt);
  expect_wc(rig, p.a, p.a_cq, 3, kFlushErr);
  expect_wc(rig, p.b, p.b_cq, 50);  // of work 1, before the error
  CHECK(p.a.query_state(d.from()) == 5);
  // Later works are flushed, received messages still arrive, receive requests stay.
  REQUIRE(p.a.post(d.from(), d.send(4)) > 0);
  expect_wc(rig, p.a, p.a_cq, 4, kFlushErr);
  std::vector<uint8_t> answer(4096, 0);
  const Mr back = p.a.reg_mr(answer.data(), answer.size());
  p.a.post_recv(d.from(), 70, {sge(answer.data(), 4096, back.lkey)});
  Post reply = d.send(60);
  reply.remote_qpn = d.from().qpn;
  if (type == 4) reply.ah_num = p.b.create_ah(0);
  REQUIRE(p.b.post(d.to(), reply) > 0);
  expect_wc(rig, p.a, p.a_cq, 70);
  expect_wc(rig, p.b, p.b_cq, 60);
  CHECK(p.a.query_state(d.from()) == 5);

  REQUIRE(p.a.to_state(d.from(), 3) > 0);
  Post good = d.send(5);
  good.sges = {sge(memory.data(), 16, mr.lkey)};
  REQUIRE(p.a.post(d.from(), good) > 0);
  expect_wc(rig, p.a, p.a_cq, 5);
  expect_wc(rig, p.b, p.b_cq, 51);
  CHECK(p.a.query_state(d.from()) == 3);
}

TEST_CASE("What POST_SEND refused is neither sent later nor flushed", "[nic][qp]") {
  const bool to_error = GENERATE(false, true);
  Rig rig(2);
  Client a(rig, 0), b(rig, 1);
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq();
  const Qp qa = a.create_qp(a_cq, a_cq), qb = b.create_qp(b_cq, b_cq);
  ConnectOptions o;
  REQUIRE(b.to_init(qb) > 0);
  REQUIRE(b.to_rtr(qb, qa.qpn, 0, o, o.psn_a) > 0);
  for (uint64_t i = 0; i < 8; ++i) b.post_recv(qb, 100 + i, {});
  CHECK(a.post(qa, {.wr_id = 1}) == -EINVAL);
  REQUIRE(a.to_init(qa) > 0);
  CHECK(a.post(qa, {.wr_id = 2}) == -EINVAL);
  REQUIRE(a.to_rtr(qa, qb.qpn, 1, o, o.psn_b) > 0);
  CHECK(a.post(qa, {.wr_id = 3}) == -EINVAL);
  ib_uverbs_wc wc;
  if (to_error) {
    REQUIRE(a.to_state(qa, 6) > 0);
    rig.settle(20);
    CHECK_FALSE(a.poll(a_cq, wc));
    return;
  }
  REQUIRE(a.to_rts(qa, o, o.psn_a) > 0);
  rig.settle(100);
  CHECK_FALSE(a.poll(a_cq, wc));
  CHECK_FALSE(b.poll(b_cq, wc));
  REQUIRE(a.post(qa, {.wr_id = 4}) > 0);
  expect_wc(rig, a, a_cq, 4);
  expect_wc(rig, b, b_cq, 100);
}

TEST_CASE("A MODIFY_QP that is refused changes nothing", "[nic][qp]") {
  Rig rig(2);
  Client c(rig, 0);
  const Cq cq = c.create_cq();
  const Qp qp = c.create_qp(cq, cq);
  REQUIRE(c.to_init(qp, 1) > 0);
  ib_uverbs_modify_qp in = {};
  in.qp_state = 2;
  c.fill_address(1, 1, in.dest);
  in.path_mtu = 2;
  in.dest_qp_num = 5;
  in.rq_psn = 6;
  in.min_rnr_timer = 7;
  in.qp_access_flags = 8;
  in.max_dest_rd_atomic = 4;
  SECTION("for its READ limit") { in.max_dest_rd_atomic = 129; }
  SECTION("for its P_Key index") { in.pkey_index = 1; }
  SECTION("for its RNR timer") { in.min_rnr_timer = 32; }
  SECTION("for its MTU") { in.path_mtu = 6; }
  REQUIRE(c.modify(qp, 0x129181 | 0x18, in) == -EINVAL);
  ib_uverbs_query_qp_resp out = {};
  ib_uverbs_query_qp query = {};
  query.response = reinterpret_cast<uint64_t>(&out);
  query.qp_handle = qp.handle;
  REQUIRE(c.plain(IB_USER_VERBS_CMD_QUERY_QP, &query, sizeof query, 128) == 24);
  CHECK(out.qp_state == 1);
  CHECK(out.path_mtu == 0);
  CHECK(out.dest_qp_num == 0);
  CHECK(out.rq_psn == 0);
  CHECK(out.min_rnr_timer == 0);
  CHECK(out.qp_access_flags == 1);
  CHECK(out.max_dest_rd_atomic == 0);
  CHECK(out.pkey_index == 0);
  CHECK(out.dest.is_global == 0);
}

TEST_CASE("CUR_STATE must be right, and only where a QP can move by itself", "[nic][qp]") {
  Rig rig(2);
  Pair p(rig);
  ib_uverbs_modify_qp in = {};
  in.qp_state = 3;
  in.cur_qp_state = 4;
  CHECK(p.a.modify(p.a_qp, 3, in) == -EINVAL);
  in.cur_qp_state = 3;
  CHECK(p.a.modify(p.a_qp, 3, in) > 0);
  in.qp_state = 6;
  CHECK(p.a.modify(p.a_qp, 3, in) == -EINVAL);
}

TEST_CASE("Attributes changed while a QP runs take effect", "[nic][qp]") {
  Rig rig(2, {.flags = attach::kWelcomeStrictTimers});
  Pair p(rig, {}, {.timeout = 20, .retry = 7, .rnr_retry = 7, .min_rnr_timer = 31});
  ib_uverbs_modify_qp in = {};
  SECTION("the RNR timer in RTS") {
    in.min_rnr_timer = 1;  // 10 us instead of 491 ms
    REQUIRE(p.b.modify(p.b_qp, 0x8000, in) > 0);
    REQUIRE(p.a.post(p.a_qp, {.wr_id = 1}) > 0);
    rig.settle(20);
    p.b.post_recv(p.b_qp, 2, {});
    rig.settle(100);
    ib_uverbs_wc wc = {};
    REQUIRE(p.a.poll(p.a_cq, wc));
    CHECK(wc.status == 0);
  }
  SECTION("timeout and retries in SQD") {
    REQUIRE(p.a.to_state(p.a_qp, 4) > 0);
    in.timeout = 6;  // 262 us
    in.retry_cnt = 1;
    REQUIRE(p.a.modify(p.a_qp, 0x600, in) > 0);
    REQUIRE(p.a.to_state(p.a_qp, 3) > 0);
    rig.filter = [](const RoceFrame&, uint32_t) { return false; };
    const Instant start = rig.now;
    REQUIRE(p.a.post(p.a_qp, {.wr_id = 1}) > 0);
    expect_wc(rig, p.a, p.a_cq, 1, kRetryExc);
    CHECK(rig.now - start >= 2 * nanoseconds(262'144));
    CHECK(rig.now - start < 2 * nanoseconds(262'144) + microseconds(20));
  }
  SECTION("the number of READs in SQD") {
    REQUIRE(p.a.to_state(p.a_qp, 4) > 0);
    in.max_rd_atomic = 0;
    REQUIRE(p.a.modify(p.a_qp, 0x2000, in) > 0);
    REQUIRE(p.a.to_state(p.a_qp, 3) > 0);
    REQUIRE(p.a.post(p.a_qp, {.opcode = kRead, .wr_id = 1}) > 0);
    expect_wc(rig, p.a, p.a_cq, 1, kLocQpOp);
  }
  SECTION("the right to write in RTS") {
    std::vector<uint8_t> source(8, 1), target(8, 0);
    const Mr local = p.a.reg_mr(source.data(), 8), remote = p.b.reg_mr(target.data(), 8);
    in.qp_access_flags = 4;
    REQUIRE(p.b.modify(p.b_qp, 8, in) > 0);
    REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite,
                              .wr_id = 1,
                              .remote_addr = reinterpret_cast<uint64_t>(target.data()),
                              .rkey = remote.rkey,
                              .sges = {sge(source.data(), 8, local.lkey)}}) > 0);
    expect_wc(rig, p.a, p.a_cq, 1, kRemInvReq);
  }
}

TEST_CASE("SQD: no way back while works are under way, one event for each time it is asked for", "[nic][qp][sqd]") {
  const uint8_t type = GENERATE(uint8_t{2}, uint8_t{3});
  Rig rig(2, {.tx_slots = 32});
  Pair p(rig, {.type = type});
  std::vector<uint8_t> source(65536, 1), target(65536, 0);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  const Mr remote = p.b.reg_mr(target.data(), target.size());
  auto draining = [&] {
    ib_uverbs_query_qp_resp out = {};
    ib_uverbs_query_qp query = {};
    query.response = reinterpret_cast<uint64_t>(&out);
    query.qp_handle = p.a_qp.handle;
    REQUIRE(p.a.plain(IB_USER_VERBS_CMD_QUERY_QP, &query, sizeof query, 128) == 24);
    CHECK(out.qp_state == 4);
    return out.sq_draining != 0;
  };
  Post write = {.opcode = kWrite,
                .wr_id = 1,
                .remote_addr = reinterpret_cast<uint64_t>(target.data()),
                .rkey = remote.rkey,
                .sges = {sge(source.data(), 65536, local.lkey)}};
  rig.daemon_stopped = true;
  REQUIRE(p.a.post(p.a_qp, write) > 0);  // more frames than there are slots
  ib_uverbs_modify_qp in = {};
  in.qp_state = 4;
  in.en_sqd_async_notify = 1;
  REQUIRE(p.a.modify(p.a_qp, 1 | 4, in) > 0);
  CHECK(draining());
  CHECK(next_event(p.a) == kNoEvent);
  CHECK(p.a.to_state(p.a_qp, 3) == -EINVAL);
  rig.daemon_stopped = false;
  expect_wc(rig, p.a, p.a_cq, 1);
  rig.settle(50);
  CHECK_FALSE(draining());
  CHECK(next_event(p.a) == kSqDrained);
  CHECK(next_event(p.a) == kNoEvent);
  REQUIRE(p.a.to_state(p.a_qp, 3) > 0);
  REQUIRE(p.a.to_state(p.a_qp, 4) > 0);  // not asked for this time
  rig.settle(20);
  CHECK(next_event(p.a) == kNoEvent);
  REQUIRE(p.a.to_state(p.a_qp, 3) > 0);
  REQUIRE(p.a.modify(p.a_qp, 1 | 4, in) > 0);  // nothing under way: at once
  CHECK(next_event(p.a) == kSqDrained);
  REQUIRE(p.a.to_state(p.a_qp, 6) > 0);  // ERR is always open
}

TEST_CASE("COMM_EST comes once for each time a message precedes RTS", "[nic][qp]") {
  const uint8_t type = GENERATE(uint8_t{2}, uint8_t{3});
  Rig rig(2);
  Client a(rig, 0), b(rig, 1);
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq();
  const Qp qa = a.create_qp(a_cq, a_cq, {.type = type}), qb = b.create_qp(b_cq, b_cq, {.type = type});
  ConnectOptions o;
  for (int life = 0; life < 2; ++life) {
    REQUIRE(a.to_init(qa) > 0);
    REQUIRE(b.to_init(qb) > 0);
    REQUIRE(a.to_rtr(qa, qb.qpn, 1, o, o.psn_b) > 0);
    REQUIRE(b.to_rtr(qb, qa.qpn, 0, o, o.psn_a) > 0);
    REQUIRE(a.to_rts(qa, o, o.psn_a) > 0);
    for (uint64_t i = 0; i < 3; ++i) b.post_recv(qb, i, {});
    for (uint64_t i = 0; i < 3; ++i) REQUIRE(a.post(qa, {.wr_id = i}) > 0);
    for (uint64_t i = 0; i < 3; ++i) expect_wc(rig, b, b_cq, i);
    for (uint64_t i = 0; i < 3; ++i) expect_wc(rig, a, a_cq, i);
    CHECK(next_event(b) == kCommEstablished);
    CHECK(next_event(b) == kNoEvent);
    REQUIRE(b.to_rts(qb, o, o.psn_b) > 0);
    REQUIRE(a.to_state(qa, 0) > 0);
    REQUIRE(b.to_state(qb, 0) > 0);
  }
}

TEST_CASE("An error that a receive completion tells is not told again by an event", "[nic][qp][errors]") {
  Rig rig(2);
  Pair p(rig);
  std::vector<uint8_t> source(64, 1);
  const Mr local = p.a.reg_mr(source.data(), 64);
  const bool too_short = GENERATE(true, false);
  std::vector<rxe_sge> into;
  if (!too_short) into = {sge(source.data(), 64, local.lkey ^ 0x4000)};
  p.b.post_recv(p.b_qp, 9, into);
  REQUIRE(p.a.post(p.a_qp, {.wr_id = 1, .sges = {sge(source.data(), 64, local.lkey)}}) > 0);
  expect_wc(rig, p.b, p.b_cq, 9, too_short ? kLocLen : kLocProt);
  expect_wc(rig, p.a, p.a_cq, 1, too_short ? kRemInvReq : kRemOp);
  rig.settle(20);
  CHECK(p.b.query_state(p.b_qp) == 6);
  CHECK(next_event(p.b) == kNoEvent);
  CHECK(next_event(p.a) == kNoEvent);
}
