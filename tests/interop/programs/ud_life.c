// SPDX-License-Identifier: Apache-2.0
//
// ud_life GID_INDEX: two UD QPs of one process, and what datagrams, their GRH and address handles owe a program. Each
// check that fails is a line on stderr. Exit code 0: all as it should be.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "verbs_pair.h"

#define GRH 40
#define ROOM 4096
#define QKEY 0x11223344u

struct side {
  struct ibv_qp* qp;
  uint8_t memory[GRH + ROOM];
  struct ibv_mr* mr;
};

struct test {
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_cq* cq;
  struct side side[2];
  union ibv_gid gid;
  int gid_index;
  int bad;
};

static void check(struct test* t, int good, const char* what) {
  if (good) return;
  fprintf(stderr, "GID %d: %s\n", t->gid_index, what);
  t->bad = 1;
}

static struct ibv_qp* make_qp(struct test* t, struct ibv_pd* pd, uint32_t qkey) {
  struct ibv_qp_init_attr init = {.send_cq = t->cq, .recv_cq = t->cq, .qp_type = IBV_QPT_UD, .cap = {16, 16, 2, 2, 0}, .sq_sig_all = 1};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey};
  if (qp == NULL || ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)) return NULL;
  attr.qp_state = IBV_QPS_RTR;
  if (ibv_modify_qp(qp, &attr, IBV_QP_STATE)) return NULL;
  attr.qp_state = IBV_QPS_RTS;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) ? NULL : qp;
}

static int open_test(struct test* t) {
  t->context = verbs_open_first_device();
  if (t->context == NULL) return 1;
  t->pd = ibv_alloc_pd(t->context);
  t->cq = ibv_create_cq(t->context, 64, NULL, NULL, 0);
  if (t->pd == NULL || t->cq == NULL || ibv_query_gid(t->context, 1, t->gid_index, &t->gid)) return 1;
  for (int i = 0; i < 2; ++i) {
    t->side[i].mr = ibv_reg_mr(t->pd, t->side[i].memory, sizeof t->side[i].memory, IBV_ACCESS_LOCAL_WRITE);
    t->side[i].qp = make_qp(t, t->pd, QKEY);
    if (t->side[i].mr == NULL || t->side[i].qp == NULL) return 1;
  }
  return 0;
}

static struct ibv_ah* handle_to_self(struct test* t, struct ibv_pd* pd) {
  struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
  attr.grh.dgid = t->gid;
  attr.grh.sgid_index = (uint8_t)t->gid_index;
  attr.grh.traffic_class = 0x20;
  attr.grh.hop_limit = 5;
  return ibv_create_ah(pd, &attr);
}

static void receive(struct test* t, int side, uint32_t bytes) {
  struct ibv_sge sge = {(uintptr_t)t->side[side].memory, bytes, t->side[side].mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = 100, .sg_list = &sge, .num_sge = 1};
  struct ibv_recv_wr* bad;
  memset(t->side[side].memory, 0xEE, sizeof t->side[side].memory);
  check(t, ibv_post_recv(t->side[side].qp, &wr, &bad) == 0, "ibv_post_recv");
}

static void send(struct test* t, int from, struct ibv_ah* ah, uint32_t qkey, uint32_t bytes, uint32_t immediate) {
  static uint8_t payload[ROOM];
  struct ibv_mr* mr = ibv_reg_mr(t->pd, payload, sizeof payload, 0);
  struct ibv_sge sge = {(uintptr_t)payload, bytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = 200, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = immediate};
  struct ibv_send_wr* bad;
  struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
  verbs_fill(payload, bytes, immediate);
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = t->side[1 - from].qp->qp_num;
  wr.wr.ud.remote_qkey = qkey;
  check(t, ibv_post_send(t->side[from].qp, &wr, &bad) == 0, "ibv_post_send");
  const double limit = verbs_now() + 5;
  // Its own completion only: the datagram may come before it, and then waits in the CQ of its turn.
  while (verbs_now() < limit) {
    struct ibv_wc next;
    if (ibv_poll_cq(t->cq, 1, &next) != 1) continue;
    if (next.wr_id == 200) {
      wc = next;
      break;
    }
    check(t, 0, "a datagram before its send had completed");
  }
  check(t, wc.status == IBV_WC_SUCCESS, "a send failed");
  ibv_dereg_mr(mr);
}

static int arrived(struct test* t, struct ibv_wc* wc, double seconds) {
  const double limit = verbs_now() + seconds;
  while (verbs_now() < limit) {
    if (ibv_poll_cq(t->cq, 1, wc) == 1) return 1;
  }
  return 0;
}

