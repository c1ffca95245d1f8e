// SPDX-License-Identifier: Apache-2.0
//
// The daemon's end of a port against a process that keeps the rules, breaks each of them, and writes at random.
#include "switch/dpdk/process_port.h"

#include <string.h>

#include <catch2/catch.hpp>
#include <string>

#include "protocols/attach/process_port.h"
#include "protocols/base/random.h"
#include "switch/dpdk/eal.h"

using namespace weft;
using attach::port_layout;
using attach::PortControl;
using attach::SlotDescriptor;
using attach::TakenFrame;

namespace {

struct Bench {
  explicit Bench(uint32_t slots = 64, uint32_t packets = 1024) : layout(port_layout(slots, slots, 4096)) {
    std::string error;
    INFO(error);
    REQUIRE(dpdk::start_eal({}, error));
    dpdk::PacketMemorySettings memory;
    memory.small_mbufs = memory.large_mbufs = 511;
    REQUIRE(store.open(packets, memory, error));
    bytes = static_cast<uint8_t*>(aligned_alloc(4096, layout.total));
    memset(bytes, 0, layout.total);
    memset(static_cast<void*>(&notices), 0, sizeof notices);
    store.unpublished().reserve(4);
    port = std::make_unique<dpdk::ProcessPort>(store, layout, bytes, &notices, 0x10001);
    REQUIRE(process.open(bytes, layout, nullptr, &notices));
  }
  ~Bench() {
    port.reset();
    free(bytes);
  }
  PortControl* control() { return reinterpret_cast<PortControl*>(bytes); }
  void publish() {
    for (dpdk::ProcessPort* p : store.unpublished()) p->publish();
    store.unpublished().clear();
  }
  void write_descriptor(uint8_t priority, uint32_t at, const SlotDescriptor& d) {
    memcpy(bytes + layout.tx_ring_offset + (priority * layout.tx_slots + at) * sizeof d, &d, sizeof d);
  }
  bool send(uint32_t header, uint32_t payload, uint8_t priority = 0, uint8_t fill = 7) {
    const uint32_t slot = process.begin_frame(priority, false);
    if (slot == attach::kNoSlot) return false;
    memset(process.headroom_end(slot) - header, fill, header + payload);
    process.publish(slot, priority, header, payload);
    process.flush();
    return true;
  }
  uint32_t take(uint8_t priority = 0) { return port->take(priority, taken); }
  void release_all(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) store.release(taken[i].packet);
  }

  attach::PortLayout layout;
  dpdk::FrameStore store;
  uint8_t* bytes = nullptr;
  attach::NoticeRing notices;
  std::unique_ptr<dpdk::ProcessPort> port;
  attach::ProcessPort process;
  std::array<TakenFrame, 32> taken;
};

}  // namespace

TEST_CASE("small frames give their slot back at once, large ones keep it until they are released") {
  Bench b;
  REQUIRE(b.send(58, 64));
  REQUIRE(b.take() == 1);
  CHECK(b.port->held_slots() == 0);
  CHECK(b.store.payload(b.taken[0].packet).size() == 64);
  CHECK(b.store.payload(b.taken[0].packet)[63] == 7);
  b.release_all(1);

  REQUIRE(b.send(58, 4096));
  REQUIRE(b.take() == 1);
  CHECK(b.port->held_slots() == 1);
  CHECK(b.store.headers(b.taken[0].packet).size() == 58);
  b.release_all(1);
  CHECK(b.port->idle());
  b.publish();
  CHECK(b.process.free_slots() <= 64);
  for (int i = 0; i < 200; ++i) {  // slots really come back
    REQUIRE(b.send(58, 4096));
    REQUIRE(b.take() == 1);
    b.release_all(1);
    b.publish();
  }
  CHECK(b.store.arena().live() == 0);
}

TEST_CASE("a parked frame frees its slot and keeps its bytes") {
  Bench b;
  for (const uint32_t size : {300u, 1024u, 1088u, 4096u}) {
    REQUIRE(b.send(58, size, 0, static_cast<uint8_t>(size)));
    REQUIRE(b.take() == 1);
    const PacketRef p = b.taken[0].packet;
    REQUIRE(b.store.park(p));
    CHECK(b.port->idle());
    memset(b.bytes + b.layout.tx_slot_offset, 0xEE, b.layout.tx_slots * b.layout.slot_bytes);  // the process goes on
    REQUIRE(b.store.payload(p).size() == size);
    for (const uint8_t byte : b.store.payload(p)) REQUIRE(byte == static_cast<uint8_t>(size));
    CHECK(b.store.memory().in_use() == 1);
    b.store.release(p);
    b.publish();
  }
  CHECK(b.store.memory().in_use() == 0);
}

