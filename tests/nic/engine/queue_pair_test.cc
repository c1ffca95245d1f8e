// SPDX-License-Identifier: Apache-2.0
//
// The life of a QP: states, flushes, what stays and what goes.
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <set>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

TEST_CASE("A QP in ERR flushes everything, also what is posted later", "[nic][qp]") {
  const uint8_t type = GENERATE(uint8_t{2}, uint8_t{3});
  Rig rig(2);
  Pair p(rig, {.type = type});
  rig.daemon_stopped = true;
  for (uint64_t i = 0; i < 40; ++i) {
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = i, .flags = type == 3 ? kSignaled : 0}, false) == 0);
    p.a.post_recv(p.a_qp, 100 + i, {});
  }
  if (type == 2) REQUIRE(p.a.ring_doorbell(p.a_qp) > 0);
  REQUIRE(p.a.to_state(p.a_qp, 6) > 0);
  for (uint64_t i = 0; i < 40; ++i) expect_wc(rig, p.a, p.a_cq, i, kFlushErr);
  for (uint64_t i = 0; i < 40; ++i) expect_wc(rig, p.a, p.a_cq, 100 + i, kFlushErr);
  // No system call tells of a later receive request; a later send rings.
  p.a.post_recv(p.a_qp, 200, {});
  CHECK_FALSE(rig.device(0).quiet());
  CHECK(rig.device(0).next_deadline() != kNever);
  expect_wc(rig, p.a, p.a_cq, 200, kFlushErr);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 201, .flags = 0}) > 0);
  const auto wc = expect_wc(rig, p.a, p.a_cq, 201, kFlushErr);
  CHECK(wc.qp_num == p.a_qp.qpn);
  REQUIRE(p.a.destroy_qp(p.a_qp) > 0);
  rig.daemon_stopped = false;
  rig.settle(10);
  CHECK(rig.device(0).quiet());
}

TEST_CASE("A QP that was reset starts again from nothing", "[nic][qp]") {
  Rig rig(2);
  Pair p(rig);
  std::vector<uint8_t> source(100, 1), target(100, 0);
  const Mr local = p.a.reg_mr(source.data(), 100), remote = p.b.reg_mr(target.data(), 100);
  const Post post = {.opcode = kWrite,
                     .wr_id = 1,
                     .remote_addr = reinterpret_cast<uint64_t>(target.data()),
                     .rkey = remote.rkey,
                     .sges = {sge(source.data(), 100, local.lkey)}};
  for (int round = 0; round < 3; ++round) {
    std::fill(target.begin(), target.end(), uint8_t{0});
    REQUIRE(p.a.post(p.a_qp, post) > 0);
    expect_wc(rig, p.a, p.a_cq, 1);
    CHECK(target == source);
    p.a.post_recv(p.a_qp, 9, {});
    REQUIRE(p.a.to_state(p.a_qp, 0) > 0);
    REQUIRE(p.b.to_state(p.b_qp, 0) > 0);
    CHECK(p.a.query_state(p.a_qp) == 0);
    CHECK(p.a.ring_doorbell(p.a_qp) == -EINVAL);
    rig.settle(10);
    ib_uverbs_wc wc;
    CHECK_FALSE(p.a.poll(p.a_cq, wc));
    connect(p.a, p.a_qp, p.b, p.b_qp, {.psn_a = 10u + static_cast<uint32_t>(round), .psn_b = 20});
  }
}

TEST_CASE("A peer that does not answer is RETRY_EXC, after (retry + 1) timeouts when timers are strict", "[nic][qp]") {
  Rig rig(2, {.flags = attach::kWelcomeStrictTimers});
  rig.tick = microseconds(50);
  // 4.096 us * 2^8 = 1.05 ms, 1 + 2 transmissions
  Pair p(rig, {}, {.timeout = 8, .retry = 2});
  uint32_t sent = 0;
  rig.filter = [&](const RoceFrame&, uint32_t) {
    ++sent;
    return false;
  };
  const Instant start = rig.now;
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 2}) > 0);
  expect_wc(rig, p.a, p.a_cq, 1, kRetryExc);
  expect_wc(rig, p.a, p.a_cq, 2, kFlushErr);
  const Duration took = rig.now - start;
  CHECK(took > 3 * nanoseconds(1'048'576));
  CHECK(took < 4 * nanoseconds(1'048'576));
  CHECK(sent >= 3);
}

TEST_CASE("Patient timers charge a timeout only when the fabric knows of a loss", "[nic][qp]") {
  Rig rig(2);
  rig.tick = microseconds(50);
  Pair p(rig, {}, {.timeout = 8, .retry = 2});
  bool lose = true;
  rig.filter = [&](const RoceFrame&, uint32_t) { return !lose; };
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  p.b.post_recv(p.b_qp, 2, {});
  rig.settle(2000);  // 100 ms: dozens of timeouts
  ib_uverbs_wc wc;
  REQUIRE_FALSE(p.a.poll(p.a_cq, wc));
  SECTION("and goes on when the peer does") {
    lose = false;
    expect_wc(rig, p.a, p.a_cq, 1);
    expect_wc(rig, p.b, p.b_cq, 2);
  }
  SECTION("a notice about somebody else changes nothing") {
    rig.notify(0, {rig.node(1).welcome.ipv4, p.b_qp.qpn + 1, 0, 0, attach::NoticeReason::kNoSuchQpn, 0, 0, 0});
    rig.settle(2000);
    CHECK_FALSE(p.a.poll(p.a_cq, wc));
  }
  SECTION("a notice about the peer, again and again, exhausts the retries") {
    // Whoever drops frames says so for each.
    rig.filter = [&](const RoceFrame&, uint32_t) {
      rig.notify(0, {rig.node(1).welcome.ipv4, p.b_qp.qpn, 0, 0, attach::NoticeReason::kNoSuchQpn, 0, 0, 0});
      return false;
    };
    expect_wc(rig, p.a, p.a_cq, 1, kRetryExc);
  }
  SECTION("the death of the peer's process does, whatever QPN it names") {
    rig.filter = [&](const RoceFrame&, uint32_t) {
      rig.notify(
          0, {rig.node(1).welcome.ipv4, rig.node(1).welcome.qpn_base, 0, 0, attach::NoticeReason::kPeerDied, 0, 0, 0});
      return false;
    };
    expect_wc(rig, p.a, p.a_cq, 1, kRetryExc);
  }
}

