// SPDX-License-Identifier: Apache-2.0
#include "protocols/uc/uc.h"

#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "protocols/base/random.h"

using namespace weft;

namespace {

constexpr uint32_t kMtu = 512;

SendWork work_of(WorkOpcode opcode, uint32_t length) {
  SendWork w;
  w.opcode = opcode;
  w.length = length;
  w.remote_addr = 0x9000;
  w.rkey = 4;
  w.immediate = 77;
  return w;
}

std::vector<OutFrame> pull_all(UcSender& s) {
  std::vector<OutFrame> frames;
  OutFrame f;
  while (s.wants_to_send()) {
    REQUIRE(s.pull(f));
    frames.push_back(f);
  }
  return frames;
}

std::vector<SendCompletion> completions(UcSender& s) {
  std::vector<SendCompletion> all;
  SendCompletion c;
  while (s.next_completion(c)) all.push_back(c);
  return all;
}

}  // namespace

TEST_CASE("UC: packets of a message, completion with the last one pulled") {
  UcSender s;
  s.configure(kMtu, 5, kPsnMask);
  s.post(work_of(WorkOpcode::kWriteImm, 2 * kMtu + 1));
  s.post(work_of(WorkOpcode::kSend, 0));
  OutFrame f;
  REQUIRE(s.pull(f));
  CHECK(f.header.opcode == Opcode::kUcWriteFirst);
  CHECK(f.header.psn == kPsnMask);
  CHECK(f.header.reth.length == 2 * kMtu + 1);
  CHECK(completions(s).empty());
  REQUIRE(s.pull(f));
  CHECK(f.header.opcode == Opcode::kUcWriteMiddle);
  CHECK(f.header.psn == 0);
  REQUIRE(s.pull(f));
  CHECK(f.header.opcode == Opcode::kUcWriteLastImm);
  CHECK(f.header.immediate == 77);
  CHECK(f.payload_bytes == 1);
  CHECK_FALSE(f.header.ack_request);
  CHECK(completions(s).size() == 1);
  REQUIRE(s.pull(f));
  CHECK(f.header.opcode == Opcode::kUcSendOnly);
  CHECK(f.header.dest_qpn == 5);
  CHECK(completions(s).size() == 1);
  CHECK(s.idle());
}

TEST_CASE("UC: what it cannot carry, what cannot be read, and flush") {
  UcSender s;
  s.configure(kMtu, 5, 0);
  s.post(work_of(WorkOpcode::kSend, 8));
  s.post(work_of(WorkOpcode::kRead, 8));
  s.post(work_of(WorkOpcode::kSend, 8));
  CHECK(pull_all(s).size() == 1);
  auto done = completions(s);
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == WorkStatus::kSuccess);
  CHECK(done[1].status == WorkStatus::kLocalQpOperation);
  CHECK(s.failed());
  s.flush();
  done = completions(s);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == WorkStatus::kFlushed);

  for (const uint32_t length : {8u, 3 * kMtu}) {
    s.configure(kMtu, 5, 0);
    s.post(work_of(WorkOpcode::kSend, 4));
    s.post(work_of(WorkOpcode::kSend, length));
    OutFrame f;
    REQUIRE(s.pull(f));
    REQUIRE(s.pull(f));
    s.fail(f.work, WorkStatus::kLocalProtection);
    CHECK_FALSE(s.pull(f));
    done = completions(s);
    REQUIRE(done.size() == 2);
    CHECK(done[0].status == WorkStatus::kSuccess);
    CHECK(done[1].status == WorkStatus::kLocalProtection);
  }
}

TEST_CASE("UC receiver: a gap costs the message, the next first packet starts again") {
  UcSender s;
  s.configure(kMtu, 5, 0);
  for (int i = 0; i < 3; ++i) s.post(work_of(WorkOpcode::kSend, 3 * kMtu));
  const auto frames = pull_all(s);
  REQUIRE(frames.size() == 9);
  UcReceiver r;
  r.configure(kMtu, 0);
  std::vector<uint32_t> completed;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (i == 1 || i == 5) continue;  // a middle of the first, the last of the second
    const Demand d = r.on_request(frames[i].header, frames[i].payload_bytes);
    if (d.need == Need::kNothing) continue;
    CHECK(d.offset == frames[i].offset);
    if (d.completes_receive) completed.push_back(frames[i].work);
    r.settle(Outcome::kDone);
  }
  CHECK(completed == std::vector<uint32_t>{2});
  CHECK(r.messages_dropped() == 2);
}

