// SPDX-License-Identifier: Apache-2.0
//
// completion_queues CASE: what programs expect of completion queues, their channels and receive requests. Exit code 0
// when it is so.
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "queue_rig.h"
#include "verbs_pair.h"

enum { kEventWaitMs = 2000, kQuietMs = 30 };

// IBTA Vol 1, 11.6.3: nothing is lost without a word, and nothing works on a CQ that has lost something.
static int overrun(void) {
  struct queue_rig rig = {.pairs = 2, .cqe = 7};
  struct ibv_wc wc;
  CHECK(!queue_rig_open(&rig));
  int room = rig.cq[1]->cqe;
  for (int i = 0; i < room + 5; i++) {
    CHECK(!queue_rig_post_receive(&rig, 0, (uint64_t)i));
    CHECK(!queue_rig_send(&rig, 0, (uint64_t)i, 0));
  }
  int fatal = 0, cq_errors = 0;
  for (int i = 0; i < 3; i++) {
    void* element = NULL;
    int event = queue_rig_event(&rig, kEventWaitMs, &element);
    if (event == IBV_EVENT_CQ_ERR) {
      CHECK(element == rig.cq[1]);
      cq_errors++;
    } else {
      CHECK(event == IBV_EVENT_QP_FATAL && (element == rig.qp[1][0] || element == rig.qp[1][1]));
      fatal++;
    }
  }
  CHECK(cq_errors == 1 && fatal == 2);
  CHECK(queue_rig_event(&rig, kQuietMs, NULL) == -1);
  for (int i = 0; i < room; i++)
    CHECK(!queue_rig_take(rig.cq[1], &wc) && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i);
  CHECK(queue_rig_nothing(rig.cq[1], kQuietMs));
  for (int pair = 0; pair < 2; pair++) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(rig.qp[1][pair], &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
  }
  return queue_rig_close(&rig);
}

static int resize_pending(void) {
  struct queue_rig rig = {.cqe = 63};
  struct ibv_wc wc;
  CHECK(!queue_rig_open(&rig));
  uint64_t sent = 0, taken = 0;
  static const int kSizes[] = {100, 63, 40, 255, 33};
  for (size_t round = 0; round < sizeof kSizes / sizeof *kSizes; round++) {
    for (int i = 0; i < 30; i++, sent++) {
      CHECK(!queue_rig_post_receive(&rig, 0, sent) && !queue_rig_send(&rig, 0, sent, 0));
      CHECK(!queue_rig_take(rig.cq[0], &wc) && wc.status == IBV_WC_SUCCESS);
    }
    // An asker's completion does not mean that the answerer's is visible: that one may come a little later.
    double end = verbs_now() + 2;
    int error = 0;
    while ((error = ibv_resize_cq(rig.cq[1], 29)) == 0 && verbs_now() < end) usleep(1000);
    CHECK(error == EINVAL);
    CHECK(!ibv_resize_cq(rig.cq[1], kSizes[round]) && rig.cq[1]->cqe >= kSizes[round]);
    for (int i = 0; i < 30; i++, taken++) CHECK(!queue_rig_take(rig.cq[1], &wc) && wc.wr_id == taken);
  }
  CHECK(ibv_resize_cq(rig.cq[1], 0) == EINVAL);
  struct ibv_device_attr device;
  CHECK(!ibv_query_device(rig.context, &device));
  CHECK(ibv_resize_cq(rig.cq[1], device.max_cqe + 1) == EINVAL);
  return queue_rig_close(&rig);
}

struct resizer {
  struct ibv_cq* cq;
  atomic_int stop;
  int failed;
};

static void* resize_loop(void* argument) {
  struct resizer* resizer = argument;
  for (int i = 0; !atomic_load(&resizer->stop); i++) {
    int error = ibv_resize_cq(resizer->cq, i % 2 ? 200 : 400);
    if (error && error != EINVAL) resizer->failed = error;
    if (i % 16 == 0) usleep(100);
  }
  return NULL;
}

