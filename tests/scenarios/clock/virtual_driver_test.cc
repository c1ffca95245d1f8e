// SPDX-License-Identifier: Apache-2.0
//
// The READ storm at minimum slots, peers that stop and go on, and what a message costs in time on an idle path.
#include "scenarios/clock/virtual_driver.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "protocols/transport/segment.h"

using namespace weft;

namespace {

constexpr uint32_t kMtu = 1024;

struct Storm {
  uint32_t transmit_slots = 2;
  uint32_t answer_reserve = 1;
  uint32_t receive_slots = 64;
  bool answer_inside_receive = false;
};

/// Two peers that serve each other's READs and WRITEs with no timer to save them. Works completed, of those posted.
std::pair<size_t, size_t> run_storm(const Storm& storm, uint64_t seed) {
  VirtualWorld::Settings settings;
  settings.seed = seed;
  settings.transmit_slots = storm.transmit_slots;
  settings.answer_reserve = storm.answer_reserve;
  settings.receive_slots = storm.receive_slots;
  settings.answer_inside_receive = storm.answer_inside_receive;
  VirtualWorld world(settings);
  RequesterConfig requester;
  requester.timeout = 0;
  requester.max_rd_atomic = 16;
  requester.patient = false;
  ResponderConfig responder;
  responder.max_dest_rd_atomic = 16;
  constexpr uint32_t kConnections = 8;
  constexpr uint32_t kWorks = 250;
  for (uint32_t c = 0; c < kConnections; ++c) world.connect(0, 1, requester, responder);
  Random random(seed, 77);
  for (uint32_t n = 0; n < kWorks; ++n) {
    for (QpId q = 0; q < 2 * kConnections; ++q) {
      SendWork work;
      work.opcode = random.below(10) < 3 ? WorkOpcode::kRead : WorkOpcode::kWrite;
      work.length = work.opcode == WorkOpcode::kRead ? 4 * kMtu : kMtu;
      work.remote_addr = VirtualWorld::kMemoryBase;
      work.rkey = VirtualWorld::kRkey;
      work.signaled = true;
      world.post_send(q, work, 8 * kMtu);
    }
  }
  world.run();
  size_t done = 0;
  for (QpId q = 0; q < 2 * kConnections; ++q) {
    for (const auto& c : world.completions(q)) done += c.what.status == WorkStatus::kSuccess ? 1 : 0;
    CHECK(world.requester(q).stats().sequence_naks == 0);
  }
  return {done, size_t{2} * kConnections * kWorks};
}

}  // namespace

TEST_CASE("READ storm of two peers at minimum slots", "[storm]") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    for (const Storm& storm : {Storm{1, 0, 1}, Storm{2, 1, 1}, Storm{2, 1, 64}, Storm{5, 4, 4}, Storm{64, 4, 64}}) {
      CAPTURE(storm.transmit_slots, storm.answer_reserve, storm.receive_slots);
      const auto [done, posted] = run_storm(storm, seed);
      REQUIRE(done == posted);
    }
  }
}

TEST_CASE("the same storm stands still when answers are made inside receive", "[storm]") {
  // What the test above would look like if the rule were broken; with as many slots as a default port has requests for.
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    const auto [done, posted] = run_storm(Storm{64, 0, 64, true}, seed);
    REQUIRE(done < posted);
  }
}

