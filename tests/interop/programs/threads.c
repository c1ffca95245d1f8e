// SPDX-License-Identifier: Apache-2.0
//
// threads CASE: several threads post to and poll the same queue pairs and CQs, as verbs allow without locks of the
// program's own. Each checks its own bytes. Exit code 0 when every operation completed once and all data is right, 1
// with a line on stderr, 2 for an unknown case.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qp_rig.h"
#include "verbs_pair.h"

enum { kThreads = 4, kSlice = 8192, kWaitSeconds = 20 };

struct shared {
  struct rig rig;
  enum ibv_wr_opcode opcode;
  int rounds;
  _Atomic uint32_t done[2][kThreads];  // completions of each side, by the thread in wr_id
  atomic_int broken;
  atomic_int churn;  // stop
};

struct worker {
  struct shared* all;
  int number;
};

static int complain(struct shared* all, const char* what, int number, int value) {
  if (!atomic_exchange(&all->broken, 1)) fprintf(stderr, "thread %d: %s (%d)\n", number, what, value);
  return -1;
}

// Whoever polls finds anybody's completion.
static int poll_for_all(struct shared* all, int number) {
  for (int side = 0; side < 2; side++) {
    struct ibv_wc wc[4];
    int count = ibv_poll_cq(all->rig.side[side].cq, 4, wc);
    if (count < 0) return complain(all, "ibv_poll_cq", number, count);
    for (int i = 0; i < count; i++) {
      if (wc[i].status) return complain(all, ibv_wc_status_str(wc[i].status), number, (int)wc[i].wr_id);
      if (wc[i].wr_id >= kThreads) return complain(all, "a completion of nobody's", number, (int)wc[i].wr_id);
      atomic_fetch_add(&all->done[side][wc[i].wr_id], 1);
    }
  }
  return atomic_load(&all->broken) ? -1 : 0;
}

static int wait_for(struct shared* all, int side, int number, uint32_t count) {
  double end = verbs_now() + kWaitSeconds;
  while (atomic_load(&all->done[side][number]) < count) {
    if (poll_for_all(all, number)) return -1;
    if (verbs_now() > end) return complain(all, "no completion", number, side);
  }
  if (atomic_load(&all->done[side][number]) != count) return complain(all, "completed twice", number, side);
  return 0;
}

static int post_retrying(struct shared* all, int number, size_t bytes) {
  size_t at = (size_t)number * kSlice;
  return rig_send(&all->rig, 0, (uint64_t)number, all->opcode, at, bytes, at);
}

static void* work(void* argument) {
  struct worker* me = argument;
  struct shared* all = me->all;
  size_t at = (size_t)me->number * kSlice;
  uint8_t* near = all->rig.side[0].buffer + at;
  uint8_t* far = all->rig.side[1].buffer + at;
  int send = all->opcode == IBV_WR_SEND, read = all->opcode == IBV_WR_RDMA_READ;
  for (int round = 1; round <= all->rounds; round++) {
    size_t bytes = 1 + (size_t)round * 37 % kSlice;
    uint32_t seed = (uint32_t)(round * kThreads + me->number);
    verbs_fill(read ? far : near, bytes, seed);
    memset(read ? near : far, 0, bytes);
    if (post_retrying(all, me->number, bytes)) return complain(all, "post", me->number, round), argument;
    if (wait_for(all, 0, me->number, (uint32_t)round)) return argument;
    if (!send && verbs_check(read ? near : far, bytes, seed) >= 0)
      return complain(all, "wrong bytes", me->number, round), argument;
  }
  return NULL;
}

