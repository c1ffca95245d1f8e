// SPDX-License-Identifier: Apache-2.0
//
// Requester and responder face to face without bytes: the longest messages, and whatever a hostile peer may send.
#include <catch2/catch.hpp>

#include "protocols/base/random.h"
#include "protocols/rc/requester.h"
#include "protocols/rc/responder.h"
#include "protocols/transport/segment.h"

using namespace weft;

namespace {

/// Both ends, and a count of the payload that was placed.
struct Pair {
  RcRequester requester;
  RcResponder responder;
  Instant now{};
  uint64_t next_offset = 0;  ///< payload must come without a hole
  bool hole = false;

  Pair(uint32_t mtu, uint32_t first_psn) {
    RequesterConfig r;
    r.mtu_bytes = mtu;
    r.first_psn = first_psn;
    requester.configure(r);
    ResponderConfig s;
    s.mtu_bytes = mtu;
    s.first_psn = first_psn;
    responder.configure(s);
  }
  void to_responder(const OutFrame& f) {
    const Demand d = responder.on_request(now, f.header, f.payload_bytes);
    if (d.need == Need::kNothing) return;
    if (d.need != Need::kStartRead) note(d.offset, d.length);
    responder.settle(now, Outcome::kDone);
  }
  void to_requester(const OutFrame& f) {
    const Placement p = requester.on_response(now, f.header, f.payload_bytes);
    if (!p.wanted) return;
    note(p.offset, p.length);
    requester.placed(now, true);
  }
  /// One message to its completion.
  SendCompletion run(WorkOpcode opcode, uint32_t length) {
    SendWork w;
    w.opcode = opcode;
    w.length = length;
    next_offset = 0;
    requester.post(w);
    SendCompletion done{UINT32_MAX, WorkStatus::kGeneral};
    OutFrame f;
    for (bool moved = true; moved && !requester.next_completion(done);) {
      moved = false;
      for (; requester.pull(now, f); moved = true) to_responder(f);
      for (int i = 0; i < 64 && responder.pull(now, f); ++i, moved = true) to_requester(f);
    }
    return done;
  }
  void note(uint64_t offset, uint32_t length) {
    hole = hole || offset != next_offset;
    next_offset += length;
  }
};

}  // namespace

TEST_CASE("messages of 2^31 bytes, every kind, at the largest and the smallest MTU") {
  for (const uint32_t mtu : {4096u, 256u}) {
    for (const WorkOpcode opcode : {WorkOpcode::kSend, WorkOpcode::kWrite, WorkOpcode::kRead}) {
      if (mtu == 256 && opcode == WorkOpcode::kSend) continue;  // 8 million packets each: two kinds are enough
      CAPTURE(mtu, int(opcode));
      Pair pair(mtu, 0xFFFF00);
      WorkNumber number = 0;
      for (const uint32_t length : {kMaxMessageBytes, 1u}) {
        const SendCompletion done = pair.run(opcode, length);
        REQUIRE(done.work == number++);
        REQUIRE(done.status == WorkStatus::kSuccess);
        REQUIRE(pair.next_offset == length);
        REQUIRE_FALSE(pair.hole);
      }
    }
  }
}

