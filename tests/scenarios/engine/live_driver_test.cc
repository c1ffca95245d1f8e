// SPDX-License-Identifier: Apache-2.0
//
// Sleeping, waking and idling; processes that come, go and stop taking.
#include "scenarios/engine/live_driver.h"

#include <atomic>
#include <thread>

#include "tests/scenarios/engine/fabric_fixture.h"

using namespace weft;
using namespace weft::test;

namespace {

void sleep_seconds(double seconds) { usleep(static_cast<useconds_t>(seconds * 1e6)); }

bool send_one(TestProcess& from, TestProcess& to, HostIndex host, uint32_t psn) {
  FrameTemplate frame = from.frames_to(host);
  const bool sent = from.send(frame, to.qpn(), psn, 64);
  from.flush();
  return sent;
}

}  // namespace

TEST_CASE("an idle fabric sleeps without waking up", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  REQUIRE(send_one(a, b, 1, 1));
  attach::ReceivedFrame frame;
  REQUIRE(b.next(frame));
  b.port.release(frame.slot);
  b.flush();
  REQUIRE(b.port.prepare_sleep(false));
  REQUIRE(a.port.prepare_sleep(false));
  sleep_seconds(0.1);
  const uint64_t sleeps = metric(*plane, "driver_sleeps");
  const uint64_t cpu = metric(*plane, "driver_cpu_ns");
  sleep_seconds(1);
  // Each of the two questions is answered by one wake-up, and nothing else happens in between.
  CHECK(metric(*plane, "driver_sleeps") - sleeps <= 3);
  CHECK(metric(*plane, "driver_cpu_ns") - cpu < 5'000'000);
}

TEST_CASE("an undelivered frame does not keep the fabric awake", "[live]") {
  FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  b.port.note_poll();
  REQUIRE(b.port.prepare_sleep(false));  // like a stopped program: asleep, and it never comes back
  REQUIRE(send_one(a, b, 1, 1));
  sleep_seconds(0.1);
  const uint64_t sleeps = metric(*plane, "driver_sleeps");
  sleep_seconds(0.5);
  CHECK(metric(*plane, "driver_sleeps") - sleeps <= 3);
}

TEST_CASE("a sleeping process is woken for every frame", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  constexpr uint32_t kRounds = 3000;
  const auto echo = [](TestProcess& me, HostIndex peer_host, uint32_t peer_qpn, bool first, std::atomic<uint32_t>& done) {
    FrameTemplate frame = me.frames_to(peer_host);
    for (uint32_t i = 0; i < kRounds; ++i) {
      if (first) {
        me.send(frame, peer_qpn, i, 64);
        me.flush();
      }
      attach::ReceivedFrame in;
      if (!me.next(in, 5)) return;
      me.port.release(in.slot);
      if (!first) me.send(frame, peer_qpn, i, 64);
      me.flush();
      ++done;
    }
  };
  std::atomic<uint32_t> done_a{0};
  std::atomic<uint32_t> done_b{0};
  std::thread other([&] { echo(b, 0, a.qpn(), false, done_b); });
  echo(a, 1, b.qpn(), true, done_a);
  other.join();
  CHECK(done_a == kRounds);
  CHECK(done_b == kRounds);
}

TEST_CASE("a program that stops polling without a word is woken", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  // b's thread sleeps all the time; its main thread polls for a while and then spins on memory instead.
  REQUIRE(b.port.prepare_sleep(false));
  for (uint32_t round = 0; round < 50; ++round) {
    b.port.note_poll();
    REQUIRE(send_one(a, b, 1, round));
    // The pipe is the only thing that wakes it.
    attach::ReceivedFrame in;
    REQUIRE(b.wait_for_kick(1));
    REQUIRE(b.port.receive(in));
    b.port.release(in.slot);
    b.flush();
  }
}

