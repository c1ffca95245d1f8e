// SPDX-License-Identifier: Apache-2.0
#include "tests/protocols/rc/requester_fixture.h"

#include "protocols/transport/timers.h"

using namespace weft;
using namespace weft::test;
using Fixture = weft::test::RequesterFixture;

TEST_CASE("acknowledges are cumulative; completions in order, signaled or not") {
  Fixture t;
  for (int i = 0; i < 3; ++i) t.post(WorkOpcode::kSend, kMtu + 1);
  t.pull_all();
  t.ack(101);
  REQUIRE(t.completions().size() == 1);
  t.ack(100);  // older: ignored
  CHECK(t.completions().empty());
  t.ack(104);  // half of the third
  CHECK(t.completions().size() == 1);
  t.ack(105);
  const auto last = t.completions();
  REQUIRE(last.size() == 1);
  CHECK(last[0].work == 2);
  CHECK(t.r.idle());
  CHECK(t.r.next_deadline() == kNever);
}

TEST_CASE("responses for PSNs never sent are ignored") {
  Fixture t;
  t.post(WorkOpcode::kSend, 8);
  t.ack(100);
  t.nak(100, kNakRemoteAccess);
  t.pull_all();
  t.ack(101);
  t.ack(99);
  t.ack(100 + (1 << 23));
  CHECK(t.completions().empty());
  CHECK(t.r.stats().stale == 5);
  t.ack(100);
  CHECK(t.completions().size() == 1);
}

TEST_CASE("NAK sequence: back to that PSN, once, the budget restored by progress") {
  Fixture t;
  t.post(WorkOpcode::kSend, 6 * kMtu);
  t.pull_all();
  t.nak(102, kNakSequence);
  t.nak(102, kNakSequence);  // a copy
  REQUIRE(psns(t.pull_all()) == std::vector<uint32_t>{102, 103, 104, 105});
  t.nak(102, kNakSequence);
  CHECK(t.pull_all().empty());
  t.nak(104, kNakSequence);
  REQUIRE(psns(t.pull_all()) == std::vector<uint32_t>{104, 105});
  t.ack(105);
  CHECK(t.completions().size() == 1);
}

TEST_CASE("timeouts: 1 + retry_count transmissions, then RETRY_EXC, the rest flushed") {
  Fixture t;
  t.post(WorkOpcode::kSend, 8);
  t.post(WorkOpcode::kSend, 8);
  const Duration timeout = ack_timeout(10);
  for (int transmission = 0; transmission < 3; ++transmission) {
    REQUIRE(t.pull_all().size() == 2);
    REQUIRE(t.r.next_deadline() == t.now + timeout);
    t.r.on_timer(t.now + timeout / 2);  // too early: nothing
    REQUIRE_FALSE(t.r.wants_to_send(t.now));
    t.now += timeout;
    t.r.on_timer(t.now);
  }
  REQUIRE(t.r.failed());
  auto done = t.completions();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == WorkStatus::kRetryExceeded);
  t.r.flush();
  t.post(WorkOpcode::kSend, 8);
  done = t.completions();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == WorkStatus::kFlushed);
  CHECK(done[1].status == WorkStatus::kFlushed);
  CHECK(t.r.idle());
  CHECK(t.r.next_deadline() == kNever);
}

TEST_CASE("NAKs that end a connection: earlier work succeeds, that one fails, the rest is flushed") {
  struct Case {
    uint8_t syndrome;
    WorkStatus status;
  };
  for (const Case c : {Case{kNakInvalidRequest, WorkStatus::kRemoteInvalidRequest},
                       {kNakRemoteAccess, WorkStatus::kRemoteAccess},
                       {kNakRemoteOperation, WorkStatus::kRemoteOperation}}) {
    Fixture t;
    for (int i = 0; i < 3; ++i) t.post(WorkOpcode::kWrite, 2 * kMtu);
    t.pull_all();
    t.nak(103, c.syndrome);
    const auto done = t.completions();
    REQUIRE(done.size() == 2);
    CHECK(done[0].status == WorkStatus::kSuccess);
    CHECK(done[1].status == c.status);
    CHECK(t.r.failed());
    CHECK(t.pull_all().empty());
    t.r.flush();
    CHECK(t.completions().size() == 1);
  }
}