// One thread resizes while another polls and traffic runs.
static int resize_under_load(void) {
  enum { kMessages = 3000, kAhead = 60 };
  struct queue_rig rig = {.cqe = 200};
  CHECK(!queue_rig_open(&rig));
  struct resizer resizer = {.cq = rig.cq[1]};
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, resize_loop, &resizer));
  struct ibv_wc wc;
  uint64_t sent = 0, got = 0, done = 0;
  double end = verbs_now() + 20;
  while (got < kMessages) {
    CHECK(verbs_now() < end);
    for (; sent < kMessages && sent < got + kAhead && sent < done + kAhead; sent++)
      CHECK(!queue_rig_post_receive(&rig, 0, sent) && !queue_rig_send(&rig, 0, sent, 0));
    while (ibv_poll_cq(rig.cq[0], 1, &wc) > 0) done += wc.status == IBV_WC_SUCCESS;
    while (ibv_poll_cq(rig.cq[1], 1, &wc) > 0) CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == got++);
  }
  atomic_store(&resizer.stop, 1);
  CHECK(!pthread_join(thread, NULL) && !resizer.failed);
  return queue_rig_close(&rig);
}

struct sender {
  struct queue_rig* rig;
  int count;
  atomic_int go;  // messages that may be sent
  int failed;
};

static void* send_loop(void* argument) {
  struct sender* sender = argument;
  for (int i = 0; i < sender->count; i++) {
    while (atomic_load(&sender->go) <= i) {
    }
    struct ibv_wc wc;
    if (queue_rig_send(sender->rig, 0, (uint64_t)i, 0) || queue_rig_take(sender->rig->cq[0], &wc)) sender->failed = 1;
  }
  return NULL;
}

// A completion that comes between poll and arm, and one between arm and sleep: no wake-up is lost.
static int arm_race(void) {
  enum { kRounds = 1000 };
  struct queue_rig rig = {.use_channel = 1};
  CHECK(!queue_rig_open(&rig));
  struct sender sender = {.rig = &rig, .count = kRounds};
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, send_loop, &sender));
  struct ibv_wc wc;
  unsigned events = 0;
  for (int i = 0; i < kRounds; i++) {
    CHECK(!queue_rig_post_receive(&rig, 0, (uint64_t)i));
    atomic_store(&sender.go, i + 1);
    for (int spin = 0; spin < i % 64 * 50; spin++) __asm__ volatile("");
    while (ibv_poll_cq(rig.cq[1], 1, &wc) == 0) {
      CHECK(!ibv_req_notify_cq(rig.cq[1], 0));
      if (ibv_poll_cq(rig.cq[1], 1, &wc)) break;
      CHECK(queue_rig_readable(rig.channel->fd, kRigWaitMs));
      struct ibv_cq* cq;
      void* cq_context;
      CHECK(!ibv_get_cq_event(rig.channel, &cq, &cq_context) && cq == rig.cq[1]);
      events++;
    }
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i);
  }
  // What is left is one event at most: that of the last arming.
  if (queue_rig_readable(rig.channel->fd, kQuietMs)) {
    struct ibv_cq* cq;
    void* cq_context;
    CHECK(!ibv_get_cq_event(rig.channel, &cq, &cq_context));
    events++;
  }
  CHECK(!queue_rig_readable(rig.channel->fd, kQuietMs));
  ibv_ack_cq_events(rig.cq[1], events);
  CHECK(!pthread_join(thread, NULL) && !sender.failed);
  return queue_rig_close(&rig);
}

static int take_event(struct queue_rig* rig, int wait_ms) {
  struct ibv_cq* cq;
  void* cq_context;
  if (!queue_rig_readable(rig->channel->fd, wait_ms)) return 0;
  if (ibv_get_cq_event(rig->channel, &cq, &cq_context)) return 0;
  ibv_ack_cq_events(cq, 1);
  return cq == rig->cq[1];
}

