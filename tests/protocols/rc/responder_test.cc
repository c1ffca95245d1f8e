// SPDX-License-Identifier: Apache-2.0
#include "protocols/rc/responder.h"

#include <catch2/catch.hpp>
#include <vector>

using namespace weft;

namespace {

constexpr uint32_t kMtu = 256;

struct Fixture {
  RcResponder r;
  Instant now{};

  explicit Fixture(uint32_t first_psn = 100, uint8_t resources = 4) {
    ResponderConfig c;
    c.mtu_bytes = kMtu;
    c.dest_qpn = 0x55;
    c.first_psn = first_psn;
    c.max_dest_rd_atomic = resources;
    c.min_rnr_timer = 14;
    r.configure(c);
  }
  Demand request(Opcode opcode, uint32_t psn, uint32_t bytes = 0, bool ask = false, uint32_t length = 0,
                 uint64_t va = 0x2000) {
    TransportHeader h;
    h.opcode = opcode;
    h.psn = psn & kPsnMask;
    h.ack_request = ask;
    h.reth = {va, 3, length};
    h.atomic = {va, 3, 10, 20};
    h.immediate = 0x1234;
    return r.on_request(now, h, bytes);
  }
  void accept(Opcode opcode, uint32_t psn, uint32_t bytes = 0, bool ask = false, uint32_t length = 0,
              uint64_t va = 0x2000) {
    REQUIRE(request(opcode, psn, bytes, ask, length, va).need != Need::kNothing);
    r.settle(now, Outcome::kDone, 0x99);
  }
  OutFrame answer() {
    OutFrame f;
    REQUIRE(r.owes());
    REQUIRE(r.pull(now, f));
    return f;
  }
  void expect_ack(uint32_t psn, uint8_t syndrome, uint32_t msn) {
    const OutFrame f = answer();
    CHECK(f.header.opcode == Opcode::kRcAcknowledge);
    CHECK(f.header.psn == psn);
    CHECK(f.header.aeth.syndrome == syndrome);
    CHECK(f.header.aeth.msn == msn);
    CHECK(f.header.dest_qpn == 0x55);
  }
};

}  // namespace

TEST_CASE("SEND packets: demands, offsets, one acknowledge for what was asked") {
  Fixture t;
  Demand d = t.request(Opcode::kRcSendFirst, 100, kMtu);
  CHECK(d.need == Need::kPlaceSend);
  CHECK(d.takes_receive);
  CHECK_FALSE(d.completes_receive);
  t.r.settle(t.now, Outcome::kDone);
  CHECK_FALSE(t.r.owes());
  d = t.request(Opcode::kRcSendLastImm, 101, 3, true);
  CHECK(d.offset == kMtu);
  CHECK(d.completes_receive);
  CHECK_FALSE(d.takes_receive);
  CHECK(d.with_immediate);
  CHECK(d.immediate == 0x1234);
  CHECK(d.message_bytes == kMtu + 3);
  t.r.settle(t.now, Outcome::kDone);
  CHECK(t.r.owes_acknowledge());
  t.accept(Opcode::kRcSendOnly, 102, 0, true);
  t.expect_ack(102, kSyndromeAck, 2);
  CHECK_FALSE(t.r.owes());
}

TEST_CASE("WRITE packets carry their address on; with immediate a receive is taken at the end") {
  Fixture t;
  Demand d = t.request(Opcode::kRcWriteFirst, 100, kMtu, false, 2 * kMtu + 5, 0x8000);
  CHECK(d.need == Need::kPlaceWrite);
  CHECK(d.va == 0x8000);
  CHECK_FALSE(d.takes_receive);
  t.r.settle(t.now, Outcome::kDone);
  d = t.request(Opcode::kRcWriteMiddle, 101, kMtu);
  CHECK(d.va == 0x8000 + kMtu);
  CHECK(d.rkey == 3);
  t.r.settle(t.now, Outcome::kDone);
  d = t.request(Opcode::kRcWriteLastImm, 102, 5, true);
  CHECK(d.va == 0x8000 + 2 * kMtu);
  CHECK(d.takes_receive);
  CHECK(d.completes_receive);
  CHECK(d.message_bytes == 2 * kMtu + 5);
  t.r.settle(t.now, Outcome::kReceiverNotReady);
  t.expect_ack(102, kSyndromeRnr | 14, 0);
  t.accept(Opcode::kRcWriteLastImm, 102, 5, true);
  t.expect_ack(102, kSyndromeAck, 1);
}