TEST_CASE("READ: PSNs by response, placements by packet, completion with the last") {
  Fixture t;
  t.post(WorkOpcode::kRead, 2 * kMtu + 8);
  t.post(WorkOpcode::kSend, 8);
  const auto f = t.pull_all();
  REQUIRE(psns(f) == std::vector<uint32_t>{100, 103});
  CHECK(f[0].header.reth.length == 2 * kMtu + 8);
  auto p = t.answer(Opcode::kRcReadResponseFirst, 100, kSyndromeAck, kMtu);
  REQUIRE(p.wanted);
  CHECK(p.length == kMtu);
  t.r.placed(t.now, true);
  // Wrong length, wrong place in the message: dropped.
  CHECK_FALSE(t.answer(Opcode::kRcReadResponseMiddle, 101, 0, kMtu - 1).wanted);
  CHECK_FALSE(t.answer(Opcode::kRcReadResponseLast, 101, kSyndromeAck, kMtu).wanted);
  CHECK(t.r.stats().malformed == 2);
  REQUIRE(t.answer(Opcode::kRcReadResponseMiddle, 101, 0, kMtu).offset == kMtu);
  t.r.placed(t.now, true);
  CHECK_FALSE(t.answer(Opcode::kRcReadResponseMiddle, 101, 0, kMtu).wanted);  // a copy
  CHECK(t.completions().empty());
  p = t.answer(Opcode::kRcReadResponseLast, 102, kSyndromeAck, 8);
  REQUIRE(p.offset == 2 * kMtu);
  t.r.placed(t.now, true);
  CHECK(t.completions().size() == 1);
  t.ack(103);
  CHECK(t.completions().size() == 1);
}

TEST_CASE("a READ response acknowledges what came before it") {
  Fixture t;
  t.post(WorkOpcode::kSend, 8);
  t.post(WorkOpcode::kRead, 8);
  t.pull_all();
  REQUIRE(t.answer(Opcode::kRcReadResponseOnly, 101, kSyndromeAck, 8).wanted);
  t.r.placed(t.now, true);
  CHECK(t.completions().size() == 2);
}

TEST_CASE("lost READ responses are asked for again from the first missing byte") {
  Fixture t;
  t.post(WorkOpcode::kRead, 4 * kMtu);
  t.post(WorkOpcode::kSend, 8);
  t.pull_all();
  REQUIRE(t.answer(Opcode::kRcReadResponseFirst, 100, kSyndromeAck, kMtu).wanted);
  t.r.placed(t.now, true);
  // 101 is lost: 102 says so, and 103, and the ACK of the SEND; one retry is enough.
  CHECK_FALSE(t.answer(Opcode::kRcReadResponseMiddle, 102, 0, kMtu).wanted);
  CHECK_FALSE(t.answer(Opcode::kRcReadResponseLast, 103, kSyndromeAck, kMtu).wanted);
  t.ack(104);
  const auto f = t.pull_all();
  REQUIRE(psns(f) == std::vector<uint32_t>{101, 104});
  CHECK(f[0].header.opcode == Opcode::kRcReadRequest);
  CHECK(f[0].header.reth.va == 0x1000 + kMtu);
  CHECK(f[0].header.reth.length == 3 * kMtu);
  CHECK(t.r.stats().implied_naks == 1);
  // The new answer begins with FIRST.
  REQUIRE(t.answer(Opcode::kRcReadResponseFirst, 101, kSyndromeAck, kMtu).offset == kMtu);
  t.r.placed(t.now, true);
  REQUIRE(t.answer(Opcode::kRcReadResponseMiddle, 102, 0, kMtu).wanted);
  t.r.placed(t.now, true);
  REQUIRE(t.answer(Opcode::kRcReadResponseLast, 103, kSyndromeAck, kMtu).wanted);
  t.r.placed(t.now, true);
  t.ack(104);
  CHECK(t.completions().size() == 2);
}

TEST_CASE("READ placement that fails is a local protection error") {
  Fixture t;
  t.post(WorkOpcode::kRead, 8);
  t.pull_all();
  REQUIRE(t.answer(Opcode::kRcReadResponseOnly, 100, kSyndromeAck, 8).wanted);
  t.r.placed(t.now, false);
  const auto done = t.completions();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == WorkStatus::kLocalProtection);
}

TEST_CASE("atomics: header fields, the value comes from the header, plain ACKs do not complete them") {
  Fixture t;
  t.post(WorkOpcode::kCompareSwap, 8);
  t.post(WorkOpcode::kFetchAdd, 8);
  const auto f = t.pull_all();
  REQUIRE(f.size() == 2);
  CHECK(f[0].header.opcode == Opcode::kRcCompareSwap);
  CHECK(f[0].header.atomic.compare == 5);
  CHECK(f[0].header.atomic.swap_add == 6);
  CHECK(f[1].header.opcode == Opcode::kRcFetchAdd);
  CHECK(f[1].header.atomic.swap_add == 5);
  CHECK(f[0].source == PayloadSource::kNone);
  t.ack(101);  // the answers were lost
  CHECK(t.completions().empty());
  REQUIRE(psns(t.pull_all()) == std::vector<uint32_t>{100, 101});
  for (uint32_t psn : {100u, 101u}) {
    const Placement p = t.answer(Opcode::kRcAtomicAcknowledge, psn);
    REQUIRE(p.wanted);
    CHECK(p.from_header);
    CHECK(p.length == 8);
    t.r.placed(t.now, true);
  }
  CHECK(t.completions().size() == 2);
}

