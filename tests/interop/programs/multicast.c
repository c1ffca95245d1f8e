// SPDX-License-Identifier: Apache-2.0
//
// multicast: UD QPs in multicast groups, as `mckey` without the connection manager.
//
//   multicast recv GID_INDEX GROUP QPS COUNT [QKEY]   attaches QPS QPs to GROUP, prints "ready", and ends when each of them
//                                                     has COUNT datagrams; prints "got N from QPN…"
//   multicast send GID_INDEX GROUP COUNT BYTES        sends to GROUP; with COUNT datagrams numbered from 0
//   multicast both GID_INDEX GROUP COUNT BYTES        a member that sends: must get its own
//   multicast deaf GID_INDEX GROUP OTHER              joins GROUP and leaves it, joins OTHER, prints "ready"; the first
//                                                     datagram that it gets must be one for OTHER
//   multicast rules GID_INDEX GROUP                   what ATTACH and DETACH refuse
//
// GROUP is an IPv4 or IPv6 multicast address. Receivers check order, numbers and bytes of every datagram, the GRH (its
// destination is the group) and completion's source. Exit code 0: all as it should be.
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs_pair.h"

#define MAX_QPS 16
#define DEPTH 256
#define GRH 40
#define BYTES 4096
#define QKEY 0x1234

struct member {
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_cq* cq;
  struct ibv_qp* qps[MAX_QPS];
  uint32_t got[MAX_QPS];
  int count;
  uint8_t* memory;
  struct ibv_mr* mr;
  union ibv_gid group;
  int gid_index;
};

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  return 1;
}

static int parse_group(const char* text, union ibv_gid* out) {
  struct in_addr v4;
  memset(out, 0, sizeof *out);
  if (inet_pton(AF_INET6, text, out->raw) == 1) return 0;
  if (inet_pton(AF_INET, text, &v4) != 1) return -1;
  out->raw[10] = out->raw[11] = 0xFF;
  memcpy(out->raw + 12, &v4, 4);
  return 0;
}

static struct ibv_qp* make_qp(struct member* m, uint32_t qkey) {
  struct ibv_qp_init_attr init = {.send_cq = m->cq, .recv_cq = m->cq, .qp_type = IBV_QPT_UD,
                                  .cap = {DEPTH, DEPTH, 2, 2, 0}, .sq_sig_all = 1};
  struct ibv_qp* qp = ibv_create_qp(m->pd, &init);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey};
  if (qp == NULL) return NULL;
  if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)) return NULL;
  attr.qp_state = IBV_QPS_RTR;
  if (ibv_modify_qp(qp, &attr, IBV_QP_STATE)) return NULL;
  attr.qp_state = IBV_QPS_RTS;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) ? NULL : qp;
}

static int post_receive(struct member* m, int qp, uint32_t slot) {
  const uint64_t at = (uint64_t)qp * DEPTH + slot;
  struct ibv_sge sge = {(uintptr_t)m->memory + at * (GRH + BYTES), GRH + BYTES, m->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = at, .sg_list = &sge, .num_sge = 1};
  struct ibv_recv_wr* bad;
  return ibv_post_recv(m->qps[qp], &wr, &bad);
}

static int open_member(struct member* m, int count, uint32_t qkey) {
  m->context = verbs_open_first_device();
  if (m->context == NULL) return 1;
  m->count = count;
  m->pd = ibv_alloc_pd(m->context);
  m->cq = ibv_create_cq(m->context, MAX_QPS * DEPTH * 2, NULL, NULL, 0);
  const size_t bytes = (size_t)(count * DEPTH + 1) * (GRH + BYTES);
  m->memory = calloc(1, bytes);
  if (m->pd == NULL || m->cq == NULL || m->memory == NULL) return fail("cannot set up");
  m->mr = ibv_reg_mr(m->pd, m->memory, bytes, IBV_ACCESS_LOCAL_WRITE);
  for (int i = 0; i < count; ++i) {
    m->qps[i] = make_qp(m, qkey);
    if (m->qps[i] == NULL || m->mr == NULL) return fail("cannot make a QP");
    for (uint32_t slot = 0; slot < DEPTH; ++slot) {
      if (post_receive(m, i, slot)) return fail("post_recv");
    }
  }
  return 0;
}

