// SPDX-License-Identifier: Apache-2.0
//
// Drops and who is told of them, hostile processes, forced ICRCs, delays, captures.
#include <string.h>

#include <algorithm>

#include "protocols/icrc/icrc.h"
#include "scenarios/engine/link.h"
#include "scenarios/engine/live_fabric.h"
#include "tests/scenarios/engine/fabric_fixture.h"

using namespace weft;
using namespace weft::test;
using attach::Notice;
using attach::NoticeReason;

namespace {

uint32_t psn_of(const attach::ReceivedFrame& frame) {
  RoceFrame parsed;
  REQUIRE(parse_headers({frame.header, frame.header_bytes}, frame.payload_bytes, parsed) == ParseError::kOk);
  return parsed.transport.psn;
}

/// PSNs that arrive until nothing comes for a while.
std::vector<uint32_t> drain(TestProcess& process, double quiet = 0.1) {
  std::vector<uint32_t> psns;
  attach::ReceivedFrame frame;
  while (process.next(frame, quiet)) {
    psns.push_back(psn_of(frame));
    process.port.release(frame.slot);
    process.flush();
  }
  return psns;
}

}  // namespace

TEST_CASE("the drop stage loses exactly what its seed says, and tells the sender", "[live]") {
  FabricPlan plan = make_plan(2);
  plan.seed = 77;
  plan.drop = {1, 10};
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  FrameTemplate to_b = a.frames_to(1);
  constexpr uint32_t kFrames = 200;
  for (uint32_t i = 0; i < kFrames; ++i) REQUIRE(a.send(to_b, b.qpn(), i, 64));
  a.flush();

  std::vector<uint32_t> expected;
  std::vector<uint32_t> lost;
  Random up(plan.seed, engine::link_id(0, engine::Direction::kUp));
  Random down(plan.seed, engine::link_id(1, engine::Direction::kDown));
  for (uint32_t i = 0; i < kFrames; ++i) {
    const bool gone = up.happens(plan.drop) || down.happens(plan.drop);
    (gone ? lost : expected).push_back(i);
  }
  REQUIRE(lost.size() > 10);
  CHECK(drain(b) == expected);
  std::vector<uint32_t> told;
  Notice notice;
  while (a.port.next_notice(notice)) {
    CHECK(notice.reason == NoticeReason::kFaultDrop);
    CHECK(notice.address == plan.hosts[1].nics[0].ipv4);
    CHECK(notice.qpn == b.qpn());
    CHECK(notice.psn_first == notice.psn_last);
    told.push_back(notice.psn_first);
  }
  std::sort(told.begin(), told.end());  // a burst crosses the first link before the second
  CHECK(told == lost);
  CHECK(metric(*plane, "link_drops") == lost.size());
  CHECK_FALSE(b.port.next_notice(notice));  // requests concern their sender only
}

TEST_CASE("a lost answer is told to the one who waits for it, too", "[live]") {
  FabricPlan plan = make_plan(2);
  plan.drop = {1, 1};
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  FrameTemplate to_a = b.frames_to(0);
  REQUIRE(b.send(to_a, a.qpn(), 5, 0, 0, Opcode::kRcAcknowledge));
  b.flush();
  Notice notice;
  REQUIRE(a.next_notice(notice));
  CHECK(notice.reason == NoticeReason::kFaultDrop);
  CHECK(notice.qpn == a.qpn());
  CHECK(notice.psn_first == 5);
  REQUIRE(b.next_notice(notice));
  CHECK(notice.qpn == a.qpn());
}

TEST_CASE("a death is told to everybody, an orderly goodbye is not", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  TestProcess c(*plane, plan, 1, 3);
  c.detach(false);
  Notice notice;
  CHECK_FALSE(a.port.next_notice(notice));
  b.detach(true);
  REQUIRE(a.port.next_notice(notice));
  CHECK(notice.reason == NoticeReason::kPeerDied);
  CHECK(notice.address == plan.hosts[1].nics[0].ipv4);
  CHECK(notice.qpn == (b.qpn() & ~0x3FFFu));
  CHECK_FALSE(a.port.next_notice(notice));
}

