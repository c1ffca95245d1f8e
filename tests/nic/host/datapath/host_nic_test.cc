// SPDX-License-Identifier: Apache-2.0
//
// The NIC against ports that are only numbers: demultiplexing, pause, stall, and what it refuses to send.
#include "nic/host/datapath/host_nic.h"

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <vector>

#include "nic/host/datapath/classify.h"
#include "protocols/base/random.h"
#include "protocols/wire/opcode.h"
#include "protocols/wire/roce_frame.h"

using namespace weft;
using namespace weft::nic;

namespace {

const EndpointAddress kHosts[3] = {{{2, 0x57, 0, 0, 0, 0}, 0xC6120001},
                                   {{2, 0x57, 0, 0, 0, 1}, 0xC6120002},
                                   {{2, 0x57, 0, 0, 0, 2}, 0xC6120003}};

/// Accepts as much as it has room for; remembers PSNs.
struct FakePort final : attach::FramePort {
  explicit FakePort(PacketArena& arena_) : arena(arena_) {}
  uint32_t take(uint8_t, std::span<attach::TakenFrame> out) override {
    uint32_t n = 0;
    while (n < out.size() && !to_send.empty()) {
      out[n++] = to_send.back();
      to_send.pop_back();
    }
    return n;
  }
  uint32_t deliver(std::span<const PacketRef> packets) override {
    uint32_t n = 0;
    for (; n < packets.size() && room > 0; ++n, --room) {
      got.push_back(arena[packets[n]].psn);
      arena.release(packets[n]);
    }
    return n;
  }
  bool collect() override {
    const bool was = moved;
    moved = false;
    return was;
  }
  void notice(const attach::Notice&) override { ++notices; }

  PacketArena& arena;
  std::vector<attach::TakenFrame> to_send;
  std::vector<uint32_t> got;
  uint32_t room = UINT32_MAX;
  bool moved = false;
  int notices = 0;
};

struct FakeBytes final : attach::FrameBytes {
  std::span<const uint8_t> headers(PacketRef) const override { return {}; }
  std::span<const uint8_t> payload(PacketRef) const override { return {}; }
  bool park(PacketRef) override {
    ++parked;
    return true;
  }
  PacketRef clone(PacketRef packet) override {
    if (arena == nullptr || clones == 0) return kNoPacket;
    --clones;
    const PacketRef copy = arena->allocate();
    (*arena)[copy] = (*arena)[packet];
    return copy;
  }
  void release(PacketRef) override {}
  uint32_t parked = 0;
  PacketArena* arena = nullptr;
  uint32_t clones = UINT32_MAX;
};

struct Bench final : NicDrops {
  Bench() {
    REQUIRE(arena.reserve(4096));
    REQUIRE(map.build({kHosts, kHosts + 3}));
    HostNicSettings settings;
    settings.identity = {1, kHosts[1]};
    settings.stall_time = milliseconds(100);
    nic = std::make_unique<HostNic>(settings, arena, bytes, map, *this);
    for (uint32_t i = 0; i < 2; ++i) {
      seat[i].port = &port[i];
      seat[i].qpn_base = (i + 1) << kRangeLog2;
      REQUIRE(nic->attach(seat[i]));
    }
  }
  void dropped(Instant, PacketRef packet, DropReason reason, uint32_t) override {
    ++drops[reason];
    arena.release(packet);
  }
  void receive(uint32_t qpn, uint32_t psn, uint8_t priority = 0) {
    const PacketRef p = arena.allocate();
    arena[p] = PacketDescriptor{};
    arena[p].dest_qpn = qpn;
    arena[p].psn = psn;
    arena[p].priority = priority;
    nic->receive(now, p);
  }
  uint32_t qpn(uint32_t i) const { return seat[i].qpn_base + 5; }

  PacketArena arena;
  AddressMap map;
  FakeBytes bytes;
  FakePort port[2]{FakePort(arena), FakePort(arena)};
  NicSeat seat[2];
  std::unique_ptr<HostNic> nic;
  std::map<DropReason, uint32_t> drops;
  Instant now{};
};

}  // namespace