TEST_CASE("one message on an idle path takes the sum of its parts", "[law]") {
  for (const uint32_t mtu : {256u, 1024u, 4096u}) {
    for (const uint64_t rate : {10'000'000'000u, 100'000'000'000u, 400'000'000'000u}) {
      for (const uint32_t length : {0u, 1u, mtu, mtu + 1, 100'000u}) {
        CAPTURE(mtu, rate, length);
        VirtualWorld::Settings settings;
        settings.link.rate_bps = rate;
        settings.link.delay = nanoseconds(700);
        settings.receive_slots = 1024;  // frames on their way take one each
        VirtualWorld world(settings);
        RequesterConfig requester;
        requester.mtu_bytes = mtu;
        requester.window_packets = 1000;
        requester.ack_every = 1000;
        ResponderConfig responder;
        responder.mtu_bytes = mtu;
        world.connect(0, 1, requester, responder);
        SendWork work;
        work.opcode = WorkOpcode::kWrite;
        work.length = length;
        work.remote_addr = VirtualWorld::kMemoryBase;
        work.rkey = VirtualWorld::kRkey;
        work.signaled = true;
        world.post_send(0, work, 0);
        world.run();
        REQUIRE(world.completions(0).size() == 1);
        Duration expected = 2 * settings.link.delay + serialisation(VirtualWorld::kFrameOverhead, rate);
        for (uint32_t i = 0; i < packets_of(length, mtu); ++i)
          expected += serialisation(VirtualWorld::kFrameOverhead + payload_of(length, mtu, i), rate);
        REQUIRE((world.completions(0)[0].at - Instant{}).count() == expected.count());
      }
    }
  }
}

TEST_CASE("READ throughput is bounded by the READs outstanding", "[law]") {
  // k READs of s bytes per round trip, where the link is not the limit.
  for (const uint8_t k : {uint8_t{1}, uint8_t{4}, uint8_t{16}}) {
    CAPTURE(k);
    VirtualWorld::Settings settings;
    settings.link.delay = microseconds(20);
    settings.memory_bytes = 1 << 20;
    VirtualWorld world(settings);
    RequesterConfig requester;
    requester.max_rd_atomic = k;
    requester.mtu_bytes = 4096;
    ResponderConfig responder;
    responder.max_dest_rd_atomic = 16;
    responder.mtu_bytes = 4096;
    world.connect(0, 1, requester, responder);
    constexpr uint32_t kReads = 960;
    constexpr uint32_t kBytes = 4096;
    for (uint32_t i = 0; i < kReads; ++i) {
      SendWork work;
      work.opcode = WorkOpcode::kRead;
      work.length = kBytes;
      work.remote_addr = VirtualWorld::kMemoryBase;
      work.rkey = VirtualWorld::kRkey;
      world.post_send(0, work, 0);
    }
    world.run();
    REQUIRE(world.completions(0).size() == kReads);
    const double took = static_cast<double>((world.completions(0).back().at - Instant{}).count());
    const Duration round = 2 * settings.link.delay +
                           serialisation(VirtualWorld::kFrameOverhead, settings.link.rate_bps) +
                           serialisation(VirtualWorld::kFrameOverhead + kBytes, settings.link.rate_bps);
    const double expected = static_cast<double>(round.count()) * kReads / k;
    REQUIRE(took == Approx(expected).epsilon(0.01));
  }
}

TEST_CASE("patient: a stopped peer costs no retry and goes on where it was", "[patient]") {
  VirtualWorld world(VirtualWorld::Settings{});
  RequesterConfig requester;
  requester.timeout = 8;  // 1.05 ms
  requester.retry_count = 1;
  world.connect(0, 1, requester, ResponderConfig{});
  for (int i = 0; i < 50; ++i) {
    SendWork work;
    work.opcode = WorkOpcode::kWrite;
    work.length = 2000;
    work.remote_addr = VirtualWorld::kMemoryBase;
    work.rkey = VirtualWorld::kRkey;
    world.post_send(0, work, 0);
  }
  world.run_until(Instant{microseconds(3)});
  world.stop(1);
  world.run_until(Instant{seconds(2)});
  const size_t before = world.completions(0).size();
  REQUIRE(before < 50);
  // Probes back off to one packet every eight timeouts: 2 s are 1907 timeouts.
  REQUIRE(world.requester(0).stats().probes < 1907 / 8 + 10);
  REQUIRE(world.requester(0).stats().timeouts == 0);
  world.resume(1);
  world.run_until(Instant{seconds(3)});
  REQUIRE(world.completions(0).size() == 50);
  for (const auto& c : world.completions(0)) REQUIRE(c.what.status == WorkStatus::kSuccess);
}