TEST_CASE("a process that waits for transmit slots is woken when they return", "[live]") {
  FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  FrameTemplate to_b = a.frames_to(1);
  uint32_t sent = 0;
  uint32_t received = 0;
  constexpr uint32_t kFrames = 5000;
  std::thread receiver([&] {
    attach::ReceivedFrame in;
    while (received < kFrames && b.next(in, 5)) {
      b.port.release(in.slot);
      b.flush();
      ++received;
    }
  });
  bool stuck = false;
  while (sent < kFrames && !stuck) {
    while (sent < kFrames && a.send(to_b, b.qpn(), sent, 4096)) ++sent;
    a.flush();
    if (sent < kFrames) stuck = !a.wait(2, true);
  }
  CHECK_FALSE(stuck);
  CHECK(sent == kFrames);
  receiver.join();
  CHECK(received == kFrames);
}

TEST_CASE("a process that takes nothing is stalled; others are not disturbed", "[live]") {
  FabricPlan plan = make_plan(3);
  plan.stall_time = milliseconds(300);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess stopped(*plane, plan, 1, 2);
  TestProcess c(*plane, plan, 2, 3);
  TestProcess beside(*plane, plan, 1, 4);  // on the host of the stopped one
  FrameTemplate to_stopped = a.frames_to(1);
  FrameTemplate c_to_beside = c.frames_to(1);
  uint32_t sent = 0;
  const double begin = seconds_now();
  double longest_gap = 0;
  double last = begin;
  uint32_t crossed = 0;
  while (seconds_now() - begin < 1.0) {
    if (a.send(to_stopped, stopped.qpn(), sent, 4096)) ++sent;
    a.flush();
    if (c.send(c_to_beside, beside.qpn(), crossed, 64)) c.flush();
    attach::ReceivedFrame in;
    if (beside.next(in, 0.05)) {
      beside.port.release(in.slot);
      beside.flush();
      ++crossed;
      longest_gap = std::max(longest_gap, seconds_now() - last);
      last = seconds_now();
    }
  }
  CHECK(longest_gap < 0.6);
  CHECK(crossed > 100);
  CHECK(sent > 600);  // the sender goes on once the receiver counts as stalled
  CHECK(metric(*plane, "nic_receiver_stalls", {{"host", "h1"}}) == 1);
  CHECK(metric(*plane, "nic_drops", {{"host", "h1"}, {"reason", "receiver_stalled"}}) > 0);
  attach::Notice notice;
  CHECK_FALSE(a.port.next_notice(notice));  // patient timers: the requester goes on trying

  // It comes back: what is in its ring is there, and new frames arrive again.
  attach::ReceivedFrame in;
  uint32_t old = 0;
  while (stopped.port.receive(in)) {
    stopped.port.release(in.slot);
    ++old;
  }
  stopped.flush();
  CHECK(old == 256);
  REQUIRE(a.wait(1, true));
  REQUIRE(a.send(to_stopped, stopped.qpn(), 777777, 64));
  a.flush();
  bool fresh = false;
  while (!fresh && stopped.next(in, 1)) {
    RoceFrame parsed;
    REQUIRE(parse_headers({in.header, in.header_bytes}, in.payload_bytes, parsed) == ParseError::kOk);
    fresh = parsed.transport.psn == 777777;
    stopped.port.release(in.slot);
    stopped.flush();
  }
  CHECK(fresh);
}

TEST_CASE("a daemon that is busy with others sees a port that was quiet", "[live]") {
  const FabricPlan plan = make_plan(4);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  TestProcess c(*plane, plan, 2, 3);
  TestProcess d(*plane, plan, 3, 4);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> busy{0};
  std::thread traffic([&] {
    FrameTemplate to_d = c.frames_to(3);
    while (!stop) {
      c.port.note_poll();
      d.port.note_poll();
      c.send(to_d, d.qpn(), 0, 64);
      c.flush();
      attach::ReceivedFrame in;
      while (d.port.receive(in)) {
        d.port.release(in.slot);
        ++busy;
      }
      d.flush();
    }
  });
  uint32_t crossed = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    sleep_seconds(0.003);  // quiet for longer than a port is watched
    attach::ReceivedFrame in;
    if (!send_one(a, b, 1, i) || !b.next(in, 1)) break;  // nothing else would bring it later
    b.port.release(in.slot);
    b.flush();
    ++crossed;
  }
  stop = true;
  traffic.join();
  CHECK(crossed == 100);
  CHECK(busy > 1000);
}

