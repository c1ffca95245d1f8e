// SPDX-License-Identifier: Apache-2.0
//
// ATOMIC WRITE in both machines: counted with READs and atomics, carried as eight bytes, answered as a READ of nothing.
#include <catch2/catch.hpp>

#include "protocols/base/random.h"
#include "protocols/rc/responder.h"
#include "protocols/transport/segment.h"
#include "tests/protocols/rc/requester_fixture.h"

using namespace weft;
using namespace weft::test;

namespace {

struct Responder {
  RcResponder r;

  explicit Responder(uint8_t resources) {
    ResponderConfig c;
    c.mtu_bytes = kMtu;
    c.first_psn = 100;
    c.max_dest_rd_atomic = resources;
    r.configure(c);
  }
  Demand request(uint32_t psn, uint64_t va = 0x2000, uint32_t length = 8, uint32_t bytes = 8) {
    TransportHeader h;
    h.opcode = Opcode::kRcAtomicWrite;
    h.psn = psn & kPsnMask;
    h.reth = {va, 3, length};
    return r.on_request(Instant{}, h, bytes);
  }
  OutFrame answer() {
    OutFrame f;
    REQUIRE(r.pull(Instant{}, f));
    return f;
  }
};

}  // namespace

TEST_CASE("ATOMIC WRITE: one packet of eight bytes, completed by an empty READ response and by nothing else") {
  RequesterFixture t(100, 2);
  for (int i = 0; i < 3; ++i) t.post(WorkOpcode::kAtomicWrite, 8);
  auto f = t.pull_all();
  REQUIRE(f.size() == 2);  // max_rd_atomic
  CHECK(f[0].header.opcode == Opcode::kRcAtomicWrite);
  CHECK(f[0].header.reth.length == 8);
  CHECK(f[0].header.reth.va == 0x1000);
  CHECK(f[0].header.ack_request);
  CHECK(f[0].source == PayloadSource::kWork);
  CHECK(f[0].payload_bytes == 8);
  SECTION("the answers") {
    REQUIRE_FALSE(t.answer(Opcode::kRcReadResponseOnly, 100).wanted);
    CHECK(t.completions().size() == 1);
    CHECK(psns(t.pull_all()) == std::vector<uint32_t>{102});
    t.answer(Opcode::kRcReadResponseOnly, 101);
    t.answer(Opcode::kRcReadResponseOnly, 102);
    CHECK(t.completions().size() == 2);
    CHECK(t.r.idle());
  }
  SECTION("what is no answer") {
    t.answer(Opcode::kRcReadResponseOnly, 100, kSyndromeAck, 8);
    t.answer(Opcode::kRcReadResponseFirst, 100);
    t.answer(Opcode::kRcReadResponseLast, 100);
    REQUIRE_FALSE(t.answer(Opcode::kRcAtomicAcknowledge, 100).wanted);
    CHECK(t.r.stats().malformed == 4);
    CHECK(t.completions().empty());
    t.ack(101);  // acknowledged without an answer: it was lost
    CHECK(t.completions().empty());
    CHECK(psns(t.pull_all()) == std::vector<uint32_t>{100, 101});
  }
  SECTION("refused") {
    t.nak(100, kNakRemoteAccess);
    const auto done = t.completions();
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == WorkStatus::kRemoteAccess);
  }
}

TEST_CASE("ATOMIC WRITE of another length is not sent") {
  RequesterFixture t;
  t.post(WorkOpcode::kAtomicWrite, 4);
  CHECK(t.pull_all().empty());
  const auto done = t.completions();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == WorkStatus::kLocalLength);
}

