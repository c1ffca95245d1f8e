// SPDX-License-Identifier: Apache-2.0
//
// states CASE: the life of a QP as a program sees it: what may be posted when, draining, starting again, sleeping
// through an error, destruction under load, addresses that lead nowhere, RNR times. Exit code 0 when all is right, 1
// with a line on stderr, 2 for an unknown case.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qp_rig.h"
#include "verbs_pair.h"

static int completed(struct rig* rig, int side, uint64_t wr_id, enum ibv_wc_status status) {
  struct ibv_wc wc;
  if (rig_wait(rig, side, &wc)) return 0;
  if (wc.status == status && wc.wr_id == wr_id) return 1;
  fprintf(stderr, "side %d: wr_id %d, %s\n", side, (int)wc.wr_id, ibv_wc_status_str(wc.status));
  return 0;
}

// --- posting -----------------------------------------------------------------------------------------------------

// RESET refuses receive requests, all other states take them; sends are taken from RTS on.
static int posting(void) {
  struct rig rig;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  MUST(!rig_open(&rig, &options));
  MUST(rig_receive(&rig, 1, 90, 0, 8) != 0);
  MUST(rig_send(&rig, 1, 91, IBV_WR_SEND, 0, 8, 0) != 0);
  MUST(!rig_to_init(&rig, 0) && !rig_to_init(&rig, 1));
  MUST(!rig_receive(&rig, 1, 1, 0, 8));
  MUST(rig_send(&rig, 1, 91, IBV_WR_SEND, 0, 8, 0) == EINVAL);
  MUST(!rig_to_rtr(&rig, 0) && !rig_to_rtr(&rig, 1));
  MUST(!rig_receive(&rig, 1, 2, 0, 8));
  MUST(rig_send(&rig, 1, 91, IBV_WR_SEND, 0, 8, 0) == EINVAL);
  MUST(!rig_to_rts(&rig, 0) && !rig_to_rts(&rig, 1));
  MUST(!rig_send(&rig, 0, 5, IBV_WR_SEND, 0, 8, 0) && completed(&rig, 0, 5, IBV_WC_SUCCESS));
  MUST(completed(&rig, 1, 1, IBV_WC_SUCCESS));
  MUST(!rig_to(&rig, 1, IBV_QPS_ERR) && !rig_receive(&rig, 1, 3, 0, 8));
  MUST(completed(&rig, 1, 2, IBV_WC_WR_FLUSH_ERR) && completed(&rig, 1, 3, IBV_WC_WR_FLUSH_ERR));
  rig_close(&rig);
  return 0;
}

// A list whose second entry is bad: the first is posted, bad_wr names the second, the third is not looked at.
static int bad_second(void) {
  struct rig rig;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  MUST(!rig_start(&rig, &options));
  struct ibv_sge sges[8];
  for (int i = 0; i < 8; i++) sges[i] = (struct ibv_sge){(uintptr_t)rig.side[1].buffer, 8, rig.side[1].mr->lkey};
  struct ibv_recv_wr third = {.wr_id = 3, .sg_list = sges, .num_sge = 1};
  struct ibv_recv_wr second = {.wr_id = 2, .next = &third, .sg_list = sges, .num_sge = 8};
  struct ibv_recv_wr first = {.wr_id = 1, .next = &second, .sg_list = sges, .num_sge = 1}, *bad = NULL;
  MUST(ibv_post_recv(rig.side[1].qp, &first, &bad) != 0 && bad == &second);
  struct rig_work works[3];
  struct ibv_send_wr* bad_send = NULL;
  for (int i = 0; i < 3; i++) rig_describe(&rig, 0, 11 + (uint64_t)i, IBV_WR_SEND, 0, 8, 0, &works[i]);
  for (int i = 0; i < 3; i++) works[i].wr.sg_list = works[i].sge;
  works[0].wr.next = &works[1].wr;
  works[1].wr.next = &works[2].wr;
  works[1].wr.num_sge = 8;
  MUST(ibv_post_send(rig.side[0].qp, &works[0].wr, &bad_send) != 0 && bad_send == &works[1].wr);
  MUST(completed(&rig, 0, 11, IBV_WC_SUCCESS) && completed(&rig, 1, 1, IBV_WC_SUCCESS));
  MUST(!rig_to(&rig, 0, IBV_QPS_ERR) && !rig_to(&rig, 1, IBV_QPS_ERR));
  struct ibv_wc wc;
  MUST(rig_poll(&rig, 0, &wc) == 0 && rig_poll(&rig, 1, &wc) == 0);
  rig_close(&rig);
  return 0;
}