TEST_CASE("what a process published before it died is still sent", "[live]") {
  FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess b(*plane, plan, 1, 2);
  constexpr uint32_t kFrames = 200;
  {
    TestProcess a(*plane, plan, 0, 1);
    FrameTemplate to_b = a.frames_to(1);
    for (uint32_t i = 0; i < kFrames; ++i) REQUIRE(a.send(to_b, b.qpn(), i, 4096));
    a.port.flush();  // and no kick
    a.detach(true);
  }
  attach::ReceivedFrame in;
  for (uint32_t i = 0; i < kFrames; ++i) {
    REQUIRE(b.next(in));
    b.port.release(in.slot);
    b.flush();
  }
  CHECK(metric(*plane, "process_ports") == 1);
  CHECK(metric(*plane, "packets_live") == 0);
}

TEST_CASE("frames of a dead process that wait for a stopped one hold its mapping, and no longer", "[live]") {
  FabricPlan plan = make_plan(2);
  plan.stall_time = milliseconds(200);
  const auto plane = start(plan);
  TestProcess b(*plane, plan, 1, 2);
  {
    TestProcess a(*plane, plan, 0, 1);
    FrameTemplate to_b = a.frames_to(1);
    for (uint32_t n = 0; n < 400; ++n) {
      if (!a.send(to_b, b.qpn(), n, 4096)) usleep(1000);
      a.flush();
    }
    a.detach(true);
  }
  CHECK(metric(*plane, "packets_live") > 0);
  const double limit = seconds_now() + 3;
  while (metric(*plane, "packets_live") > 0 && seconds_now() < limit) sleep_seconds(0.02);
  CHECK(metric(*plane, "packets_live") == 0);
  CHECK(metric(*plane, "seats_draining") == 0);
}

TEST_CASE("hundreds of ports come and go", "[live]") {
  FabricPlan plan = make_plan(20);
  const auto plane = start(plan);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<TestProcess>> processes;
    for (SeatId seat = 0; seat < 300; ++seat) {
      processes.push_back(std::make_unique<TestProcess>(*plane, plan, seat % 20, seat, 32, 32));
    }
    CHECK(metric(*plane, "process_ports") == 300);
    uint32_t crossed = 0;
    for (SeatId seat = 0; seat < 300; ++seat) {
      TestProcess& from = *processes[seat];
      const SeatId peer = (seat * 7 + 3) % 300;
      attach::ReceivedFrame in;
      if (send_one(from, *processes[peer], peer % 20, seat) && processes[peer]->next(in)) ++crossed;
    }
    CHECK(crossed == 300);
    processes.clear();
    CHECK(metric(*plane, "process_ports") == 0);
    CHECK(metric(*plane, "seats_draining") == 0);
  }
}

TEST_CASE("attaching twice, or to a host that is not there, is refused", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  PortSetup setup;
  setup.layout = a.layout();
  setup.memory = a.memory();
  setup.host = 7;
  CHECK(plane->attach_port(setup) == EINVAL);
  setup.host = 0;
  setup.seat = 1;
  CHECK(plane->attach_port(setup) == EINVAL);
  setup.seat = 5;
  setup.qpn_base = a.qpn() & ~0x3FFFu;
  CHECK(plane->attach_port(setup) == EADDRINUSE);
  CHECK(metric(*plane, "process_ports") == 1);
}
