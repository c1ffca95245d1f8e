// SPDX-License-Identifier: Apache-2.0
#include "protocols/rc/requester.h"

#include <catch2/catch.hpp>
#include <vector>

#include "protocols/base/random.h"
#include "protocols/transport/segment.h"
#include "protocols/transport/timers.h"

using namespace weft;

namespace {

constexpr uint32_t kMtu = 256;

struct Fixture {
  RcRequester r;
  Instant now{};

  explicit Fixture(uint32_t first_psn = 100, uint8_t max_rd_atomic = 4, uint32_t window = 256, uint32_t ack_every = 32) {
    RequesterConfig c;
    c.mtu_bytes = kMtu;
    c.dest_qpn = 0x77;
    c.first_psn = first_psn;
    c.max_rd_atomic = max_rd_atomic;
    c.window_packets = window;
    c.ack_every = ack_every;
    c.patient = false;
    c.timeout = 10;
    c.retry_count = 2;
    c.rnr_retry = 2;
    r.configure(c);
  }
  void post(WorkOpcode opcode, uint32_t length, bool signaled = false, bool fence = false) {
    SendWork w;
    w.opcode = opcode;
    w.length = length;
    w.signaled = signaled;
    w.fence = fence;
    w.remote_addr = 0x1000;
    w.rkey = 9;
    w.immediate = 0xabcd;
    w.compare_add = 5;
    w.swap = 6;
    r.post(w);
  }
  std::vector<OutFrame> pull_all() {
    std::vector<OutFrame> frames;
    OutFrame f;
    while (r.wants_to_send(now)) {
      REQUIRE(r.pull(now, f));
      frames.push_back(f);
    }
    REQUIRE_FALSE(r.pull(now, f));
    return frames;
  }
  Placement answer(Opcode opcode, uint32_t psn, uint8_t syndrome = kSyndromeAck, uint32_t bytes = 0) {
    TransportHeader h;
    h.opcode = opcode;
    h.psn = psn & kPsnMask;
    h.aeth.syndrome = syndrome;
    return r.on_response(now, h, bytes);
  }
  void ack(uint32_t psn) { REQUIRE_FALSE(answer(Opcode::kRcAcknowledge, psn).wanted); }
  void nak(uint32_t psn, uint8_t syndrome) { REQUIRE_FALSE(answer(Opcode::kRcAcknowledge, psn, syndrome).wanted); }
  std::vector<SendCompletion> completions() {
    std::vector<SendCompletion> all;
    SendCompletion c;
    while (r.next_completion(c)) all.push_back(c);
    return all;
  }
};

std::vector<uint32_t> psns(const std::vector<OutFrame>& frames) {
  std::vector<uint32_t> all;
  for (const OutFrame& f : frames) all.push_back(f.header.psn);
  return all;
}

}  // namespace

TEST_CASE("messages become packets: opcodes, offsets, RETH on the first, immediate on the last") {
  Fixture t;
  t.post(WorkOpcode::kWriteImm, 2 * kMtu + 1);
  t.post(WorkOpcode::kSend, 0);
  t.post(WorkOpcode::kSendInvalidate, kMtu);
  const auto f = t.pull_all();
  REQUIRE(psns(f) == std::vector<uint32_t>{100, 101, 102, 103, 104});
  CHECK(f[0].header.opcode == Opcode::kRcWriteFirst);
  CHECK(f[0].header.reth.va == 0x1000);
  CHECK(f[0].header.reth.length == 2 * kMtu + 1);
  CHECK(f[1].header.opcode == Opcode::kRcWriteMiddle);
  CHECK(f[2].header.opcode == Opcode::kRcWriteLastImm);
  CHECK(f[2].header.immediate == 0xabcd);
  CHECK(f[2].offset == 2 * kMtu);
  CHECK(f[2].payload_bytes == 1);
  CHECK(f[3].header.opcode == Opcode::kRcSendOnly);
  CHECK(f[3].source == PayloadSource::kNone);
  CHECK(f[4].header.opcode == Opcode::kRcSendOnlyInvalidate);
  CHECK(f[4].header.invalidate_rkey == 0xabcd);
  for (const auto& x : f) CHECK(x.header.dest_qpn == 0x77);
  CHECK_FALSE(f[0].header.ack_request);
  CHECK(f[4].header.ack_request);  // nothing follows it
}

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

TEST_CASE("AckReq: signaled ends, every n packets, a closing window, the end of the queue") {
  Fixture t(0, 4, 8, 4);
  t.post(WorkOpcode::kSend, 3 * kMtu, true);
  t.post(WorkOpcode::kSend, 20 * kMtu);
  const auto f = t.pull_all();
  REQUIRE(f.size() == 8);
  std::vector<uint32_t> asked;
  for (const auto& x : f)
    if (x.header.ack_request) asked.push_back(x.header.psn);
  REQUIRE(asked == std::vector<uint32_t>{2, 6, 7});
  t.ack(6);
  REQUIRE(t.pull_all().size() == 7);
}