TEST_CASE("opcode sequence and length rules end in an invalid request NAK") {
  struct Packet {
    Opcode opcode;
    uint32_t bytes;
    uint32_t length;
  };
  const std::vector<std::vector<Packet>> sequences = {
      {{Opcode::kRcSendMiddle, kMtu, 0}},
      {{Opcode::kRcSendLast, 8, 0}},
      {{Opcode::kRcSendFirst, kMtu, 0}, {Opcode::kRcSendOnly, 8, 0}},
      {{Opcode::kRcSendFirst, kMtu, 0}, {Opcode::kRcWriteMiddle, kMtu, 0}},
      {{Opcode::kRcSendFirst, kMtu, 0}, {Opcode::kRcReadRequest, 0, 8}},
      {{Opcode::kRcSendFirst, kMtu, 0}, {Opcode::kRcFetchAdd, 0, 8}},
      {{Opcode::kRcSendFirst, kMtu - 1, 0}},
      {{Opcode::kRcSendOnly, kMtu + 1, 0}},
      {{Opcode::kRcSendFirst, kMtu, 0}, {Opcode::kRcSendLast, 0, 0}},
      {{Opcode::kRcSendFirst, kMtu, 0}, {Opcode::kRcSendMiddle, kMtu + 1, 0}},
      {{Opcode::kRcWriteOnly, 8, 9}},
      {{Opcode::kRcWriteFirst, kMtu, kMtu}},
      {{Opcode::kRcWriteFirst, kMtu, kMtu + 2}, {Opcode::kRcWriteLast, 1, 0}},
      {{Opcode::kRcWriteFirst, kMtu, kMtu + 2}, {Opcode::kRcWriteMiddle, kMtu, 0}},
      {{Opcode::kRcWriteFirst, kMtu, (1u << 31) + 1}},
      {{Opcode::kRcReadRequest, 0, (1u << 31) + 1}},
      {{Opcode::kRcReadRequest, 4, 8}},
      {{Opcode::kRcSendFirst, kMtu, 0}, {Opcode::kRcAtomicWrite, 8, 8}},
      {{Opcode::kRcFlush, 0, 8}},
      {{Opcode::kUdSendOnly, 8, 8}},
  };
  for (const auto& packets : sequences) {
    CAPTURE(int(packets.back().opcode), packets.size());
    Fixture t;
    for (size_t i = 0; i + 1 < packets.size(); ++i)
      t.accept(packets[i].opcode, 100 + static_cast<uint32_t>(i), packets[i].bytes, false, packets[i].length);
    const uint32_t psn = 100 + static_cast<uint32_t>(packets.size()) - 1;
    CHECK(t.request(packets.back().opcode, psn, packets.back().bytes, false, packets.back().length).need ==
          Need::kNothing);
    CHECK(t.r.fatal());
    t.expect_ack(psn, kNakInvalidRequest, 0);
    CHECK(t.request(Opcode::kRcSendOnly, psn).need == Need::kNothing);
    CHECK_FALSE(t.r.owes());
  }
}

TEST_CASE("misaligned atomics are invalid requests") {
  Fixture t;
  CHECK(t.request(Opcode::kRcFetchAdd, 100, 0, true, 0, 0x2004).need == Need::kNothing);
  t.expect_ack(100, kNakInvalidRequest, 0);
}

