// SPDX-License-Identifier: Apache-2.0
#include "nic/abi/rxe_ring.h"

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

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
  CHECK(p.a.to_state(p.a_qp, 6) > 0);
  rig.settle(10);
  CHECK(p.a.destroy_qp(p.a_qp) > 0);
}
