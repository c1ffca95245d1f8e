// SPDX-License-Identifier: Apache-2.0
#include "verbs_pair.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { kQueueDepth = 64, kWaitMs = 10000, kPairBufferBytes = 1 << 20 };

double verbs_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint8_t pattern(size_t position, uint32_t seed) {
  uint32_t word = (uint32_t)position * 2654435761u + seed * 40503u;
  return (uint8_t)(word >> 13);
}

void verbs_fill(uint8_t* to, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; i++) to[i] = pattern(i, seed);
}

long verbs_check(const uint8_t* from, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; i++)
    if (from[i] != pattern(i, seed)) return (long)i;
  return -1;
}

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  return -1;
}

struct verbs_pair_options verbs_pair_defaults(void) {
  struct verbs_pair_options options = {
      .buffer_bytes = kPairBufferBytes,
      .gid_index = 1,
      .mtu = IBV_MTU_1024,
      .timeout = 14,
      .retry_count = 7,
      .target_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
      .wait_ms = kWaitMs,
  };
  return options;
}

struct ibv_context* verbs_open_first_device(void) {
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  if (!list || count == 0) {
    fprintf(stderr, "no RDMA device\n");
    if (list) ibv_free_device_list(list);
    return NULL;
  }
  struct ibv_context* context = ibv_open_device(list[0]);
  if (!context) failed("ibv_open_device");
  ibv_free_device_list(list);
  return context;
}

int verbs_connect_qp(struct ibv_qp* qp, uint32_t peer_qpn, const union ibv_gid* peer, uint32_t rq_psn, uint32_t sq_psn,
                     const struct verbs_pair_options* options) {
  struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  init.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  init.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
  if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
    return failed("modify to INIT");
  struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = options->mtu, .dest_qp_num = peer_qpn};
  rtr.rq_psn = rq_psn;
  rtr.max_dest_rd_atomic = 4;
  rtr.min_rnr_timer = 12;
  rtr.ah_attr.is_global = 1;
  rtr.ah_attr.port_num = 1;
  rtr.ah_attr.grh.dgid = *peer;
  rtr.ah_attr.grh.sgid_index = (uint8_t)options->gid_index;
  rtr.ah_attr.grh.hop_limit = 64;
  if (ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
    return failed("modify to RTR");
  struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = sq_psn, .timeout = options->timeout};
  rts.retry_cnt = options->retry_count;
  rts.rnr_retry = 7;
  rts.max_rd_atomic = 4;
  if (ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                  IBV_QP_MAX_QP_RD_ATOMIC))
    return failed("modify to RTS");
  return 0;
}

static int create_cq(struct verbs_pair* pair) {
  if (pair->options.events) {
    pair->channel = ibv_create_comp_channel(pair->context);
    if (!pair->channel) return failed("ibv_create_comp_channel");
  }
  if (pair->options.extended_cq) {
    struct ibv_cq_init_attr_ex attributes = {.cqe = 2 * kQueueDepth, .channel = pair->channel};
    pair->cq_ex = ibv_create_cq_ex(pair->context, &attributes);
    if (!pair->cq_ex) return failed("ibv_create_cq_ex");
    pair->cq = ibv_cq_ex_to_cq(pair->cq_ex);
    return 0;
  }
  pair->cq = ibv_create_cq(pair->context, 2 * kQueueDepth, NULL, pair->channel, 0);
  return pair->cq ? 0 : failed("ibv_create_cq");
}