TEST_CASE("without packet memory a frame stays where it is, and nothing is lost") {
  Bench b(1024, 2048);
  uint32_t parked = 0;
  uint32_t refused = 0;
  for (uint32_t n = 0; n < 700; ++n) {
    REQUIRE(b.send(58, 4096));
    REQUIRE(b.take() == 1);
    b.store.park(b.taken[0].packet) ? ++parked : ++refused;
    b.publish();
  }
  CHECK(parked >= 511 - 2);
  CHECK(refused > 0);
  CHECK(b.store.park_failures() == refused);
  CHECK(b.port->held_slots() == refused);
  for (PacketRef p = 0; p < 700; ++p) b.store.release(p);
  CHECK(b.store.arena().live() == 0);
}

TEST_CASE("a full arena leaves frames in the ring") {
  Bench b(128, 40);
  for (int i = 0; i < 48; ++i) REQUIRE(b.send(58, 4096));
  CHECK(b.take() == 32);
  std::array<TakenFrame, 32> first = b.taken;
  CHECK(b.take() == 8);
  CHECK(b.take() == 0);
  CHECK(b.port->pending() == 1);
  CHECK(b.port->shut_reason() == nullptr);
  for (const TakenFrame& f : first) b.store.release(f.packet);
  CHECK(b.take() == 8);
}

TEST_CASE("what a slot says after it was taken changes nothing: the headers are a private copy") {
  Bench b;
  REQUIRE(b.send(58, 4096));
  REQUIRE(b.take() == 1);
  memset(b.bytes + b.layout.tx_slot_offset, 0xEE, b.layout.tx_slots * b.layout.slot_bytes);
  for (const uint8_t byte : b.store.headers(b.taken[0].packet)) REQUIRE(byte == 7);
  b.release_all(1);
}

TEST_CASE("frames are delivered whole; without room they stay the caller's") {
  Bench sender;
  Bench b(32);
  std::vector<PacketRef> packets;
  for (int i = 0; i < 40; ++i) {
    const PacketRef p = b.store.arena().allocate();
    dpdk::LiveFrame& f = b.store.at(p);
    f.header_bytes = 58;
    f.payload_bytes = 100;
    f.where = dpdk::Where::kInline;
    memset(f.bytes, i, 158);
    f.payload = f.bytes + 58;
    packets.push_back(p);
  }
  CHECK(b.port->deliver(packets) == 32);
  attach::ReceivedFrame in;
  CHECK_FALSE(b.process.receive(in));  // not before it is published
  b.publish();
  for (int i = 0; i < 32; ++i) {
    REQUIRE(b.process.receive(in));
    CHECK(in.header_bytes == 58);
    CHECK(in.payload_bytes == 100);
    CHECK(in.header[57] == i);
    CHECK(in.payload[99] == i);
    if (i < 5) b.process.release(in.slot);
  }
  CHECK_FALSE(b.process.receive(in));
  b.process.flush();
  CHECK(b.port->deliver(std::span<const PacketRef>(packets).subspan(32)) == 5);
  CHECK(b.port->shut_reason() == nullptr);
  for (int i = 37; i < 40; ++i) b.store.release(packets[static_cast<size_t>(i)]);
  CHECK(b.store.arena().live() == 0);
}

