// SPDX-License-Identifier: Apache-2.0
#include "queue_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "verbs_pair.h"

enum { kDepth = 128 };

static int refused(const char* what, int error) {
  fprintf(stderr, "%s: %s\n", what, strerror(error));
  return 1;
}

static int create_queues(struct queue_rig* rig) {
  if (rig->use_channel && !(rig->channel = ibv_create_comp_channel(rig->context)))
    return refused("ibv_create_comp_channel", errno);
  for (int side = 0; side < 2; side++) {
    int cqe = side && rig->cqe ? rig->cqe : kDepth * (rig->pairs + 1);
    rig->cq[side] = ibv_create_cq(rig->context, cqe, NULL, side ? rig->channel : NULL, 0);
    if (!rig->cq[side]) return refused("ibv_create_cq", errno);
  }
  if (!rig->use_srq) return 0;
  struct ibv_srq_init_attr wanted = {.attr = {.max_wr = rig->srq_wr ? rig->srq_wr : kDepth, .max_sge = 1}};
  rig->srq = ibv_create_srq(rig->pd, &wanted);
  return rig->srq ? 0 : refused("ibv_create_srq", errno);
}

static int create_pair(struct queue_rig* rig, int pair, const union ibv_gid* gid) {
  for (int side = 0; side < 2; side++) {
    struct ibv_qp_init_attr wanted = {.send_cq = rig->cq[side], .recv_cq = rig->cq[side], .qp_type = IBV_QPT_RC};
    wanted.cap.max_send_wr = wanted.cap.max_recv_wr = kDepth;
    wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    if (side) wanted.srq = rig->srq;
    rig->qp[side][pair] = ibv_create_qp(rig->pd, &wanted);
    if (!rig->qp[side][pair]) return refused("ibv_create_qp", errno);
  }
  struct verbs_pair_options options = verbs_pair_defaults();
  for (int side = 0; side < 2; side++) {
    if (verbs_connect_qp(rig->qp[side][pair], rig->qp[!side][pair]->qp_num, gid, 1, 1, &options)) return 1;
  }
  return 0;
}

int queue_rig_open(struct queue_rig* rig) {
  if (!rig->pairs) rig->pairs = 1;
  rig->context = verbs_open_first_device();
  if (!rig->context) return 1;
  rig->pd = ibv_alloc_pd(rig->context);
  if (!rig->pd) return refused("ibv_alloc_pd", errno);
  rig->buffer = aligned_alloc(4096, kRigBytes);
  if (!rig->buffer) return refused("aligned_alloc", errno);
  memset(rig->buffer, 0, kRigBytes);
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  rig->mr = ibv_reg_mr(rig->pd, rig->buffer, kRigBytes, access);
  if (!rig->mr) return refused("ibv_reg_mr", errno);
  if (create_queues(rig)) return 1;
  union ibv_gid gid;
  if (ibv_query_gid(rig->context, 1, 1, &gid)) return refused("ibv_query_gid", errno);
  for (int pair = 0; pair < rig->pairs; pair++)
    if (create_pair(rig, pair, &gid)) return 1;
  return 0;
}

int queue_rig_close(struct queue_rig* rig) {
  int error = 0;
  for (int pair = 0; pair < rig->pairs; pair++)
    for (int side = 0; side < 2; side++)
      if (rig->qp[side][pair] && (error = ibv_destroy_qp(rig->qp[side][pair]))) return refused("ibv_destroy_qp", error);
  if (rig->srq && (error = ibv_destroy_srq(rig->srq))) return refused("ibv_destroy_srq", error);
  for (int side = 0; side < 2; side++)
    if (rig->cq[side] && (error = ibv_destroy_cq(rig->cq[side]))) return refused("ibv_destroy_cq", error);
  if (rig->channel && (error = ibv_destroy_comp_channel(rig->channel))) return refused("destroy channel", error);
  if ((error = ibv_dereg_mr(rig->mr))) return refused("ibv_dereg_mr", error);
  if ((error = ibv_dealloc_pd(rig->pd))) return refused("ibv_dealloc_pd", error);
  if (ibv_close_device(rig->context)) return refused("ibv_close_device", errno);
  free(rig->buffer);
  return 0;
}

