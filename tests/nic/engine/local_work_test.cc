// SPDX-License-Identifier: Apache-2.0
//
// Memory windows and ATOMIC WRITE through the whole NIC: bound by work requests, used by peers, taken back.
#include "nic/engine/local_work.h"

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

uint64_t address(const void* at) { return reinterpret_cast<uint64_t>(at); }

/// a writes to b; b has a region that admits windows and no other remote access.
struct Windows {
  Rig rig{2};
  Pair p;
  alignas(8) uint8_t source[4096] = {};
  alignas(8) uint8_t target[4096] = {};
  Mr local, region;
  uint64_t next_id = 100;

  explicit Windows(const QpOptions& qp = {}, const ConnectOptions& connect = {}) : p(rig, qp, connect) {
    memset(source, 0x5A, sizeof source);
    local = p.a.reg_mr(source, sizeof source);
    region = p.b.reg_mr(target, sizeof target, 1 | 16);
  }
  nic::WindowBind bind_of(const Mw& mw, uint64_t offset = 1024, uint64_t length = 1024, uint32_t access = 2 | 4) {
    return {address(target) + offset, length, region.lkey, mw.rkey, mw.rkey + 1, access};
  }
  /// The new key.
  uint32_t bind(const Mw& mw, const nic::WindowBind& request, uint32_t status = 0) {
    REQUIRE(p.b.post(p.b_qp, {.opcode = kBindWindow, .wr_id = next_id, .bind = request}) > 0);
    CHECK(expect_wc(rig, p.b, p.b_cq, next_id++, status).opcode == 5);
    return (mw.rkey & ~0xffu) | (request.new_key & 0xff);
  }
  Post write(uint32_t rkey, uint64_t offset, uint32_t bytes) {
    return {.opcode = kWrite,
            .wr_id = next_id,
            .remote_addr = address(target) + offset,
            .rkey = rkey,
            .sges = {sge(source, bytes, local.lkey)}};
  }
  void expect(const Post& post, uint32_t status) {
    REQUIRE(p.a.post(p.a_qp, post) > 0);
    expect_wc(rig, p.a, p.a_cq, post.wr_id, status);
    ++next_id;
  }
};

struct AsyncEvent {
  uint64_t element;
  uint32_t type;
  uint32_t reserved;
};

