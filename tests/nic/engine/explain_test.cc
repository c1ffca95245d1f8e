// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/explain.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::nic;
using namespace weft::test;

namespace {

struct Traffic : Pair {
  explicit Traffic(Rig& rig_, const ConnectOptions& options = {})
      : Pair(rig_, {}, options), rig(rig_), a_memory(65536), b_memory(65536) {
    a_mr = a.reg_mr(a_memory.data(), a_memory.size());
    b_mr = b.reg_mr(b_memory.data(), b_memory.size());
  }
  Post work(uint32_t opcode, uint32_t bytes) {
    Post p;
    p.opcode = opcode;
    p.wr_id = 5;
    p.remote_addr = reinterpret_cast<uint64_t>(b_memory.data());
    p.rkey = b_mr.rkey;
    p.sges = {sge(a_memory.data(), bytes, a_mr.lkey)};
    return p;
  }
  ErrorReport only(uint32_t node) {
    const auto& reports = rig.node(node).platform->reports;
    REQUIRE(reports.size() == 1);
    return reports[0];
  }
  Rig& rig;
  std::vector<uint8_t> a_memory, b_memory;
  Mr a_mr, b_mr;
};

}  // namespace

TEST_CASE("A peer that does not answer: how often and how long it was asked, and what the fabric said", "[nic][explain]") {
  Rig rig(2, {.flags = attach::kWelcomeStrictTimers});
  ConnectOptions options;
  options.retry = 2;
  options.timeout = 8;
  options.psn_a = 100;
  Traffic t(rig, options);
  rig.filter = [](const RoceFrame&, uint32_t) { return false; };
  t.a.post(t.a_qp, t.work(kWrite, 100));
  t.a.post(t.a_qp, t.work(kWrite, 100));
  attach::Notice notice{};
  notice.address = rig.node(1).welcome.ipv4;
  notice.qpn = t.b_qp.qpn;
  notice.reason = attach::NoticeReason::kPeerDied;
  rig.notify(0, notice);
  expect_wc(rig, t.a, t.a_cq, 5, kRetryExc);
  expect_wc(rig, t.a, t.a_cq, 5, kFlushErr);
  const ErrorReport r = t.only(0);  // the flush needs no words
  CHECK(r.side == ErrorSide::kSend);
  CHECK(r.status == WorkStatus::kRetryExceeded);
  CHECK(r.qpn == t.a_qp.qpn);
  CHECK(r.peer_qpn == t.b_qp.qpn);
  CHECK(r.peer == gid_of_ipv4(rig.node(1).welcome.ipv4));
  CHECK(r.wr_id == 5);
  CHECK(r.failure.psn == 100);
  CHECK(r.failure.transmissions == 3);
  CHECK(r.failure.timeouts == 3);
  CHECK(r.failure.timeout == picoseconds(4'096'000ll << 8));
  CHECK(r.notice == attach::NoticeReason::kPeerDied);
  CHECK(rig.node(0).platform->last_state == 6);  // told without a command
}

TEST_CASE("A wrong key: what was refused, on both sides", "[nic][explain]") {
  Rig rig(2);
  Traffic t(rig);
  Post p = t.work(kWrite, 100);
  const char* why = nullptr;
  SECTION("no such key") {
    p.rkey += 1;
    why = "no such key";
  }
  SECTION("one byte beyond") {
    p.remote_addr += t.b_memory.size() - 99;
    why = "outside the MR";
  }
  SECTION("a right that the key does not give") {
    p.rkey = t.b.reg_mr(t.b_memory.data(), 4096, 1).rkey;
    why = "the key does not give that right";
  }
  t.a.post(t.a_qp, p);
  expect_wc(rig, t.a, t.a_cq, 5, kRemAccess);
  const ErrorReport a = t.only(0);
  CHECK(a.failure.rkey == p.rkey);
  CHECK(a.failure.remote_addr == p.remote_addr);
  CHECK(a.failure.length == 100);
  CHECK(a.failure.syndrome == 0x62);
  const ErrorReport b = t.only(1);
  CHECK(b.side == ErrorSide::kResponder);
  CHECK(b.key == p.rkey);
  CHECK(b.address == p.remote_addr);
  CHECK(std::string(b.action) == "WRITE");
  CHECK(std::string(b.refusal) == why);
}