// --- SQD ---------------------------------------------------------------------------------------------------------

static int drained(void) {
  enum { kWorks = 12 };
  struct rig rig;
  struct ibv_wc wc;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  MUST(!rig_start(&rig, &options));
  for (int round = 0; round < 5; round++) {
    for (uint64_t i = 0; i < kWorks; i++) MUST(!rig_send(&rig, 0, i, IBV_WR_RDMA_WRITE, 0, options.bytes, 0));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    MUST(!ibv_modify_qp(rig.side[0].qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    MUST(!rig_send(&rig, 0, 50, IBV_WR_RDMA_WRITE, 0, 8, 0));  // taken, and begun only in RTS
    uint64_t finished = 0;
    int side = -1, event = kRigNoEvent;
    double until = verbs_now() + 5;
    while (event == kRigNoEvent && verbs_now() < until) {
      while (rig_poll(&rig, 0, &wc) == 1) MUST(wc.status == IBV_WC_SUCCESS && wc.wr_id == finished++);
      event = rig_event(&rig, 0, &side);
    }
    MUST(event == IBV_EVENT_SQ_DRAINED && side == 0);
    while (rig_poll(&rig, 0, &wc) == 1) MUST(wc.status == IBV_WC_SUCCESS && wc.wr_id == finished++);
    MUST(finished <= kWorks);
    until = verbs_now() + 0.01;
    while (verbs_now() < until) MUST(rig_poll(&rig, 0, &wc) == 0);
    // While nothing is under way, a drained QP takes new attributes.
    struct ibv_qp_attr changed = {.timeout = 15, .retry_cnt = 6};
    MUST(!ibv_modify_qp(rig.side[0].qp, &changed, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT));
    MUST(!rig_to(&rig, 0, IBV_QPS_RTS));
    for (; finished < kWorks; finished++) MUST(completed(&rig, 0, finished, IBV_WC_SUCCESS));
    MUST(completed(&rig, 0, 50, IBV_WC_SUCCESS));
    MUST(rig_event(&rig, 0, &side) == kRigNoEvent);
  }
  rig_close(&rig);
  return 0;
}

// --- again from RESET --------------------------------------------------------------------------------------------

// In the middle of traffic, from any state, with works outstanding in both directions.
static int reuse(void) {
  struct rig rig;
  struct ibv_wc wc;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  MUST(!rig_start(&rig, &options));
  for (int life = 0; life < 30; life++) {
    for (uint64_t i = 0; i < 8; i++) {
      MUST(!rig_receive(&rig, 1, i, 0, options.bytes));
      MUST(!rig_send(&rig, 0, i, i % 2 ? IBV_WR_SEND : IBV_WR_RDMA_READ, 0, options.bytes, 0));
      MUST(!rig_send(&rig, 1, 100 + i, IBV_WR_RDMA_WRITE, 0, 3000, 0));
    }
    if (life % 3 == 1) MUST(!rig_to(&rig, 0, IBV_QPS_ERR));
    if (life % 3 == 2) MUST(!rig_to(&rig, 1, IBV_QPS_ERR));
    int first = life % 2;
    MUST(!rig_to(&rig, first, IBV_QPS_RESET) && !rig_to(&rig, !first, IBV_QPS_RESET));
    // What completed before stays to be read; nothing comes after.
    for (int side = 0; side < 2; side++)
      while (rig_poll(&rig, side, &wc) == 1) continue;
    MUST(!rig_connect(&rig));
    memset(rig.side[1].buffer, 0, options.bytes);
    verbs_fill(rig.side[0].buffer, options.bytes, (uint32_t)life + 1);
    MUST(!rig_receive(&rig, 1, 500, 0, options.bytes));
    MUST(!rig_send(&rig, 0, 501, IBV_WR_SEND, 0, options.bytes, 0));
    MUST(completed(&rig, 0, 501, IBV_WC_SUCCESS) && completed(&rig, 1, 500, IBV_WC_SUCCESS));
    MUST(verbs_check(rig.side[1].buffer, options.bytes, (uint32_t)life + 1) < 0);
  }
  rig_close(&rig);
  return 0;
}

// --- sleeping ----------------------------------------------------------------------------------------------------

static void* receive_later(void* argument) {
  struct rig* rig = argument;
  double until = verbs_now() + 0.02;  // the other thread is asleep by then
  while (verbs_now() < until) continue;
  return rig_receive(rig, 1, 77, 0, 8) ? argument : NULL;
}

// A receive request makes no system call; a program asleep on its channel gets the flush of one posted after the error.
static int flush_asleep(void) {
  struct rig rig;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  MUST(!rig_start(&rig, &options));
  MUST(!rig_receive(&rig, 1, 76, 0, 8) && !ibv_req_notify_cq(rig.side[1].cq, 0));
  MUST(!rig_to(&rig, 1, IBV_QPS_ERR) && !rig_sleep(&rig, 1) && completed(&rig, 1, 76, IBV_WC_WR_FLUSH_ERR));
  for (int round = 0; round < 3; round++) {
    pthread_t thread;
    void* failed = NULL;
    MUST(!ibv_req_notify_cq(rig.side[1].cq, 0) && !pthread_create(&thread, NULL, receive_later, &rig));
    MUST(!rig_sleep(&rig, 1) && !pthread_join(thread, &failed) && !failed);
    MUST(completed(&rig, 1, 77, IBV_WC_WR_FLUSH_ERR));
  }
  rig_close(&rig);
  return 0;
}

// --- destruction -------------------------------------------------------------------------------------------------

// Under load, with completions unread and works outstanding: from then on nothing carries the number.
static int destroyed(int both_cqs) {
  for (int round = 0; round < 20; round++) {
    struct rig rig;
    struct ibv_wc wc;
    struct rig_options options = rig_defaults(IBV_QPT_RC);
    MUST(!rig_start(&rig, &options));
    int victim = round % 2;
    uint32_t number = rig.side[victim].qp->qp_num;
    for (uint64_t i = 0; i < 16; i++) {
      MUST(!rig_receive(&rig, 0, i, 0, 4096) && !rig_receive(&rig, 1, i, 0, 4096));
      MUST(!rig_send(&rig, 0, 100 + i, IBV_WR_SEND, 0, 4096, 0) &&
           !rig_send(&rig, 1, 200 + i, IBV_WR_SEND, 0, 4096, 0));
    }
    for (int i = 0; i < round; i++) rig_poll(&rig, i % 2, &wc);
    if (both_cqs) MUST(!rig_to(&rig, victim, IBV_QPS_ERR));
    MUST(!ibv_destroy_qp(rig.side[victim].qp));
    rig.side[victim].qp = NULL;
    double until = verbs_now() + 0.003;
    while (verbs_now() < until) {
      for (int side = 0; side < 2; side++)
        if (rig_poll(&rig, side, &wc) == 1) MUST(wc.qp_num != number);
    }
    rig_close(&rig);
  }
  return 0;
}
static int destroyed_running(void) { return destroyed(0); }
static int destroyed_flushed(void) { return destroyed(1); }

// One CQ for everybody: the others' completions stay, in order.
static int destroyed_among_others(void) {
  struct rig rig;
  struct ibv_wc wc;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  MUST(!rig_start(&rig, &options));
  struct ibv_qp* qps[3];
  for (int i = 0; i < 3; i++) {
    struct ibv_qp_init_attr attributes = {.send_cq = rig.side[0].cq, .recv_cq = rig.side[0].cq, .qp_type = IBV_QPT_RC};
    attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 8;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    MUST((qps[i] = ibv_create_qp(rig.pd, &attributes)) != NULL);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    MUST(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_ERR;
    MUST(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE));
  }
  for (uint64_t i = 0; i < 18; i++) {
    struct ibv_recv_wr wr = {.wr_id = i}, *bad = NULL;
    MUST(!ibv_post_recv(qps[i % 3], &wr, &bad));  // flushed at once
  }
  uint32_t number = qps[1]->qp_num;
  MUST(!ibv_destroy_qp(qps[1]));
  for (uint64_t i = 0; i < 18; i++) {
    if (i % 3 == 1) continue;
    MUST(!rig_wait(&rig, 0, &wc) && wc.qp_num != number && wc.wr_id == i && wc.status == IBV_WC_WR_FLUSH_ERR);
  }
  MUST(rig_poll(&rig, 0, &wc) == 0);
  MUST(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[2]));
  rig_close(&rig);
  return 0;
}

// --- addresses ---------------------------------------------------------------------------------------------------

struct busy {
  struct rig* rig;
  volatile int stop;
  int failed;
  double longest;
};

static void* exchange(void* argument) {
  struct busy* busy = argument;
  double last = verbs_now();
  while (!busy->stop && !busy->failed) {
    busy->failed = rig_receive(busy->rig, 1, 1, 0, 64) || rig_send(busy->rig, 0, 2, IBV_WR_SEND, 0, 64, 0) ||
                   !completed(busy->rig, 0, 2, IBV_WC_SUCCESS) || !completed(busy->rig, 1, 1, IBV_WC_SUCCESS);
    double now = verbs_now();
    if (now - last > busy->longest) busy->longest = now - last;
    last = now;
  }
  return NULL;
}

// INIT to RTR towards an address that nobody has: ETIMEDOUT, the QP stays in INIT, and other threads go on meanwhile.
static int nobody(void) {
  struct rig rig, other;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  MUST(!rig_start(&other, &options) && !rig_open(&rig, &options) && !rig_to_init(&rig, 0));
  struct busy busy = {.rig = &other};
  pthread_t thread;
  MUST(!pthread_create(&thread, NULL, exchange, &busy));
  union ibv_gid good = rig.gid;
  for (int round = 0; round < 3; round++) {
    rig.gid.raw[14] = 0xee;
    rig.gid.raw[15] = 0xee;
    MUST(rig_to_rtr(&rig, 0) == ETIMEDOUT && rig_state(&rig, 0) == IBV_QPS_INIT);
    struct ibv_ah_attr address = {.is_global = 1, .port_num = 1};
    address.grh.dgid = rig.gid;
    address.grh.sgid_index = 1;
    MUST(ibv_create_ah(rig.pd, &address) == NULL && errno == ETIMEDOUT);
    address.grh.dgid = good;
    address.grh.sgid_index = 200;
    MUST(ibv_create_ah(rig.pd, &address) == NULL && errno == EINVAL);
  }
  busy.stop = 1;
  MUST(!pthread_join(thread, NULL) && !busy.failed && busy.longest < 1.0);
  rig.gid = good;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 5};
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = good;
  attr.ah_attr.grh.sgid_index = 77;
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER;
  MUST(ibv_modify_qp(rig.side[0].qp, &attr, mask) == EINVAL && rig_state(&rig, 0) == IBV_QPS_INIT);
  MUST(!rig_to_rtr(&rig, 0));
  rig_close(&rig);
  rig_close(&other);
  return 0;
}

