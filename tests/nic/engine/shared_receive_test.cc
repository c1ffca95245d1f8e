// SPDX-License-Identifier: Apache-2.0
//
// Shared receive queues: who gets which request, the limit, errors and the end of a QP.
#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr uint32_t kEventRequestError = 2, kEventSrqError = 14, kEventLimit = 15, kEventLastWqe = 16, kNoEvent = 99;

/// Several senders of node 0, as many receivers of node 1 on one SRQ and one CQ.
struct Shared {
  Shared(Rig& r, uint32_t qps, const SrqOptions& options = {}, uint8_t type = 2, const ConnectOptions& path = {})
      : rig(r), a(r, 0), b(r, 1), srq(b.create_srq(options)), a_cq(a.create_cq()), b_cq(b.create_cq()) {
    for (uint32_t i = 0; i < qps; ++i) {
      from.push_back(a.create_qp(a_cq, a_cq, {.type = type}));
      to.push_back(b.create_qp(b_cq, b_cq, {.type = type, .recv_wr = 12345, .recv_sge = 99, .srq = &srq}));
      connect(a, from[i], b, to[i], path);
    }
  }
  Rig& rig;
  Client a, b;
  Srq srq;
  Cq a_cq, b_cq;
  std::vector<Qp> from, to;
};

}  // namespace

TEST_CASE("Many QPs take from one SRQ in the order of its requests", "[nic][srq]") {
  Rig rig(2);
  Shared s(rig, 5);
  std::vector<uint8_t> memory(64 * 64);
  const Mr mr = s.b.reg_mr(memory.data(), memory.size());
  auto data = pattern(64, 5);
  const Mr source = s.a.reg_mr(data.data(), data.size());
  for (uint64_t i = 0; i < 40; ++i) s.b.post_srq_recv(s.srq, i, {sge(&memory[i * 64], 64, mr.lkey)});
  CHECK(s.to[0].max_recv_wr == 0);
  for (uint64_t i = 0; i < 40; ++i) {
    const size_t qp = (i * 3) % 5;
    REQUIRE(s.a.post(s.from[qp], {.wr_id = i, .sges = {sge(data.data(), 64, source.lkey)}}) > 0);
    const ib_uverbs_wc wc = expect_wc(rig, s.b, s.b_cq, i);
    CHECK(wc.qp_num == s.to[qp].qpn);
    CHECK(wc.byte_len == 64);
    CHECK(memcmp(&memory[i * 64], data.data(), 64) == 0);
    expect_wc(rig, s.a, s.a_cq, i);
  }
}

TEST_CASE("A message takes its request at its first packet and keeps it", "[nic][srq]") {
  Rig rig(2);
  Shared s(rig, 2, {}, 2, {.mtu = 1});
  std::vector<uint8_t> memory(3 * 2048);
  const Mr mr = s.b.reg_mr(memory.data(), memory.size());
  auto data = pattern(2048, 9);
  const Mr source = s.a.reg_mr(data.data(), data.size());
  for (uint64_t i = 0; i < 2; ++i) s.b.post_srq_recv(s.srq, i, {sge(&memory[i * 2048], 2048, mr.lkey)});
  // The first message stops in the middle; the second one comes through meanwhile.
  uint32_t passed = 0;
  rig.filter = [&](const RoceFrame& f, uint32_t from) {
    return from != 0 || f.transport.dest_qpn != s.to[0].qpn || ++passed <= 3;
  };
  REQUIRE(s.a.post(s.from[0], {.wr_id = 1, .sges = {sge(data.data(), 2048, source.lkey)}}) > 0);
  rig.settle(20);
  REQUIRE(s.a.post(s.from[1], {.wr_id = 2, .sges = {sge(data.data(), 2048, source.lkey)}}) > 0);
  CHECK(expect_wc(rig, s.b, s.b_cq, 1).qp_num == s.to[1].qpn);
  expect_wc(rig, s.a, s.a_cq, 2);
  // Nothing is left for a third message, but the first still has its own.
  passed = 0;
  rig.filter = nullptr;
  rig.notify(0, {});  // whatever its content, patience ends with the timer below
  rig.tick = milliseconds(1);
  CHECK(expect_wc(rig, s.b, s.b_cq, 0).qp_num == s.to[0].qpn);
  CHECK(memcmp(&memory[0], data.data(), 2048) == 0);
  CHECK(memcmp(&memory[2048], data.data(), 2048) == 0);
}

TEST_CASE("An empty SRQ is a receiver that is not ready", "[nic][srq]") {
  Rig rig(2);
  Shared s(rig, 2);
  REQUIRE(s.a.post(s.from[0], {.wr_id = 7}) > 0);
  rig.settle(50);
  ib_uverbs_wc wc;
  CHECK_FALSE(s.a.poll(s.a_cq, wc));
  s.b.post_srq_recv(s.srq, 1, {});
  rig.tick = microseconds(20);
  CHECK(expect_wc(rig, s.b, s.b_cq, 1).byte_len == 0);
  expect_wc(rig, s.a, s.a_cq, 7);
}

