// SPDX-License-Identifier: Apache-2.0
//
// What a known loss, refusal or shortage adds to the counters, exactly; and nothing else.
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "protocols/base/metrics.h"
#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

using Counts = std::map<std::string, uint64_t>;

/// What changed since `before`, by metric name; packets apart.
Counts counts(Rig& rig, uint32_t node, const Counts& before = {}) {
  Counts now;
  for (uint32_t i = static_cast<uint32_t>(NicCounter::kDuplicateRequest); i < kNicCounters; ++i) {
    const auto counter = static_cast<NicCounter>(i);
    const std::string name = nic_counter_info(counter).metric;
    const auto old = before.find(name);
    const uint64_t value = rig.node(node).port.counters().get(counter) - (old == before.end() ? 0 : old->second);
    if (value != 0) now[name] = value;
  }
  return now;
}

struct Traffic : Pair {
  explicit Traffic(Rig& rig_, const ConnectOptions& options = {})
      : Pair(rig_, {}, options), rig(rig_), a_memory(65536), b_memory(65536) {
    a_mr = a.reg_mr(a_memory.data(), a_memory.size());
    b_mr = b.reg_mr(b_memory.data(), b_memory.size());
  }
  void post(uint32_t opcode, uint32_t bytes, uint32_t rkey_change = 0) {
    Post p;
    p.opcode = opcode;
    p.wr_id = 1;
    p.remote_addr = reinterpret_cast<uint64_t>(b_memory.data());
    p.rkey = b_mr.rkey + rkey_change;
    p.sges = {sge(a_memory.data(), bytes, a_mr.lkey)};
    REQUIRE(a.post(a_qp, p) > 0);
  }
  void receive(uint32_t bytes) { b.post_recv(b_qp, 2, {sge(b_memory.data(), bytes, b_mr.lkey)}); }
  Rig& rig;
  std::vector<uint8_t> a_memory, b_memory;
  Mr a_mr, b_mr;
};

}  // namespace

TEST_CASE("Traffic without trouble counts works and packets only", "[nic][counters]") {
  Rig rig(2);
  Traffic t(rig);
  for (int i = 0; i < 3; ++i) {
    t.receive(4096);
    t.post(kSend, 1000);
    expect_wc(rig, t.a, t.a_cq, 1);
    expect_wc(rig, t.b, t.b_cq, 2);
  }
  t.post(kWrite, 4096);
  expect_wc(rig, t.a, t.a_cq, 1);
  t.post(kRead, 4096);
  expect_wc(rig, t.a, t.a_cq, 1);
  t.post(kFetchAdd, 8);
  expect_wc(rig, t.a, t.a_cq, 1);
  CHECK(counts(rig, 0) == Counts{{"rdma_sends", 3}});
  CHECK(counts(rig, 1) ==
        Counts{{"rdma_recvs", 3}, {"rx_write_requests", 1}, {"rx_read_requests", 1}, {"rx_atomic_requests", 1}});
  const auto packets = [&](uint32_t node, NicCounter c) { return rig.node(node).port.counters().get(c); };
  CHECK(packets(0, NicCounter::kSentPackets) == packets(1, NicCounter::kReceivedPackets));
  CHECK(packets(1, NicCounter::kSentPackets) == packets(0, NicCounter::kReceivedPackets));
  CHECK(packets(0, NicCounter::kSentPackets) + packets(1, NicCounter::kSentPackets) == rig.frames);
}

TEST_CASE("A lost packet in the middle of a message: what overtook it, one NAK, one retry", "[nic][counters]") {
  Rig rig(2);
  Traffic t(rig);
  uint32_t seen = 0;
  rig.filter = [&](const RoceFrame&, uint32_t from) { return from != 0 || seen++ != 3; };
  t.post(kWrite, 16 * 1024);  // 16 packets at MTU 1024
  expect_wc(rig, t.a, t.a_cq, 1);
  Counts responder = counts(rig, 1);
  CHECK(responder["out_of_sequence"] == 12);
  CHECK(counts(rig, 0) == Counts{{"packet_seq_err", 1}, {"completer_retry_err", 1}});
  CHECK(responder["duplicate_request"] == 0);
}

TEST_CASE("A lost acknowledge: one timeout, one retry, duplicates at the responder", "[nic][counters]") {
  Rig rig(2, {.flags = attach::kWelcomeStrictTimers});
  Traffic t(rig);
  bool lost = false;
  rig.filter = [&](const RoceFrame&, uint32_t from) {
    const bool lose = from == 1 && !lost;
    lost = lost || lose;
    return !lose;
  };
  t.post(kWrite, 100);
  expect_wc(rig, t.a, t.a_cq, 1);
  CHECK(counts(rig, 0) == Counts{{"local_ack_timeout_err", 1}, {"completer_retry_err", 1}});
  CHECK(counts(rig, 1) == Counts{{"duplicate_request", 1}, {"rx_write_requests", 1}});
}

TEST_CASE("A peer that never answers: every timeout, and the end of the budget", "[nic][counters]") {
  Rig rig(2, {.flags = attach::kWelcomeStrictTimers});
  ConnectOptions options;
  options.retry = 3;
  options.timeout = 8;
  Traffic t(rig, options);
  rig.filter = [](const RoceFrame&, uint32_t) { return false; };
  t.post(kWrite, 100);
  t.post(kWrite, 100);
  expect_wc(rig, t.a, t.a_cq, 1, kRetryExc);
  expect_wc(rig, t.a, t.a_cq, 1, kFlushErr);
  CHECK(counts(rig, 0) == Counts{{"local_ack_timeout_err", 4},
                                 {"completer_retry_err", 3},
                                 {"retry_exceeded_err", 1},
                                 {"req_cqe_error", 1},
                                 {"req_cqe_flush_error", 1}});
  CHECK(counts(rig, 1).empty());
}

TEST_CASE("No receive posted: RNR NAKs on both sides, then the end", "[nic][counters]") {
  Rig rig(2);
  ConnectOptions options;
  options.rnr_retry = 2;
  Traffic t(rig, options);
  t.post(kSend, 100);
  expect_wc(rig, t.a, t.a_cq, 1, kRnrRetryExc);
  CHECK(counts(rig, 0) == Counts{{"rnr_nak_retry_err", 3}, {"retry_rnr_exceeded_err", 1}, {"req_cqe_error", 1}});
  CHECK(counts(rig, 1) == Counts{{"send_rnr_err", 3}, {"out_of_buffer", 3}});
}

TEST_CASE("A wrong key: a remote access error here, a refusal there", "[nic][counters]") {
  Rig rig(2);
  Traffic t(rig);
  t.post(kWrite, 100, 1);
  expect_wc(rig, t.a, t.a_cq, 1, kRemAccess);
  CHECK(counts(rig, 0) == Counts{{"req_remote_access_errors", 1}, {"req_cqe_error", 1}});
  CHECK(counts(rig, 1)["resp_remote_access_errors"] == 1);
}

TEST_CASE("A SEND that is longer than its receive request", "[nic][counters]") {
  Rig rig(2);
  Traffic t(rig);
  t.receive(10);
  t.post(kSend, 100);
  expect_wc(rig, t.a, t.a_cq, 1, kRemInvReq);
  CHECK(counts(rig, 0) == Counts{{"req_remote_invalid_request", 1}, {"req_cqe_error", 1}});
  CHECK(counts(rig, 1) == Counts{{"resp_local_length_error", 1}, {"resp_cqe_error", 1}});
}
