// SPDX-License-Identifier: Apache-2.0
#include "tests/protocols/rc/requester_fixture.h"

#include "protocols/base/random.h"
#include "protocols/transport/segment.h"

using namespace weft;
using namespace weft::test;
using Fixture = weft::test::RequesterFixture;

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

TEST_CASE("fail of a work that was not pulled resends nothing that has asked for its acknowledge") {
  Fixture t;
  t.post(WorkOpcode::kSend, 2 * kMtu);
  REQUIRE(t.pull_all().back().header.ack_request);
  t.post(WorkOpcode::kSend, 8);
  t.r.fail(t.now, 1, WorkStatus::kLocalQpOperation);
  CHECK(t.pull_all().empty());
  t.ack(101);
  CHECK(t.completions().size() == 2);
  CHECK(t.r.failed());

  // Here the packet pulled last counted on the next work to ask.
  Fixture u;
  u.post(WorkOpcode::kSend, 8);
  u.post(WorkOpcode::kSend, 8);
  OutFrame f;
  REQUIRE(u.r.pull(u.now, f));
  REQUIRE_FALSE(f.header.ack_request);
  u.r.fail(u.now, 1, WorkStatus::kLocalProtection);
  const auto again = u.pull_all();
  REQUIRE(psns(again) == std::vector<uint32_t>{100});
  CHECK(again[0].header.ack_request);

  // And here a first packet is still to come.
  Fixture v;
  v.post(WorkOpcode::kSend, 2 * kMtu);
  v.post(WorkOpcode::kSend, 8);
  REQUIRE(v.r.pull(v.now, f));
  v.r.fail(v.now, 1, WorkStatus::kLocalProtection);
  const auto rest = v.pull_all();
  REQUIRE(psns(rest) == std::vector<uint32_t>{101});
  CHECK(rest[0].header.ack_request);
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
  u.post(static_cast<WorkOpcode>(14), 8);  // FLUSH, of later libraries
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

TEST_CASE("outstanding PSNs never span more than half of the circle") {
  Fixture t(0xABCDEF);
  t.post(WorkOpcode::kRead, kMaxMessageBytes);  // 2^23 PSNs of 256 bytes
  t.post(WorkOpcode::kRead, 8);
  t.post(WorkOpcode::kSend, 8);
  REQUIRE(t.pull_all().size() == 1);
  REQUIRE(t.answer(Opcode::kRcReadResponseFirst, 0xABCDEF, kSyndromeAck, kMtu).wanted);
  t.r.placed(t.now, true);
  REQUIRE(psns(t.pull_all()) == std::vector<uint32_t>{(0xABCDEFu + (1 << 23)) & kPsnMask});
  REQUIRE(t.answer(Opcode::kRcReadResponseMiddle, 0xABCDF0, kSyndromeAck, kMtu).wanted);
  t.r.placed(t.now, true);
  REQUIRE(t.pull_all().size() == 1);
}
