// SPDX-License-Identifier: Apache-2.0
#include "nic/abi/rxe_ring.h"

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

TEST_CASE("A withdrawn completion keeps its place, and what the program took is left alone", "[nic][abi][ring]") {
  Rig rig(1);
  Client c(rig, 0);
  abi::RxeCompletionRing sink;
  REQUIRE(sink.ring.map(*rig.node(0).platform, c.memfd, 7, 48) == 0);
  nic::Completion completion;
  for (uint32_t i = 0; i < 6; ++i) {
    completion.wr_id = i;
    completion.qpn = 100 + i % 2;
    REQUIRE(sink.put(completion));
  }
  sink.publish(4);
  sink.ring.consumer().store(1);  // the program took one, of 100
  CHECK(sink.withdraw(100) == 2);
  CHECK(sink.withdraw(100) == 0);
  CHECK(sink.withdrawn() == 2);
  for (uint32_t i = 0; i < 6; ++i) {
    ib_uverbs_wc wc;
    memcpy(&wc, sink.ring.element(i), sizeof wc);
    CHECK(wc.wr_id == i);
    CHECK(wc.status == (i == 2 || i == 4 ? nic::kWithdrawn : 0));
  }
  sink.ring.consumer().store(3);
  CHECK(sink.withdrawn() == 1);
  sink.ring.unmap(*rig.node(0).platform);
}

TEST_CASE("Rings are sized as soft-RoCE sizes them", "[nic][abi][ring]") {
  CHECK(abi::send_element_bytes(1, 0) == 208 + 16);
  CHECK(abi::send_element_bytes(2, 100) == 208 + 100);
  CHECK(abi::receive_element_bytes(1) == 40 + 16);
}

TEST_CASE("A consumer index that ran past the producer is put back and costs no completion", "[nic][abi][ring]") {
  // rdma-core before 55: ibv_next_poll on an empty queue, then ibv_end_poll.
  Rig rig(1);
  Client c(rig, 0);
  const Cq cq = c.create_cq(7);
  const Qp qp = c.create_qp(cq, cq);
  REQUIRE(c.to_init(qp) > 0);
  REQUIRE(c.to_state(qp, 6) > 0);
  uint64_t id = 0;
  ib_uverbs_wc wc;
  for (int round = 0; round < 20; ++round) {
    c.post_recv(qp, ++id, {});
    rig.step();
    REQUIRE(c.poll(cq, wc));
    CHECK(wc.wr_id == id);
    auto* head = cq.ring.head();
    head->consumer_index = (head->producer_index + 1) & head->index_mask;
    for (int i = 0; i < 3; ++i) c.post_recv(qp, ++id, {});
    rig.step();
    for (uint64_t i = id - 2; i <= id; ++i) {
      REQUIRE(c.poll(cq, wc));
      CHECK(wc.wr_id == i);
    }
  }
}

TEST_CASE("An overtaken consumer index is mended before the next poll, a full ring is left alone", "[nic][abi][ring]") {
  Rig rig(2);
  Pair p(rig);
  auto* head = p.a_cq.ring.head();
  auto overtake = [&] { head->consumer_index = (head->producer_index + 1) & head->index_mask; };
  ib_uverbs_wc wc;
  overtake();
  SECTION("by a doorbell") { REQUIRE(p.a.ring_doorbell(p.a_qp) > 0); }
  SECTION("by arming") { REQUIRE(p.a.arm(p.a_cq) > 0); }
  CHECK_FALSE(p.a.poll(p.a_cq, wc));
  const Cq full = p.b.create_cq(3);
  const Qp qp = p.b.create_qp(full, full);
  REQUIRE(p.b.to_init(qp) > 0);
  for (uint64_t i = 0; i < 3; ++i) p.b.post_recv(qp, i, {});
  REQUIRE(p.b.to_state(qp, 6) > 0);
  REQUIRE(p.b.arm(full) > 0);
  for (uint64_t i = 0; i < 3; ++i) {
    REQUIRE(p.b.poll(full, wc));
    CHECK(wc.wr_id == i);
  }
  CHECK_FALSE(p.b.poll(full, wc));
}

TEST_CASE("Whatever the program writes into its rings' heads, elements stay inside", "[nic][abi][ring]") {
  Rig rig(2);
  Pair p(rig);
  const uint32_t wild = GENERATE(0xFFFFFFFFu, 0x80000000u, 12345u);
  auto* send = p.a_qp.send.head();
  send->index_mask = wild;
  send->log2_elem_size = 31;
  send->producer_index = wild;
  CHECK(p.a.ring_doorbell(p.a_qp) > 0);
  rig.settle(10);
  send->consumer_index = wild;
  auto* cq = p.a_cq.ring.head();
  cq->consumer_index = wild;
  cq->producer_index = wild;
  Srq srq = p.a.create_srq({.max_wr = 31});
  const Qp shared = p.a.create_qp(p.a_cq, p.a_cq, {.srq = &srq});
  const Qp sender = p.b.create_qp(p.b_cq, p.b_cq);
  connect(p.b, sender, p.a, shared);
  REQUIRE(p.a.modify_srq(srq, 2, 0, 5) > 0);
  auto* receive = srq.ring.head();
  receive->index_mask = wild;
  receive->log2_elem_size = 31;
  receive->producer_index = wild;
  for (uint64_t i = 0; i < 8; ++i) REQUIRE(p.b.post(sender, {.wr_id = i}) > 0);
  rig.settle(50);
  receive->consumer_index = wild;
  CHECK(p.a.query_srq(srq).max_wr == 31);
  (void)p.a.modify_srq(srq, 1, 10, 0);
  (void)p.a.modify_srq(srq, 1, 100, 0);
  rig.settle(50);
  CHECK(p.a.destroy_qp(shared) > 0);
  CHECK(p.a.destroy_srq(srq) > 0);
  CHECK(p.a.to_state(p.a_qp, 6) > 0);
  rig.settle(10);
  CHECK(p.a.destroy_qp(p.a_qp) > 0);
}

TEST_CASE("An end_poll that steps over the next completion is undone once, a good one is left alone", "[nic][abi][ring]") {
  Rig rig(2);
  Pair p(rig);
  struct Provider {
    Client& client;
    const Cq& cq;
    bool steps_over;
  } provider{p.a, p.a_cq, GENERATE(true, false)};
  // As ibv_end_poll before rdma-core 55, called after ibv_next_poll found nothing; a completion has come in between.
  auto end_poll = [](void* object) {
    auto& self = *static_cast<Provider*>(object);
    auto* head = self.cq.ring.head();
    if (self.steps_over) head->consumer_index = (head->consumer_index + 1) & head->index_mask;
  };
  p.b.post_recv(p.b_qp, 1, {});
  REQUIRE(p.a.post(p.a_qp, {.wr_id = 5}) > 0);
  rig.settle(50);
  CHECK(p.a.context->end_drained_poll(p.a_cq.user_handle, end_poll, &provider, rig.now) == provider.steps_over);
  expect_wc(rig, p.a, p.a_cq, 5);
  CHECK_FALSE(p.a.context->end_drained_poll(77, end_poll, &provider, rig.now));
}