TEST_CASE("a frame for a group goes to each process that joined, and counts once") {
  Bench b;
  b.bytes.arena = &b.arena;
  const uint32_t group = b.map.enter_group(gid_of_ipv4(0xEF000001));
  REQUIRE(is_group(group));
  CHECK(b.map.find(0xEF000001u) == group);
  const auto send = [&](uint32_t psn) {
    const PacketRef p = b.arena.allocate();
    b.arena[p] = PacketDescriptor{};
    b.arena[p].destination = group;
    b.arena[p].dest_qpn = kMulticastQpn;
    b.arena[p].psn = psn;
    b.nic->receive(b.now, p);
    b.nic->deliver(b.now);
  };
  send(1);
  CHECK(b.drops[DropReason::kNoMember] == 1);
  CHECK(b.nic->join(group, b.seat[0]));
  CHECK_FALSE(b.nic->join(group, b.seat[1]));
  CHECK_FALSE(b.nic->join(group, b.seat[1]));
  send(2);
  CHECK(b.port[0].got == std::vector<uint32_t>{2});
  CHECK(b.port[1].got == std::vector<uint32_t>{2});
  CHECK(b.nic->counters().rx_multicast == 2);
  CHECK_FALSE(b.nic->leave(group, b.seat[0]));
  send(3);
  CHECK(b.port[0].got.size() == 1);
  CHECK(b.port[1].got.size() == 2);
  b.nic->detach(b.now, b.seat[1]);  // a process that dies
  CHECK_FALSE(b.nic->leave(group, b.seat[1]));
  send(4);
  CHECK(b.drops[DropReason::kNoMember] == 2);
  b.map.leave_group(gid_of_ipv4(0xEF000001));
  CHECK(b.map.find(0xEF000001u) == AddressMap::kEmptyGroup);
  CHECK(b.arena.live() == 0);
}

TEST_CASE("frames go to the process that owns their QPN") {
  Bench b;
  b.receive(b.qpn(0), 1);
  b.receive(b.qpn(1), 2);
  b.receive(b.seat[1].qpn_base + (1 << kRangeLog2) - 1, 3);
  b.receive(0, 4);                       // the host's own range
  b.receive(3 << kRangeLog2, 5);         // nobody's
  b.receive(0xFFFFFF, 6);
  b.nic->deliver(b.now);
  CHECK(b.port[0].got == std::vector<uint32_t>{1});
  CHECK(b.port[1].got == std::vector<uint32_t>{2, 3});
  CHECK(b.drops[DropReason::kNoSuchQpn] == 3);
  CHECK(b.nic->counters().drops[static_cast<size_t>(DropReason::kNoSuchQpn)] == 3);
  CHECK(b.arena.live() == 0);
  CHECK(b.nic->owner(b.qpn(1)) == &b.port[1]);
  CHECK(b.nic->owner(7) == nullptr);
}

TEST_CASE("ranges must be aligned, big enough and free") {
  Bench b;
  FakePort port(b.arena);
  NicSeat seat;
  seat.port = &port;
  seat.qpn_base = 5;
  CHECK_FALSE(b.nic->attach(seat));
  seat.qpn_base = 2 << kRangeLog2;
  CHECK_FALSE(b.nic->attach(seat));
  seat.qpn_base = 1u << 24;
  CHECK_FALSE(b.nic->attach(seat));
  seat.qpn_base = 4 << kRangeLog2;
  seat.qpn_log2 = 10;
  CHECK_FALSE(b.nic->attach(seat));
  seat.qpn_log2 = kRangeLog2 + 1;
  CHECK(b.nic->attach(seat));
  CHECK(b.nic->owner(5 << kRangeLog2) == &port);
  b.nic->detach(b.now, seat);
  CHECK(b.nic->owner(5 << kRangeLog2) == nullptr);
}