TEST_CASE("frames for a QPN or a host that nobody is", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  FrameTemplate to_1 = a.frames_to(1);
  REQUIRE(a.send(to_1, 0x300123, 9, 64));
  a.flush();
  Notice notice;
  REQUIRE(a.next_notice(notice));
  CHECK(notice.reason == NoticeReason::kNoSuchQpn);
  CHECK(notice.qpn == 0x300123);
  CHECK(notice.psn_first == 9);
  CHECK(notice.address == plan.hosts[1].nics[0].ipv4);
  CHECK(metric(*plane, "nic_drops", {{"host", "h1"}, {"reason", "no_such_qpn"}}) == 1);

  FrameAddress address;
  address.source_mac = plan.hosts[0].nics[0].mac;
  address.source_gid = gid_of_ipv4(plan.hosts[0].nics[0].ipv4);
  address.destination_gid = gid_of_ipv4(0xC6120063);
  FrameTemplate nowhere;
  nowhere.prepare(address);
  REQUIRE(a.send(nowhere, 0x4000, 10, 64));
  a.flush();
  REQUIRE(a.next_notice(notice));
  CHECK(notice.reason == NoticeReason::kNoRoute);
  CHECK(notice.address == 0xC6120063);
  CHECK(metric(*plane, "switch_drops", {{"port", "0"}, {"reason", "no_route"}}) == 1);
}

TEST_CASE("nobody sends under another host's identity", "[live]") {
  const FabricPlan plan = make_plan(3);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  TestProcess c(*plane, plan, 2, 3);
  FrameTemplate forged = c.frames_to(1);  // what c would send to b
  REQUIRE(a.send(forged, b.qpn(), 1, 64));
  a.flush();
  Notice notice;
  REQUIRE(a.next_notice(notice));
  CHECK(notice.reason == NoticeReason::kBadFrame);
  FrameTemplate honest = a.frames_to(1);
  REQUIRE(a.send(honest, b.qpn(), 2, 64));
  a.flush();
  CHECK(drain(b) == std::vector<uint32_t>{2});
  CHECK(metric(*plane, "nic_drops", {{"host", "h0"}, {"reason", "foreign_source"}}) == 1);
}

TEST_CASE("malformed frames are dropped and counted by reason; their sender stays", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  const uint32_t slot = a.port.begin_frame(0, false);
  memset(a.port.payload(slot) - 58, 0xAB, 58 + 64);
  a.port.publish(slot, 0, 58, 64);
  FrameTemplate to_b = a.frames_to(1);
  REQUIRE(a.send(to_b, b.qpn(), 3, 64));
  a.flush();
  CHECK(drain(b) == std::vector<uint32_t>{3});
  CHECK(metric(*plane, "nic_drops", {{"host", "h0"}, {"reason", "not_ip"}}) == 1);
}

TEST_CASE("a hostile process is shut and reported; others go on", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  SeatId reported = 0;
  std::string why;
  plane->on_hostile_port = [&](SeatId seat, uint32_t, const std::string& reason) {
    reported = seat;
    why = reason;
  };
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  TestProcess bad(*plane, plan, 0, 3);
  bad.control()->tx[4].producer.store(1'000'000);
  bad.kick();
  pollfd p{plane->event_fd(), POLLIN, 0};
  REQUIRE(poll(&p, 1, 2000) == 1);
  plane->pump();
  CHECK(reported == 3);
  CHECK_THAT(why, Catch::Contains("index"));
  CHECK(metric(*plane, "process_ports") == 2);
  CHECK(metric(*plane, "seats_draining") == 0);
  Notice notice;
  REQUIRE(b.port.next_notice(notice));
  CHECK(notice.reason == NoticeReason::kPeerDied);
  // Frames for it are for nobody now.
  FrameTemplate to_0 = b.frames_to(0);
  REQUIRE(b.send(to_0, bad.qpn(), 1, 64));
  b.flush();
  REQUIRE(b.next_notice(notice));
  CHECK(notice.reason == NoticeReason::kNoSuchQpn);
  FrameTemplate to_b = a.frames_to(1);
  REQUIRE(a.send(to_b, b.qpn(), 2, 4096));
  a.flush();
  CHECK(drain(b) == std::vector<uint32_t>{2});
}