TEST_CASE("a sender that may send nothing more has asked for an acknowledge", "[property]") {
  // Whatever blocks it: the window, a fence, the READ limit, an empty queue.
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Random random(seed, 9);
    Fixture t(static_cast<uint32_t>(random.next()) & kPsnMask, static_cast<uint8_t>(random.below(3)),
              static_cast<uint32_t>(1 + random.below(12)), static_cast<uint32_t>(1 + random.below(20)));
    bool answered_last = true;
    for (int step = 0; step < 40; ++step) {
      if (t.r.can_post() && random.below(2) == 0) {
        constexpr WorkOpcode kOps[] = {WorkOpcode::kSend, WorkOpcode::kWrite, WorkOpcode::kRead, WorkOpcode::kFetchAdd};
        t.post(kOps[random.below(4)], 8 * static_cast<uint32_t>(random.below(100)), random.below(4) == 0,
               random.below(3) == 0);
      }
      OutFrame f;
      for (uint64_t n = random.below(10); n > 0 && t.r.pull(t.now, f); --n) answered_last = f.header.ack_request;
      if (!t.r.wants_to_send(t.now)) REQUIRE(answered_last);
    }
  }
}

TEST_CASE("PSNs wrap") {
  Fixture t(kPsnMask - 1);
  t.post(WorkOpcode::kSend, 4 * kMtu);
  t.post(WorkOpcode::kSend, 1);
  REQUIRE(psns(t.pull_all()) == std::vector<uint32_t>{kPsnMask - 1, kPsnMask, 0, 1, 2});
  t.nak(0, kNakSequence);
  REQUIRE(psns(t.pull_all()) == std::vector<uint32_t>{0, 1, 2});
  t.ack(2);
  CHECK(t.completions().size() == 2);
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

TEST_CASE("max_rd_atomic and fence") {
  Fixture t(0, 2);
  for (int i = 0; i < 3; ++i) t.post(WorkOpcode::kRead, 8);
  REQUIRE(t.pull_all().size() == 2);
  REQUIRE(t.answer(Opcode::kRcReadResponseOnly, 0, kSyndromeAck, 8).wanted);
  t.r.placed(t.now, true);
  REQUIRE(psns(t.pull_all()) == std::vector<uint32_t>{2});
  t.post(WorkOpcode::kSend, 8, false, true);
  REQUIRE(t.pull_all().empty());
  for (uint32_t psn : {1u, 2u}) {
    REQUIRE(t.answer(Opcode::kRcReadResponseOnly, psn, kSyndromeAck, 8).wanted);
    t.r.placed(t.now, true);
  }
  REQUIRE(psns(t.pull_all()) == std::vector<uint32_t>{3});

  Fixture none(0, 0);
  none.post(WorkOpcode::kSend, 8);
  none.post(WorkOpcode::kRead, 8);
  const auto f = none.pull_all();
  REQUIRE(f.size() == 1);
  CHECK(f[0].header.ack_request);
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

TEST_CASE("fail: earlier work completes first, nothing later is sent") {
  Fixture t;
  t.post(WorkOpcode::kSend, 2 * kMtu);
  t.post(WorkOpcode::kSend, 2 * kMtu);
  t.post(WorkOpcode::kSend, 8);
  OutFrame f;
  for (int i = 0; i < 4; ++i) REQUIRE(t.r.pull(t.now, f));
  REQUIRE(f.work == 1);
  t.r.fail(t.now, 1, WorkStatus::kLocalProtection);
  CHECK(t.completions().empty());
  const auto again = t.pull_all();
  REQUIRE(psns(again) == std::vector<uint32_t>{100, 101});
  CHECK(again.back().header.ack_request);
  t.ack(102);  // the peer has the first packet of the failed work too
  const auto done = t.completions();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == WorkStatus::kSuccess);
  CHECK(done[1].status == WorkStatus::kLocalProtection);
  CHECK(t.pull_all().empty());
  t.r.flush();
  CHECK(t.completions().size() == 1);
}

TEST_CASE("works that cannot be sent fail in their turn; local works take no PSN") {
  Fixture t;
  t.post(WorkOpcode::kLocalInvalidate, 0);
  REQUIRE(t.completions().size() == 1);
  t.post(WorkOpcode::kSend, 8);
  t.post(WorkOpcode::kBindWindow, 0);
  t.post(WorkOpcode::kSend, kMaxMessageBytes + 1);
  REQUIRE(t.pull_all().size() == 1);
  CHECK(t.completions().empty());
  t.ack(100);
  const auto done = t.completions();
  REQUIRE(done.size() == 3);
  CHECK(done[1].status == WorkStatus::kSuccess);
  CHECK(done[2].status == WorkStatus::kLocalLength);

  Fixture u;
  u.post(WorkOpcode::kAtomicWrite, 8);
  const auto refused = u.completions();
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].status == WorkStatus::kLocalQpOperation);
}

TEST_CASE("flush: all that has not completed") {
  Fixture t;
  for (int i = 0; i < 5; ++i) t.post(WorkOpcode::kSend, 8);
  t.pull_all();
  t.ack(101);
  t.r.flush();
  const auto done = t.completions();
  REQUIRE(done.size() == 5);
  for (size_t i = 0; i < 5; ++i) CHECK(done[i].status == (i < 2 ? WorkStatus::kSuccess : WorkStatus::kFlushed));
  t.ack(104);
  CHECK(t.completions().empty());
}

TEST_CASE("no more than kMaxWorks; a taken completion makes room") {
  Fixture t;
  for (uint32_t i = 0; i < RcRequester::kMaxWorks; ++i) {
    REQUIRE(t.r.can_post());
    t.post(WorkOpcode::kSend, 8);
  }
  REQUIRE_FALSE(t.r.can_post());
  t.pull_all();
  t.ack(100);
  REQUIRE_FALSE(t.r.can_post());
  REQUIRE(t.completions().size() == 1);
  REQUIRE(t.r.can_post());
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