// Objects of another kind come and go while all that runs.
static void* churn(void* argument) {
  struct shared* all = argument;
  static uint8_t memory[8192];
  while (!atomic_load(&all->churn)) {
    struct ibv_mr* mr = ibv_reg_mr(all->rig.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq* cq = ibv_create_cq(all->rig.context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr attributes = {.send_cq = cq, .recv_cq = all->rig.side[1].cq, .qp_type = IBV_QPT_UD};
    attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 4;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    struct ibv_qp* qp = cq ? ibv_create_qp(all->rig.pd, &attributes) : NULL;
    if (!mr || !qp) return complain(all, "objects", -1, 0), argument;
    if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dereg_mr(mr))
      return complain(all, "destroying", -1, 0), argument;
  }
  return NULL;
}

static int run(enum ibv_wr_opcode opcode, int rounds, int with_churn) {
  static struct shared all;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  options.bytes = kThreads * kSlice;
  options.rd_atomic[0] = options.dest_rd_atomic[1] = 2;
  all.opcode = opcode;
  all.rounds = rounds;
  if (rig_open(&all.rig, &options) || rig_connect(&all.rig)) return 1;
  pthread_t threads[kThreads], other;
  struct worker workers[kThreads];
  int failed = 0;
  if (with_churn && pthread_create(&other, NULL, churn, &all)) return 1;
  for (int i = 0; i < kThreads; i++) {
    workers[i] = (struct worker){&all, i};
    if (pthread_create(&threads[i], NULL, work, &workers[i])) return 1;
  }
  for (int i = 0; i < kThreads; i++) {
    void* result = NULL;
    pthread_join(threads[i], &result);
    failed |= result != NULL;
  }
  atomic_store(&all.churn, 1);
  if (with_churn) {
    void* result = NULL;
    pthread_join(other, &result);
    failed |= result != NULL;
  }
  if (!failed) rig_close(&all.rig);
  return failed;
}

// Threads of one kind post receive requests, others post sends; each message takes whichever request is first.
static void* feed(void* argument) {
  struct worker* me = argument;
  struct shared* all = me->all;
  for (int round = 1; round <= all->rounds; round++) {
    double end = verbs_now() + kWaitSeconds;
    // ENOMEM is the queue's limit: it empties as messages arrive.
    while (rig_receive(&all->rig, 1, (uint64_t)me->number, (size_t)me->number * kSlice, kSlice)) {
      if (poll_for_all(all, me->number)) return argument;
      if (verbs_now() > end) return complain(all, "the receive queue stays full", me->number, round), argument;
    }
  }
  return wait_for(all, 1, me->number, (uint32_t)all->rounds) ? argument : NULL;
}

static int run_send(int rounds) {
  static struct shared all;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  options.bytes = kThreads * kSlice;
  options.min_rnr_timer = 1;
  all.opcode = IBV_WR_SEND;
  all.rounds = rounds;
  if (rig_open(&all.rig, &options) || rig_connect(&all.rig)) return 1;
  pthread_t senders[kThreads], feeders[kThreads];
  struct worker workers[kThreads];
  int failed = 0;
  for (int i = 0; i < kThreads; i++) {
    workers[i] = (struct worker){&all, i};
    if (pthread_create(&feeders[i], NULL, feed, &workers[i]) || pthread_create(&senders[i], NULL, work, &workers[i]))
      return 1;
  }
  for (int i = 0; i < kThreads; i++) {
    void* result[2] = {NULL, NULL};
    pthread_join(senders[i], &result[0]);
    pthread_join(feeders[i], &result[1]);
    failed |= result[0] || result[1];
  }
  if (!failed) rig_close(&all.rig);
  return failed;
}

static int write_many(void) { return run(IBV_WR_RDMA_WRITE, 400, 0); }
static int read_many(void) { return run(IBV_WR_RDMA_READ, 300, 0); }
static int write_churn(void) { return run(IBV_WR_RDMA_WRITE, 300, 1); }
static int send_many(void) { return run_send(300); }

static const struct {
  const char* name;
  int (*run)(void);
} kCases[] = {{"write", write_many}, {"read", read_many}, {"send", send_many}, {"churn", write_churn}};

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
    if (!strcmp(argv[1], "--list")) puts(kCases[i].name);
    if (!strcmp(argv[1], kCases[i].name)) return kCases[i].run();
  }
  return strcmp(argv[1], "--list") ? 2 : 0;
}
