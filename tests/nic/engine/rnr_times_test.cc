// SPDX-License-Identifier: Apache-2.0
//
// RNR retries against the table of IBTA Vol 1, 9.7.5.2.8 (table 45), in virtual time: how often a SEND is sent, when,
// and what it ends in.
#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr uint32_t kForEver = 7;

/// Per timer code, independent of protocols/transport/timers.h.
Duration table_45(uint8_t code) {
  switch (code) {
    case 1:
      return microseconds(10);
    case 12:
      return microseconds(640);
    case 31:
      return microseconds(491'520);
    default:
      FAIL("not in this test");
      return {};
  }
}

}  // namespace

TEST_CASE("rnr_retry and min_rnr_timer: number of transmissions, their times, the status", "[nic][rc][rnr]") {
  const uint8_t retries = GENERATE(uint8_t{0}, uint8_t{1}, uint8_t{kForEver});
  const uint8_t code = GENERATE(uint8_t{1}, uint8_t{12}, uint8_t{31});
  const Duration delay = table_45(code);
  Rig rig(2, {.flags = attach::kWelcomeStrictTimers});
  rig.tick = code == 31 ? microseconds(5) : nanoseconds(500);
  // An ACK timeout far beyond: it must not be what resends.
  Pair p(rig, {}, {.timeout = 22, .retry = 0, .rnr_retry = retries, .min_rnr_timer = code});
  std::vector<Instant> sent, refused;
  rig.filter = [&](const RoceFrame&, uint32_t from) {
    (from == 0 ? sent : refused).push_back(rig.now);
    return true;
  };
  REQUIRE(p.a.post(p.a_qp, {.wr_id = 1}) > 0);
  constexpr size_t kEnough = 4;
  ib_uverbs_wc wc = {};
  bool done = false;
  REQUIRE(rig.run([&] { return (done = p.a.poll(p.a_cq, wc)) || sent.size() == kEnough; }, 1'000'000));
  if (retries == kForEver) {
    CHECK_FALSE(done);
    p.b.post_recv(p.b_qp, 2, {});
    expect_wc(rig, p.a, p.a_cq, 1);
    expect_wc(rig, p.b, p.b_cq, 2);
  } else {
    REQUIRE(done);
    CHECK(wc.status == kRnrRetryExc);
    CHECK(p.a.query_state(p.a_qp) == 6);
    CHECK(p.b.query_state(p.b_qp) == 3);  // the receiver is not to blame
    CHECK(sent.size() == retries + 1u);
    CHECK(refused.size() == retries + 1u);
  }
  for (size_t i = 1; i < sent.size(); ++i) {
    const Duration waited = sent[i] - refused[i - 1];
    INFO("transmission " << i);
    CHECK(waited >= delay);
    CHECK(waited <= delay + 3 * rig.tick);
  }
}

TEST_CASE("Progress restores the RNR budget", "[nic][rc][rnr]") {
  Rig rig(2, {.flags = attach::kWelcomeStrictTimers});
  Pair p(rig, {}, {.rnr_retry = 1, .min_rnr_timer = 1});
  uint32_t sends = 0;
  rig.filter = [&](const RoceFrame&, uint32_t from) {
    sends += from == 0 ? 1 : 0;
    return true;
  };
  for (uint64_t i = 1; i <= 5; ++i) {
    REQUIRE(p.a.post(p.a_qp, {.wr_id = i}) > 0);
    sends = 0;
    REQUIRE(rig.run([&] { return sends == 1; }, 100));
    rig.settle(3);  // refused; the second transmission comes 10 us later
    p.b.post_recv(p.b_qp, 50 + i, {});
    expect_wc(rig, p.a, p.a_cq, i);
    expect_wc(rig, p.b, p.b_cq, 50 + i);
    CHECK(sends == 2);
  }
}
