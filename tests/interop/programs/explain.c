// SPDX-License-Identifier: Apache-2.0
//
// explain MODE: provokes one error on a pair of QPs, so that somebody can look at what is said about it.
//
//   rkey     a WRITE under a key that was never given out
//   bounds   a READ that ends one byte beyond the memory region
//   lkey     a SEND from memory under a wrong local key
//   nobody   a WRITE to a QP that has been destroyed
//   hold     prints "ready", waits a second, does as rkey, prints "failed" and waits to be killed
// Exit code 0: the completion has the status that it should have.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "verbs_pair.h"

static int expect(struct verbs_pair* pair, enum ibv_wc_status wanted) {
  if (verbs_pair_wait(pair, 0) != 0 && pair->status[0] < 0) return 1;
  if (pair->status[0] == (int)wanted) return 0;
  fprintf(stderr, "status %d, expected %d\n", pair->status[0], wanted);
  return 1;
}

static int wrong_key(struct verbs_pair* pair) {
  const uintptr_t from = (uintptr_t)pair->buffer[0];
  if (verbs_pair_post(pair, IBV_WR_RDMA_WRITE, from, pair->mr[0]->lkey, 4096, (uintptr_t)pair->buffer[1], pair->mr[1]->rkey ^ 0x80))
    return 1;
  return expect(pair, IBV_WC_REM_ACCESS_ERR);
}

static int beyond(struct verbs_pair* pair) {
  const uintptr_t end = (uintptr_t)pair->buffer[1] + pair->options.buffer_bytes;
  if (verbs_pair_post(pair, IBV_WR_RDMA_READ, (uintptr_t)pair->buffer[0], pair->mr[0]->lkey, 100, end - 99, pair->mr[1]->rkey))
    return 1;
  return expect(pair, IBV_WC_REM_ACCESS_ERR);
}

static int wrong_local_key(struct verbs_pair* pair) {
  if (verbs_pair_post(pair, IBV_WR_SEND, (uintptr_t)pair->buffer[0], pair->mr[0]->lkey ^ 0x80, 100, 0, 0)) return 1;
  return expect(pair, IBV_WC_LOC_PROT_ERR);
}

static int to_nobody(struct verbs_pair* pair) {
  struct ibv_qp* gone = pair->qp[1];
  pair->qp[1] = NULL;
  if (ibv_destroy_qp(gone)) return 1;
  if (verbs_pair_post(pair, IBV_WR_RDMA_WRITE, (uintptr_t)pair->buffer[0], pair->mr[0]->lkey, 100, (uintptr_t)pair->buffer[1],
                      pair->mr[1]->rkey))
    return 1;
  return expect(pair, IBV_WC_RETRY_EXC_ERR);
}

int main(int argc, char** argv) {
  const char* mode = argc == 2 ? argv[1] : "";
  struct verbs_pair_options options = verbs_pair_defaults();
  struct verbs_pair pair;
  options.retry_count = 1;
  options.timeout = 12;
  if (verbs_pair_open(&pair, &options)) return 1;
  pair.status[0] = pair.status[1] = -1;
  int result = 2;
  if (!strcmp(mode, "rkey")) result = wrong_key(&pair);
  if (!strcmp(mode, "bounds")) result = beyond(&pair);
  if (!strcmp(mode, "lkey")) result = wrong_local_key(&pair);
  if (!strcmp(mode, "nobody")) result = to_nobody(&pair);
  if (!strcmp(mode, "hold")) {
    printf("ready\n");
    fflush(stdout);
    sleep(1);
    result = wrong_key(&pair);
    printf("failed\n");
    fflush(stdout);
    pause();
  }
  if (result == 0) verbs_pair_close(&pair);
  return result;
}