TEST_CASE("The limit event comes once, when fewer requests than the limit are left", "[nic][srq]") {
  Rig rig(2);
  Shared s(rig, 3);
  REQUIRE(s.b.modify_srq(s.srq, 2, 0, 5) > 0);
  CHECK(s.b.query_srq(s.srq).srq_limit == 5);
  for (uint64_t i = 0; i < 10; ++i) s.b.post_srq_recv(s.srq, i, {});
  auto send = [&](uint64_t i) {
    REQUIRE(s.a.post(s.from[i % 3], {.wr_id = i}) > 0);
    expect_wc(rig, s.b, s.b_cq, i);
  };
  for (uint64_t i = 0; i < 5; ++i) send(i);
  CHECK(s.b.next_async().event_type == kNoEvent);  // five are left
  send(5);
  const auto event = s.b.next_async();
  CHECK(event.event_type == kEventLimit);
  CHECK(event.element == s.srq.user_handle);
  CHECK(s.b.query_srq(s.srq).srq_limit == 0);
  send(6);
  send(7);
  CHECK(s.b.next_async().event_type == kNoEvent);
  REQUIRE(s.b.modify_srq(s.srq, 2, 0, 2) > 0);  // armed again
  send(8);
  CHECK(s.b.next_async().event_type == kEventLimit);
  for (const Qp& qp : s.to) REQUIRE(s.b.destroy_qp(qp) > 0);
  uint32_t events = 99;
  REQUIRE(s.b.destroy_srq(s.srq, &events) > 0);
  CHECK(events == 2);
}

TEST_CASE("A QP in ERR flushes what it had taken, leaves the SRQ alone and says LAST_WQE_REACHED once", "[nic][srq]") {
  Rig rig(2);
  Shared s(rig, 2, {}, 2, {.mtu = 1});
  std::vector<uint8_t> memory(4096);
  const Mr mr = s.b.reg_mr(memory.data(), memory.size());
  auto data = pattern(2048, 9);
  const Mr source = s.a.reg_mr(data.data(), data.size());
  for (uint64_t i = 0; i < 3; ++i) s.b.post_srq_recv(s.srq, i, {sge(memory.data(), 2048, mr.lkey)});
  uint32_t passed = 0;
  rig.filter = [&](const RoceFrame&, uint32_t from) { return from != 0 || ++passed <= 3; };
  REQUIRE(s.a.post(s.from[0], {.wr_id = 1, .sges = {sge(data.data(), 2048, source.lkey)}}) > 0);
  rig.settle(20);
  REQUIRE(s.b.to_state(s.to[0], 6) > 0);
  expect_wc(rig, s.b, s.b_cq, 0, kFlushErr);
  ib_uverbs_wc wc;
  rig.settle(50);
  CHECK_FALSE(s.b.poll(s.b_cq, wc));
  const auto event = s.b.next_async();
  CHECK(event.event_type == kEventLastWqe);
  CHECK(event.element == s.to[0].user_handle);
  REQUIRE(s.b.to_state(s.to[0], 6) > 0);
  rig.settle(50);
  CHECK(s.b.next_async().event_type == kNoEvent);
  // The other QP goes on with what is there.
  rig.filter = nullptr;
  REQUIRE(s.a.post(s.from[1], {.wr_id = 5, .sges = {sge(data.data(), 2048, source.lkey)}}) > 0);
  expect_wc(rig, s.b, s.b_cq, 1);
  uint32_t events = 99;
  REQUIRE(s.b.destroy_qp(s.to[0], &events) > 0);
  CHECK(events == 1);
  CHECK(s.b.destroy_srq(s.srq) == -EBUSY);
  REQUIRE(s.b.destroy_qp(s.to[1], &events) > 0);
  CHECK(events == 0);
  CHECK(s.b.destroy_srq(s.srq) > 0);
}

