// SPDX-License-Identifier: Apache-2.0
//
// shared_receive CASE: what programs expect of a shared receive queue. Exit code 0 when it is so.
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "queue_rig.h"
#include "verbs_pair.h"

enum { kEventWaitMs = 2000, kQuietMs = 30 };

static int events_once(void) {
  struct queue_rig rig = {.pairs = 3, .use_srq = 1};
  struct ibv_wc wc;
  void* element = NULL;
  CHECK(!queue_rig_open(&rig));
  struct ibv_srq_attr attr = {.srq_limit = 4};
  CHECK(!ibv_modify_srq(rig.srq, &attr, IBV_SRQ_LIMIT));
  for (uint64_t i = 0; i < 8; i++) CHECK(!queue_rig_post_srq(&rig, i));
  for (uint64_t i = 0; i < 8; i++) {
    CHECK(!queue_rig_send(&rig, (int)(i % 3), i, 0));
    CHECK(!queue_rig_take(rig.cq[1], &wc) && wc.status == IBV_WC_SUCCESS && wc.wr_id == i);
    CHECK(wc.qp_num == rig.qp[1][i % 3]->qp_num);
    if (i == 3) CHECK(queue_rig_event(&rig, kQuietMs, NULL) == -1);
    if (i == 4) {
      CHECK(queue_rig_event(&rig, kEventWaitMs, &element) == IBV_EVENT_SRQ_LIMIT_REACHED);
      CHECK(element == rig.srq);
      CHECK(!ibv_query_srq(rig.srq, &attr) && attr.srq_limit == 0);
    }
  }
  CHECK(queue_rig_event(&rig, kQuietMs, NULL) == -1);
  return queue_rig_close(&rig);
}

static int last_request(void) {
  struct queue_rig rig = {.pairs = 2, .use_srq = 1};
  struct ibv_wc wc;
  void* element = NULL;
  CHECK(!queue_rig_open(&rig));
  for (uint64_t i = 0; i < 4; i++) CHECK(!queue_rig_post_srq(&rig, i));
  CHECK(!queue_rig_to_error(rig.qp[1][0]));
  CHECK(queue_rig_event(&rig, kEventWaitMs, &element) == IBV_EVENT_QP_LAST_WQE_REACHED);
  CHECK(element == rig.qp[1][0]);
  CHECK(!queue_rig_to_error(rig.qp[1][0]));
  CHECK(queue_rig_event(&rig, kQuietMs, NULL) == -1);
  CHECK(queue_rig_nothing(rig.cq[1], kQuietMs));  // what is in the SRQ is not flushed
  CHECK(!queue_rig_send(&rig, 1, 0, 0));
  CHECK(!queue_rig_take(rig.cq[1], &wc) && wc.status == IBV_WC_SUCCESS && wc.wr_id == 0);
  return queue_rig_close(&rig);
}

static int not_ready(void) {
  struct queue_rig rig = {.pairs = 4, .use_srq = 1};
  struct ibv_wc wc;
  CHECK(!queue_rig_open(&rig));
  for (int pair = 0; pair < 4; pair++) CHECK(!queue_rig_send(&rig, pair, (uint64_t)pair, 0));
  CHECK(queue_rig_nothing(rig.cq[0], 20));
  for (uint64_t i = 0; i < 4; i++) CHECK(!queue_rig_post_srq(&rig, i));
  for (int i = 0; i < 4; i++) {
    CHECK(!queue_rig_take(rig.cq[0], &wc) && wc.status == IBV_WC_SUCCESS);
    CHECK(!queue_rig_take(rig.cq[1], &wc) && wc.status == IBV_WC_SUCCESS);
  }
  return queue_rig_close(&rig);
}

static int in_use(void) {
  struct queue_rig rig = {.use_srq = 1};
  CHECK(!queue_rig_open(&rig));
  CHECK(ibv_destroy_srq(rig.srq) == EBUSY);
  CHECK(ibv_dealloc_pd(rig.pd) == EBUSY);
  return queue_rig_close(&rig);
}

static int limits(void) {
  struct queue_rig rig = {.pairs = 1};
  struct ibv_device_attr device;
  CHECK(!queue_rig_open(&rig));
  CHECK(!ibv_query_device(rig.context, &device));
  CHECK(device.max_srq > 0 && device.max_srq_wr > 0 && device.max_srq_sge > 0);
  struct ibv_srq_init_attr most = {.attr = {(uint32_t)device.max_srq_wr, (uint32_t)device.max_srq_sge, 0}};
  struct ibv_srq* srq = ibv_create_srq(rig.pd, &most);
  CHECK(srq && most.attr.max_wr >= (uint32_t)device.max_srq_wr);
  struct ibv_recv_wr wr = {.wr_id = 1}, *bad = NULL;
  for (uint32_t i = 0; i < most.attr.max_wr; i++) CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
  CHECK(ibv_post_srq_recv(srq, &wr, &bad) && bad == &wr);
  CHECK(!ibv_destroy_srq(srq));
  struct ibv_srq_init_attr more = {.attr = {(uint32_t)device.max_srq_wr + 1, 1, 0}};
  CHECK(!ibv_create_srq(rig.pd, &more) && errno == EINVAL);
  struct ibv_srq_init_attr wider = {.attr = {1, (uint32_t)device.max_srq_sge + 1, 0}};
  CHECK(!ibv_create_srq(rig.pd, &wider) && errno == EINVAL);
  struct ibv_srq** all = calloc((size_t)device.max_srq, sizeof *all);
  struct ibv_srq_init_attr small = {.attr = {1, 1, 0}};
  for (int i = 0; i < device.max_srq; i++) CHECK((all[i] = ibv_create_srq(rig.pd, &small)));
  CHECK(!ibv_create_srq(rig.pd, &small) && errno == ENOMEM);
  CHECK(!ibv_destroy_srq(all[7]) && (all[7] = ibv_create_srq(rig.pd, &small)));
  for (int i = 0; i < device.max_srq; i++) CHECK(!ibv_destroy_srq(all[i]));
  free(all);
  return queue_rig_close(&rig);
}