static int solicited(void) {
  struct queue_rig rig = {.use_channel = 1};
  struct ibv_wc wc;
  CHECK(!queue_rig_open(&rig));
  static const struct {
    enum ibv_wr_opcode opcode;
    int flags, wakes, completes;
  } kWorks[] = {{IBV_WR_SEND, 0, 0, 1},
                {IBV_WR_SEND, IBV_SEND_SOLICITED, 1, 1},
                {IBV_WR_SEND_WITH_IMM, 0, 0, 1},
                {IBV_WR_SEND_WITH_IMM, IBV_SEND_SOLICITED, 1, 1},
                {IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 1},
                {IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SOLICITED, 1, 1},
                {IBV_WR_RDMA_WRITE, IBV_SEND_SOLICITED, 0, 0}};
  for (size_t i = 0; i < sizeof kWorks / sizeof *kWorks; i++) {
    for (uint32_t bytes = 0; bytes <= 4000; bytes += 2000) {  // nothing, and several packets
      CHECK(!ibv_req_notify_cq(rig.cq[1], 1));
      if (kWorks[i].completes) CHECK(!queue_rig_post_receive(&rig, 0, i));
      CHECK(!queue_rig_post(&rig, 0, kWorks[i].opcode, i, bytes, kWorks[i].flags));
      CHECK(!queue_rig_take(rig.cq[0], &wc) && wc.status == IBV_WC_SUCCESS);
      if (kWorks[i].completes) CHECK(!queue_rig_take(rig.cq[1], &wc) && wc.status == IBV_WC_SUCCESS);
      CHECK(take_event(&rig, kWorks[i].wakes ? kEventWaitMs : 2) == kWorks[i].wakes);
    }
  }
  // An error wakes whoever waits for solicited ones.
  CHECK(!ibv_req_notify_cq(rig.cq[1], 1) && !queue_rig_post_receive(&rig, 0, 99));
  CHECK(!queue_rig_to_error(rig.qp[1][0]));
  CHECK(take_event(&rig, kEventWaitMs));
  CHECK(!queue_rig_take(rig.cq[1], &wc) && wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 99);
  return queue_rig_close(&rig);
}

struct destroyer {
  struct ibv_cq* cq;
  atomic_int done;
};

static void* destroy_thread(void* argument) {
  struct destroyer* destroyer = argument;
  int error = ibv_destroy_cq(destroyer->cq);
  atomic_store(&destroyer->done, error ? -1 : 1);
  return NULL;
}

// A destroy in one thread, an event taken and not acknowledged in another: it waits for the acknowledge, and only for it.
static int destroy_waits(void) {
  struct queue_rig rig = {.use_channel = 1};
  struct ibv_wc wc;
  CHECK(!queue_rig_open(&rig));
  for (int taken = 0; taken < 2; taken++) {
    CHECK(!ibv_req_notify_cq(rig.cq[1], 0) && !queue_rig_post_receive(&rig, 0, 1) && !queue_rig_send(&rig, 0, 1, 0));
    CHECK(!queue_rig_take(rig.cq[0], &wc) && !queue_rig_take(rig.cq[1], &wc));
    CHECK(queue_rig_readable(rig.channel->fd, kEventWaitMs));
    struct ibv_cq* cq = NULL;
    void* cq_context;
    if (taken == 0) CHECK(!ibv_get_cq_event(rig.channel, &cq, &cq_context) && cq == rig.cq[1]);
  }
  // One event is read and not acknowledged, one lies unread in the channel.
  CHECK(!ibv_destroy_qp(rig.qp[1][0]));
  rig.qp[1][0] = NULL;
  struct destroyer destroyer = {.cq = rig.cq[1]};
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, destroy_thread, &destroyer));
  usleep(100 * 1000);
  CHECK(atomic_load(&destroyer.done) == 0);
  CHECK(!queue_rig_readable(rig.channel->fd, 0));  // the unread one is gone
  ibv_ack_cq_events(rig.cq[1], 1);
  CHECK(!pthread_join(thread, NULL) && atomic_load(&destroyer.done) == 1);
  rig.cq[1] = NULL;
  return queue_rig_close(&rig);
}

