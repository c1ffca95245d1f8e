// SPDX-License-Identifier: Apache-2.0
#include "qp_rig.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs_pair.h"

enum { kGidIndex = 1, kPsnStep = 0x3579bd };

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  return -1;
}

struct rig_options rig_defaults(enum ibv_qp_type type) {
  struct rig_options options = {.type = type,
                                .bytes = 1 << 16,
                                .mtu = {IBV_MTU_1024, IBV_MTU_1024},
                                .timeout = 14,
                                .retry = 7,
                                .rnr_retry = 7,
                                .min_rnr_timer = 12,
                                .rd_atomic = {4, 4},
                                .dest_rd_atomic = {4, 4},
                                .depth = 32,
                                .sges = 4,
                                .wait_ms = 10000};
  options.mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  options.qp_access[0] = options.qp_access[1] = options.mr_access;
  return options;
}

static struct ibv_qp* create_qp(struct rig* rig, struct rig_side* side) {
  const struct rig_options* o = &rig->options;
  struct ibv_qp_init_attr_ex attributes = {.send_cq = side->cq, .recv_cq = side->cq, .qp_type = o->type};
  attributes.cap.max_send_wr = attributes.cap.max_recv_wr = o->depth;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = o->sges;
  attributes.cap.max_inline_data = o->inline_bytes;
  struct ibv_qp* qp;
  if (o->extended) {
    attributes.pd = rig->pd;
    attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attributes.send_ops_flags = IBV_QP_EX_WITH_SEND;
    if (o->type != IBV_QPT_UD) attributes.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE;
    qp = ibv_create_qp_ex(rig->context, &attributes);
  } else {
    qp = ibv_create_qp(rig->pd, (struct ibv_qp_init_attr*)&attributes);
  }
  side->max_inline = attributes.cap.max_inline_data;
  return qp;
}

static int open_side(struct rig* rig, struct rig_side* side) {
  side->buffer = aligned_alloc(4096, (rig->options.bytes + 4095) / 4096 * 4096);
  if (!side->buffer) return failed("aligned_alloc");
  memset(side->buffer, 0, rig->options.bytes);
  side->mr = ibv_reg_mr(rig->pd, side->buffer, rig->options.bytes, rig->options.mr_access);
  if (!side->mr) return failed("ibv_reg_mr");
  side->channel = ibv_create_comp_channel(rig->context);
  if (!side->channel) return failed("ibv_create_comp_channel");
  side->cq = ibv_create_cq(rig->context, 2 * (int)rig->options.depth, NULL, side->channel, 0);
  if (!side->cq) return failed("ibv_create_cq");
  side->qp = create_qp(rig, side);
  if (!side->qp) return failed("create QP");
  if (rig->options.type != IBV_QPT_UD) return 0;
  struct ibv_ah_attr address = {.is_global = 1, .port_num = 1};
  address.grh.dgid = rig->gid;
  address.grh.sgid_index = kGidIndex;
  side->ah = ibv_create_ah(rig->pd, &address);
  return side->ah ? 0 : failed("ibv_create_ah");
}

int rig_open(struct rig* rig, const struct rig_options* options) {
  memset(rig, 0, sizeof *rig);
  rig->options = *options;
  rig->psn[0] = 0xffffe0 - kPsnStep;  // one direction wraps early
  rig->context = verbs_open_first_device();
  if (!rig->context) return -1;
  rig->pd = ibv_alloc_pd(rig->context);
  if (!rig->pd) return failed("ibv_alloc_pd");
  if (ibv_query_gid(rig->context, 1, kGidIndex, &rig->gid)) return failed("ibv_query_gid");
  return open_side(rig, &rig->side[0]) || open_side(rig, &rig->side[1]) ? -1 : 0;
}

void rig_close(struct rig* rig) {
  int side;
  // Events that nobody asked for still need their acknowledge, or destroying hangs.
  while (rig_event(rig, 0, &side) != kRigNoEvent) continue;
  for (int i = 0; i < 2; i++) {
    struct rig_side* s = &rig->side[i];
    if (s->ah) ibv_destroy_ah(s->ah);
    if (s->qp) ibv_destroy_qp(s->qp);
    if (s->channel_events) ibv_ack_cq_events(s->cq, s->channel_events);
    if (s->cq) ibv_destroy_cq(s->cq);
    if (s->channel) ibv_destroy_comp_channel(s->channel);
    if (s->mr) ibv_dereg_mr(s->mr);
    free(s->buffer);
  }
  if (rig->pd) ibv_dealloc_pd(rig->pd);
  if (rig->context) ibv_close_device(rig->context);
}

// --- states ------------------------------------------------------------------------------------------------------

int rig_to_init(struct rig* rig, int side) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = kRigQkey};
  attr.qp_access_flags = (unsigned)rig->options.qp_access[side];
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  mask |= rig->options.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
  return ibv_modify_qp(rig->side[side].qp, &attr, mask);
}