static int extended(void) {
  struct queue_rig rig = {.pairs = 1};
  CHECK(!queue_rig_open(&rig));
  struct ibv_srq_init_attr_ex wanted = {.attr = {16, 1, 0}, .pd = rig.pd, .srq_type = IBV_SRQT_BASIC};
  wanted.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
  struct ibv_srq* srq = ibv_create_srq_ex(rig.context, &wanted);
  CHECK(srq && !ibv_destroy_srq(srq));
  wanted.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;  // goes by the extended command
  wanted.cq = rig.cq[0];
  srq = ibv_create_srq_ex(rig.context, &wanted);
  if (srq) CHECK(!ibv_destroy_srq(srq));
  wanted.srq_type = IBV_SRQT_TM;
  wanted.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
  wanted.tm_cap.max_num_tags = 1;
  CHECK(!ibv_create_srq_ex(rig.context, &wanted) && (errno == EOPNOTSUPP || errno == EINVAL));
  return queue_rig_close(&rig);
}

// One posts and resizes while the other end sends: nothing is lost or taken twice.
struct feeder {
  struct queue_rig* rig;
  uint64_t count;
  int failed;
};

static void* feed(void* argument) {
  struct feeder* feeder = argument;
  struct queue_rig* rig = feeder->rig;
  for (uint64_t i = 0; i < feeder->count && !feeder->failed;) {
    if (i % 50 == 0) {
      struct ibv_srq_attr attr = {.max_wr = i % 100 ? 200 : 40};
      int error = ibv_modify_srq(rig->srq, &attr, IBV_SRQ_MAX_WR);
      if (error && error != EINVAL) feeder->failed = 1;  // EINVAL: more is posted than would fit
    }
    if (!queue_rig_post_srq(rig, i)) i++;
  }
  return NULL;
}

static int resize_under_load(void) {
  struct queue_rig rig = {.pairs = 4, .use_srq = 1, .srq_wr = 60};
  enum { kMessages = 4000, kAhead = 32 };
  CHECK(!queue_rig_open(&rig));
  struct feeder feeder = {&rig, kMessages, 0};
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, feed, &feeder));
  static uint8_t seen[kMessages];
  struct ibv_wc wc;
  uint64_t sent = 0, done = 0, got = 0;
  double end = verbs_now() + 20;
  while (got < kMessages || done < kMessages) {
    CHECK(verbs_now() < end);
    for (; sent < kMessages && sent < done + kAhead; sent++) CHECK(!queue_rig_send(&rig, (int)(sent % 4), sent, 0));
    while (ibv_poll_cq(rig.cq[0], 1, &wc) > 0) done += wc.status == IBV_WC_SUCCESS;
    while (ibv_poll_cq(rig.cq[1], 1, &wc) > 0) {
      CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id < kMessages && !seen[wc.wr_id]);
      seen[wc.wr_id] = 1;
      got++;
    }
  }
  CHECK(!pthread_join(thread, NULL) && !feeder.failed);
  return queue_rig_close(&rig);
}

// The library waits in destroy for the events it has handed out: for those exactly.
static int destroy_accounts(void) {
  struct queue_rig rig = {.pairs = 2, .use_srq = 1};
  struct ibv_wc wc;
  CHECK(!queue_rig_open(&rig));
  struct ibv_srq_attr attr = {.srq_limit = 2};
  CHECK(!ibv_modify_srq(rig.srq, &attr, IBV_SRQ_LIMIT));
  for (uint64_t i = 0; i < 2; i++) CHECK(!queue_rig_post_srq(&rig, i));
  CHECK(!queue_rig_send(&rig, 0, 0, 0) && !queue_rig_take(rig.cq[1], &wc));
  CHECK(queue_rig_readable(rig.context->async_fd, kEventWaitMs));
  // Left unread: purged with its objects, and the other QP's event behind it stays.
  CHECK(!queue_rig_to_error(rig.qp[1][0]) && !queue_rig_to_error(rig.qp[1][1]));
  CHECK(!ibv_destroy_qp(rig.qp[1][0]));
  rig.qp[1][0] = NULL;
  void* element = NULL;
  CHECK(queue_rig_event(&rig, kEventWaitMs, &element) == IBV_EVENT_SRQ_LIMIT_REACHED && element == rig.srq);
  CHECK(queue_rig_event(&rig, kEventWaitMs, &element) == IBV_EVENT_QP_LAST_WQE_REACHED && element == rig.qp[1][1]);
  CHECK(queue_rig_event(&rig, kQuietMs, NULL) == -1);
  return queue_rig_close(&rig);
}

int main(int argc, char** argv) {
  static const struct queue_test kTests[] = {
      {"limit-once", events_once}, {"last-request", last_request},   {"not-ready", not_ready},
      {"in-use", in_use},          {"limits", limits},               {"extended", extended},
      {"resize-under-load", resize_under_load},                      {"destroy-accounts", destroy_accounts},
  };
  return queue_rig_main(argc, argv, kTests, (int)(sizeof kTests / sizeof *kTests));
}
