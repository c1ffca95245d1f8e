// SPDX-License-Identifier: Apache-2.0
#include "protocols/ud/ud.h"

#include <catch2/catch.hpp>

using namespace weft;

namespace {
SendWork work_of(uint32_t length, uint32_t qpn, uint32_t qkey, WorkOpcode opcode = WorkOpcode::kSend) {
  SendWork w;
  w.opcode = opcode;
  w.length = length;
  w.remote_qpn = qpn;
  w.remote_qkey = qkey;
  w.immediate = 0x55;
  return w;
}
}  // namespace

TEST_CASE("UD: one packet per work, each with its own destination and Q_Key") {
  UdSender s;
  s.configure(1024, 0x11, 0x80001234, kPsnMask);
  s.post(work_of(1024, 0x20, 7));
  s.post(work_of(0, 0x21, 0x80000000, WorkOpcode::kSendImm));
  OutFrame f;
  REQUIRE(s.pull(f));
  CHECK(f.header.opcode == Opcode::kUdSendOnly);
  CHECK(f.header.dest_qpn == 0x20);
  CHECK(f.header.deth.qkey == 7);
  CHECK(f.header.deth.source_qpn == 0x11);
  CHECK(f.header.psn == kPsnMask);
  CHECK(f.payload_bytes == 1024);
  CHECK(f.work == 0);
  REQUIRE(s.pull(f));
  CHECK(f.header.opcode == Opcode::kUdSendOnlyImm);
  CHECK(f.header.immediate == 0x55);
  CHECK(f.header.deth.qkey == 0x80001234);  // the QP's own
  CHECK(f.header.psn == 0);
  CHECK(f.source == PayloadSource::kNone);
  CHECK_FALSE(s.pull(f));
  SendCompletion c;
  for (WorkNumber n : {0u, 1u}) {
    REQUIRE(s.next_completion(c));
    CHECK(c.work == n);
    CHECK(c.status == WorkStatus::kSuccess);
  }
  CHECK(s.idle());
}

TEST_CASE("UD: longer than an MTU, or not a SEND, ends in an error") {
  for (const bool long_one : {true, false}) {
    UdSender s;
    s.configure(256, 1, 2, 0);
    s.post(work_of(8, 3, 4));
    s.post(long_one ? work_of(257, 3, 4) : work_of(8, 3, 4, WorkOpcode::kWrite));
    s.post(work_of(8, 3, 4));
    OutFrame f;
    REQUIRE(s.pull(f));
    CHECK_FALSE(s.pull(f));
    SendCompletion c;
    REQUIRE(s.next_completion(c));
    CHECK(c.status == WorkStatus::kSuccess);
    REQUIRE(s.next_completion(c));
    CHECK(c.status == (long_one ? WorkStatus::kLocalLength : WorkStatus::kLocalQpOperation));
    CHECK(s.failed());
    s.flush();
    REQUIRE(s.next_completion(c));
    CHECK(c.status == WorkStatus::kFlushed);
    CHECK_FALSE(s.next_completion(c));
  }
}

TEST_CASE("UD: a payload that could not be read fails the work just pulled") {
  UdSender s;
  s.configure(256, 1, 2, 0);
  s.post(work_of(8, 3, 4));
  OutFrame f;
  REQUIRE(s.pull(f));
  s.fail(f.work, WorkStatus::kLocalProtection);
  SendCompletion c;
  REQUIRE(s.next_completion(c));
  CHECK(c.status == WorkStatus::kLocalProtection);
  CHECK(s.failed());
}

TEST_CASE("UD: the receiver's Q_Key decides") {
  TransportHeader h;
  h.opcode = Opcode::kUdSendOnly;
  h.deth.qkey = 5;
  CHECK(ud_accepts(h, 5));
  CHECK_FALSE(ud_accepts(h, 6));
  h.opcode = Opcode::kRcSendOnly;
  CHECK_FALSE(ud_accepts(h, 5));
}