static int create_side(struct verbs_pair* pair, int side) {
  size_t bytes = pair->options.buffer_bytes;
  pair->buffer[side] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pair->buffer[side] == MAP_FAILED) return failed("mmap");
  int access = side ? pair->options.target_access : IBV_ACCESS_LOCAL_WRITE;
  pair->mr[side] = ibv_reg_mr(pair->pd, pair->buffer[side], bytes, access);
  if (!pair->mr[side]) return failed("ibv_reg_mr");
  struct ibv_qp_init_attr_ex attributes = {.send_cq = pair->cq, .recv_cq = pair->cq, .qp_type = IBV_QPT_RC};
  attributes.cap.max_send_wr = attributes.cap.max_recv_wr = kQueueDepth;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  attributes.pd = pair->pd;
  attributes.comp_mask = IBV_QP_INIT_ATTR_PD | (pair->options.send_ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0);
  attributes.send_ops_flags = pair->options.send_ops;
  pair->qp[side] = ibv_create_qp_ex(pair->context, &attributes);
  return pair->qp[side] ? 0 : failed("ibv_create_qp");
}

int verbs_pair_open(struct verbs_pair* pair, const struct verbs_pair_options* options) {
  memset(pair, 0, sizeof *pair);
  pair->options = *options;
  pair->context = verbs_open_first_device();
  if (!pair->context) return -1;
  pair->pd = ibv_alloc_pd(pair->context);
  if (!pair->pd) return failed("ibv_alloc_pd");
  if (create_cq(pair) || create_side(pair, 0) || create_side(pair, 1)) return -1;
  union ibv_gid gid;
  if (ibv_query_gid(pair->context, 1, options->gid_index, &gid)) return failed("ibv_query_gid");
  for (int side = 0; side < 2; side++) {
    uint32_t own = side ? 0xfffff0u : 7u, other = side ? 7u : 0xfffff0u;  // one direction wraps its PSN early
    if (verbs_connect_qp(pair->qp[side], pair->qp[!side]->qp_num, &gid, other, own, options)) return -1;
  }
  return 0;
}

void verbs_pair_close(struct verbs_pair* pair) {
  for (int side = 0; side < 2; side++) {
    if (pair->qp[side]) ibv_destroy_qp(pair->qp[side]);
    if (pair->mr[side]) ibv_dereg_mr(pair->mr[side]);
    if (pair->buffer[side] && !pair->buffer_gone[side]) munmap(pair->buffer[side], pair->options.buffer_bytes);
  }
  if (pair->pending_events) ibv_ack_cq_events(pair->cq, pair->pending_events);
  if (pair->cq) ibv_destroy_cq(pair->cq);
  if (pair->channel) ibv_destroy_comp_channel(pair->channel);
  if (pair->pd) ibv_dealloc_pd(pair->pd);
  if (pair->context) ibv_close_device(pair->context);
}

int verbs_pair_post_receive(struct verbs_pair* pair, size_t bytes) {
  struct ibv_sge sge = {(uintptr_t)pair->buffer[1], (uint32_t)bytes, pair->mr[1]->lkey};
  struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1};
  struct ibv_recv_wr* bad = NULL;
  return ibv_post_recv(pair->qp[1], &wr, &bad);
}