static void check_datagram(struct test* t, int to, const struct ibv_wc* wc, uint32_t bytes, uint32_t immediate) {
  const uint8_t* grh = t->side[to].memory;
  check(t, wc->status == IBV_WC_SUCCESS && wc->wr_id == 100, "a receive failed");
  check(t, wc->byte_len == GRH + bytes, "byte_len counts the GRH area and the payload");
  check(t, (wc->wc_flags & IBV_WC_GRH) != 0, "IBV_WC_GRH");
  check(t, (wc->wc_flags & IBV_WC_WITH_IMM) != 0 && wc->imm_data == immediate, "the immediate");
  check(t, wc->src_qp == t->side[1 - to].qp->qp_num && wc->qp_num == t->side[to].qp->qp_num, "QP numbers");
  check(t, verbs_check(grh + GRH, bytes, immediate) < 0, "the payload");
  check(t, wc->sl == (t->gid_index == 0 ? 0x9 : 0xA), "the service level tells IPv6 or IPv4, as mlx5 has it");
  if (t->gid_index == 0) {
    check(t, grh[0] >> 4 == 6 && memcmp(grh + 8, &t->gid, 16) == 0 && memcmp(grh + 24, &t->gid, 16) == 0, "the GRH (IPv6)");
  } else {
    check(t, grh[20] >> 4 == 4 && memcmp(grh + 32, t->gid.raw + 12, 4) == 0 && memcmp(grh + 36, t->gid.raw + 12, 4) == 0,
          "the GRH area (IPv4 in its last 20 bytes)");
    check(t, grh[21] == 0x20, "the traffic class");
  }
}

// There, and back with a handle made of what came.
static void round_trip(struct test* t, struct ibv_ah* ah, uint32_t bytes) {
  struct ibv_wc wc;
  receive(t, 1, GRH + bytes);
  send(t, 0, ah, QKEY, bytes, 7);
  check(t, arrived(t, &wc, 5), "nothing arrived");
  check_datagram(t, 1, &wc, bytes, 7);
  struct ibv_ah* back = ibv_create_ah_from_wc(t->pd, &wc, (struct ibv_grh*)t->side[1].memory, 1);
  check(t, back != NULL, "ibv_create_ah_from_wc");
  if (back == NULL) return;
  receive(t, 0, GRH + bytes);
  send(t, 1, back, QKEY, bytes, 8);
  check(t, arrived(t, &wc, 5) && wc.src_qp == t->side[1].qp->qp_num && wc.byte_len == GRH + bytes, "no way back");
  check(t, ibv_destroy_ah(back) == 0, "ibv_destroy_ah");
}

// What must not arrive is followed by what must: the order of a flow is kept.
static void dropped(struct test* t, struct ibv_ah* ah, uint32_t qkey, uint32_t bytes, const char* what) {
  struct ibv_wc wc;
  receive(t, 1, GRH + 100);
  send(t, 0, ah, qkey, bytes, 1);
  send(t, 0, ah, QKEY, 100, 2);
  check(t, arrived(t, &wc, 5) && wc.imm_data == 2, what);
  check(t, !arrived(t, &wc, 0.01), "one receive, two completions");
}

static void handles(struct test* t, struct ibv_ah* ah) {
  struct ibv_pd* other = ibv_alloc_pd(t->context);
  struct ibv_ah* foreign = handle_to_self(t, other);
  check(t, foreign != NULL, "an address handle of another domain");
  check(t, ibv_dealloc_pd(other) == EBUSY, "a domain with an address handle can be freed");
  struct ibv_sge sge = {(uintptr_t)t->side[0].memory, 10, t->side[0].mr->lkey};
  struct ibv_send_wr wr = {.wr_id = 200, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
  struct ibv_send_wr* bad;
  struct ibv_wc wc;
  wr.wr.ud.ah = foreign;
  wr.wr.ud.remote_qpn = t->side[1].qp->qp_num;
  wr.wr.ud.remote_qkey = QKEY;
  check(t, ibv_post_send(t->side[0].qp, &wr, &bad) == 0 && arrived(t, &wc, 5) && wc.status == IBV_WC_LOC_QP_OP_ERR,
        "a handle of another domain is LOC_QP_OP_ERR");
  check(t, ibv_destroy_ah(foreign) == 0 && ibv_dealloc_pd(other) == 0, "the domain is free again");
  check(t, ibv_destroy_ah(ah) == 0, "ibv_destroy_ah");
}

int main(int argc, char** argv) {
  static struct test t;
  t.gid_index = argc > 1 && argv[1][0] == '1';
  if (open_test(&t)) {
    fprintf(stderr, "cannot set up: %s\n", strerror(errno));
    return 1;
  }
  struct ibv_ah* ah = handle_to_self(&t, t.pd);
  if (ah == NULL) return 1;
  for (int i = 0; i < 3; ++i) {
    static const uint32_t kSizes[] = {1, 1000, ROOM};
    round_trip(&t, ah, kSizes[i]);
  }
  dropped(&t, ah, QKEY + 1, 100, "a wrong Q_Key gets through");
  dropped(&t, ah, QKEY, 200, "a datagram that is too long takes the receive request along");
  // The top bit: the QP's own Q_Key, whatever the rest says. IBTA Vol 1, 10.2.5.
  struct ibv_wc wc;
  receive(&t, 1, GRH + 100);
  send(&t, 0, ah, 0x80000000u | 5, 100, 3);
  check(&t, arrived(&t, &wc, 5) && wc.imm_data == 3, "a Q_Key with its top bit set is not the QP's own");
  handles(&t, ah);
  for (int i = 0; i < 2; ++i) check(&t, ibv_destroy_qp(t.side[i].qp) == 0 && ibv_dereg_mr(t.side[i].mr) == 0, "the end");
  check(&t, ibv_destroy_cq(t.cq) == 0 && ibv_dealloc_pd(t.pd) == 0 && ibv_close_device(t.context) == 0, "the end");
  return t.bad;
}