bool access_error_told(Client& c, const Qp& qp) {
  AsyncEvent event;
  while (recv(c.async_fd, &event, sizeof event, MSG_DONTWAIT) == sizeof event) {
    if (event.type == 3 && event.element == qp.user_handle) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("When the turn of a local work comes", "[nic][mw]") {
  struct Progress {
    bool sent, fence, done;
    bool all_sent() const { return sent; }
    bool fence_open() const { return fence; }
    bool idle() const { return done; }
  };
  using nic::local_turn, nic::local_wait_of, nic::LocalWait;
  SendWork work;
  CHECK(local_wait_of(work) == LocalWait::kNone);
  CHECK(local_turn(LocalWait::kNone, Progress{false, false, false}));
  work.opcode = WorkOpcode::kBindWindow;
  CHECK(local_turn(local_wait_of(work), Progress{true, false, false}));
  CHECK_FALSE(local_turn(local_wait_of(work), Progress{false, true, false}));
  work.fence = true;
  CHECK_FALSE(local_turn(local_wait_of(work), Progress{true, false, false}));
  CHECK(local_turn(local_wait_of(work), Progress{true, true, false}));
  work.opcode = WorkOpcode::kLocalInvalidate;
  CHECK_FALSE(local_turn(local_wait_of(work), Progress{true, true, false}));
  CHECK(local_turn(local_wait_of(work), Progress{true, true, true}));
}

TEST_CASE("A peer writes and reads through a window, in its range and with its rights", "[nic][mw]") {
  const uint8_t type = GENERATE(uint8_t{1}, uint8_t{2});
  Windows t;
  const Mw mw = t.p.b.alloc_mw(type);
  const uint32_t key = t.bind(mw, t.bind_of(mw));
  t.expect(t.write(key, 1024, 1024), 0);
  CHECK(memcmp(t.target + 1024, t.source, 1024) == 0);
  CHECK(t.target[1023] == 0);
  CHECK(t.target[2048] == 0);
  Post read = t.write(key, 1024, 1000);
  read.opcode = kRead;
  t.expect(read, 0);
  CHECK(t.p.b.dereg_mr(t.region) == -EBUSY);
  CHECK(t.p.b.rereg_mr(t.region, 4, nullptr, 0, 1, 0) == -EBUSY);
  uint32_t status = kRemAccess;
  Post bad = t.write(key, 1024, 1024);
  SECTION("one byte beyond it") { bad.remote_addr += 1; }
  SECTION("one byte before it") { bad.remote_addr -= 1; }
  SECTION("with the key it had before") { bad.rkey = mw.rkey; }
  SECTION("with the region's key") { bad.rkey = t.region.rkey; }
  SECTION("for an atomic") {
    bad.opcode = kFetchAdd;
    bad.sges = {sge(t.source, 8, t.local.lkey)};
  }
  SECTION("after it is gone") {
    REQUIRE(t.p.b.dealloc_mw(mw) > 0);
    CHECK(t.p.b.dereg_mr(t.region) > 0);
  }
  memset(t.target, 0, sizeof t.target);
  t.expect(bad, status);
  CHECK(std::count(t.target, t.target + sizeof t.target, 0) == sizeof t.target);
  CHECK(access_error_told(t.p.b, t.p.b_qp));
}

TEST_CASE("A window of UC is bound by its send queue too", "[nic][mw][uc]") {
  Windows t({.type = 3});
  const Mw mw = t.p.b.alloc_mw(2);
  const uint32_t key = t.bind(mw, t.bind_of(mw));
  t.expect(t.write(key, 1024, 64), 0);
  REQUIRE(t.rig.run([&] { return t.target[1024 + 63] == 0x5A; }));
  // Behind a message, and before one.
  const Mw second = t.p.b.alloc_mw(2);
  t.p.a.post_recv(t.p.a_qp, 1, {sge(t.source, 4096, t.local.lkey)});
  t.p.a.post_recv(t.p.a_qp, 2, {sge(t.source, 4096, t.local.lkey)});
  const Post send = {.opcode = kSend, .wr_id = 11, .sges = {sge(t.target, 4096, t.region.lkey)}};
  REQUIRE(t.p.b.post(t.p.b_qp, send, false) == 0);
  REQUIRE(t.p.b.post(t.p.b_qp, {.opcode = kBindWindow, .wr_id = 12, .bind = t.bind_of(second)}, false) == 0);
  REQUIRE(t.p.b.post(t.p.b_qp, {.opcode = kSend, .wr_id = 13}) > 0);
  for (const uint64_t id : {11u, 12u, 13u}) expect_wc(t.rig, t.p.b, t.p.b_cq, id);
  // SEND with invalidate and LOCAL_INV are not UC's.
  REQUIRE(t.p.b.post(t.p.b_qp, {.opcode = kSendInvalidate, .wr_id = 14, .immediate = key}) > 0);
  expect_wc(t.rig, t.p.b, t.p.b_cq, 14, kLocQpOp);
}

TEST_CASE("A bind that fails is MW_BIND here, and what follows is flushed, not executed", "[nic][mw]") {
  Windows t;
  const Mw mw = t.p.b.alloc_mw(1);
  const Mw other = t.p.b.alloc_mw(1);
  nic::WindowBind bad = t.bind_of(mw);
  bad.length = 4096;
  REQUIRE(t.p.b.post(t.p.b_qp, {.opcode = kBindWindow, .wr_id = 1, .bind = bad}, false) == 0);
  REQUIRE(t.p.b.post(t.p.b_qp, {.opcode = kBindWindow, .wr_id = 2, .bind = t.bind_of(other)}) > 0);
  expect_wc(t.rig, t.p.b, t.p.b_cq, 1, kMwBindErr);
  expect_wc(t.rig, t.p.b, t.p.b_cq, 2, kFlushErr);
  CHECK(t.p.b.query_state(t.p.b_qp) == 6);
  CHECK(t.p.b.dereg_mr(t.region) > 0);  // nothing was bound
}

TEST_CASE("LOCAL_INV frees a type 2 window once the works before it have completed", "[nic][mw]") {
  Windows t({}, {.timeout = 8});
  const Mw mw = t.p.b.alloc_mw(2);
  const uint32_t key = t.bind(mw, t.bind_of(mw));
  uint32_t to_lose = 2;  // the READ before it has to be asked for again
  t.rig.filter = [&](const RoceFrame& f, uint32_t) {
    return f.transport.opcode != Opcode::kRcReadRequest || to_lose == 0 || to_lose-- == 0;
  };
  std::vector<uint8_t> into(64);
  const Mr mr = t.p.b.reg_mr(into.data(), into.size());
  const Mr from = t.p.a.reg_mr(t.source, sizeof t.source);
  REQUIRE(t.p.b.post(t.p.b_qp,
                     {.opcode = kRead,
                      .wr_id = 1,
                      .remote_addr = address(t.source),
                      .rkey = from.rkey,
                      .sges = {sge(into.data(), 64, mr.lkey)}},
                     false) == 0);
  REQUIRE(t.p.b.post(t.p.b_qp, {.opcode = kLocalInvalidate, .wr_id = 2, .immediate = key}, false) == 0);
  REQUIRE(t.p.b.post(t.p.b_qp, {.opcode = kBindWindow, .wr_id = 3, .bind = t.bind_of({mw.handle, key}, 0, 64)}) > 0);
  t.rig.settle(50);
  t.expect(t.write(key, 1024, 8), 0);  // still there: the READ is not answered
  CHECK(expect_wc(t.rig, t.p.b, t.p.b_cq, 1).opcode == 2);
  CHECK(expect_wc(t.rig, t.p.b, t.p.b_cq, 2).opcode == 6);
  CHECK(expect_wc(t.rig, t.p.b, t.p.b_cq, 3).opcode == 5);
  const uint32_t second = (key & ~0xffu) | ((key + 1) & 0xff);
  t.expect(t.write(second, 0, 64), 0);
  SECTION("the old range is gone") { t.expect(t.write(second, 1024, 8), kRemAccess); }
  SECTION("a key of type 1, a region's or a free one is refused") {
    uint32_t refused = t.region.lkey;
    const Mw type1 = t.p.b.alloc_mw(1);
    const uint32_t which = GENERATE(0u, 1u, 2u);
    if (which == 1) refused = t.bind(type1, t.bind_of(type1));
    if (which == 2) refused = key;
    REQUIRE(t.p.b.post(t.p.b_qp, {.opcode = kLocalInvalidate, .wr_id = 9, .immediate = refused}) > 0);
    expect_wc(t.rig, t.p.b, t.p.b_cq, 9, kLocQpOp);
  }
}

TEST_CASE("A fenced bind waits for READs before it", "[nic][mw]") {
  const bool fenced = GENERATE(false, true);
  Windows t;
  const Mw mw = t.p.b.alloc_mw(1);
  bool hold = true;
  t.rig.filter = [&](const RoceFrame& f, uint32_t) {
    return !hold || f.transport.opcode != Opcode::kRcReadResponseOnly;
  };
  REQUIRE(t.p.b.post(t.p.b_qp,
                     {.opcode = kRead,
                      .wr_id = 1,
                      .remote_addr = address(t.source),
                      .rkey = t.local.rkey,
                      .sges = {sge(t.target, 64, t.region.lkey)}},
                     false) == 0);
  REQUIRE(t.p.b.post(t.p.b_qp, {.opcode = kBindWindow,
                                .wr_id = 2,
                                .flags = fenced ? kSignaled | kFence : kSignaled,
                                .bind = t.bind_of(mw)}) > 0);
  t.rig.settle(50);
  CHECK(t.p.b.dereg_mr(t.region) == (fenced ? 12 : -EBUSY));
  if (fenced) return;  // its region is gone now
  hold = false;
  expect_wc(t.rig, t.p.b, t.p.b_cq, 1);
  expect_wc(t.rig, t.p.b, t.p.b_cq, 2);
}

TEST_CASE("SEND with invalidate frees the receiver's window and says so, once, whatever is lost", "[nic][mw]") {
  const uint32_t bytes = GENERATE(0u, 100u, 3000u);
  Windows t;
  const Mw mw = t.p.b.alloc_mw(2);
  const uint32_t key = t.bind(mw, t.bind_of(mw));
  t.expect(t.write(key, 1024, 8), 0);
  bool lose = true;  // the first acknowledge: the peer sends it all again
  t.rig.filter = [&](const RoceFrame& f, uint32_t) {
    const bool drop = lose && f.transport.opcode == Opcode::kRcAcknowledge;
    lose = lose && !drop;
    return !drop;
  };
  t.p.b.post_recv(t.p.b_qp, 7, {sge(t.target, 4096, t.region.lkey)});
  t.p.b.post_recv(t.p.b_qp, 8, {sge(t.target, 4096, t.region.lkey)});
  t.expect(
      {.opcode = kSendInvalidate, .wr_id = t.next_id, .immediate = key, .sges = {sge(t.source, bytes, t.local.lkey)}},
      0);
  const auto wc = expect_wc(t.rig, t.p.b, t.p.b_cq, 7);
  CHECK(wc.byte_len == bytes);
  CHECK(wc.wc_flags == 8);
  CHECK(wc.ex.invalidate_rkey == key);
  CHECK(t.p.b.dereg_mr(t.region) > 0);  // free
  t.expect(t.write(key, 1024, 8), kRemAccess);
}

TEST_CASE("SEND with invalidate of a key that cannot be: REM_ACCESS here, REM_INV_REQ there", "[nic][mw]") {
  Windows t;
  const Mw type1 = t.p.b.alloc_mw(1);
  uint32_t key = t.bind(type1, t.bind_of(type1));
  SECTION("type 1") {}
  SECTION("no window") { key = t.region.rkey; }
  SECTION("a free window") { key = t.p.b.alloc_mw(2).rkey; }
  SECTION("another QP's window") {
    const Cq cq = t.p.b.create_cq();
    const Qp a = t.p.a.create_qp(t.p.a_cq, t.p.a_cq), b = t.p.b.create_qp(cq, cq);
    connect(t.p.a, a, t.p.b, b);
    const Mw mw = t.p.b.alloc_mw(2);
    REQUIRE(t.p.b.post(b, {.opcode = kBindWindow, .wr_id = 1, .bind = t.bind_of(mw)}) > 0);
    expect_wc(t.rig, t.p.b, cq, 1);
    key = (mw.rkey & ~0xffu) | ((mw.rkey + 1) & 0xff);
  }
  t.p.b.post_recv(t.p.b_qp, 7, {sge(t.target, 64, t.region.lkey)});
  t.p.b.post_recv(t.p.b_qp, 8, {sge(t.target, 64, t.region.lkey)});
  t.expect({.opcode = kSendInvalidate, .wr_id = t.next_id, .immediate = key}, kRemAccess);
  expect_wc(t.rig, t.p.b, t.p.b_cq, 7, kRemInvReq);
  expect_wc(t.rig, t.p.b, t.p.b_cq, 8, kFlushErr);
  CHECK_FALSE(access_error_told(t.p.b, t.p.b_qp));  // the receive completion tells. IBTA Vol 1, 11.6.3.2
}

TEST_CASE("A type 2 window is its QP's: others may not use it, and it is freed with the QP", "[nic][mw]") {
  Windows t;
  const Cq cq = t.p.b.create_cq();
  const Qp a = t.p.a.create_qp(t.p.a_cq, t.p.a_cq), b = t.p.b.create_qp(cq, cq);
  connect(t.p.a, a, t.p.b, b);
  const Mw mw = t.p.b.alloc_mw(2);
  const uint32_t key = t.bind(mw, t.bind_of(mw));
  t.expect(t.write(key, 1024, 8), 0);
  Post other = t.write(key, 1024, 8);
  REQUIRE(t.p.a.post(a, other) > 0);
  expect_wc(t.rig, t.p.a, t.p.a_cq, other.wr_id, kRemAccess);
  CHECK(t.p.b.dereg_mr(t.region) == -EBUSY);
  SECTION("destroyed") { REQUIRE(t.p.b.destroy_qp(t.p.b_qp) > 0); }
  SECTION("reset") { REQUIRE(t.p.b.to_state(t.p.b_qp, 0) > 0); }
  CHECK(t.p.b.dereg_mr(t.region) > 0);
}

TEST_CASE("ATOMIC WRITE stores eight bytes once; what is refused", "[nic][rc]") {
  Windows t;
  const Mr remote = t.p.b.reg_mr(t.target, sizeof t.target, 3);
  Post post = {.opcode = kAtomicWrite,
               .wr_id = t.next_id,
               .remote_addr = address(t.target) + 8,
               .rkey = remote.rkey,
               .inline_data = "abcdefgh"};
  bool lose = true;
  t.rig.filter = [&](const RoceFrame& f, uint32_t) {
    const bool drop = lose && f.transport.opcode == Opcode::kRcReadResponseOnly;
    if (drop) memset(t.target, 0, sizeof t.target);  // the repetition must not write again
    lose = lose && !drop;
    return !drop;
  };
  SECTION("done, and done once") {
    REQUIRE(t.p.a.post(t.p.a_qp, post) > 0);
    CHECK(expect_wc(t.rig, t.p.a, t.p.a_cq, t.next_id).opcode == 9);
    CHECK(std::count(t.target, t.target + sizeof t.target, 0) == sizeof t.target);
    t.expect(post, 0);
    CHECK(memcmp(t.target + 8, "abcdefgh", 8) == 0);
    CHECK(t.target[16] == 0);
  }
  SECTION("misaligned") {
    post.remote_addr += 4;
    t.expect(post, kRemInvReq);
  }
  SECTION("beyond the end") {
    post.remote_addr = address(t.target) + sizeof t.target;
    t.expect(post, kRemAccess);
    CHECK(access_error_told(t.p.b, t.p.b_qp));
  }
  SECTION("without the right") {
    post.rkey = t.region.rkey;
    t.expect(post, kRemAccess);
  }
  SECTION("through a window that begins at an odd address") {
    const Mw mw = t.p.b.alloc_mw(2);
    post.rkey = t.bind(mw, t.bind_of(mw, 1028, 64, 2 | 32));
    post.remote_addr = 8;
    t.expect(post, kRemInvReq);
  }
}