TEST_CASE("out of sequence: one NAK until the expected packet comes") {
  Fixture t;
  t.request(Opcode::kRcSendOnly, 102, 1, true);
  t.request(Opcode::kRcSendOnly, 103, 1, true);
  t.expect_ack(100, kNakSequence, 0);
  t.request(Opcode::kRcSendOnly, 104, 1, true);
  CHECK_FALSE(t.r.owes());
  t.accept(Opcode::kRcSendOnly, 100, 1, true);
  t.expect_ack(100, kSyndromeAck, 1);
  t.request(Opcode::kRcSendOnly, 102, 1, true);
  t.expect_ack(101, kNakSequence, 1);
}

TEST_CASE("a NAK that was not sent when its packet came becomes an ACK") {
  Fixture t;
  t.request(Opcode::kRcSendOnly, 101, 1);
  t.accept(Opcode::kRcSendOnly, 100, 1, false);
  t.expect_ack(100, kSyndromeAck, 1);
  CHECK_FALSE(t.r.owes());
}

TEST_CASE("RNR: nothing accepted, what follows dropped in silence, then as if nothing had been") {
  Fixture t;
  REQUIRE(t.request(Opcode::kRcSendOnly, 100, 1, true).takes_receive);
  t.r.settle(t.now, Outcome::kReceiverNotReady);
  t.expect_ack(100, kSyndromeRnr | 14, 0);
  CHECK(t.request(Opcode::kRcSendOnly, 101, 1, true).need == Need::kNothing);
  CHECK_FALSE(t.r.owes());
  t.accept(Opcode::kRcSendOnly, 100, 1, true);
  t.accept(Opcode::kRcSendOnly, 101, 1, true);
  t.expect_ack(101, kSyndromeAck, 2);
}

TEST_CASE("duplicates are acknowledged again, once for many, and never delivered") {
  Fixture t;
  for (uint32_t psn = 100; psn < 105; ++psn) t.accept(Opcode::kRcSendOnly, psn, 1, false);
  for (uint32_t psn = 101; psn < 104; ++psn) CHECK(t.request(Opcode::kRcSendOnly, psn, 1).need == Need::kNothing);
  t.expect_ack(104, kSyndromeAck, 5);
  CHECK_FALSE(t.r.owes());
  CHECK(t.r.stats().duplicates == 3);
}

TEST_CASE("outcomes that end the connection") {
  struct Case {
    Outcome outcome;
    uint8_t syndrome;
  };
  for (const Case c : {Case{Outcome::kInvalidRequest, kNakInvalidRequest},
                       {Outcome::kRemoteAccess, kNakRemoteAccess},
                       {Outcome::kRemoteOperation, kNakRemoteOperation}}) {
    Fixture t;
    t.accept(Opcode::kRcSendOnly, 100, 1, true);
    t.request(Opcode::kRcWriteOnly, 101, 4, true, 4);
    t.r.settle(t.now, c.outcome);
    CHECK(t.r.fatal());
    t.expect_ack(101, c.syndrome, 1);
    CHECK_FALSE(t.r.owes());
  }
}

TEST_CASE("READ responses stream in order; answers keep the order of requests") {
  Fixture t;
  t.accept(Opcode::kRcSendOnly, 100, 1, true);
  t.accept(Opcode::kRcReadRequest, 101, 0, true, 2 * kMtu + 7, 0x4000);
  t.accept(Opcode::kRcSendOnly, 104, 1, true);
  t.accept(Opcode::kRcReadRequest, 105, 0, true, 9, 0x7000);
  CHECK(t.r.owes_acknowledge());
  OutFrame f = t.answer();  // acknowledges 100 too
  CHECK(f.header.opcode == Opcode::kRcReadResponseFirst);
  CHECK(f.header.psn == 101);
  CHECK(f.header.aeth.msn == 2);
  CHECK(f.source == PayloadSource::kMemory);
  CHECK(f.va == 0x4000);
  CHECK(f.rkey == 3);
  CHECK(f.payload_bytes == kMtu);
  f = t.answer();
  CHECK(f.header.opcode == Opcode::kRcReadResponseMiddle);
  CHECK(f.va == 0x4000 + kMtu);
  f = t.answer();
  CHECK(f.header.opcode == Opcode::kRcReadResponseLast);
  CHECK(f.header.psn == 103);
  CHECK(f.payload_bytes == 7);
  CHECK(t.r.owes_acknowledge());  // of 104
  f = t.answer();                 // which this one gives
  CHECK(f.header.opcode == Opcode::kRcReadResponseOnly);
  CHECK(f.header.psn == 105);
  CHECK(f.header.aeth.msn == 4);
  CHECK_FALSE(t.r.owes_acknowledge());
  CHECK_FALSE(t.r.owes());
}