static int shared_channel(void) {
  struct queue_rig rig = {.use_channel = 1, .pairs = 2};
  struct ibv_cq* many[8];
  CHECK(!queue_rig_open(&rig));
  struct ibv_qp* qps[8];
  for (int i = 0; i < 8; i++) {
    CHECK((many[i] = ibv_create_cq(rig.context, 8, &many[i], rig.channel, 0)));
    struct ibv_qp_init_attr wanted = {.send_cq = many[i], .recv_cq = many[i], .qp_type = IBV_QPT_UC};
    wanted.cap.max_send_wr = wanted.cap.max_recv_wr = wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    CHECK((qps[i] = ibv_create_qp(rig.pd, &wanted)));
    CHECK(ibv_destroy_cq(many[i]) == EBUSY);
    CHECK(!ibv_req_notify_cq(many[i], 0));
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(qps[i], &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    CHECK(!ibv_post_recv(qps[i], &wr, &bad) && !queue_rig_to_error(qps[i]));
  }
  // Every other one is destroyed with its event unread; the others' stay, in order.
  for (int i = 0; i < 8; i += 2) CHECK(!ibv_destroy_qp(qps[i]) && !ibv_destroy_cq(many[i]));
  for (int i = 1; i < 8; i += 2) {
    struct ibv_cq* cq;
    void* cq_context;
    CHECK(queue_rig_readable(rig.channel->fd, kEventWaitMs));
    CHECK(!ibv_get_cq_event(rig.channel, &cq, &cq_context) && cq == many[i] && cq_context == &many[i]);
    ibv_ack_cq_events(cq, 1);
    CHECK(!ibv_destroy_qp(qps[i]) && !ibv_destroy_cq(many[i]));
  }
  CHECK(!queue_rig_readable(rig.channel->fd, kQuietMs));
  return queue_rig_close(&rig);
}

static int limits(void) {
  struct queue_rig rig = {0};
  struct ibv_device_attr device;
  CHECK(!queue_rig_open(&rig) && !ibv_query_device(rig.context, &device));
  CHECK(!ibv_create_cq(rig.context, device.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
  CHECK(!ibv_create_cq(rig.context, 1, NULL, NULL, rig.context->num_comp_vectors) && errno == EINVAL);
  struct ibv_cq* most = ibv_create_cq(rig.context, device.max_cqe, NULL, NULL, rig.context->num_comp_vectors - 1);
  CHECK(most && most->cqe >= device.max_cqe && !ibv_destroy_cq(most));
  int left = device.max_cq - 2;
  struct ibv_cq** all = calloc((size_t)left, sizeof *all);
  for (int i = 0; i < left; i++) CHECK((all[i] = ibv_create_cq(rig.context, 1, NULL, NULL, 0)));
  CHECK(!ibv_create_cq(rig.context, 1, NULL, NULL, 0) && errno == ENOMEM);
  CHECK(!ibv_destroy_cq(all[3]) && (all[3] = ibv_create_cq(rig.context, 1, NULL, NULL, 0)));
  for (int i = 0; i < left; i++) CHECK(!ibv_destroy_cq(all[i]));
  free(all);
  struct ibv_cq_init_attr_ex stamped = {.cqe = 8, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
  CHECK(!ibv_create_cq_ex(rig.context, &stamped) && (errno == EOPNOTSUPP || errno == EINVAL));
  return queue_rig_close(&rig);
}

static int post_receive(void) {
  struct queue_rig rig = {0};
  CHECK(!queue_rig_open(&rig));
  struct ibv_qp_init_attr wanted = {.send_cq = rig.cq[0], .recv_cq = rig.cq[0], .qp_type = IBV_QPT_RC};
  wanted.cap.max_send_wr = wanted.cap.max_recv_wr = wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  struct ibv_qp* qp = ibv_create_qp(rig.pd, &wanted);
  CHECK(qp);
  struct ibv_sge list[64] = {0};
  struct ibv_recv_wr second = {.wr_id = 2, .sg_list = list, .num_sge = 64};
  struct ibv_recv_wr first = {.wr_id = 1, .next = &second}, *bad = NULL;
  CHECK(ibv_post_recv(qp, &first, &bad));  // RESET
  struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  bad = NULL;
  CHECK(ibv_post_recv(qp, &first, &bad) && bad == &second);  // the first is posted, the second is too wide
  CHECK(!queue_rig_to_error(qp));
  struct ibv_wc wc;
  CHECK(!queue_rig_take(rig.cq[0], &wc) && wc.wr_id == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
  CHECK(queue_rig_nothing(rig.cq[0], kQuietMs));
  first.next = NULL;
  CHECK(!ibv_post_recv(qp, &first, &bad));  // ERR: accepted and flushed
  CHECK(!queue_rig_take(rig.cq[0], &wc) && wc.wr_id == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == qp->qp_num);
  CHECK(!ibv_destroy_qp(qp));
  return queue_rig_close(&rig);
}

// WRITE with immediate uses up one receive request whatever its length, and waits for one when there is none.
static int write_immediate(void) {
  struct queue_rig rig = {0};
  struct ibv_wc wc;
  CHECK(!queue_rig_open(&rig));
  static const uint32_t kSizes[] = {0, 1, 1024, 5000};
  for (uint64_t i = 0; i < 8; i++) {
    uint32_t bytes = kSizes[i % 4];
    memset(rig.buffer, (int)i + 1, bytes);
    if (i < 4) CHECK(!queue_rig_post_receive(&rig, 0, i));
    CHECK(!queue_rig_post(&rig, 0, IBV_WR_RDMA_WRITE_WITH_IMM, i, bytes, 0));
    if (i >= 4) {
      CHECK(queue_rig_nothing(rig.cq[0], 5));
      CHECK(!queue_rig_post_receive(&rig, 0, i));
    }
    CHECK(!queue_rig_take(rig.cq[1], &wc) && wc.status == IBV_WC_SUCCESS && wc.wr_id == i);
    CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == bytes && (wc.wc_flags & IBV_WC_WITH_IMM));
    CHECK(wc.imm_data == (uint32_t)i && !memcmp(rig.buffer, rig.buffer + kRigBytes / 2, bytes));
    CHECK(!queue_rig_take(rig.cq[0], &wc) && wc.status == IBV_WC_SUCCESS);
  }
  // A plain WRITE leaves the request alone.
  CHECK(!queue_rig_post_receive(&rig, 0, 77) && !queue_rig_post(&rig, 0, IBV_WR_RDMA_WRITE, 1, 64, 0));
  CHECK(!queue_rig_take(rig.cq[0], &wc) && queue_rig_nothing(rig.cq[1], 5));
  return queue_rig_close(&rig);
}

// start_poll, next_poll until it finds nothing, end_poll, while completions come: none is stepped over.
static int extended_drain(void) {
  enum { kMessages = 20000, kAhead = 64 };
  struct queue_rig rig = {0};
  CHECK(!queue_rig_open(&rig));
  struct ibv_cq_init_attr_ex wanted = {.cqe = 256, .wc_flags = IBV_WC_STANDARD_FLAGS};
  struct ibv_cq_ex* cq = ibv_create_cq_ex(rig.context, &wanted);
  CHECK(cq);
  struct ibv_qp_init_attr init = {.send_cq = rig.cq[0], .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC};
  init.cap.max_send_wr = init.cap.max_recv_wr = 128;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  struct ibv_qp* from = rig.qp[0][0];
  struct ibv_qp* to = ibv_create_qp(rig.pd, &init);
  struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
  union ibv_gid gid;
  struct verbs_pair_options options = verbs_pair_defaults();
  CHECK(to && !ibv_modify_qp(from, &reset, IBV_QP_STATE) && !ibv_query_gid(rig.context, 1, 1, &gid));
  CHECK(!verbs_connect_qp(from, to->qp_num, &gid, 1, 1, &options));
  CHECK(!verbs_connect_qp(to, from->qp_num, &gid, 1, 1, &options));
  struct ibv_wc wc;
  uint64_t sent = 0, got = 0, done = 0;
  double end = verbs_now() + 20;
  while (got < kMessages) {
    CHECK(verbs_now() < end);
    for (; sent < kMessages && sent < got + kAhead && sent < done + kAhead; sent++) {
      struct ibv_recv_wr wr = {.wr_id = sent}, *bad;
      CHECK(!ibv_post_recv(to, &wr, &bad) && !queue_rig_post(&rig, 0, IBV_WR_SEND, sent, 0, 0));
    }
    while (ibv_poll_cq(rig.cq[0], 1, &wc) > 0) done += wc.status == IBV_WC_SUCCESS;
    struct ibv_poll_cq_attr attributes = {0};
    if (ibv_start_poll(cq, &attributes)) continue;
    do {
      CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == got && ibv_wc_read_qp_num(cq) == to->qp_num);
      got++;
    } while (!ibv_next_poll(cq));
    ibv_end_poll(cq);
  }
  CHECK(!ibv_destroy_qp(to) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
  return queue_rig_close(&rig);
}

int main(int argc, char** argv) {
  static const struct queue_test kTests[] = {
      {"overrun", overrun},           {"resize-pending", resize_pending}, {"resize-under-load", resize_under_load},
      {"arm-race", arm_race},         {"solicited", solicited},           {"destroy-waits", destroy_waits},
      {"shared-channel", shared_channel}, {"limits", limits},             {"post-receive", post_receive},
      {"write-immediate", write_immediate}, {"extended-drain", extended_drain},
  };
  return queue_rig_main(argc, argv, kTests, (int)(sizeof kTests / sizeof *kTests));
}
