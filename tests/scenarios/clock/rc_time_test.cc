// SPDX-License-Identifier: Apache-2.0
//
// When RC gives up and when it tries again, in virtual time, every expectation computed from the run's parameters:
// retry exhaustion towards a dead peer, and RNR NAKs from a responder without receives.
#include <catch2/catch.hpp>

#include "protocols/transport/timers.h"
#include "scenarios/clock/virtual_driver.h"

using namespace weft;

namespace {

SendWork send_of(uint32_t length) {
  SendWork work;
  work.opcode = WorkOpcode::kSend;
  work.length = length;
  return work;
}

SendWork write_of(uint32_t length) {
  SendWork work;
  work.opcode = WorkOpcode::kWrite;
  work.length = length;
  work.remote_addr = VirtualWorld::kMemoryBase;
  work.rkey = VirtualWorld::kRkey;
  return work;
}

double in_ps(Instant t) { return static_cast<double>((t - Instant{}).count()); }
double in_ps(Duration d) { return static_cast<double>(d.count()); }

struct RetryCase {
  uint8_t timeout;
  uint8_t retry_count;
};

}  // namespace

TEST_CASE("strict: a dead peer ends in RETRY_EXC after (r + 1) T and 1 + r transmissions", "[law]") {
  for (const RetryCase c : {RetryCase{14, 7}, {8, 7}, {10, 3}, {12, 0}, {6, 1}, {17, 2}, {1, 7}}) {
    CAPTURE(int(c.timeout), int(c.retry_count));
    VirtualWorld world(VirtualWorld::Settings{});
    RequesterConfig requester;
    requester.patient = false;
    requester.timeout = c.timeout;
    requester.retry_count = c.retry_count;
    const QpId qp = world.connect(0, 1, requester, ResponderConfig{});
    world.record_transmissions(true);
    world.kill(1, false);
    world.post_send(qp, write_of(64), 0);
    world.run();
    world.post_send(qp, write_of(64), 0);
    world.run();

    const Duration t = ack_timeout(c.timeout);
    const auto& sent = world.transmissions(qp);
    REQUIRE(sent.size() == 1u + c.retry_count);
    for (size_t i = 0; i < sent.size(); ++i) {
      CHECK(sent[i].psn == sent[0].psn);
      CHECK(in_ps(sent[i].at) == Approx(in_ps(t) * static_cast<double>(i)).epsilon(0.01));
    }
    const auto& done = world.completions(qp);
    REQUIRE(done.size() == 2);
    CHECK(done[0].what.status == WorkStatus::kRetryExceeded);
    CHECK(done[1].what.status == WorkStatus::kFlushed);
    CHECK(in_ps(done[0].at) == Approx(in_ps(t) * (c.retry_count + 1)).epsilon(0.01));
  }
}

TEST_CASE("strict: a window of packets is sent again whole, the budget counts tries and not packets", "[law]") {
  VirtualWorld world(VirtualWorld::Settings{});
  RequesterConfig requester;
  requester.patient = false;
  requester.timeout = 10;
  requester.retry_count = 3;
  const QpId qp = world.connect(0, 1, requester, ResponderConfig{});
  world.record_transmissions(true);
  world.kill(1, false);
  world.post_send(qp, write_of(10 * 1024), 0);
  world.run();
  REQUIRE(world.transmissions(qp).size() == 4 * 10);
  REQUIRE(world.completions(qp).size() == 1);
  CHECK(world.completions(qp)[0].what.status == WorkStatus::kRetryExceeded);
  CHECK(in_ps(world.completions(qp)[0].at) == Approx(4 * in_ps(ack_timeout(10))).epsilon(0.01));
}

TEST_CASE("progress restores the retry budget", "[law]") {
  // Without progress three tries are all.
  VirtualWorld world(VirtualWorld::Settings{});
  RequesterConfig requester;
  requester.patient = false;
  requester.timeout = 10;
  requester.retry_count = 2;
  requester.window_packets = 1;
  const QpId qp = world.connect(0, 1, requester, ResponderConfig{});
  const Duration t = ack_timeout(10);
  world.set_loss(0, {1, 1});
  world.post_send(qp, write_of(2 * 1024), 0);
  world.run_until(Instant{t * 5 / 2});
  world.set_loss(0, {0, 1});
  // The link has been whole since 2.5 T, but the last try was at 2 T.
  world.run_until(Instant{t * 4});
  REQUIRE(world.completions(qp).size() == 1);
  CHECK(world.completions(qp)[0].what.status == WorkStatus::kRetryExceeded);

  // Where the try at 2 T gets through, the packet after it has three tries of its own.
  VirtualWorld other(VirtualWorld::Settings{});
  const QpId q = other.connect(0, 1, requester, ResponderConfig{});
  other.set_loss(0, {1, 1});
  other.post_send(q, write_of(2 * 1024), 0);
  other.run_until(Instant{t * 3 / 2});
  other.set_loss(0, {0, 1});
  other.run_until(Instant{2 * t + nanoseconds(1300)});  // the try at 2 T is on its way, its ACK is not here yet
  other.set_loss(0, {1, 1});
  other.run();
  REQUIRE(other.completions(q).size() == 1);
  CHECK(other.completions(q)[0].what.status == WorkStatus::kRetryExceeded);
  CHECK(in_ps(other.completions(q)[0].at) == Approx(5 * in_ps(t)).epsilon(0.01));
}