TEST_CASE("UC receiver: no receive, no message, no answer") {
  UcReceiver r;
  r.configure(kMtu, 10);
  TransportHeader h;
  h.opcode = Opcode::kUcSendFirst;
  h.psn = 10;
  REQUIRE(r.on_request(h, kMtu).takes_receive);
  r.settle(Outcome::kReceiverNotReady);
  h.opcode = Opcode::kUcSendLast;
  h.psn = 11;
  CHECK(r.on_request(h, 8).need == Need::kNothing);
  h.opcode = Opcode::kUcSendOnly;
  h.psn = 12;
  CHECK(r.on_request(h, 8).need == Need::kPlaceSend);
  r.settle(Outcome::kDone);
  CHECK(r.messages_dropped() == 1);
}

TEST_CASE("UC receiver: length rules and foreign opcodes are dropped") {
  UcReceiver r;
  TransportHeader h;
  const auto dropped = [&](Opcode opcode, uint32_t bytes, uint32_t length) {
    r.configure(kMtu, 0);
    h.opcode = opcode;
    h.psn = 0;
    h.reth.length = length;
    return r.on_request(h, bytes).need == Need::kNothing;
  };
  CHECK(dropped(Opcode::kUcSendFirst, kMtu - 1, 0));
  CHECK(dropped(Opcode::kUcSendOnly, kMtu + 1, 0));
  CHECK(dropped(Opcode::kUcWriteOnly, 8, 9));
  CHECK(dropped(Opcode::kUcWriteFirst, kMtu, kMtu));
  CHECK(dropped(Opcode::kUcWriteFirst, kMtu, 0xFFFFFFFF));
  CHECK(dropped(Opcode::kRcSendOnly, 8, 0));
  CHECK(dropped(Opcode::kUdSendOnly, 8, 0));
  CHECK(dropped(Opcode::kUcSendLast, 8, 0));
  CHECK(dropped(static_cast<Opcode>(0x36), 8, 0));  // SEND last with invalidate: RC only
  CHECK_FALSE(dropped(Opcode::kUcWriteOnly, 8, 8));
}

TEST_CASE("UC under loss, duplication and reordering: whole messages or nothing", "[property]") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Random random(seed, 1);
    UcSender s;
    const uint32_t psn = static_cast<uint32_t>(random.next()) & kPsnMask;
    s.configure(kMtu, 5, psn);
    std::vector<uint32_t> lengths;
    for (int i = 0; i < 60; ++i) {
      lengths.push_back(static_cast<uint32_t>(random.below(5 * kMtu)));
      s.post(work_of(random.below(2) == 0 ? WorkOpcode::kSend : WorkOpcode::kWriteImm, lengths.back()));
    }
    auto frames = pull_all(s);
    CHECK(completions(s).size() == 60);
    for (size_t i = 1; i < frames.size(); ++i)
      if (random.below(40) == 0) std::swap(frames[i], frames[i - 1]);
    UcReceiver r;
    r.configure(kMtu, psn);
    WorkNumber current = 0;
    uint64_t bytes = 0;
    size_t delivered = 0;
    const auto deliver = [&](const OutFrame& f) {
      const Demand d = r.on_request(f.header, f.payload_bytes);
      if (d.need == Need::kNothing) return;
      if (d.first) {
        current = f.work;
        bytes = 0;
      }
      REQUIRE(f.work == current);  // never parts of two messages
      REQUIRE(d.offset == bytes);
      bytes += d.length;
      if (d.completes_receive) {
        REQUIRE(bytes == lengths[f.work]);
        REQUIRE(d.message_bytes == bytes);
        ++delivered;
      }
      r.settle(Outcome::kDone);
    };
    for (const OutFrame& f : frames) {
      if (random.below(30) == 0) continue;
      deliver(f);
      if (random.below(50) == 0) deliver(f);
    }
    REQUIRE(delivered > 5);
  }
}