TEST_CASE("a full process pauses its priority at the switch, and only that; it goes on when there is room") {
  Bench b;
  b.port[0].room = 0;
  for (uint32_t i = 0; i < 31; ++i) b.receive(b.qpn(0), i, 3);
  b.nic->deliver(b.now);
  CHECK(b.nic->paused() == 0);
  b.receive(b.qpn(0), 31, 3);
  b.nic->deliver(b.now);
  CHECK(b.nic->paused() == 1u << 3);
  CHECK(b.nic->counters().pauses[3] == 1);
  CHECK(b.bytes.parked == 0);
  for (uint32_t i = 32; i < 40; ++i) b.receive(b.qpn(0), i, 3);
  CHECK(b.bytes.parked == 8);  // what waits behind the first ones must not hold its sender's slot
  b.receive(b.qpn(1), 100, 3);
  b.nic->deliver(b.now);
  CHECK(b.port[1].got == std::vector<uint32_t>{100});

  b.port[0].room = 31;
  b.nic->serve(b.now, b.seat[0]);
  CHECK(b.nic->paused() == 1u << 3);  // 9 left: above the resume mark
  b.port[0].room = 2;
  b.nic->serve(b.now, b.seat[0]);
  CHECK(b.nic->paused() == 0);
  b.port[0].room = 100;
  b.nic->serve(b.now, b.seat[0]);
  REQUIRE(b.port[0].got.size() == 40);
  for (uint32_t i = 0; i < 40; ++i) CHECK(b.port[0].got[i] == i);
  CHECK(b.nic->next_deadline() == kNever);
  CHECK(b.arena.live() == 0);
}

TEST_CASE("two processes that pause one priority: it resumes when both have room") {
  Bench b;
  for (uint32_t s = 0; s < 2; ++s) {
    b.port[s].room = 0;
    for (uint32_t i = 0; i < 40; ++i) b.receive(b.qpn(s), i);
  }
  b.nic->deliver(b.now);
  CHECK(b.nic->paused() == 1);
  b.port[0].room = 100;
  b.nic->serve(b.now, b.seat[0]);
  CHECK(b.nic->paused() == 1);
  b.nic->detach(b.now, b.seat[1]);  // gone: what waited is dropped, and it pauses nobody
  CHECK(b.nic->paused() == 0);
  CHECK(b.drops[DropReason::kReceiverGone] == 40);
  CHECK(b.arena.live() == 0);
}

TEST_CASE("priorities of one process share its room") {
  Bench b;
  b.port[0].room = 0;
  for (uint32_t i = 0; i < 64; ++i) b.receive(b.qpn(0), i, 1);
  for (uint32_t i = 0; i < 32; ++i) b.receive(b.qpn(0), 1000 + i, 6);
  b.nic->deliver(b.now);
  b.port[0].room = 64;
  b.nic->serve(b.now, b.seat[0]);
  CHECK(std::count_if(b.port[0].got.begin(), b.port[0].got.end(), [](uint32_t psn) { return psn >= 1000; }) == 32);
}

TEST_CASE("a process that takes nothing for the stall time is stalled until it moves") {
  Bench b;
  b.port[0].room = 0;
  for (uint32_t i = 0; i < 50; ++i) b.receive(b.qpn(0), i);
  b.nic->deliver(b.now);
  REQUIRE(b.nic->next_deadline() == b.now + milliseconds(100));
  CHECK(b.nic->paused() == 1);

  b.now += milliseconds(60);  // it takes one: the clock starts again
  b.port[0].moved = true;
  b.nic->serve(b.now, b.seat[0]);
  b.now += milliseconds(60);
  b.nic->on_timer(b.now);
  CHECK_FALSE(b.seat[0].stalled);
  CHECK(b.nic->next_deadline() == b.now + milliseconds(40));

  b.now += milliseconds(40);
  b.nic->on_timer(b.now);
  CHECK(b.seat[0].stalled);
  CHECK(b.nic->counters().stalls == 1);
  CHECK(b.drops[DropReason::kReceiverStalled] == 50);
  CHECK(b.nic->paused() == 0);
  CHECK(b.nic->next_deadline() == kNever);
  b.receive(b.qpn(0), 50);
  b.nic->deliver(b.now);
  CHECK(b.drops[DropReason::kReceiverStalled] == 51);

  b.port[0].room = 10;
  b.port[0].moved = true;
  b.receive(b.qpn(0), 51);
  b.nic->deliver(b.now);
  CHECK_FALSE(b.seat[0].stalled);
  CHECK(b.port[0].got == std::vector<uint32_t>{51});
  CHECK(b.arena.live() == 0);
}