TEST_CASE("an ACK does not overtake READ responses owed before it") {
  Fixture t;
  t.accept(Opcode::kRcReadRequest, 100, 0, true, 2 * kMtu, 0x4000);
  t.accept(Opcode::kRcSendOnly, 102, 1, true);
  CHECK(t.answer().header.psn == 100);
  CHECK(t.answer().header.psn == 101);
  t.expect_ack(102, kSyndromeAck, 2);
}

TEST_CASE("an empty READ is one response without payload") {
  Fixture t;
  t.accept(Opcode::kRcReadRequest, 100, 0, true, 0);
  const OutFrame f = t.answer();
  CHECK(f.header.opcode == Opcode::kRcReadResponseOnly);
  CHECK(f.source == PayloadSource::kNone);
  CHECK(t.r.expected_psn() == 101);
}

TEST_CASE("more READs at once than agreed: invalid request; none agreed: none") {
  Fixture t(100, 2);
  t.accept(Opcode::kRcReadRequest, 100, 0, true, 8);
  t.accept(Opcode::kRcReadRequest, 101, 0, true, 8);
  CHECK(t.request(Opcode::kRcReadRequest, 102, 0, true, 8).need == Need::kNothing);
  CHECK(t.r.fatal());
  CHECK(t.answer().header.psn == 100);
  CHECK(t.answer().header.psn == 101);
  t.expect_ack(102, kNakInvalidRequest, 2);

  Fixture u(100, 2);
  for (uint32_t psn = 100; psn < 120; ++psn) {
    u.accept(Opcode::kRcReadRequest, psn, 0, true, 8);
    CHECK(u.answer().header.psn == psn);
  }
  Fixture none(100, 0);
  CHECK(none.request(Opcode::kRcReadRequest, 100, 0, true, 8).need == Need::kNothing);
  CHECK(none.r.fatal());
}

TEST_CASE("duplicate READs are executed again, from any packet to the end, and do not pile up") {
  Fixture t;
  t.accept(Opcode::kRcReadRequest, 100, 0, true, 4 * kMtu, 0x4000);
  for (int i = 0; i < 3; ++i) t.answer();
  // Packet 101 was lost and is asked for while 103 is still owed.
  Demand d = t.request(Opcode::kRcReadRequest, 101, 0, true, 3 * kMtu, 0x4000 + kMtu);
  REQUIRE(d.need == Need::kStartRead);
  CHECK(d.va == 0x4000 + kMtu);
  CHECK(d.message_bytes == 3 * kMtu);
  t.r.settle(t.now, Outcome::kDone);
  // Again, twice, by the network.
  for (int i = 0; i < 2; ++i) t.accept(Opcode::kRcReadRequest, 101, 0, true, 3 * kMtu, 0x4000 + kMtu);
  OutFrame f = t.answer();
  CHECK(f.header.opcode == Opcode::kRcReadResponseFirst);
  CHECK(f.header.psn == 101);
  CHECK(f.va == 0x4000 + kMtu);
  CHECK(t.answer().header.opcode == Opcode::kRcReadResponseMiddle);
  CHECK(t.answer().header.opcode == Opcode::kRcReadResponseLast);
  CHECK_FALSE(t.r.owes());
  CHECK(t.r.expected_psn() == 104);
  // Not what was asked for the first time: dropped.
  CHECK(t.request(Opcode::kRcReadRequest, 101, 0, true, 3 * kMtu, 0x4000).need == Need::kNothing);
  CHECK(t.request(Opcode::kRcReadRequest, 101, 0, true, 4 * kMtu, 0x4000 + kMtu).need == Need::kNothing);
  CHECK(t.request(Opcode::kRcReadRequest, 90, 0, true, kMtu, 0x4000).need == Need::kNothing);
  CHECK_FALSE(t.r.owes());
  CHECK_FALSE(t.r.fatal());
  // The region has gone since.
  REQUIRE(t.request(Opcode::kRcReadRequest, 100, 0, true, 4 * kMtu, 0x4000).need == Need::kStartRead);
  t.r.settle(t.now, Outcome::kRemoteAccess);
  CHECK(t.r.fatal());
}