TEST_CASE("a process that breaks a rule is shut, with the reason") {
  Bench b;
  const auto publish = [&](SlotDescriptor d, uint32_t at = 0) {
    b.write_descriptor(2, at, d);
    b.control()->tx[2].producer.store(at + 1);
  };
  const auto expect_shut = [&](const char* words) {
    b.port->take(2, b.taken);
    REQUIRE(b.port->shut_reason() != nullptr);
    CHECK_THAT(b.port->shut_reason(), Catch::Contains(words));
    CHECK(b.port->take(2, b.taken) == 0);
    CHECK(b.port->take(0, b.taken) == 0);
    CHECK(b.port->pending() == 0);
    CHECK_FALSE(b.port->collect());
    const PacketRef none = 0;
    CHECK(b.port->deliver({&none, 1}) == 0);
  };
  SECTION("slot out of range") {
    publish({64, 58, 0, 100, 0});
    expect_shut("does not exist");
  }
  SECTION("enormous slot") {
    publish({UINT32_MAX, 58, 0, 100, 0});
    expect_shut("does not exist");
  }
  SECTION("no header") {
    publish({0, 0, 0, 100, 0});
    expect_shut("header");
  }
  SECTION("header longer than the headroom") {
    publish({0, 257, 0, 100, 0});
    expect_shut("header");
  }
  SECTION("payload longer than the slot") {
    publish({0, 58, 0, 4097, 0});
    expect_shut("longer");
  }
  SECTION("payload length that would overflow") {
    publish({0, 58, 0, UINT32_MAX - 10, 0});
    expect_shut("longer");
  }
  SECTION("slot published twice") {
    publish({5, 58, 0, 2000, 0}, 0);
    publish({5, 58, 0, 2000, 0}, 1);
    expect_shut("twice");
  }
  SECTION("slot published again while it is ours") {
    publish({5, 58, 0, 2000, 0}, 0);
    REQUIRE(b.take(2) == 1);
    publish({5, 58, 0, 2000, 0}, 1);
    expect_shut("twice");
    b.release_all(1);  // a frame by reference outlives the shut
    CHECK(b.port->idle());
  }
  SECTION("transmit index too far ahead") {
    b.control()->tx[2].producer.store(65);
    expect_shut("index");
  }
  SECTION("transmit index backwards") {
    b.control()->tx[2].producer.store(UINT32_MAX);
    expect_shut("index");
  }
}

TEST_CASE("receive slots that a process does not have cannot come back") {
  Bench b(32);
  uint32_t* const ring = reinterpret_cast<uint32_t*>(b.bytes + b.layout.rx_return_offset);
  SECTION("never delivered") {
    ring[0] = 3;
    b.control()->rx_return.producer.store(1);
  }
  SECTION("out of range") {
    ring[0] = 1000;
    b.control()->rx_return.producer.store(1);
  }
  SECTION("index too far") { b.control()->rx_return.producer.store(33); }
  CHECK_FALSE(b.port->collect());
  CHECK(b.port->shut_reason() != nullptr);
}

TEST_CASE("random garbage in all that a process can write: no crash, no leak, frames stay within the port") {
  const uint64_t seed = 4711;
  INFO("seed " << seed);
  Random random(seed, 9);
  uint32_t shut = 0;
  for (int round = 0; round < 300; ++round) {
    Bench b(32, 256);
    std::vector<PacketRef> held;
    for (int step = 0; step < 50 && b.port->shut_reason() == nullptr; ++step) {
      // Rarely wild, mostly nearly right, so that the checks behind the first one are reached too.
      const uint8_t priority = static_cast<uint8_t>(random.below(8));
      const uint32_t at = static_cast<uint32_t>(random.below(32));
      const SlotDescriptor d{static_cast<uint32_t>(random.below(random.below(20) == 0 ? UINT32_MAX : 32)),
                             static_cast<uint16_t>(random.below(random.below(20) == 0 ? 70000 : 257)), 0,
                             static_cast<uint32_t>(random.below(random.below(20) == 0 ? UINT32_MAX : 4097)), 0};
      b.write_descriptor(priority, at, d);
      auto& producer = b.control()->tx[priority].producer;
      producer.store(producer.load() + static_cast<uint32_t>(random.below(random.below(50) == 0 ? UINT32_MAX : 3)));
      b.control()->rx.consumer.store(static_cast<uint32_t>(random.next()));
      b.control()->rx.producer.store(static_cast<uint32_t>(random.next()));
      b.control()->tx_return.producer.store(static_cast<uint32_t>(random.next()));
      if (random.below(30) == 0) b.control()->rx_return.producer.store(static_cast<uint32_t>(random.below(40)));
      const uint32_t count = b.port->take(priority, b.taken);
      for (uint32_t i = 0; i < count; ++i) {
        const auto payload = b.store.payload(b.taken[i].packet);
        REQUIRE(payload.size() <= 4096);
        volatile uint8_t touched = payload.empty() ? 0 : payload.back();  // under ASan: within the port
        (void)touched;
        held.push_back(b.taken[i].packet);
      }
      while (held.size() > 20 || (!held.empty() && random.below(2) == 0)) {
        if (random.below(2) == 0) b.store.park(held.back());
        if (b.port->deliver({&held.back(), 1}) == 0) b.store.release(held.back());
        held.pop_back();
      }
      b.port->collect();
      b.publish();
    }
    shut += b.port->shut_reason() != nullptr;
    for (const PacketRef p : held) b.store.release(p);
    CHECK(b.store.arena().live() == 0);
    CHECK(b.store.memory().in_use() == 0);
    CHECK(b.port->idle());
  }
  CHECK(shut > 100);
}