// --- what it takes from its processes ---------------------------------------------------------------------------------

namespace {

RoceFrame good_frame() {
  RoceFrame f;
  f.ipv4 = true;
  f.source_mac = kHosts[1].mac;
  f.destination_mac = kHosts[2].mac;
  f.source_ipv4 = kHosts[1].ipv4;
  f.destination_ipv4 = kHosts[2].ipv4;
  f.udp_sport = 0xC123;
  f.payload_bytes = 64;
  f.transport.opcode = Opcode::kRcSendOnly;
  f.transport.dest_qpn = 0x4321;
  f.transport.psn = 99;
  return f;
}

struct Classified {
  DropReason reason;
  PacketDescriptor d;
};

Classified classify_frame(const RoceFrame& f, const std::function<void(uint8_t*, attach::TakenFrame&)>& change = {}) {
  std::array<uint8_t, 256> bytes{};
  attach::TakenFrame taken{};
  taken.header_bytes = encode_headers(f, bytes.data() + bytes.size());
  taken.payload_bytes = f.payload_bytes;
  uint8_t* const headers = bytes.data() + bytes.size() - taken.header_bytes;
  if (change) change(headers, taken);
  taken.headers = headers;
  AddressMap map;
  REQUIRE(map.build({kHosts, kHosts + 3}));
  Classified c;
  c.d.priority = 5;
  c.reason = classify(taken, {1, kHosts[1]}, map, c.d);
  return c;
}

}  // namespace

TEST_CASE("a good frame becomes a descriptor") {
  const Classified c = classify_frame(good_frame());
  CHECK(c.reason == DropReason::kNone);
  CHECK(c.d.source == 1);
  CHECK(c.d.destination == 2);
  CHECK(c.d.source_address == kHosts[1].ipv4);
  CHECK(c.d.destination_address == kHosts[2].ipv4);
  CHECK(c.d.dest_qpn == 0x4321);
  CHECK(c.d.psn == 99);
  CHECK(c.d.priority == 5);
  CHECK(c.d.wire_bytes == 14 + 20 + 8 + 12 + 64 + 4);
  CHECK((c.d.flags & kPacketAnswer) == 0);
  RoceFrame ack = good_frame();
  ack.transport.opcode = Opcode::kRcAcknowledge;
  ack.payload_bytes = 0;
  CHECK((classify_frame(ack).d.flags & kPacketAnswer) != 0);
}

TEST_CASE("GID 0 works too: link-local addresses find their host") {
  RoceFrame f = good_frame();
  f.ipv4 = false;
  f.source_gid = link_local_gid(kHosts[1].mac);
  f.destination_gid = link_local_gid(kHosts[0].mac);
  const Classified c = classify_frame(f);
  CHECK(c.reason == DropReason::kNone);
  CHECK(c.d.destination == 0);
  CHECK(c.d.destination_address == kHosts[0].ipv4);
  CHECK((c.d.flags & kPacketIpv6) != 0);
  f.source_gid = link_local_gid(kHosts[0].mac);
  CHECK(classify_frame(f).reason == DropReason::kForeignSource);
}

