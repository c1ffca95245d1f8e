// SPDX-License-Identifier: Apache-2.0
//
// One process that is two hosts: under `weft run h0,h1` its rxe0 and its rxe1 are NICs of different hosts, and a queue
// pair on each sends to the other. Usage: two_hosts
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs_pair.h"

enum { kBytes = 100000, kRounds = 8 };

struct side {
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  struct ibv_mr* mr;
  union ibv_gid gid;
  uint8_t* buffer;
};

static int failed(const char* what) {
  fprintf(stderr, "two_hosts: %s: %s\n", what, strerror(errno));
  return 1;
}

static int open_side(struct side* s, struct ibv_device* device, const struct verbs_pair_options* options) {
  s->context = ibv_open_device(device);
  if (s->context == NULL) return failed("ibv_open_device");
  s->pd = ibv_alloc_pd(s->context);
  s->cq = ibv_create_cq(s->context, 64, NULL, NULL, 0);
  s->buffer = calloc(1, kBytes);
  if (s->pd == NULL || s->cq == NULL || s->buffer == NULL) return failed("ibv_create_cq");
  s->mr = ibv_reg_mr(s->pd, s->buffer, kBytes, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_qp_init_attr init = {.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
                                  .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
  s->qp = ibv_create_qp(s->pd, &init);
  if (s->mr == NULL || s->qp == NULL) return failed("ibv_create_qp");
  return ibv_query_gid(s->context, 1, options->gid_index, &s->gid) != 0 ? failed("ibv_query_gid") : 0;
}

static int await(struct side* s) {
  struct ibv_wc done;
  const double end = verbs_now() + 10;
  int got = 0;
  while ((got = ibv_poll_cq(s->cq, 1, &done)) == 0) {
    if (verbs_now() > end) {
      errno = ETIMEDOUT;
      return failed("no completion");
    }
  }
  if (got == 1 && done.status == IBV_WC_SUCCESS) return 0;
  fprintf(stderr, "two_hosts: completion status %d\n", got == 1 ? (int)done.status : got);
  return 1;
}

static int send_one(struct side* from, struct side* to, uint32_t seed) {
  struct ibv_sge in = {.addr = (uintptr_t)to->buffer, .length = kBytes, .lkey = to->mr->lkey};
  struct ibv_recv_wr receive = {.sg_list = &in, .num_sge = 1};
  struct ibv_recv_wr* bad_receive = NULL;
  struct ibv_sge out = {.addr = (uintptr_t)from->buffer, .length = kBytes, .lkey = from->mr->lkey};
  struct ibv_send_wr send = {.sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr* bad_send = NULL;
  verbs_fill(from->buffer, kBytes, seed);
  memset(to->buffer, 0, kBytes);
  if (ibv_post_recv(to->qp, &receive, &bad_receive) != 0 || ibv_post_send(from->qp, &send, &bad_send) != 0) return failed("post");
  if (await(to) != 0 || await(from) != 0) return 1;
  const long wrong = verbs_check(to->buffer, kBytes, seed);
  if (wrong < 0) return 0;
  fprintf(stderr, "two_hosts: byte %ld differs\n", wrong);
  return 1;
}

int main(void) {
  struct verbs_pair_options options = verbs_pair_defaults();
  struct side sides[2] = {{0}};
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  if (list == NULL || count != 2) {
    fprintf(stderr, "two_hosts: %d devices instead of 2\n", count);
    return 1;
  }
  for (int i = 0; i < 2; ++i) {
    if (open_side(&sides[i], list[i], &options) != 0) return 1;
  }
  char name[64] = "";
  gethostname(name, sizeof name);
  printf("%s: %s and %s\n", name, ibv_get_device_name(list[0]), ibv_get_device_name(list[1]));
  for (int i = 0; i < 2; ++i) {
    if (verbs_connect_qp(sides[i].qp, sides[1 - i].qp->qp_num, &sides[1 - i].gid, 100, 100, &options) != 0) return failed("connect");
  }
  for (uint32_t round = 0; round < kRounds; ++round) {
    if (send_one(&sides[round % 2], &sides[1 - round % 2], round + 1) != 0) return 1;
  }
  for (int i = 0; i < 2; ++i) {
    if (ibv_destroy_qp(sides[i].qp) != 0 || ibv_dereg_mr(sides[i].mr) != 0 || ibv_destroy_cq(sides[i].cq) != 0 ||
        ibv_dealloc_pd(sides[i].pd) != 0 || ibv_close_device(sides[i].context) != 0) {
      return failed("closing");
    }
    free(sides[i].buffer);
  }
  ibv_free_device_list(list);
  return 0;
}