int rig_to_rtr(struct rig* rig, int side) {
  const struct rig_options* o = &rig->options;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = o->mtu[side]};
  attr.dest_qp_num = rig->side[!side].qp->qp_num;
  attr.rq_psn = rig->psn[!side];
  attr.max_dest_rd_atomic = o->dest_rd_atomic[side];
  attr.min_rnr_timer = o->min_rnr_timer;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = rig->gid;
  attr.ah_attr.grh.sgid_index = kGidIndex;
  int mask = IBV_QP_STATE;
  if (o->type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (o->type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  return ibv_modify_qp(rig->side[side].qp, &attr, mask);
}

int rig_to_rts(struct rig* rig, int side) {
  const struct rig_options* o = &rig->options;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .sq_psn = rig->psn[side], .timeout = o->timeout};
  attr.retry_cnt = o->retry;
  attr.rnr_retry = o->rnr_retry;
  attr.max_rd_atomic = o->rd_atomic[side];
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (o->type == IBV_QPT_RC) {
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  return ibv_modify_qp(rig->side[side].qp, &attr, mask);
}

int rig_to(struct rig* rig, int side, enum ibv_qp_state state) {
  struct ibv_qp_attr attr = {.qp_state = state};
  return ibv_modify_qp(rig->side[side].qp, &attr, IBV_QP_STATE);
}

int rig_connect(struct rig* rig) {
  for (int side = 0; side < 2; side++) rig->psn[side] = (rig->psn[side] + kPsnStep) & 0xffffff;
  for (int step = 0; step < 3; step++) {
    for (int side = 0; side < 2; side++) {
      int error = step == 0 ? rig_to_init(rig, side) : step == 1 ? rig_to_rtr(rig, side) : rig_to_rts(rig, side);
      if (!error) continue;
      fprintf(stderr, "side %d to %s: %s\n", side, step == 0 ? "INIT" : step == 1 ? "RTR" : "RTS", strerror(error));
      return -1;
    }
  }
  return 0;
}

int rig_start(struct rig* rig, const struct rig_options* options) {
  return rig_open(rig, options) || rig_connect(rig);
}

int rig_state(struct rig* rig, int side) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  if (ibv_query_qp(rig->side[side].qp, &attr, IBV_QP_STATE, &init)) return failed("ibv_query_qp");
  return (int)attr.qp_state;
}

// --- work --------------------------------------------------------------------------------------------------------

int rig_receive(struct rig* rig, int side, uint64_t wr_id, size_t offset, size_t bytes) {
  struct rig_side* s = &rig->side[side];
  struct ibv_sge sge = {(uintptr_t)s->buffer + offset, (uint32_t)bytes, s->mr ? s->mr->lkey : 0};
  struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
  struct ibv_recv_wr* bad = NULL;
  return ibv_post_recv(s->qp, &wr, &bad);
}

void rig_describe(struct rig* rig, int side, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t offset, size_t bytes,
                  size_t remote_offset, struct rig_work* out) {
  struct rig_side* s = &rig->side[side];
  struct rig_side* peer = &rig->side[!side];
  memset(out, 0, sizeof *out);
  out->sge[0] = (struct ibv_sge){(uintptr_t)s->buffer + offset, (uint32_t)bytes, s->mr ? s->mr->lkey : 0};
  out->wr.wr_id = wr_id;
  out->wr.num_sge = 1;
  out->wr.opcode = opcode;
  out->wr.send_flags = IBV_SEND_SIGNALED;
  if (s->ah) {
    out->wr.wr.ud.ah = s->ah;
    out->wr.wr.ud.remote_qpn = peer->qp->qp_num;
    out->wr.wr.ud.remote_qkey = kRigQkey;
  } else {
    out->wr.wr.rdma.remote_addr = (uintptr_t)peer->buffer + remote_offset;
    out->wr.wr.rdma.rkey = peer->mr ? peer->mr->rkey : 0;
  }
}

int rig_post(struct rig* rig, int side, struct rig_work* work) {
  struct ibv_send_wr* bad = NULL;
  work->wr.sg_list = work->sge;
  return ibv_post_send(rig->side[side].qp, &work->wr, &bad);
}

int rig_send(struct rig* rig, int side, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t offset, size_t bytes,
             size_t remote_offset) {
  struct rig_work work;
  rig_describe(rig, side, wr_id, opcode, offset, bytes, remote_offset, &work);
  return rig_post(rig, side, &work);
}

int rig_poll(struct rig* rig, int side, struct ibv_wc* wc) { return ibv_poll_cq(rig->side[side].cq, 1, wc); }

int rig_wait(struct rig* rig, int side, struct ibv_wc* wc) {
  double end = verbs_now() + rig->options.wait_ms * 1e-3;
  int count;
  while ((count = rig_poll(rig, side, wc)) == 0)
    if (verbs_now() > end) break;
  return count == 1 ? 0 : -1;
}

int rig_sleep(struct rig* rig, int side) {
  struct rig_side* s = &rig->side[side];
  struct pollfd item = {.fd = s->channel->fd, .events = POLLIN};
  if (poll(&item, 1, rig->options.wait_ms) <= 0) return -1;
  struct ibv_cq* cq;
  void* cq_context;
  if (ibv_get_cq_event(s->channel, &cq, &cq_context) || cq != s->cq) return -1;
  s->channel_events++;
  return 0;
}

int rig_event(struct rig* rig, int wait_ms, int* side) {
  struct pollfd item = {.fd = rig->context->async_fd, .events = POLLIN};
  if (poll(&item, 1, wait_ms) <= 0) return kRigNoEvent;
  struct ibv_async_event event;
  if (ibv_get_async_event(rig->context, &event)) return kRigNoEvent;
  *side = -1;
  for (int i = 0; i < 2; i++)
    if (event.element.qp == rig->side[i].qp) *side = i;
  ibv_ack_async_event(&event);
  return (int)event.event_type;
}