TEST_CASE("a group's address becomes the group, whoever has joined it") {
  AddressMap map;
  REQUIRE(map.build({kHosts, kHosts + 3}));
  const GidBytes v6{0xFF, 0x1E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77};
  const uint32_t joined4 = map.enter_group(gid_of_ipv4(0xEF010203));
  const uint32_t joined6 = map.enter_group(v6);
  CHECK(joined4 != joined6);
  CHECK(map.enter_group(v6) == joined6);
  CHECK(map.enter_group(gid_of_ipv4(kHosts[0].ipv4)) == kNoEndpoint);
  RoceFrame f = good_frame();
  f.transport.opcode = Opcode::kUdSendOnly;
  f.transport.dest_qpn = kMulticastQpn;
  f.destination_ipv4 = 0xEF010203;
  const auto destination = [&] {
    std::array<uint8_t, 256> bytes{};
    attach::TakenFrame taken{};
    taken.header_bytes = encode_headers(f, bytes.data() + bytes.size());
    taken.payload_bytes = f.payload_bytes;
    taken.headers = bytes.data() + bytes.size() - taken.header_bytes;
    PacketDescriptor d;
    CHECK(classify(taken, {1, kHosts[1]}, map, d) == DropReason::kNone);
    return d.destination;
  };
  CHECK(destination() == joined4);
  f.destination_ipv4 = 0xEF010204;
  CHECK(destination() == AddressMap::kEmptyGroup);
  f.ipv4 = false;
  f.source_gid = link_local_gid(kHosts[1].mac);
  f.destination_gid = v6;
  CHECK(destination() == joined6);
  map.leave_group(v6);
  CHECK(destination() == joined6);
  map.leave_group(v6);
  CHECK(destination() == AddressMap::kEmptyGroup);
  CHECK(is_group(AddressMap::kEmptyGroup));
}

TEST_CASE("frames under another identity, to nowhere, or malformed") {
  RoceFrame f = good_frame();
  f.source_mac = kHosts[0].mac;
  CHECK(classify_frame(f).reason == DropReason::kForeignSource);
  f = good_frame();
  f.source_ipv4 = kHosts[0].ipv4;
  CHECK(classify_frame(f).reason == DropReason::kForeignSource);
  f = good_frame();
  f.destination_ipv4 = 0xC6120009;
  CHECK(classify_frame(f).d.destination == kNoEndpoint);  // the switch says no_route
  CHECK(classify_frame(f).d.destination_address == 0xC6120009);
  f.destination_ipv4 = 0x08080808;
  CHECK(classify_frame(f).d.destination == kNoEndpoint);

  using Change = std::function<void(uint8_t*, attach::TakenFrame&)>;
  const std::pair<DropReason, Change> bad[] = {
      {DropReason::kTruncated, [](uint8_t*, attach::TakenFrame& t) { t.header_bytes = 20; }},
      {DropReason::kNotIp, [](uint8_t* h, attach::TakenFrame&) { h[12] = 0x88; }},
      {DropReason::kBadIpChecksum, [](uint8_t* h, attach::TakenFrame&) { h[14 + 10] ^= 1; }},
      {DropReason::kNotRoce, [](uint8_t* h, attach::TakenFrame&) { h[14 + 20 + 3] ^= 1; }},
      {DropReason::kBadLength, [](uint8_t*, attach::TakenFrame& t) { t.payload_bytes += 4; }},
      {DropReason::kBadLength, [](uint8_t*, attach::TakenFrame& t) { t.header_bytes = 250; }},
      {DropReason::kUnknownOpcode, [](uint8_t* h, attach::TakenFrame&) { h[14 + 20 + 8] = 0xFF; }},
      {DropReason::kBadVersion, [](uint8_t* h, attach::TakenFrame&) { h[14 + 20 + 8 + 1] |= 1; }},
  };
  for (const auto& [reason, change] : bad) {
    INFO(drop_reason_name(reason));
    CHECK(classify_frame(good_frame(), change).reason == reason);
  }
}