static int attach_all(struct member* m) {
  for (int i = 0; i < m->count; ++i) {
    if ((errno = ibv_attach_mcast(m->qps[i], &m->group, 0)) != 0) return fail("ibv_attach_mcast");
  }
  return 0;
}

static int close_member(struct member* m) {
  for (int i = 0; i < m->count; ++i) {
    ibv_detach_mcast(m->qps[i], &m->group, 0);
    if ((errno = ibv_destroy_qp(m->qps[i])) != 0) return fail("ibv_destroy_qp");
  }
  ibv_dereg_mr(m->mr);
  ibv_destroy_cq(m->cq);
  if ((errno = ibv_dealloc_pd(m->pd)) != 0) return fail("ibv_dealloc_pd");
  return ibv_close_device(m->context);
}

static void fill(uint8_t* to, uint32_t bytes, uint32_t number) {
  verbs_fill(to, bytes, number + 1);
  memcpy(to, &number, 4);
}

// The group is where the packet went: the IPv6 destination of the GRH, or the IPv4 one in its last 20 bytes.
static int went_to_group(const struct member* m, const uint8_t* grh) {
  if (m->group.raw[0] == 0xFF) return memcmp(grh + 24, m->group.raw, 16) == 0;
  return memcmp(grh + 36, m->group.raw + 12, 4) == 0;
}

static int take(struct member* m, const struct ibv_wc* wc) {
  const int qp = (int)(wc->wr_id / DEPTH);
  uint8_t* grh = m->memory + wc->wr_id * (GRH + BYTES);
  const uint32_t bytes = wc->byte_len - GRH;
  uint8_t expected[BYTES];
  uint32_t number;
  memcpy(&number, grh + GRH, 4);
  fill(expected, bytes, number);
  if (wc->qp_num != m->qps[qp]->qp_num || (wc->wc_flags & IBV_WC_GRH) == 0) return fail("a strange completion");
  if (!went_to_group(m, grh)) return fail("not sent to the group");
  if (number != m->got[qp] || memcmp(expected, grh + GRH, bytes) != 0) {
    fprintf(stderr, "QP %d: datagram %u, expected %u, or wrong bytes\n", qp, number, m->got[qp]);
    return 1;
  }
  ++m->got[qp];
  return post_receive(m, qp, (uint32_t)(wc->wr_id % DEPTH));
}

static int finished(const struct member* m, uint32_t count) {
  for (int i = 0; i < m->count; ++i) {
    if (m->got[i] < count) return 0;
  }
  return 1;
}

// Takes what comes until every QP has `count`, `seconds` are over, or *sends more sends are done.
static int collect(struct member* m, uint32_t count, uint32_t* sends, double seconds) {
  const double limit = verbs_now() + seconds;
  while (!finished(m, count) || (sends != NULL && *sends != 0)) {
    struct ibv_wc wc[16];
    const int n = ibv_poll_cq(m->cq, 16, wc);
    for (int i = 0; i < n; ++i) {
      if (wc[i].status != IBV_WC_SUCCESS) return fail(ibv_wc_status_str(wc[i].status));
      if (wc[i].opcode == IBV_WC_SEND) {
        if (sends != NULL) --*sends;
      } else if (take(m, &wc[i])) {
        return 1;
      }
    }
    if (n == 0 && verbs_now() > limit) {
      for (int i = 0; i < m->count; ++i) fprintf(stderr, "QP %d has %u of %u\n", i, m->got[i], count);
      return 1;
    }
  }
  return 0;
}