static struct ibv_sge target(struct queue_rig* rig) {
  struct ibv_sge sge = {(uintptr_t)rig->buffer + kRigBytes / 2, kRigBytes / 2, rig->mr->lkey};
  return sge;
}

int queue_rig_post_srq(struct queue_rig* rig, uint64_t wr_id) {
  struct ibv_sge sge = target(rig);
  struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad = NULL;
  return ibv_post_srq_recv(rig->srq, &wr, &bad);
}

int queue_rig_post_receive(struct queue_rig* rig, int pair, uint64_t wr_id) {
  struct ibv_sge sge = target(rig);
  struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad = NULL;
  return ibv_post_recv(rig->qp[1][pair], &wr, &bad);
}

int queue_rig_post(struct queue_rig* rig, int pair, enum ibv_wr_opcode opcode, uint64_t wr_id, uint32_t bytes,
                   int flags) {
  struct ibv_sge sge = {(uintptr_t)rig->buffer, bytes, rig->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = bytes ? 1 : 0, .opcode = opcode}, *bad = NULL;
  wr.send_flags = (unsigned)flags | IBV_SEND_SIGNALED;
  wr.imm_data = (uint32_t)wr_id;
  wr.wr.rdma.remote_addr = (uintptr_t)rig->buffer + kRigBytes / 2;
  wr.wr.rdma.rkey = rig->mr->rkey;
  return ibv_post_send(rig->qp[0][pair], &wr, &bad);
}

int queue_rig_send(struct queue_rig* rig, int pair, uint64_t wr_id, int flags) {
  return queue_rig_post(rig, pair, IBV_WR_SEND, wr_id, 64, flags);
}

int queue_rig_take(struct ibv_cq* cq, struct ibv_wc* wc) {
  double end = verbs_now() + kRigWaitMs * 1e-3;
  for (;;) {
    int count = ibv_poll_cq(cq, 1, wc);
    if (count == 1) return 0;
    if (count < 0 || verbs_now() > end) {
      fprintf(stderr, "no completion came (%d)\n", count);
      return 1;
    }
  }
}

int queue_rig_nothing(struct ibv_cq* cq, int ms) {
  struct ibv_wc wc;
  for (double end = verbs_now() + ms * 1e-3; verbs_now() < end;) {
    if (ibv_poll_cq(cq, 1, &wc)) {
      fprintf(stderr, "a completion that should not be: wr_id %llu, %s\n", (unsigned long long)wc.wr_id,
              ibv_wc_status_str(wc.status));
      return 0;
    }
  }
  return 1;
}

int queue_rig_readable(int fd, int ms) {
  struct pollfd item = {.fd = fd, .events = POLLIN};
  return poll(&item, 1, ms) == 1;
}

int queue_rig_event(struct queue_rig* rig, int ms, void** element) {
  if (!queue_rig_readable(rig->context->async_fd, ms)) return -1;
  struct ibv_async_event event;
  if (ibv_get_async_event(rig->context, &event)) return -1;
  if (element) *element = event.element.qp;
  ibv_ack_async_event(&event);
  return (int)event.event_type;
}

int queue_rig_to_error(struct ibv_qp* qp) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

int queue_rig_main(int argc, char** argv, const struct queue_test* tests, int count) {
  if (argc != 2) return 2;
  int list = !strcmp(argv[1], "--list");
  for (int i = 0; i < count; i++) {
    if (list) puts(tests[i].name);
    if (!strcmp(argv[1], tests[i].name)) return tests[i].run();
  }
  return list ? 0 : 2;
}