TEST_CASE("RNR NAK: waits, sends that PSN again, fails after the budget; copies cost nothing") {
  Fixture t;
  t.post(WorkOpcode::kSend, 8);
  t.post(WorkOpcode::kSend, 2 * kMtu);
  t.pull_all();
  const uint8_t rnr = kSyndromeRnr | 12;
  for (int i = 0; i < 2; ++i) {
    t.nak(101, rnr);
    t.nak(101, rnr);
    CHECK(t.pull_all().empty());
    REQUIRE(t.r.next_deadline() == t.now + microseconds(640));
    t.now += microseconds(640);
    t.r.on_timer(t.now);
    REQUIRE(psns(t.pull_all()) == std::vector<uint32_t>{101, 102});
  }
  REQUIRE(t.completions().size() == 1);
  t.nak(101, rnr);
  const auto done = t.completions();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == WorkStatus::kRnrRetryExceeded);
}

TEST_CASE("patient: a notice arms the deadline and makes timeouts count") {
  RcRequester r;
  RequesterConfig c;
  c.timeout = 10;
  c.retry_count = 0;
  r.configure(c);
  const Duration t = ack_timeout(10);
  Instant now{};
  SendWork w;
  w.length = 10;
  r.post(w);
  OutFrame f;
  REQUIRE(r.pull(now, f));
  for (int i = 0; i < 4; ++i) {
    now = r.next_deadline();
    r.on_timer(now);
    REQUIRE(r.pull(now, f));
    REQUIRE_FALSE(r.failed());
  }
  REQUIRE(r.next_deadline() == now + 8 * t);
  r.on_notice(now);
  REQUIRE(r.next_deadline() == now + t);
  r.on_timer(now + t);
  REQUIRE(r.failed());
}

TEST_CASE("patient: a lost frame explains one timeout, a death all of them") {
  const bool death = GENERATE(false, true);
  RcRequester r;
  RequesterConfig c;
  c.timeout = 10;
  c.retry_count = 2;
  r.configure(c);
  Instant now{};
  SendWork w;
  w.length = 10;
  r.post(w);
  OutFrame f;
  REQUIRE(r.pull(now, f));
  r.on_notice(now, death ? PathTrouble::kNobodyThere : PathTrouble::kFrameLost);
  // The first frame is gone; its repetitions are not, but the peer is not scheduled.
  for (int i = 0; i < 3; ++i) {
    REQUIRE_FALSE(r.failed());
    now = r.next_deadline();
    r.on_timer(now);
    REQUIRE(r.pull(now, f) != (death && i == 2));
  }
  REQUIRE(r.failed() == death);
  if (death) return;
  CHECK(r.stats().timeouts == 1);
  CHECK(r.stats().probes == 2);
  for (int i = 0; i < 3; ++i) {
    r.on_notice(now, PathTrouble::kLaterFrameLost);
    now = r.next_deadline();
    r.on_timer(now);
    REQUIRE(r.pull(now, f));
  }
  CHECK(r.stats().timeouts == 1);
  // Two more of its frames are lost: the budget of two is used up.
  for (int i = 0; i < 2; ++i) {
    REQUIRE_FALSE(r.failed());
    r.on_notice(now);
    now = r.next_deadline();
    r.on_timer(now);
    if (i == 0) REQUIRE(r.pull(now, f));
  }
  CHECK(r.failed());
  CHECK(r.failure().noticed);
}

TEST_CASE("patient: a receiver that is not ready is alive, whatever was lost between its answers") {
  RcRequester r;
  RequesterConfig c;
  c.timeout = 10;
  c.retry_count = 1;
  c.rnr_retry = 7;
  r.configure(c);
  Instant now{};
  SendWork w;
  w.length = 10;
  r.post(w);
  OutFrame f;
  REQUIRE(r.pull(now, f));
  for (int i = 0; i < 5; ++i) {
    r.on_notice(now);
    now = r.next_deadline();
    r.on_timer(now);
    REQUIRE(r.pull(now, f));
    TransportHeader h;
    h.opcode = Opcode::kRcAcknowledge;
    h.aeth.syndrome = kSyndromeRnr | 1;
    r.on_response(now, h, 0);
    now = r.next_deadline();
    r.on_timer(now);
    REQUIRE(r.pull(now, f));
    REQUIRE_FALSE(r.failed());
  }
}

TEST_CASE("patient: a probe is one packet; its acknowledge opens the window again") {
  RcRequester r;
  RequesterConfig c;
  c.mtu_bytes = kMtu;
  c.timeout = 10;
  r.configure(c);
  SendWork w;
  w.length = 10 * kMtu;
  r.post(w);
  OutFrame f;
  Instant now{};
  for (int i = 0; i < 10; ++i) REQUIRE(r.pull(now, f));
  now = r.next_deadline();
  r.on_timer(now);
  REQUIRE(r.pull(now, f));
  CHECK(f.header.psn == 0);
  CHECK(f.header.ack_request);
  CHECK_FALSE(r.pull(now, f));
  TransportHeader h;
  h.opcode = Opcode::kRcAcknowledge;
  h.aeth.syndrome = kSyndromeAck;
  h.psn = 3;  // the peer had that much
  r.on_response(now, h, 0);
  int sent = 0;
  for (; r.pull(now, f); ++sent) CHECK(f.header.psn == 4u + static_cast<uint32_t>(sent));
  CHECK(sent == 6);
}
