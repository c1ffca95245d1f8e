// SPDX-License-Identifier: Apache-2.0
#include "memory_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct verbs_pair pair;
struct ibv_mr* region;
struct ibv_wc receive_wc;

// The status of the completion with that wr_id; a receive's is kept on the way.
int wait_for(uint64_t wr_id) {
  double end = verbs_now() + 10;
  while (verbs_now() < end) {
    struct ibv_wc wc;
    int count = ibv_poll_cq(pair.cq, 1, &wc);
    if (count < 0) return count;
    if (!count) continue;
    if (wc.wr_id == kReceiver) receive_wc = wc;
    if (wc.wr_id == wr_id) return (int)wc.status;
  }
  return -ETIMEDOUT;
}

int post_and_wait(int side, struct ibv_send_wr* wr) {
  struct ibv_send_wr* bad = NULL;
  wr->wr_id = side ? kOwner : kAsker;
  wr->send_flags |= IBV_SEND_SIGNALED;
  int error = ibv_post_send(pair.qp[side], wr, &bad);
  return error ? -error : wait_for(wr->wr_id);
}

int access_remote(enum ibv_wr_opcode opcode, uint32_t rkey, size_t offset, uint32_t bytes) {
  struct ibv_sge sge = {(uintptr_t)pair.buffer[0], bytes, pair.mr[0]->lkey};
  struct ibv_send_wr wr = {.opcode = opcode, .sg_list = &sge, .num_sge = 1};
  wr.wr.rdma.remote_addr = (uintptr_t)pair.buffer[1] + offset;
  wr.wr.rdma.rkey = rkey;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    wr.wr.atomic.remote_addr = (uintptr_t)pair.buffer[1] + offset;
    wr.wr.atomic.compare_add = 1;
    wr.wr.atomic.swap = 2;
    wr.wr.atomic.rkey = rkey;
  }
  return post_and_wait(0, &wr);
}

int post_receive(uint32_t lkey) {
  struct ibv_sge sge = {(uintptr_t)pair.buffer[1], kBytes, lkey};
  struct ibv_recv_wr wr = {.wr_id = kReceiver, .sg_list = &sge, .num_sge = 1};
  struct ibv_recv_wr* bad = NULL;
  return ibv_post_recv(pair.qp[1], &wr, &bad);
}

int run_named_case(int argc, char** argv, const struct named_case* cases, size_t count) {
  const struct named_case* test = NULL;
  for (size_t i = 0; i < count; i++) {
    if (argc == 2 && !strcmp(argv[1], "--list")) puts(cases[i].name);
    if (argc == 2 && !strcmp(argv[1], cases[i].name)) test = &cases[i];
  }
  if (!test) return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 2;
  struct verbs_pair_options options = verbs_pair_defaults();
  options.send_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE;
  if (verbs_pair_open(&pair, &options)) return 1;
  region = ibv_reg_mr(pair.pd, pair.buffer[1], options.buffer_bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  EXPECT(region);
  EXPECT(test->run() == 0);
  if (region) EXPECT(ibv_dereg_mr(region) == 0);
  verbs_pair_close(&pair);
  return 0;
}
