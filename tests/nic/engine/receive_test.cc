// SPDX-License-Identifier: Apache-2.0
//
// What a receiver refuses, and what both sides hear of it.
#include <sys/mman.h>

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

struct AsyncEvent {
  uint64_t element = 0;
  uint32_t type = 99;
};

bool next_async(Client& c, AsyncEvent& out) {
  ib_uverbs_async_event_desc record;
  if (recv(c.async_fd, &record, sizeof record, MSG_DONTWAIT) != sizeof record) return false;
  out = {record.element, record.event_type};
  return true;
}

/// A page that is mapped when it is registered and gone when it is used.
struct Vanishing {
  Vanishing() {
    at = static_cast<uint8_t*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Vanishing() { munmap(at, 8192); }
  void vanish() { munmap(at, 8192); }
  uint8_t* at;
};

}  // namespace

TEST_CASE("A remote access that is not allowed ends both sides, with the right statuses", "[nic][rc][errors]") {
  Rig rig(2);
  ConnectOptions connect;
  std::vector<uint8_t> source(4096, 1), target(4096, 0);
  Post post = {.opcode = kWrite, .wr_id = 1, .remote_addr = reinterpret_cast<uint64_t>(target.data())};
  uint32_t status = kRemAccess;
  uint32_t remote_access = 0xf;
  uint32_t bytes = 64;
  uint64_t shift = 0;
  uint32_t key_error = 0;
  SECTION("WRITE with a wrong rkey") { key_error = 1; }
  SECTION("WRITE with an index that never was") { key_error = 0x7FFF00; }
  SECTION("WRITE one byte beyond the end") { shift = 4096 - 63; }
  SECTION("WRITE before the start") { shift = static_cast<uint64_t>(-1); }
  SECTION("WRITE at an address that overflows") {
    shift = static_cast<uint64_t>(0) - reinterpret_cast<uint64_t>(target.data()) - 32;
  }
  SECTION("WRITE to a region without the right") { remote_access = 1 | 4; }
  SECTION("READ of a region without the right") {
    post.opcode = kRead;
    remote_access = 1 | 2;
  }
  SECTION("READ beyond the end") {
    post.opcode = kRead;
    shift = 4095;
  }
  SECTION("a longer WRITE whose last packets only are outside") {
    bytes = 4096;
    shift = 1;
  }
  SECTION("FETCH_ADD without the right") {
    post.opcode = kFetchAdd;
    bytes = 8;
    remote_access = 1 | 2 | 4;
  }
  SECTION("WRITE on a QP that does not admit it") {
    connect.access = 4;
    status = kRemInvReq;
  }
  Pair p(rig, {}, connect);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  const Mr remote = p.b.reg_mr(target.data(), target.size(), remote_access);
  post.remote_addr += shift;
  post.rkey = remote.rkey + key_error;
  post.sges = {sge(source.data(), bytes, local.lkey)};
  p.b.post_recv(p.b_qp, 77, {});
  REQUIRE(p.a.post(p.a_qp, post, false) == 0);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 2, .flags = 0}) > 0);
  expect_wc(rig, p.a, p.a_cq, 1, status);
  expect_wc(rig, p.a, p.a_cq, 2, kFlushErr);
  expect_wc(rig, p.b, p.b_cq, 77, kFlushErr);
  CHECK(p.a.query_state(p.a_qp) == 6);
  CHECK(p.b.query_state(p.b_qp) == 6);
  CHECK(std::count(target.begin(), target.end(), 0) == 4096);
  AsyncEvent event;
  REQUIRE(next_async(p.b, event));
  CHECK(event.element == p.b_qp.user_handle);
  CHECK(event.type == (status == kRemAccess ? 3 : 2));
}

