// SPDX-License-Identifier: Apache-2.0
#include "scenarios/engine/live_fabric.h"

#include "tests/scenarios/engine/fabric_fixture.h"

using namespace weft;
using namespace weft::test;

TEST_CASE("a frame crosses from one process to another", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  FrameTemplate to_b = a.frames_to(1);
  for (const uint32_t bytes : {0u, 4u, 64u, 100u, 160u, 256u, 1024u, 4096u}) {
    REQUIRE(a.send(to_b, b.qpn(), 1000 + bytes, bytes));
    a.flush();
    attach::ReceivedFrame frame;
    REQUIRE(b.next(frame));
    RoceFrame parsed;
    REQUIRE(parse_headers({frame.header, frame.header_bytes}, frame.payload_bytes, parsed) == ParseError::kOk);
    CHECK(parsed.transport.dest_qpn == b.qpn());
    CHECK(parsed.transport.psn == 1000 + bytes);
    CHECK(parsed.source_ipv4 == plan.hosts[0].nics[0].ipv4);
    REQUIRE(frame.payload_bytes == bytes);
    for (uint32_t i = 0; i < bytes; i += 4) {
      uint32_t word;
      memcpy(&word, frame.payload + i, 4);
      REQUIRE(word == 1000 + bytes);
    }
    b.port.release(frame.slot);
    b.flush();
  }
  CHECK(metric(*plane, "nic_tx_packets", {{"host", "h0"}}) == 8);
  CHECK(metric(*plane, "nic_rx_packets", {{"host", "h1"}}) == 8);
  CHECK(metric(*plane, "link_packets", {{"link", "h0->s0"}}) == 8);
  CHECK(metric(*plane, "packets_live") == 0);
}

TEST_CASE("a long stream arrives whole and in order, at every priority", "[live]") {
  const FabricPlan plan = make_plan(2);
  const auto plane = start(plan);
  TestProcess a(*plane, plan, 0, 1);
  TestProcess b(*plane, plan, 1, 2);
  FrameTemplate to_b = a.frames_to(1);
  constexpr uint32_t kFrames = 20'000;
  uint32_t sent = 0;
  std::array<uint32_t, 8> next{};
  uint32_t received = 0;
  const double limit = seconds_now() + 20;
  while (received < kFrames && seconds_now() < limit) {
    for (int i = 0; i < 50 && sent < kFrames; ++i) {
      const uint8_t priority = static_cast<uint8_t>(sent % 8);
      if (!a.send(to_b, b.qpn() + priority, sent / 8, sent % 3 == 0 ? 4096 : 64, priority)) break;
      ++sent;
    }
    a.flush();
    attach::ReceivedFrame frame;
    for (int i = 0; i < 40 && b.port.receive(frame); ++i) {
      RoceFrame parsed;
      REQUIRE(parse_headers({frame.header, frame.header_bytes}, frame.payload_bytes, parsed) == ParseError::kOk);
      const uint32_t flow = parsed.transport.dest_qpn - b.qpn();
      REQUIRE(flow < 8);
      REQUIRE(parsed.transport.psn == next[flow]++);
      uint32_t word;
      memcpy(&word, frame.payload + frame.payload_bytes - 4, 4);
      REQUIRE(word == parsed.transport.psn);
      b.port.release(frame.slot);
      ++received;
    }
    b.flush();
    if (received < sent && !b.port.receive_pending() && a.port.free_slots() == 0) b.wait(1);
  }
  CHECK(received == kFrames);
  CHECK(metric(*plane, "packets_live") == 0);
  CHECK(metric(*plane, "packet_memory_in_use") == 0);
}