TEST_CASE("a repetition that a newer READ pushes out is owed no more") {
  Fixture t(100, 2);
  for (uint32_t psn : {100u, 101u}) {
    t.accept(Opcode::kRcReadRequest, psn, 0, true, 8);
    t.answer();
  }
  t.accept(Opcode::kRcReadRequest, 100, 0, true, 8);  // again; its first answer arrived after all
  t.accept(Opcode::kRcReadRequest, 102, 0, true, 8);
  CHECK(t.answer().header.psn == 102);
  CHECK_FALSE(t.r.owes());
}

TEST_CASE("atomics are executed once; duplicates get the same value") {
  Fixture t(100, 2);
  const Demand d = t.request(Opcode::kRcCompareSwap, 100, 0, true);
  REQUIRE(d.need == Need::kAtomic);
  CHECK(d.atomic.compare == 20);
  CHECK(d.atomic.swap_add == 10);
  t.r.settle(t.now, Outcome::kDone, 0x1111);
  OutFrame f = t.answer();
  CHECK(f.header.opcode == Opcode::kRcAtomicAcknowledge);
  CHECK(f.header.atomic_original == 0x1111);
  CHECK(t.request(Opcode::kRcCompareSwap, 100, 0, true).need == Need::kNothing);
  f = t.answer();
  CHECK(f.header.psn == 100);
  CHECK(f.header.atomic_original == 0x1111);
  // Pushed out by two more: nothing is left to repeat.
  for (uint32_t psn : {101u, 102u}) {
    t.accept(Opcode::kRcFetchAdd, psn);
    t.answer();
  }
  CHECK(t.request(Opcode::kRcCompareSwap, 100, 0, true).need == Need::kNothing);
  CHECK_FALSE(t.r.owes());
}

TEST_CASE("a READ whose memory went away is refused at the packet that failed") {
  Fixture t;
  t.accept(Opcode::kRcReadRequest, 100, 0, true, 3 * kMtu, 0x4000);
  t.accept(Opcode::kRcReadRequest, 103, 0, true, 8, 0x4000);
  t.answer();
  t.answer();
  t.r.read_failed(t.now);
  CHECK(t.r.fatal());
  t.expect_ack(101, kNakRemoteAccess, 2);
  CHECK_FALSE(t.r.owes());
}

TEST_CASE("PSNs wrap in the responder too") {
  Fixture t(kPsnMask);
  t.accept(Opcode::kRcReadRequest, kPsnMask, 0, true, 3 * kMtu);
  CHECK(t.r.expected_psn() == 2);
  CHECK(t.answer().header.psn == kPsnMask);
  CHECK(t.answer().header.psn == 0);
  CHECK(t.answer().header.psn == 1);
  t.accept(Opcode::kRcReadRequest, 0, 0, true, 2 * kMtu, 0x2000 + kMtu);
  CHECK(t.answer().header.psn == 0);
}