TEST_CASE("Local memory that is not there is LOC_PROT here and nothing there", "[nic][rc][errors]") {
  Rig rig(2);
  Pair p(rig);
  std::vector<uint8_t> source(4096, 1);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  Post post = {.opcode = kSend, .wr_id = 2};
  Vanishing page;
  SECTION("a wrong lkey") { post.sges = {sge(source.data(), 10, local.lkey ^ 0x80)}; }
  SECTION("a list that leaves the region") { post.sges = {sge(source.data() + 4000, 97, local.lkey)}; }
  SECTION("a region that was unmapped") {
    const Mr gone = p.a.reg_mr(page.at, 8192);
    page.vanish();
    post.sges = {sge(page.at, 100, gone.lkey)};
  }
  SECTION("a region that was deregistered") {
    const Mr gone = p.a.reg_mr(page.at, 8192);
    REQUIRE(p.a.dereg_mr(gone) > 0);
    post.sges = {sge(page.at, 100, gone.lkey)};
  }
  p.b.post_recv(p.b_qp, 9, {});
  p.b.post_recv(p.b_qp, 10, {});
  // An earlier work still completes well.
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1, .flags = kSignaled}, false) == 0);
  REQUIRE(p.a.post(p.a_qp, post, false) == 0);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 3}) > 0);
  expect_wc(rig, p.a, p.a_cq, 1);
  expect_wc(rig, p.a, p.a_cq, 2, kLocProt);
  expect_wc(rig, p.a, p.a_cq, 3, kFlushErr);
  expect_wc(rig, p.b, p.b_cq, 9);
  rig.settle(100);
  ib_uverbs_wc wc;
  CHECK_FALSE(p.b.poll(p.b_cq, wc));
  CHECK(p.b.query_state(p.b_qp) == 3);
}

TEST_CASE("Memory of a peer that was unmapped is REM_ACCESS, of a receive request REM_OP", "[nic][rc][errors]") {
  Rig rig(2);
  Pair p(rig);
  Vanishing page;
  std::vector<uint8_t> source(8192, 1);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  const Mr remote = p.b.reg_mr(page.at, 8192);
  page.vanish();
  SECTION("WRITE") {
    REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite,
                              .wr_id = 1,
                              .remote_addr = reinterpret_cast<uint64_t>(page.at),
                              .rkey = remote.rkey,
                              .sges = {sge(source.data(), 8192, local.lkey)}}) > 0);
    expect_wc(rig, p.a, p.a_cq, 1, kRemAccess);
  }
  SECTION("READ") {
    REQUIRE(p.a.post(p.a_qp, {.opcode = kRead,
                              .wr_id = 1,
                              .remote_addr = reinterpret_cast<uint64_t>(page.at),
                              .rkey = remote.rkey,
                              .sges = {sge(source.data(), 8192, local.lkey)}}) > 0);
    expect_wc(rig, p.a, p.a_cq, 1, kRemAccess);
  }
  SECTION("FETCH_ADD") {
    REQUIRE(p.a.post(p.a_qp, {.opcode = kFetchAdd,
                              .wr_id = 1,
                              .remote_addr = reinterpret_cast<uint64_t>(page.at),
                              .rkey = remote.rkey,
                              .sges = {sge(source.data(), 8, local.lkey)}}) > 0);
    expect_wc(rig, p.a, p.a_cq, 1, kRemAccess);
  }
  SECTION("SEND") {
    p.b.post_recv(p.b_qp, 5, {sge(page.at, 8192, remote.lkey)});
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1, .sges = {sge(source.data(), 8192, local.lkey)}}) > 0);
    expect_wc(rig, p.a, p.a_cq, 1, kRemOp);
    expect_wc(rig, p.b, p.b_cq, 5, kLocProt);
  }
  CHECK(p.a.query_state(p.a_qp) == 6);
}

TEST_CASE("READ into memory that may not be written is LOC_PROT", "[nic][rc][errors]") {
  Rig rig(2);
  Pair p(rig);
  std::vector<uint8_t> a(64), b(64);
  const Mr local = p.a.reg_mr(a.data(), 64, 4);
  const Mr remote = p.b.reg_mr(b.data(), 64);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kRead,
                            .wr_id = 1,
                            .remote_addr = reinterpret_cast<uint64_t>(b.data()),
                            .rkey = remote.rkey,
                            .sges = {sge(a.data(), 64, local.lkey)}}) > 0);
  expect_wc(rig, p.a, p.a_cq, 1, kLocProt);
}

TEST_CASE("A SEND longer than the receive request: LOC_LEN there, REM_INV_REQ here", "[nic][rc][errors]") {
  Rig rig(2);
  Pair p(rig);
  std::vector<uint8_t> source(5000, 1), target(5000, 0);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  const Mr remote = p.b.reg_mr(target.data(), target.size());
  p.b.post_recv(p.b_qp, 1, {sge(target.data(), 4999, remote.lkey)});
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1, .sges = {sge(source.data(), 5000, local.lkey)}}) > 0);
  expect_wc(rig, p.a, p.a_cq, 1, kRemInvReq);
  expect_wc(rig, p.b, p.b_cq, 1, kLocLen);
}