TEST_CASE("addresses: duplicates and wide gaps are refused") {
  AddressMap map;
  CHECK_FALSE(map.build({kHosts[0], kHosts[0]}));
  CHECK_FALSE(map.build({kHosts[0], {{2, 0x57, 9, 0, 0, 0}, 0x01020304}}));
  CHECK_FALSE(map.build({kHosts[0], {kHosts[0].mac, 0xC6120002}}));
  CHECK(map.build({kHosts[2], kHosts[0]}));
  CHECK(map.find(kHosts[2].ipv4) == 0);
  CHECK(map.find(kHosts[1].ipv4) == UINT32_MAX);
  CHECK(map.find(0u) == UINT32_MAX);
  CHECK(map.find(gid_of_ipv4(kHosts[0].ipv4)) == 1);
}

TEST_CASE("the short way to a descriptor agrees with the parser, on good and on damaged frames") {
  const uint64_t seed = 31337;
  INFO("seed " << seed);
  Random random(seed, 3);
  AddressMap map;
  REQUIRE(map.build({kHosts, kHosts + 3}));
  uint32_t good = 0;
  for (int round = 0; round < 200'000; ++round) {
    RoceFrame f = good_frame();
    do {
      f.transport.opcode = static_cast<Opcode>(random.below(256));
    } while (!opcode_info(static_cast<uint8_t>(f.transport.opcode)).known);
    f.payload_bytes = static_cast<uint32_t>(random.below(3) == 0 ? 0 : random.below(4097));
    f.traffic_class = static_cast<uint8_t>(random.next());
    f.ip_id = static_cast<uint16_t>(random.next());
    f.transport.psn = static_cast<uint32_t>(random.below(1 << 24));
    f.transport.dest_qpn = static_cast<uint32_t>(random.below(1 << 24));
    f.transport.ack_request = random.below(2) == 0;
    if (random.below(10) == 0) f.tagged = true;
    std::array<uint8_t, 256> bytes{};
    attach::TakenFrame taken{};
    taken.header_bytes = encode_headers(f, bytes.data() + bytes.size());
    taken.payload_bytes = f.payload_bytes + pad_of(f.payload_bytes);
    uint8_t* const headers = bytes.data() + bytes.size() - taken.header_bytes;
    taken.headers = headers;
    if (random.below(2) == 0) headers[random.below(taken.header_bytes)] ^= static_cast<uint8_t>(1 << random.below(8));
    if (random.below(10) == 0) taken.payload_bytes = static_cast<uint32_t>(random.below(4097));
    if (random.below(20) == 0) taken.header_bytes -= static_cast<uint32_t>(random.below(taken.header_bytes));

    PacketDescriptor d;
    const DropReason reason = classify(taken, {1, kHosts[1]}, map, d);
    RoceFrame parsed;
    const ParseError error = parse_headers({headers, taken.header_bytes}, taken.payload_bytes, parsed);
    if (error != ParseError::kOk) {
      REQUIRE(static_cast<int>(reason) == static_cast<int>(error));
      continue;
    }
    const bool own = parsed.source_mac == kHosts[1].mac && parsed.source_ipv4 == kHosts[1].ipv4;
    REQUIRE(reason == (own ? DropReason::kNone : DropReason::kForeignSource));
    REQUIRE(d.dest_qpn == parsed.transport.dest_qpn);
    REQUIRE(d.psn == parsed.transport.psn);
    REQUIRE(d.opcode == static_cast<uint8_t>(parsed.transport.opcode));
    REQUIRE(d.ecn == (parsed.traffic_class & 3));
    REQUIRE(d.destination_address == parsed.destination_ipv4);
    REQUIRE(d.destination == map.find(parsed.destination_ipv4));
    REQUIRE(d.header_bytes == parsed.header_bytes);
    REQUIRE(d.wire_bytes == taken.header_bytes + taken.payload_bytes + 4);
    REQUIRE(((d.flags & kPacketAnswer) != 0) == opcode_info(d.opcode).response);
    good += own;
  }
  CHECK(good > 50'000);
}