TEST_CASE("pipes that are never read, filled or closed hurt nobody else", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  TestProcess odd(*plane, plan, 1, 3);
  FrameTemplate to_1 = a.frames_to(1);
  // It claims to sleep and never reads its pipe: every take changes the index, so every frame is kicked for.
  REQUIRE(odd.port.prepare_sleep(false));
  for (uint32_t i = 0; i < 70'000; ++i) {
    if (!a.send(to_1, odd.qpn(), i, 0)) {
      a.flush();
      usleep(50);
      continue;
    }
    if (i % 8 == 0) a.flush();
    attach::ReceivedFrame frame;
    while (odd.port.receive(frame)) odd.port.release(frame.slot);
    odd.port.flush();
  }
  for (int i = 0; i < 100'000; ++i) odd.kick();
  odd.close_kick();
  usleep(20'000);
  drain(b, 0.01);
  const uint64_t sleeps = metric(*plane, "driver_sleeps");
  usleep(300'000);
  CHECK(metric(*plane, "driver_sleeps") - sleeps < 10);  // a closed pipe does not keep it awake
  REQUIRE(a.send(to_1, b.qpn(), 4, 64));
  a.flush();
  CHECK(drain(b) == std::vector<uint32_t>{4});
}

TEST_CASE("forced ICRCs: good frames pass, changed ones are dropped with the reason", "[live]") {
  FabricPlan plan = make_plan(2);
  plan.force_icrc = true;
  plan.link_delay = microseconds(45);  // by reference, and long enough to change a slot while the frame is under way
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  FrameTemplate to_b = a.frames_to(1);
  for (uint32_t i = 0; i < 20; ++i) REQUIRE(a.send(to_b, b.qpn(), i, i % 2 == 0 ? 64 : 2048));
  a.flush();
  CHECK(drain(b).size() == 20);
  CHECK(metric(*plane, "nic_drops") == 0);

  const auto dropped = [&] { return metric(*plane, "nic_drops", {{"host", "h1"}, {"reason", "bad_icrc"}}); };
  constexpr uint32_t kLeast = 100;
  constexpr uint32_t kMost = 2000;  // a daemon that is not let in while the slot changes meets a whole frame
  size_t arrived = 0;
  uint32_t sent = 0;
  for (; sent < kLeast || (sent < kMost && dropped() == 0); ++sent) {
    const uint32_t slot = a.port.begin_frame(0, false);
    a.port.abandon(slot);  // the pool is LIFO: the next frame gets this one
    REQUIRE(a.send(to_b, b.qpn(), sent, 2048));
    a.flush();
    volatile uint8_t* const payload = a.port.payload(slot);
    for (const double limit = seconds_now() + 0.0005; seconds_now() < limit;) payload[1000] = payload[1000] + 1;
    arrived += drain(b, 0.002).size();
  }
  arrived += drain(b).size();
  CHECK(dropped() > 0);
  CHECK(arrived + dropped() == sent);
  Notice notice;
  REQUIRE(a.port.next_notice(notice));
  CHECK(notice.reason == NoticeReason::kBadFrame);
}

TEST_CASE("a link with delay delivers in order, after the delay", "[live]") {
  FabricPlan plan = make_plan(2);
  const bool parks = GENERATE(false, true);  // longer links keep frames in switch memory
  plan.link_delay = parks ? milliseconds(30) : microseconds(40);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  FrameTemplate to_b = a.frames_to(1);
  const double begin = seconds_now();
  std::vector<uint32_t> expected;
  for (uint32_t i = 0; i < 60; ++i) {
    REQUIRE(a.send(to_b, b.qpn(), i, 2048));
    expected.push_back(i);
  }
  a.flush();
  attach::ReceivedFrame frame;
  REQUIRE(b.next(frame));
  CHECK(seconds_now() - begin >= (parks ? 0.060 : 0.000080));
  CHECK(psn_of(frame) == 0);
  b.port.release(frame.slot);
  b.flush();
  expected.erase(expected.begin());
  CHECK(drain(b) == expected);
  CHECK((metric(*plane, "packets_parked") > 0) == parks);
  CHECK(metric(*plane, "packets_live") == 0);
}

TEST_CASE("a capture sees each frame whole, with its ICRC, per direction", "[live]") {
  FabricPlan plan = make_plan(2);
  plan.force_icrc = GENERATE(false, true);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  std::vector<CapturedFrame> frames;
  const auto sink = [&](CapturedFrame&& f) { frames.push_back(std::move(f)); };
  CHECK(plane->start_capture("h7", sink) == -ENOENT);
  const int id = plane->start_capture("h0", sink);
  REQUIRE(id > 0);
  FrameTemplate to_b = a.frames_to(1);
  FrameTemplate to_a = b.frames_to(0);
  for (uint32_t i = 0; i < 5; ++i) REQUIRE(a.send(to_b, b.qpn(), i, 1000 * (i % 4)));
  a.flush();
  REQUIRE(drain(b).size() == 5);
  REQUIRE(b.send(to_a, a.qpn(), 4, 0, 0, Opcode::kRcAcknowledge));
  b.flush();
  REQUIRE(drain(a).size() == 1);
  pollfd p{plane->event_fd(), POLLIN, 0};
  REQUIRE(poll(&p, 1, 1000) == 1);
  plane->pump();
  REQUIRE(frames.size() == 6);
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  for (uint32_t i = 0; i < 6; ++i) {
    RoceFrame parsed;
    REQUIRE(parse_roce(frames[i].bytes, IcrcBytes::kPresent, parsed) == ParseError::kOk);
    CHECK(icrc_good(parsed, frames[i].bytes));
    CHECK(frames[i].interface == (i < 5 ? "h0->s0" : "s0->h0"));
    CHECK(frames[i].inbound == (i == 5));
    CHECK(parsed.payload_bytes == (i < 5 ? 1000 * (i % 4) : 0));
    CHECK(std::abs(static_cast<double>(frames[i].unix_ns) * 1e-9 - static_cast<double>(wall.tv_sec)) < 5);
  }
  plane->stop_capture(id);
  REQUIRE(a.send(to_b, b.qpn(), 9, 64));
  a.flush();
  drain(b);
  plane->pump();
  CHECK(frames.size() == 6);
}

TEST_CASE("same-host traffic goes through the switch", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 0, 2);
  FrameTemplate to_self = a.frames_to(0);
  REQUIRE(a.send(to_self, b.qpn(), 1, 4096));
  REQUIRE(a.send(to_self, a.qpn(), 2, 4096));
  a.flush();
  CHECK(drain(b) == std::vector<uint32_t>{1});
  CHECK(drain(a) == std::vector<uint32_t>{2});
  CHECK(metric(*plane, "switch_tx_packets", {{"port", "0"}}) == 2);
}

TEST_CASE("a host may have several NICs", "[live]") {
  FabricPlan plan = make_plan(2);
  NicPlan second;
  second.mac = {0x02, 0x57, 1, 0, 0, 0};
  second.ipv4 = plan.hosts[0].nics[0].ipv4 + 16;
  plan.hosts[0].nics.push_back(second);
  const auto plane = start(plan);
  std::string names;
  for (const MetricSample& sample : plane->metrics()) {
    if (sample.name == "link_packets") names += sample.labels[0].second + " ";
  }
  CHECK(names == "h0->s0 s0->h0 h0/1->s0 s0->h0/1 h1->s0 s0->h1 ");
}