// --- RNR, live ---------------------------------------------------------------------------------------------------

// Run with strict timers: the table decides what it ends in, and it is never earlier than the table says.
static int rnr(void) {
  static const struct {
    uint8_t retries, code;
    double at_least;
  } kRows[] = {{0, 1, 0},          {0, 12, 0}, {0, 31, 0}, {1, 1, 10e-6}, {1, 12, 640e-6},
               {1, 31, 491.52e-3}, {7, 1, 0},  {7, 12, 0}, {7, 31, 0}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; i++) {
    struct rig rig;
    struct ibv_wc wc;
    struct rig_options options = rig_defaults(IBV_QPT_RC);
    options.rnr_retry = kRows[i].retries;
    options.min_rnr_timer = kRows[i].code;
    options.retry = 0;
    options.timeout = 20;
    MUST(!rig_start(&rig, &options));
    double began = verbs_now();
    MUST(!rig_send(&rig, 0, 1, IBV_WR_SEND, 0, 8, 0));
    if (kRows[i].retries == 7) {
      while (verbs_now() < began + 0.01) MUST(rig_poll(&rig, 0, &wc) == 0);
      MUST(!rig_receive(&rig, 1, 2, 0, 8));
      MUST(completed(&rig, 0, 1, IBV_WC_SUCCESS) && completed(&rig, 1, 2, IBV_WC_SUCCESS));
    } else {
      MUST(completed(&rig, 0, 1, IBV_WC_RNR_RETRY_EXC_ERR));
      MUST(verbs_now() - began >= kRows[i].at_least);
    }
    rig_close(&rig);
  }
  return 0;
}

static const struct {
  const char* name;
  int (*run)(void);
} kCases[] = {{"posting", posting},
              {"bad-second", bad_second},
              {"drained", drained},
              {"reuse", reuse},
              {"flush-asleep", flush_asleep},
              {"destroyed", destroyed_running},
              {"destroyed-flushed", destroyed_flushed},
              {"destroyed-among-others", destroyed_among_others},
              {"nobody", nobody},
              {"rnr", rnr}};

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
    if (!strcmp(argv[1], "--list")) puts(kCases[i].name);
    if (!strcmp(argv[1], kCases[i].name)) return kCases[i].run();
  }
  return strcmp(argv[1], "--list") ? 2 : 0;
}