TEST_CASE("Memory that goes in the middle of a message: the event and the words are those of a refusal", "[nic][explain]") {
  Rig rig(2);
  Traffic t(rig);
  const uint32_t opcode = GENERATE(uint32_t{kWrite}, uint32_t{kRead});
  auto* at = static_cast<uint8_t*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(at != MAP_FAILED);
  Post p = t.work(opcode, 8192);
  p.remote_addr = reinterpret_cast<uint64_t>(at);
  p.rkey = t.b.reg_mr(at, 8192).rkey;
  munmap(at + 4096, 4096);
  t.a.post(t.a_qp, p);
  expect_wc(rig, t.a, t.a_cq, 5, kRemAccess);
  munmap(at, 4096);
  const ErrorReport b = t.only(1);
  CHECK(b.side == ErrorSide::kResponder);
  CHECK(b.key == p.rkey);
  CHECK(std::string(b.action) == (opcode == kRead ? "READ" : "WRITE"));
  CHECK(std::string(b.refusal) == "the memory is not mapped");
  if (opcode == kWrite) CHECK(b.address == p.remote_addr);
  if (opcode == kRead) CHECK(b.address == p.remote_addr + 4096);
  ib_uverbs_async_event_desc event = {};
  REQUIRE(recv(t.b.async_fd, &event, sizeof event, MSG_DONTWAIT) == 16);
  CHECK(event.event_type == 3);  // QP_ACCESS_ERR
  CHECK(event.element == t.b_qp.user_handle);
  CHECK(recv(t.b.async_fd, &event, sizeof event, MSG_DONTWAIT) < 0);
}

TEST_CASE("Local errors name the entry of the scatter list", "[nic][explain]") {
  Rig rig(2);
  Traffic t(rig);
  Post p = t.work(kWrite, 100);
  p.sges.push_back(sge(t.a_memory.data() + 200, 10, t.a_mr.lkey + 1));
  t.a.post(t.a_qp, p);
  expect_wc(rig, t.a, t.a_cq, 5, kLocProt);
  const ErrorReport r = t.only(0);
  CHECK(r.key == t.a_mr.lkey + 1);
  CHECK(r.length == 10);
  CHECK(std::string(r.refusal) == "no such key");
  CHECK(rig.node(1).platform->reports.empty());
}

TEST_CASE("A message that is too long is the receiver's completion and the sender's", "[nic][explain]") {
  Rig rig(2);
  Traffic t(rig);
  t.b.post_recv(t.b_qp, 9, {sge(t.b_memory.data(), 10, t.b_mr.lkey)});
  t.a.post(t.a_qp, t.work(kSend, 100));
  expect_wc(rig, t.a, t.a_cq, 5, kRemInvReq);
  const ErrorReport b = t.only(1);
  CHECK(b.side == ErrorSide::kReceive);
  CHECK(b.status == WorkStatus::kLocalLength);
  CHECK(b.wr_id == 9);
  CHECK(b.length == 10);
  CHECK(t.only(0).failure.syndrome == 0x61);
}

TEST_CASE("A state that cannot be told now is told later", "[nic][explain]") {
  Rig rig(2, {.flags = attach::kWelcomeStrictTimers});
  ConnectOptions options;
  options.retry = 0;
  options.timeout = 8;
  Traffic t(rig, options);
  rig.filter = [](const RoceFrame&, uint32_t) { return false; };
  t.a.post(t.a_qp, t.work(kWrite, 100));
  rig.node(0).platform->deaf = true;
  expect_wc(rig, t.a, t.a_cq, 5, kRetryExc);
  CHECK(rig.node(0).platform->last_state == 3);
  rig.node(0).platform->deaf = false;
  rig.run([&] { return rig.node(0).platform->last_state == 6; });
  CHECK(rig.node(0).platform->last_state == 6);
  CHECK(rig.node(0).platform->last_mtu == 3);
}