int verbs_pair_post(struct verbs_pair* pair, enum ibv_wr_opcode opcode, uint64_t local, uint32_t lkey, size_t bytes,
                    uint64_t remote, uint32_t rkey) {
  struct ibv_sge sge = {local, (uint32_t)bytes, lkey};
  struct ibv_send_wr wr = {.wr_id = 0, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
  struct ibv_send_wr* bad = NULL;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = remote;
  wr.wr.rdma.rkey = rkey;
  return ibv_post_send(pair->qp[0], &wr, &bad);
}

static int poll_once(struct verbs_pair* pair) {
  if (!pair->cq_ex) {
    struct ibv_wc wc;
    int count = ibv_poll_cq(pair->cq, 1, &wc);
    if (count > 0) pair->status[wc.wr_id & 1] = (int)wc.status;
    return count;
  }
  struct ibv_poll_cq_attr attributes = {0};
  int error = ibv_start_poll(pair->cq_ex, &attributes);
  if (error == ENOENT) return 0;
  if (error) return -error;
  pair->status[pair->cq_ex->wr_id & 1] = (int)pair->cq_ex->status;
  // One completion per start_poll: when next_poll finds nothing, rdma-core 44's rxe provider steps over the completion
  // that comes after (its end_poll advances once more; mended in version 55).
  ibv_end_poll(pair->cq_ex);
  return 1;
}

// Arms the CQ, and sleeps unless a completion slipped in before.
static int sleep_for_event(struct verbs_pair* pair, int timeout_ms) {
  if (ibv_req_notify_cq(pair->cq, 0)) return failed("ibv_req_notify_cq");
  int count = poll_once(pair);
  if (count) return count < 0 ? count : 0;
  struct pollfd item = {.fd = pair->channel->fd, .events = POLLIN};
  if (poll(&item, 1, timeout_ms) <= 0) return 0;
  struct ibv_cq* cq;
  void* cq_context;
  if (ibv_get_cq_event(pair->channel, &cq, &cq_context)) return failed("ibv_get_cq_event");
  pair->pending_events++;
  return 0;
}

int verbs_pair_wait(struct verbs_pair* pair, int both) {
  double end = verbs_now() + pair->options.wait_ms * 1e-3;
  for (;;) {
    int count = poll_once(pair);
    if (count < 0) return count;
    if (pair->status[0] >= 0 && (!both || pair->status[1] >= 0)) return 0;
    if (count) continue;
    double left = end - verbs_now();
    if (left <= 0) return -ETIMEDOUT;
    if (pair->channel && sleep_for_event(pair, (int)(left * 1e3) + 1) < 0) return -EIO;
  }
}

static int finish(struct verbs_pair* pair, const uint8_t* target, size_t bytes, uint32_t seed, int both) {
  int error = verbs_pair_wait(pair, both);
  if (error) return error;
  if (pair->status[0] != IBV_WC_SUCCESS) return pair->status[0];
  if (both && pair->status[1] != IBV_WC_SUCCESS) return pair->status[1];
  long at = verbs_check(target, bytes, seed);
  if (at < 0) return IBV_WC_SUCCESS;
  fprintf(stderr, "byte %ld of %zu differs\n", at, bytes);
  return -EBADMSG;
}

int verbs_pair_send(struct verbs_pair* pair, size_t bytes, uint32_t seed) {
  pair->status[0] = pair->status[1] = -1;
  verbs_fill(pair->buffer[0], bytes, seed);
  memset(pair->buffer[1], 0, bytes);
  int error = verbs_pair_post_receive(pair, bytes);
  if (!error)
    error = verbs_pair_post(pair, IBV_WR_SEND, (uintptr_t)pair->buffer[0], pair->mr[0]->lkey, bytes, 0, 0);
  return error ? -error : finish(pair, pair->buffer[1], bytes, seed, 1);
}

int verbs_pair_write(struct verbs_pair* pair, size_t bytes, uint32_t seed) {
  pair->status[0] = pair->status[1] = -1;
  verbs_fill(pair->buffer[0], bytes, seed);
  memset(pair->buffer[1], 0, bytes);
  int error = verbs_pair_post(pair, IBV_WR_RDMA_WRITE, (uintptr_t)pair->buffer[0], pair->mr[0]->lkey, bytes,
                              (uintptr_t)pair->buffer[1], pair->mr[1]->rkey);
  return error ? -error : finish(pair, pair->buffer[1], bytes, seed, 0);
}

int verbs_pair_read(struct verbs_pair* pair, size_t bytes, uint32_t seed) {
  pair->status[0] = pair->status[1] = -1;
  verbs_fill(pair->buffer[1], bytes, seed);
  memset(pair->buffer[0], 0, bytes);
  int error = verbs_pair_post(pair, IBV_WR_RDMA_READ, (uintptr_t)pair->buffer[0], pair->mr[0]->lkey, bytes,
                              (uintptr_t)pair->buffer[1], pair->mr[1]->rkey);
  return error ? -error : finish(pair, pair->buffer[0], bytes, seed, 0);
}