TEST_CASE("A peer whose process does not serve the QP is asked about, and RETRY_EXC when nobody serves it",
          "[nic][qp]") {
  const uint8_t gid = GENERATE(uint8_t{0}, uint8_t{1});
  Rig rig(2);
  rig.tick = microseconds(50);
  Pair p(rig, {}, {.timeout = 8, .retry = 2, .sgid_index = gid});
  REQUIRE(p.b.to_state(p.b_qp, 0) > 0);  // drops frames, and nobody in the fabric knows
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  REQUIRE(rig.run([&] { return rig.node(0).platform->silences == 3; }));
  CHECK(rig.node(0).platform->silent_qpn == p.b_qp.qpn);
  ib_uverbs_wc wc;
  REQUIRE_FALSE(p.a.poll(p.a_cq, wc));
  GidBytes peer{};
  std::copy_n(rig.node(1).welcome.gids[gid], peer.size(), peer.begin());
  rig.device(0).peer_gone(peer, p.b_qp.qpn + 1, rig.now);  // somebody else
  rig.settle(2000);
  REQUIRE_FALSE(p.a.poll(p.a_cq, wc));
  const Instant told = rig.now;
  rig.device(0).peer_gone(peer, p.b_qp.qpn, rig.now);
  expect_wc(rig, p.a, p.a_cq, 1, kRetryExc);
  CHECK(rig.now - told >= 2 * nanoseconds(1'048'576));  // the first of three had begun
  CHECK(rig.now - told < 4 * nanoseconds(1'048'576));
  CHECK(rig.node(0).platform->last_state == 6);  // the engine says so itself
}

TEST_CASE("QPNs lie in the process's range and do not come back at once", "[nic][qp]") {
  Rig rig(1, {.qpn_log2 = 6});
  Client c(rig, 0);
  const Cq cq = c.create_cq();
  std::vector<uint32_t> numbers;
  for (int i = 0; i < 60; ++i) {
    const Qp qp = c.create_qp(cq, cq);
    CHECK(qp.qpn >> 6 == 1);
    numbers.push_back(qp.qpn);
    REQUIRE(c.destroy_qp(qp) > 0);
  }
  CHECK(std::set<uint32_t>(numbers.begin(), numbers.end()).size() == 60);
  std::vector<Qp> open;
  for (int i = 0; i < 32; ++i) open.push_back(c.create_qp(cq, cq));  // max_qp is half the range
  std::set<uint32_t> live;
  for (const Qp& qp : open) live.insert(qp.qpn);
  CHECK(live.size() == 32);
}

TEST_CASE("SQD finishes what was begun, begins nothing, tells, and goes on", "[nic][qp]") {
  Rig rig(2);
  Pair p(rig);
  rig.daemon_stopped = true;
  p.b.post_recv(p.b_qp, 11, {});
  p.b.post_recv(p.b_qp, 12, {});
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  ib_uverbs_modify_qp in = {};
  in.qp_state = 4;
  in.en_sqd_async_notify = 1;
  REQUIRE(p.a.modify(p.a_qp, 1 | 4, in) > 0);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 2}) > 0);
  rig.daemon_stopped = false;
  expect_wc(rig, p.a, p.a_cq, 1);
  rig.settle(100);
  ib_uverbs_wc wc;
  CHECK_FALSE(p.a.poll(p.a_cq, wc));
  ib_uverbs_async_event_desc event = {};
  REQUIRE(recv(p.a.async_fd, &event, sizeof event, MSG_DONTWAIT) == 16);
  CHECK(event.event_type == 5);
  CHECK(event.element == p.a_qp.user_handle);
  REQUIRE(p.a.to_state(p.a_qp, 3) > 0);
  expect_wc(rig, p.a, p.a_cq, 2);
}

TEST_CASE("Destroying a QP sends the acknowledge it owes", "[nic][qp]") {
  // Nobody takes b's frames: its slots run out, and the last messages stay unacknowledged and unseen.
  Rig rig(2, {.tx_slots = 32, .rx_slots = 32});
  Pair p(rig);
  constexpr uint64_t kMessages = 40;
  for (uint64_t i = 0; i < kMessages; ++i) p.b.post_recv(p.b_qp, i, {});
  for (uint64_t i = 0; i < kMessages; ++i) {
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = i}) > 0);
    rig.move_only(0);
    rig.device(1).try_progress(rig.now);
  }
  uint64_t seen = 0;
  ib_uverbs_wc wc;
  while (p.b.poll(p.b_cq, wc)) ++seen;
  REQUIRE(seen < kMessages);
  // The slots come back, and before any pass the program destroys the QP.
  rig.move_only(1);
  REQUIRE(p.b.destroy_qp(p.b_qp) > 0);
  while (p.b.poll(p.b_cq, wc)) ++seen;
  CHECK(seen == kMessages);
  for (uint64_t i = 0; i < kMessages; ++i) expect_wc(rig, p.a, p.a_cq, i);
}