TEST_CASE("ATOMIC WRITE is executed once; duplicates are answered while the resource is kept") {
  Responder t(2);
  const Demand d = t.request(100);
  REQUIRE(d.need == Need::kAtomicWrite);
  CHECK(d.length == 8);
  CHECK(d.va == 0x2000);
  t.r.settle(Instant{}, Outcome::kDone);
  for (int i = 0; i < 2; ++i) {
    const OutFrame f = t.answer();
    CHECK(f.header.opcode == Opcode::kRcReadResponseOnly);
    CHECK(f.header.psn == 100);
    CHECK(f.header.aeth.syndrome == kSyndromeAck);
    CHECK(f.header.aeth.msn == 1);
    CHECK(f.payload_bytes == 0);
    CHECK_FALSE(t.r.owes());
    REQUIRE(t.request(100).need == Need::kNothing);
  }
  t.answer();
  // A READ or another atomic may not pass for its repetition.
  TransportHeader other;
  other.psn = 100;
  for (const Opcode opcode : {Opcode::kRcCompareSwap, Opcode::kRcFetchAdd, Opcode::kRcReadRequest}) {
    other.opcode = opcode;
    REQUIRE(t.r.on_request(Instant{}, other, 0).need == Need::kNothing);
    CHECK_FALSE(t.r.owes());
  }
  for (const uint32_t psn : {101u, 102u}) {
    REQUIRE(t.request(psn).need == Need::kAtomicWrite);
    t.r.settle(Instant{}, Outcome::kDone);
    t.answer();
  }
  CHECK(t.request(100).need == Need::kNothing);
  CHECK_FALSE(t.r.owes());
}

TEST_CASE("ATOMIC WRITE that is malformed, misaligned or one too many is an invalid request") {
  Responder t(1);
  SECTION("misaligned") { REQUIRE(t.request(100, 0x2004).need == Need::kNothing); }
  SECTION("a RETH of another length") { REQUIRE(t.request(100, 0x2000, 16).need == Need::kNothing); }
  SECTION("too little payload") { REQUIRE(t.request(100, 0x2000, 8, 4).need == Need::kNothing); }
  SECTION("more than was agreed") {
    REQUIRE(t.request(100).need == Need::kAtomicWrite);
    t.r.settle(Instant{}, Outcome::kDone);
    REQUIRE(t.request(101).need == Need::kNothing);
    CHECK(t.answer().header.opcode == Opcode::kRcReadResponseOnly);
  }
  CHECK(t.r.fatal());
  CHECK(t.answer().header.aeth.syndrome == kNakInvalidRequest);
}

TEST_CASE("ATOMIC WRITEs among other works over a path that loses: each once, in order", "[property]") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Random random(seed, 7);
    RequesterFixture t(0xFFFFFA, 2);
    t.r.configure([] {
      RequesterConfig c;
      c.mtu_bytes = kMtu;
      c.first_psn = 0xFFFFFA;
      c.max_rd_atomic = 2;
      c.patient = true;  // a loss without a notice costs no retry
      c.timeout = 5;
      return c;
    }());
    ResponderConfig config;
    config.mtu_bytes = kMtu;
    config.first_psn = 0xFFFFFA;
    config.max_dest_rd_atomic = 2;
    RcResponder r;
    r.configure(config);
    const uint32_t works = 12;
    uint32_t writes = 0, executed = 0, completed = 0;
    for (uint32_t i = 0; i < works; ++i) {
      const bool atomic_write = random.below(2) == 0;
      writes += atomic_write;
      t.post(atomic_write           ? WorkOpcode::kAtomicWrite
             : random.below(2) == 0 ? WorkOpcode::kSend
                                    : WorkOpcode::kRead,
             atomic_write ? 8 : 300, true);
    }
    for (int i = 0; i < 5000 && completed != works; ++i) {
      OutFrame f;
      t.now += microseconds(20);
      t.r.on_timer(t.now);
      while (t.r.pull(t.now, f)) {
        if (random.below(5) == 0) continue;
        const Demand d = r.on_request(t.now, f.header, f.payload_bytes);
        if (d.need == Need::kNothing) continue;
        executed += d.need == Need::kAtomicWrite;
        r.settle(t.now, Outcome::kDone);
      }
      while (r.pull(t.now, f)) {
        if (random.below(5) == 0) continue;
        if (t.r.on_response(t.now, f.header, f.payload_bytes).wanted) t.r.placed(t.now, true);
      }
      for (const SendCompletion& done : t.completions()) {
        REQUIRE(done.work == completed++);
        REQUIRE(done.status == WorkStatus::kSuccess);
      }
    }
    REQUIRE(completed == works);
    REQUIRE(executed == writes);
  }
}