TEST_CASE("Requests of an SRQ are judged by its own protection domain", "[nic][srq]") {
  Rig rig(2);
  Client b(rig, 1), a(rig, 0);
  std::vector<uint8_t> memory(64);
  const Mr own = b.reg_mr(memory.data(), memory.size());  // of b.pd, the QP's
  const uint32_t other = b.alloc_pd();
  const Srq srq = b.create_srq({.pd = other});
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq();
  const Qp from = a.create_qp(a_cq, a_cq), to = b.create_qp(b_cq, b_cq, {.srq = &srq});
  connect(a, from, b, to);
  std::swap(b.pd, const_cast<uint32_t&>(other));
  const Mr shared = b.reg_mr(memory.data(), memory.size());
  auto data = pattern(64, 1);
  const Mr source = a.reg_mr(data.data(), data.size());
  b.post_srq_recv(srq, 1, {sge(memory.data(), 64, shared.lkey)});
  b.post_srq_recv(srq, 2, {sge(memory.data(), 64, own.lkey)});
  REQUIRE(a.post(from, {.wr_id = 1, .sges = {sge(data.data(), 64, source.lkey)}}) > 0);
  expect_wc(rig, b, b_cq, 1);
  expect_wc(rig, a, a_cq, 1);
  REQUIRE(a.post(from, {.wr_id = 2, .sges = {sge(data.data(), 64, source.lkey)}}) > 0);
  expect_wc(rig, b, b_cq, 2, kLocProt);
  expect_wc(rig, a, a_cq, 2, kRemOp);
}

TEST_CASE("A request that cannot have been posted ends the QP and is an error of the SRQ, told once", "[nic][srq]") {
  Rig rig(2);
  Shared s(rig, 2);
  for (uint64_t i = 0; i < 3; ++i) s.b.post_srq_recv(s.srq, i, {});
  for (uint32_t i = 0; i < 2; ++i) {
    auto* wqe = reinterpret_cast<rxe_recv_wqe*>(s.srq.ring.at(i));
    wqe->dma.num_sge = i == 0 ? 3 : UINT32_MAX;
  }
  for (uint64_t i = 0; i < 2; ++i) {
    REQUIRE(s.a.post(s.from[i], {.wr_id = i}) > 0);
    expect_wc(rig, s.b, s.b_cq, i, kLocQpOp);
    expect_wc(rig, s.a, s.a_cq, i, kRemOp);
  }
  uint32_t srq_errors = 0, last = 0, request_errors = 0;
  for (auto event = s.b.next_async(); event.event_type != kNoEvent; event = s.b.next_async()) {
    srq_errors += event.event_type == kEventSrqError && event.element == s.srq.user_handle ? 1 : 0;
    last += event.event_type == kEventLastWqe ? 1 : 0;
    request_errors += event.event_type == kEventRequestError ? 1 : 0;
  }
  CHECK(srq_errors == 1);
  CHECK(last == 2);
  CHECK(s.b.query_srq(s.srq).max_wr == s.srq.max_wr);
}

TEST_CASE("Datagrams and UC messages take from an SRQ; what is too long leaves it as it was", "[nic][srq]") {
  Rig rig(2);
  const uint8_t type = GENERATE(uint8_t{3}, uint8_t{4});
  CAPTURE(static_cast<int>(type));
  Client a(rig, 0), b(rig, 1);
  const Srq srq = b.create_srq();
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq();
  const Qp from = a.create_qp(a_cq, a_cq, {.type = type});
  const Qp to[] = {b.create_qp(b_cq, b_cq, {.type = type, .srq = &srq}),
                   b.create_qp(b_cq, b_cq, {.type = type, .srq = &srq})};
  uint32_t ah = 0;
  const ConnectOptions path;
  if (type == 3) {
    connect(a, from, b, to[0], path);
  } else {
    REQUIRE(a.to_init(from) > 0);
    REQUIRE(a.to_rtr(from, 0, 0, path, 0) > 0);
    REQUIRE(a.to_rts(from, path, 0) > 0);
    for (const Qp& qp : to) {
      REQUIRE(b.to_init(qp) > 0);
      REQUIRE(b.to_rtr(qp, 0, 0, path, 0) > 0);
    }
    ah = a.create_ah(1);
  }
  std::vector<uint8_t> memory(256);
  const Mr mr = b.reg_mr(memory.data(), memory.size());
  auto data = pattern(256, 3);
  const Mr source = a.reg_mr(data.data(), data.size());
  auto send = [&](uint64_t id, uint32_t bytes, const Qp& target) {
    REQUIRE(a.post(from, {.wr_id = id, .remote_qpn = target.qpn, .remote_qkey = 0x11111111, .ah_num = ah,
                          .sges = {sge(data.data(), bytes, source.lkey)}}) > 0);
    expect_wc(rig, a, a_cq, id);
  };
  b.post_srq_recv(srq, 1, {sge(memory.data(), 100, mr.lkey)});
  send(1, 200, to[0]);
  rig.settle(50);
  ib_uverbs_wc wc;
  CHECK_FALSE(b.poll(b_cq, wc));
  // UC keeps the request for its next message, a datagram's is there for the other QP.
  const Qp& next = type == 3 ? to[0] : to[1];
  send(2, 50, next);
  CHECK(expect_wc(rig, b, b_cq, 1).qp_num == next.qpn);
  send(3, 50, next);
  rig.settle(50);
  CHECK_FALSE(b.poll(b_cq, wc));  // none left: dropped
  CHECK(rig.device(1).counters().no_receive == 1);
}