TEST_CASE("patient: a death that is reported ends between (r + 1) T and 4 (r + 1) T", "[law]") {
  for (const RetryCase c : {RetryCase{14, 7}, {8, 7}, {10, 3}, {12, 0}, {17, 2}}) {
    CAPTURE(int(c.timeout), int(c.retry_count));
    VirtualWorld world(VirtualWorld::Settings{});
    RequesterConfig requester;
    requester.timeout = c.timeout;
    requester.retry_count = c.retry_count;
    const QpId qp = world.connect(0, 1, requester, ResponderConfig{});
    world.post_send(qp, write_of(64), 0);
    world.run();
    REQUIRE(world.completions(qp).size() == 1);
    const Instant death = world.now();
    world.kill(1, true);
    world.post_send(qp, write_of(64), 0);
    world.run();
    REQUIRE(world.completions(qp).size() == 2);
    CHECK(world.completions(qp)[1].what.status == WorkStatus::kRetryExceeded);
    const Duration took = world.completions(qp)[1].at - death;
    const Duration whole = ack_timeout(c.timeout) * (c.retry_count + 1);
    CHECK(took >= whole * 99 / 100);
    CHECK(took <= whole * 4);
  }
}

TEST_CASE("patient: without a notice nothing is charged however long it takes", "[law]") {
  VirtualWorld world(VirtualWorld::Settings{});
  RequesterConfig requester;
  requester.timeout = 8;
  requester.retry_count = 0;
  const QpId qp = world.connect(0, 1, requester, ResponderConfig{});
  world.record_transmissions(true);
  world.kill(1, false);
  world.post_send(qp, write_of(64), 0);
  world.run_until(Instant{seconds(10)});
  CHECK(world.completions(qp).empty());
  const auto& sent = world.transmissions(qp);
  const Duration t = ack_timeout(8);
  REQUIRE(sent.size() > 6);
  const int64_t factors[] = {1, 2, 4, 8, 8};
  for (size_t i = 0; i < 5; ++i)
    CHECK(in_ps(sent[i + 1].at - sent[i].at) == Approx(in_ps(t * factors[i])).epsilon(0.01));
}

TEST_CASE("timeout 0: never", "[law]") {
  VirtualWorld world(VirtualWorld::Settings{});
  RequesterConfig requester;
  requester.patient = false;
  requester.timeout = 0;
  const QpId qp = world.connect(0, 1, requester, ResponderConfig{});
  world.record_transmissions(true);
  world.kill(1, false);
  world.post_send(qp, write_of(64), 0);
  world.run();
  CHECK(world.transmissions(qp).size() == 1);
  CHECK(world.completions(qp).empty());
}

TEST_CASE("RNR: sent again no earlier than the table says, 1 + n times, then RNR_RETRY_EXC", "[law]") {
  for (const uint8_t code : {uint8_t{1}, uint8_t{5}, uint8_t{12}, uint8_t{14}, uint8_t{25}, uint8_t{31}, uint8_t{0}}) {
    for (const uint8_t retries : {uint8_t{0}, uint8_t{1}, uint8_t{3}, uint8_t{6}}) {
      for (const uint32_t length : {0u, 64u, 5000u}) {
        CAPTURE(int(code), int(retries), length);
        VirtualWorld::Settings settings;
        VirtualWorld world(settings);
        RequesterConfig requester;
        requester.patient = false;
        requester.timeout = 20;
        requester.rnr_retry = retries;
        requester.window_packets = 1;
        ResponderConfig responder;
        responder.min_rnr_timer = code;
        const QpId qp = world.connect(0, 1, requester, responder);
        world.record_transmissions(true);
        world.post_send(qp, send_of(length), 0);
        world.run();

        const auto& sent = world.transmissions(qp);
        REQUIRE(sent.size() == 1u + retries);
        const uint32_t bytes = VirtualWorld::kFrameOverhead + std::min(length, requester.mtu_bytes);
        const Duration round = serialisation(bytes, settings.link.rate_bps) +
                               serialisation(VirtualWorld::kFrameOverhead, settings.link.rate_bps) +
                               2 * settings.link.delay;
        for (size_t i = 1; i < sent.size(); ++i)
          CHECK((sent[i].at - sent[i - 1].at).count() == (round + rnr_delay(code)).count());
        REQUIRE(world.completions(qp).size() == 1);
        CHECK(world.completions(qp)[0].what.status == WorkStatus::kRnrRetryExceeded);
        CHECK((world.completions(qp)[0].at - sent.back().at).count() == round.count());
      }
    }
  }
}

TEST_CASE("RNR retry 7 never fails and delivers once there is a receive", "[law]") {
  for (const uint8_t code : {uint8_t{1}, uint8_t{12}, uint8_t{16}}) {
    CAPTURE(int(code));
    VirtualWorld world(VirtualWorld::Settings{});
    RequesterConfig requester;
    requester.patient = false;
    requester.timeout = 8;
    requester.retry_count = 0;
    requester.rnr_retry = 7;
    ResponderConfig responder;
    responder.min_rnr_timer = code;
    const QpId qp = world.connect(0, 1, requester, responder);
    world.record_transmissions(true);
    world.post_send(qp, send_of(300), 0);
    world.run_until(Instant{rnr_delay(code) * 40});
    CHECK(world.completions(qp).empty());
    CHECK(world.transmissions(qp).size() >= 30);
    world.post_receive(qp + 1, 4096, 300);
    world.run();
    REQUIRE(world.completions(qp).size() == 1);
    CHECK(world.completions(qp)[0].what.status == WorkStatus::kSuccess);
    REQUIRE(world.receives(qp + 1).size() == 1);
    CHECK(world.receives(qp + 1)[0].bytes == 300);
  }
}
