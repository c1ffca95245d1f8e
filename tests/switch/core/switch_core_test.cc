// SPDX-License-Identifier: Apache-2.0
#include "switch/core/switch_core.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <vector>

#include "protocols/base/random.h"

using namespace weft;
using namespace weft::fabric;

namespace {

struct Bench {
  explicit Bench(SwitchSettings s) : settings(s) {
    REQUIRE(arena.reserve(10'000));
    core = std::make_unique<SwitchCore>(settings, arena);
    for (uint32_t i = 0; i < settings.endpoints; ++i) core->set_route(i, static_cast<SwitchPort>(i % settings.ports));
  }
  PacketRef packet(uint32_t destination, uint32_t bytes = 1000, uint8_t priority = 0, uint32_t psn = 0) {
    const PacketRef p = arena.allocate();
    REQUIRE(p != kNoPacket);
    arena[p] = PacketDescriptor{};
    arena[p].destination = destination;
    arena[p].wire_bytes = bytes;
    arena[p].priority = priority;
    arena[p].psn = psn;
    return p;
  }
  SwitchSettings settings;
  PacketArena arena;
  std::unique_ptr<SwitchCore> core;
};

SwitchSettings small(uint32_t ports = 4) {
  SwitchSettings s;
  s.ports = s.endpoints = ports;
  s.xoff_bytes = 10'000;
  s.xon_bytes = 5'000;
  s.quantum_bytes = 1500;
  return s;
}

const Instant kNow{};

}  // namespace

TEST_CASE("a packet leaves by the port of its destination, also the one it came from") {
  Bench b(small());
  for (uint32_t destination = 0; destination < 4; ++destination) {
    const PacketRef p = b.packet(destination);
    CHECK(b.core->receive(kNow, 1, p).drop == DropReason::kNone);
    REQUIRE(b.core->take_ready_port() == destination);
    CHECK(b.core->transmit(kNow, static_cast<SwitchPort>(destination)) == p);
    CHECK(b.core->transmit(kNow, static_cast<SwitchPort>(destination)) == kNoPacket);
    b.arena.release(p);
  }
  CHECK(b.core->take_ready_port() == kNoSwitchPort);
  CHECK(b.core->held_packets() == 0);
  CHECK(b.arena.live() == 0);
}

TEST_CASE("a packet for nobody stays the caller's, with a reason that is counted") {
  Bench b(small());
  const PacketRef p = b.packet(77);
  CHECK(b.core->receive(kNow, 2, p).drop == DropReason::kNoRoute);
  CHECK(b.core->drops(2, DropReason::kNoRoute) == 1);
  CHECK(b.core->held_packets() == 0);
  b.arena.release(p);
}

namespace {
struct Copies final : PacketCopies {
  explicit Copies(PacketArena& arena_) : arena(arena_) {}
  PacketRef clone(PacketRef packet) override {
    if (left == 0) return kNoPacket;
    --left;
    const PacketRef copy = arena.allocate();
    arena[copy] = arena[packet];
    return copy;
  }
  PacketArena& arena;
  uint32_t left = UINT32_MAX;
};
}  // namespace

TEST_CASE("a packet for a group leaves once by each member port and by no other") {
  Bench b(small(6));
  Copies copies(b.arena);
  b.core->set_copies(copies);
  for (const SwitchPort port : {SwitchPort{4}, SwitchPort{0}, SwitchPort{2}}) b.core->join(3, port);
  const auto send = [&](uint32_t group, uint32_t qpn = kMulticastQpn) {
    const PacketRef p = b.packet(kGroupDestination | group);
    b.arena[p].dest_qpn = qpn;
    const Arrival arrival = b.core->receive(kNow, 2, p);
    if (arrival.drop != DropReason::kNone) b.arena.release(p);
    return arrival.drop;
  };
  const auto leaving = [&] {
    std::set<SwitchPort> ports;
    for (SwitchPort port; (port = b.core->take_ready_port()) != kNoSwitchPort;) {
      for (PacketRef p; (p = b.core->transmit(kNow, port)) != kNoPacket;) {
        CHECK(ports.insert(port).second);
        b.arena.release(p);
      }
    }
    return ports;
  };
  CHECK(send(3) == DropReason::kNone);
  CHECK(b.core->ingress(2, 0).held_packets == 3);
  CHECK(leaving() == std::set<SwitchPort>{0, 2, 4});
  CHECK(b.core->ingress(2, 0).held_packets == 0);
  CHECK(b.core->multicast_in(2) == 1);
  CHECK(b.core->multicast_out(4) == 1);

  CHECK(send(2) == DropReason::kNoMember);
  CHECK(send(99) == DropReason::kNoMember);
  CHECK(send(3, 17) == DropReason::kNoMember);
  CHECK(b.core->drops(2, DropReason::kNoMember) == 3);

  b.core->join(3, 0);  // again: nothing new
  b.core->leave(3, 2);
  CHECK(send(3) == DropReason::kNone);
  CHECK(leaving() == std::set<SwitchPort>{0, 4});

  copies.left = 0;  // no memory for copies: counted where they are missing, and the packet itself goes on
  CHECK(send(3) == DropReason::kNone);
  CHECK(leaving() == std::set<SwitchPort>{4});
  CHECK(b.core->drops(0, DropReason::kBufferFull) == 1);

  b.core->leave(3, 0);
  b.core->leave(3, 4);
  CHECK(send(3) == DropReason::kNoMember);
  CHECK(b.arena.live() == 0);
}

TEST_CASE("a paused member holds its copy back and its sender, not the other members") {
  Bench b(small(3));
  Copies copies(b.arena);
  b.core->set_copies(copies);
  b.core->join(0, 1);
  b.core->join(0, 2);
  b.core->set_paused(1, 0, true);
  uint32_t sent = 0;
  uint32_t got = 0;
  while ((b.core->paused(0) & 1) == 0 && sent < 100) {
    const PacketRef p = b.packet(kGroupDestination, 1000, 0, sent++);
    b.arena[p].dest_qpn = kMulticastQpn;
    REQUIRE(b.core->receive(kNow, 0, p).drop == DropReason::kNone);
    for (PacketRef out; (out = b.core->transmit(kNow, 2)) != kNoPacket; ++got) b.arena.release(out);
  }
  CHECK(got == sent);
  CHECK(sent < 100);
  b.core->set_paused(1, 0, false);
  uint32_t late = 0;
  for (PacketRef out; (out = b.core->transmit(kNow, 1)) != kNoPacket; ++late) {
    CHECK(b.arena[out].psn == late);
    b.arena.release(out);
  }
  CHECK(late == sent);
  CHECK((b.core->paused(0) & 1) == 0);
}

TEST_CASE("order within a priority is kept") {
  Bench b(small());
  for (uint32_t i = 0; i < 9; ++i) b.core->receive(kNow, 0, b.packet(3, 500, 2, i));
  REQUIRE(b.core->take_ready_port() == 3);
  for (uint32_t i = 0; i < 9; ++i) CHECK(b.arena[b.core->transmit(kNow, 3)].psn == i);
}

TEST_CASE("the sender is paused above xoff, goes on at xon, per priority") {
  Bench b(small());
  const auto receive = [&](uint8_t priority) { b.core->receive(kNow, 0, b.packet(1, 1000, priority)); };
  for (int i = 0; i < 10; ++i) receive(3);
  CHECK(b.core->paused(0) == 0);
  CHECK(b.core->take_changed_port() == kNoSwitchPort);
  receive(3);
  CHECK(b.core->paused(0) == 1u << 3);
  CHECK(b.core->take_changed_port() == 0);
  CHECK(b.core->take_changed_port() == kNoSwitchPort);
  receive(5);
  CHECK(b.core->paused(0) == 1u << 3);  // another priority is not held up
  CHECK(b.core->ingress(0, 3).xoffs == 1);
  b.core->set_paused(1, 5, true);  // so that only priority 3 leaves
  for (int i = 0; i < 5; ++i) b.core->transmit(kNow, 1);
  CHECK(b.core->paused(0) == 1u << 3);  // 6000 held: between the thresholds it stays
  b.core->transmit(kNow, 1);
  CHECK(b.core->paused(0) == 0);
  CHECK(b.core->take_changed_port() == 0);
}

TEST_CASE("small packets are charged in whole cells") {
  SwitchSettings s = small();
  s.cell_bytes = 256;
  Bench b(s);
  for (int i = 0; i < 39; ++i) b.core->receive(kNow, 0, b.packet(1, 66));
  CHECK(b.core->paused(0) == 0);  // 39 * 256 = 9984
  b.core->receive(kNow, 0, b.packet(1, 66));
  CHECK(b.core->paused(0) == 1);
  CHECK(b.core->ingress(0, 0).bytes == 40 * 66);
}

TEST_CASE("a paused priority waits, the others pass it") {
  Bench b(small());
  b.core->set_paused(2, 0, true);
  CHECK(b.core->receive(kNow, 0, b.packet(2, 100, 0, 1)).waits);
  CHECK_FALSE(b.core->receive(kNow, 0, b.packet(2, 100, 6, 2)).waits);
  REQUIRE(b.core->take_ready_port() == 2);
  CHECK(b.arena[b.core->transmit(kNow, 2)].psn == 2);
  CHECK(b.core->transmit(kNow, 2) == kNoPacket);
  CHECK(b.core->take_ready_port() == kNoSwitchPort);
  b.core->set_paused(2, 0, false);
  REQUIRE(b.core->take_ready_port() == 2);
  CHECK(b.arena[b.core->transmit(kNow, 2)].psn == 1);
  CHECK(b.core->queue(2, 0).pauses == 1);
}

TEST_CASE("a long queue means that frames wait") {
  SwitchSettings s = small();
  s.by_reference_packets = 3;
  Bench b(s);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(b.core->receive(kNow, 0, b.packet(1)).waits);
  CHECK(b.core->receive(kNow, 0, b.packet(1)).waits);
}

TEST_CASE("priorities share a port by bytes, strict ones go first") {
  SwitchSettings s = small(2);
  s.xoff_bytes = s.xon_bytes = 100'000'000;
  s.strict_priorities = 1u << 7;
  Bench b(s);
  for (int i = 0; i < 400; ++i) b.core->receive(kNow, 0, b.packet(1, 100, 0));
  for (int i = 0; i < 400; ++i) b.core->receive(kNow, 0, b.packet(1, 1400, 1));
  for (int i = 0; i < 10; ++i) b.core->receive(kNow, 0, b.packet(1, 700, 7));
  REQUIRE(b.core->take_ready_port() == 1);
  for (int i = 0; i < 10; ++i) CHECK(b.arena[b.core->transmit(kNow, 1)].priority == 7);
  std::map<int, uint64_t> bytes;
  while (bytes[0] < 30'000) {
    const PacketDescriptor& d = b.arena[b.core->transmit(kNow, 1)];
    bytes[d.priority] += d.wire_bytes;
  }
  CHECK(bytes[1] > 25'000);
  CHECK(bytes[1] < 35'000);
}

TEST_CASE("random traffic: nothing is lost, nothing is left, accounts end at zero") {
  const uint64_t seed = 20240607;
  INFO("seed " << seed);
  Random random(seed, 1);
  SwitchSettings s = small(6);
  s.cell_bytes = 64;
  Bench b(s);
  std::map<uint32_t, uint32_t> next_sent;
  std::map<uint32_t, uint32_t> next_seen;
  uint64_t sent = 0;
  uint64_t seen = 0;
  const auto serve = [&](uint32_t budget) {
    for (SwitchPort port; budget > 0 && (port = b.core->take_ready_port()) != kNoSwitchPort;) {
      for (PacketRef p; (p = b.core->transmit(kNow, port)) != kNoPacket;) {
        const PacketDescriptor d = b.arena[p];
        const uint32_t flow = d.ingress_port * 64u + port * 8u + d.priority;
        CHECK(d.psn == next_seen[flow]++);
        b.arena.release(p);
        ++seen;
      }
      --budget;
    }
  };
  for (int step = 0; step < 20'000; ++step) {
    const SwitchPort in = static_cast<SwitchPort>(random.below(6));
    const uint32_t out = static_cast<uint32_t>(random.below(6));
    const uint8_t priority = static_cast<uint8_t>(random.below(8));
    if ((b.core->paused(in) >> priority & 1) == 0 && b.arena.available() > 0) {
      const uint32_t flow = in * 64u + out * 8u + priority;
      const uint32_t bytes = 60 + static_cast<uint32_t>(random.below(4100));
      REQUIRE(b.core->receive(kNow, in, b.packet(out, bytes, priority, next_sent[flow]++)).drop == DropReason::kNone);
      ++sent;
    }
    if (random.below(4) == 0) {
      b.core->set_paused(static_cast<SwitchPort>(random.below(6)), static_cast<uint8_t>(random.below(8)), random.below(3) == 0);
    }
    if (random.below(3) == 0) serve(static_cast<uint32_t>(random.below(4)));
    while (b.core->take_changed_port() != kNoSwitchPort) {
    }
  }
  for (SwitchPort port = 0; port < 6; ++port) {
    for (uint8_t priority = 0; priority < 8; ++priority) b.core->set_paused(port, priority, false);
  }
  serve(UINT32_MAX);
  CHECK(sent > 5000);
  CHECK(seen == sent);
  CHECK(b.arena.live() == 0);
  CHECK(b.core->held_packets() == 0);
  for (SwitchPort port = 0; port < 6; ++port) {
    CHECK(b.core->paused(port) == 0);
    for (uint8_t priority = 0; priority < 8; ++priority) {
      CHECK(b.core->ingress(port, priority).held_bytes == 0);
      CHECK(b.core->queue(port, priority).held_bytes == 0);
    }
  }
}