TEST_CASE("A SEND without a receive request waits for one, or gives up as told", "[nic][rc][rnr]") {
  Rig rig(2);
  std::vector<uint8_t> source(3000, 1), target(3000, 0);
  SECTION("rnr_retry 7 waits") {
    Pair p(rig, {}, {.rnr_retry = 7, .min_rnr_timer = 5});
    const Mr local = p.a.reg_mr(source.data(), source.size());
    const Mr remote = p.b.reg_mr(target.data(), target.size());
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1, .sges = {sge(source.data(), 3000, local.lkey)}}) > 0);
    rig.settle(5000);
    ib_uverbs_wc wc;
    REQUIRE_FALSE(p.a.poll(p.a_cq, wc));
    CHECK(rig.device(0).next_deadline() != kNever);
    p.b.post_recv(p.b_qp, 2, {sge(target.data(), 3000, remote.lkey)});
    expect_wc(rig, p.b, p.b_cq, 2);
    expect_wc(rig, p.a, p.a_cq, 1);
    CHECK(source == target);
  }
  SECTION("rnr_retry 2 gives up after two more") {
    Pair p(rig, {}, {.rnr_retry = 2});
    uint32_t sends = 0;
    rig.filter = [&](const RoceFrame&, uint32_t from) {
      sends += from == 0 ? 1 : 0;
      return true;
    };
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
    expect_wc(rig, p.a, p.a_cq, 1, kRnrRetryExc);
    CHECK(sends == 3);
  }
}

TEST_CASE("A UC message that finds no receive request is dropped, as is one that is too long", "[nic][uc]") {
  Rig rig(2);
  Pair p(rig, {.type = 3});
  std::vector<uint8_t> source(3000, 1), target(3000, 0);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  const Mr remote = p.b.reg_mr(target.data(), target.size());
  const Post post = {.opcode = kSend, .wr_id = 1, .sges = {sge(source.data(), 3000, local.lkey)}};
  REQUIRE(p.a.post(p.a_qp, post) > 0);
  expect_wc(rig, p.a, p.a_cq, 1);
  rig.settle(20);
  CHECK(rig.device(1).counters().no_receive == 1);
  p.b.post_recv(p.b_qp, 4, {sge(target.data(), 2999, remote.lkey)});
  REQUIRE(p.a.post(p.a_qp, post) > 0);
  rig.settle(20);
  ib_uverbs_wc wc;
  CHECK_FALSE(p.b.poll(p.b_cq, wc));
  Post shorter = post;
  shorter.sges[0].length = 2999;
  REQUIRE(p.a.post(p.a_qp, shorter) > 0);
  CHECK(expect_wc(rig, p.b, p.b_cq, 4).byte_len == 2999);
}

TEST_CASE("Frames that are nobody's business are dropped and counted", "[nic][errors]") {
  Rig rig(3);
  Client a(rig, 0), b(rig, 1), c(rig, 2);
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq(), c_cq = c.create_cq();
  const Qp qa = a.create_qp(a_cq, a_cq), qb = b.create_qp(b_cq, b_cq), qc = c.create_qp(c_cq, c_cq);
  connect(a, qa, b, qb);
  // c believes to be connected to b's QP, which knows nothing of it.
  REQUIRE(c.to_init(qc) > 0);
  REQUIRE(c.to_rtr(qc, qb.qpn, 1, {}, 5) > 0);
  REQUIRE(c.to_rts(qc, {}, 5) > 0);
  b.post_recv(qb, 1, {});
  REQUIRE(c.post(qc, {.opcode = kSend, .wr_id = 1}) > 0);
  rig.settle(50);
  CHECK(rig.device(1).counters().wrong_source == 1);
  CHECK(b.query_state(qb) == 3);
  SECTION("a QPN that is gone") {
    REQUIRE(b.destroy_qp(qb) > 0);
    REQUIRE(a.post(qa, {.opcode = kSend, .wr_id = 1}) > 0);
    rig.settle(50);
    CHECK(rig.device(1).counters().no_such_qpn == 1);
  }
  SECTION("a QP that is not ready") {
    REQUIRE(b.to_state(qb, 0) > 0);
    REQUIRE(a.post(qa, {.opcode = kSend, .wr_id = 1}) > 0);
    rig.settle(50);
    CHECK(rig.device(1).counters().wrong_state == 1);
  }
}