static int send_all(struct member* m, uint32_t count, uint32_t bytes, int own) {
  struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
  attr.grh.dgid = m->group;
  attr.grh.sgid_index = (uint8_t)m->gid_index;
  attr.grh.hop_limit = 1;
  struct ibv_ah* ah = ibv_create_ah(m->pd, &attr);
  if (ah == NULL) return fail("ibv_create_ah");
  uint8_t* from = m->memory + (size_t)m->count * DEPTH * (GRH + BYTES);
  for (uint32_t number = 0; number < count; ++number) {
    fill(from, bytes, number);
    struct ibv_sge sge = {(uintptr_t)from, bytes, m->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
    struct ibv_send_wr* bad;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = 0xFFFFFF;
    wr.wr.ud.remote_qkey = QKEY;
    uint32_t sends = 1;
    if ((errno = ibv_post_send(m->qps[0], &wr, &bad)) != 0) return fail("ibv_post_send");
    if (collect(m, own ? number + 1 : 0, &sends, 5)) return 1;
  }
  return ibv_destroy_ah(ah);
}

static int expect_error(const char* what, int got, int wanted) {
  if (got == wanted) return 0;
  fprintf(stderr, "%s: %d, expected %d\n", what, got, wanted);
  return 1;
}

static int rules(struct member* m) {
  struct ibv_qp_init_attr init = {.send_cq = m->cq, .recv_cq = m->cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
  struct ibv_qp* rc = ibv_create_qp(m->pd, &init);
  union ibv_gid own;
  struct ibv_device_attr device;
  if (rc == NULL || ibv_query_gid(m->context, 1, m->gid_index, &own) || ibv_query_device(m->context, &device)) return fail("setup");
  int bad = device.max_mcast_grp == 0 || device.max_mcast_qp_attach == 0 || device.max_total_mcast_qp_attach == 0;
  bad |= expect_error("attach RC", ibv_attach_mcast(rc, &m->group, 0), EINVAL);
  bad |= expect_error("attach to a unicast GID", ibv_attach_mcast(m->qps[0], &own, 0), EINVAL);
  bad |= expect_error("detach what is not attached", ibv_detach_mcast(m->qps[0], &m->group, 0), EINVAL);
  bad |= expect_error("attach", ibv_attach_mcast(m->qps[0], &m->group, 0), 0);
  bad |= expect_error("attach again", ibv_attach_mcast(m->qps[0], &m->group, 0), 0);
  bad |= expect_error("destroy while attached", ibv_destroy_qp(m->qps[0]), EBUSY);
  bad |= expect_error("detach", ibv_detach_mcast(m->qps[0], &m->group, 0), 0);
  bad |= expect_error("detach again", ibv_detach_mcast(m->qps[0], &m->group, 0), EINVAL);
  bad |= expect_error("destroy RC", ibv_destroy_qp(rc), 0);
  return bad;
}

static int deaf(struct member* m, const char* other) {
  if (attach_all(m) || ibv_detach_mcast(m->qps[0], &m->group, 0)) return 1;
  if (parse_group(other, &m->group) || attach_all(m)) return 1;
  printf("ready\n");
  fflush(stdout);
  return collect(m, 1, NULL, 20);
}

int main(int argc, char** argv) {
  struct member m = {0};
  if (argc < 4) return 2;
  const char* mode = argv[1];
  const int receives = strcmp(mode, "recv") == 0;
  const int qps = receives && argc > 4 ? atoi(argv[4]) : 1;
  m.gid_index = atoi(argv[2]);
  if (parse_group(argv[3], &m.group) || qps < 1 || qps > MAX_QPS) return 2;
  if (open_member(&m, qps, receives && argc > 6 ? (uint32_t)strtoul(argv[6], NULL, 0) : QKEY)) return 1;
  int result = 2;
  if (receives && argc > 5) {
    result = attach_all(&m);
    printf("ready\n");
    fflush(stdout);
    if (result == 0) result = collect(&m, (uint32_t)atoi(argv[5]), NULL, 20);
    printf("got %u\n", m.got[0]);
  } else if (strcmp(mode, "send") == 0 && argc > 5) {
    result = send_all(&m, (uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5]), 0);
  } else if (strcmp(mode, "both") == 0 && argc > 5) {
    result = attach_all(&m) || send_all(&m, (uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5]), 1);
  } else if (strcmp(mode, "deaf") == 0 && argc > 4) {
    result = deaf(&m, argv[4]);
  } else if (strcmp(mode, "rules") == 0) {
    result = rules(&m);
  }
  const int closed = close_member(&m);
  return result != 0 ? result : closed;
}