TEST_CASE("a hostile peer's requests: no crash, answers bounded, nothing accepted out of order", "[property]") {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    Random random(seed, 2);
    ResponderConfig c;
    c.mtu_bytes = 256;
    c.first_psn = static_cast<uint32_t>(random.next()) & kPsnMask;
    c.max_dest_rd_atomic = static_cast<uint8_t>(random.below(RcResponder::kMaxResources + 1));
    RcResponder r;
    r.configure(c);
    uint32_t expected = r.expected_psn();
    for (int i = 0; i < 300; ++i) {
      TransportHeader h;
      h.opcode =
          random.below(8) == 0 ? static_cast<Opcode>(random.below(256)) : static_cast<Opcode>(random.below(0x1e));
      h.psn = (expected + static_cast<uint32_t>(random.below(4)) - 1) & kPsnMask;
      if (random.below(16) == 0) h.psn = static_cast<uint32_t>(random.next()) & kPsnMask;
      h.ack_request = random.below(2) == 0;
      h.reth = {
          random.next(), static_cast<uint32_t>(random.next()),
          random.below(2) == 0 ? static_cast<uint32_t>(random.below(2000)) : static_cast<uint32_t>(random.next())};
      h.atomic = {random.next() & ~uint64_t{random.below(8)}, 1, 2, 3};
      const uint32_t bytes = random.below(3) == 0 ? 256 : static_cast<uint32_t>(random.below(5000));
      const Demand d = r.on_request(Instant{}, h, bytes);
      if (d.need != Need::kNothing) {
        if (d.need == Need::kPlaceSend || d.need == Need::kPlaceWrite) REQUIRE(d.length <= c.mtu_bytes);
        if (d.need == Need::kPlaceWrite) REQUIRE(uint64_t{d.offset} + d.length <= d.message_bytes);
        r.settle(Instant{}, static_cast<Outcome>(random.below(20) == 0 ? random.below(5) : 0), 7);
      }
      // One packet moves the window by itself or by the READ it asks for, and only if it was the expected one.
      const int32_t moved = psn_difference(r.expected_psn(), expected);
      if (moved != 0) REQUIRE(h.psn == expected);
      expected = r.expected_psn();
      OutFrame f;
      for (uint64_t n = random.below(20); n > 0 && r.pull(Instant{}, f); --n) {
        REQUIRE(f.payload_bytes <= c.mtu_bytes);
        if (random.below(50) == 0) r.read_failed(Instant{});
      }
      if (!r.fatal() || r.owes()) continue;
      r.configure(c);
      expected = r.expected_psn();
    }
  }
}

TEST_CASE("a hostile peer's responses: no crash, no completion without what completes it", "[property]") {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    Random random(seed, 3);
    RequesterConfig c;
    c.mtu_bytes = 256;
    c.first_psn = static_cast<uint32_t>(random.next()) & kPsnMask;
    c.max_rd_atomic = 4;
    c.window_packets = static_cast<uint32_t>(1 + random.below(40));
    c.patient = random.below(2) == 0;
    c.timeout = 5;
    RcRequester r;
    r.configure(c);
    Instant now{};
    uint32_t posted = 0, completed = 0;
    for (int i = 0; i < 400; ++i) {
      now += picoseconds(static_cast<int64_t>(random.below(50'000'000)));
      if (r.can_post() && random.below(3) == 0) {
        SendWork w;
        w.opcode = static_cast<WorkOpcode>(random.below(17));
        w.length = static_cast<uint32_t>(random.below(3000));
        w.fence = random.below(4) == 0;
        w.signaled = random.below(2) == 0;
        r.post(w);
        ++posted;
      }
      OutFrame f;
      for (uint64_t n = random.below(8); n > 0 && r.pull(now, f); --n) {
        REQUIRE(f.payload_bytes <= c.mtu_bytes);
        REQUIRE(f.work - completed < posted - completed);
        if (random.below(100) == 0) r.fail(now, f.work, WorkStatus::kLocalProtection);
      }
      TransportHeader h;
      h.opcode =
          random.below(8) == 0 ? static_cast<Opcode>(random.below(256)) : static_cast<Opcode>(0x0d + random.below(6));
      h.psn = (r.oldest_psn() + static_cast<uint32_t>(random.below(12)) - 2) & kPsnMask;
      h.aeth.syndrome = random.below(3) != 0 ? kSyndromeAck : static_cast<uint8_t>(random.next());
      const uint32_t bytes = random.below(2) == 0 ? 256 : static_cast<uint32_t>(random.below(300));
      const Placement p = r.on_response(now, h, bytes);
      if (p.wanted) {
        REQUIRE(p.work - completed < posted - completed);
        REQUIRE(p.length <= c.mtu_bytes);
        r.placed(now, random.below(50) != 0);
      }
      if (random.below(10) == 0) r.on_notice(now);
      r.on_timer(now);
      SendCompletion done;
      while (r.next_completion(done)) {
        REQUIRE(done.work == completed);
        ++completed;
        REQUIRE(completed <= posted);
      }
      if (r.failed()) {
        r.flush();
        while (r.next_completion(done)) ++completed;
        REQUIRE(completed == posted);
        REQUIRE(r.idle());
        r.configure(c);
        posted = completed = 0;
      }
    }
  }
}
