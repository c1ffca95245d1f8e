// SPDX-License-Identifier: Apache-2.0
//
// contended_atomics FILE CLIENTS COUNT server|NUMBER
//
// One process owns two counters; CLIENTS others, NUMBER 0 up, each add COUNT random values to the first with FETCH_ADD,
// up to four outstanding, and COUNT/2 ones to the second with CMP_SWAP. FILE is where they find each other. Exits with
// 0 when everything that was counted is there exactly once, and what a client was given back only ever grew.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "verbs_pair.h"

enum { kMaxClients = 16, kOutstanding = 4, kWaitSeconds = 40, kFirstPsn = 77 };

struct meeting {
  union ibv_gid server_gid, client_gid[kMaxClients];
  uint64_t address;
  uint32_t rkey;
  volatile uint32_t server_qpn[kMaxClients], client_qpn[kMaxClients], ready[kMaxClients], done[kMaxClients];
  volatile uint64_t added[kMaxClients];
};

static struct ibv_pd* pd;
static struct ibv_cq* cq;
static struct ibv_mr* mr;
static uint64_t words[8] __attribute__((aligned(64)));
static union ibv_gid gid;

static int wait_for(volatile uint32_t* word) {
  const double end = verbs_now() + kWaitSeconds;
  while (*word == 0 && verbs_now() < end) usleep(200);
  return *word != 0 ? 0 : -1;
}

static struct ibv_qp* make_qp(void) {
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
  init.cap.max_send_wr = init.cap.max_recv_wr = 16;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  return ibv_create_qp(pd, &init);
}

static int post(struct ibv_qp* qp, enum ibv_wr_opcode opcode, const struct meeting* m, int counter,
                uint64_t compare_add, uint64_t swap, int slot) {
  struct ibv_sge sge = {(uintptr_t)&words[slot], 8, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = (uint64_t)slot, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
  wr.wr.atomic.remote_addr = m->address + 8 * (uint64_t)counter;
  wr.wr.atomic.rkey = m->rkey;
  wr.wr.atomic.compare_add = compare_add;
  wr.wr.atomic.swap = swap;
  return ibv_post_send(qp, &wr, &bad);
}

static int complete(void) {
  struct ibv_wc wc;
  const double end = verbs_now() + kWaitSeconds;
  while (ibv_poll_cq(cq, 1, &wc) == 0) {
    if (verbs_now() > end) return fprintf(stderr, "no completion\n"), -1;
  }
  if (wc.status != IBV_WC_SUCCESS) return fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status)), -1;
  return 0;
}

static int serve(struct meeting* m, int clients, uint64_t count, const struct verbs_pair_options* options) {
  struct ibv_qp* qp[kMaxClients];
  m->server_gid = gid;
  m->address = (uintptr_t)words;
  m->rkey = mr->rkey;
  for (int i = 0; i < clients; ++i) {
    if ((qp[i] = make_qp()) == NULL) return 1;
    m->server_qpn[i] = qp[i]->qp_num;
  }
  for (int i = 0; i < clients; ++i) {
    if (wait_for(&m->client_qpn[i])) return fprintf(stderr, "client %d did not come\n", i), 1;
    const union ibv_gid peer = m->client_gid[i];
    if (verbs_connect_qp(qp[i], m->client_qpn[i], &peer, kFirstPsn, kFirstPsn, options)) return 1;
    m->ready[i] = 1;
  }
  uint64_t added = 0;
  for (int i = 0; i < clients; ++i) {
    if (wait_for(&m->done[i])) return fprintf(stderr, "client %d did not end\n", i), 1;
    added += m->added[i];
  }
  const uint64_t swapped = (uint64_t)clients * (count / 2);
  if (words[0] == added && words[1] == swapped) return 0;
  fprintf(stderr, "%lu added, %lu there; %lu swapped in, %lu there\n", added, words[0], swapped, words[1]);
  return 1;
}

static int add(struct ibv_qp* qp, struct meeting* m, int me, uint64_t count) {
  unsigned random = (unsigned)me;
  uint64_t added = 0, last = 0;
  for (uint64_t i = 0; i < count; i += kOutstanding) {
    uint64_t value[kOutstanding];
    for (int slot = 0; slot < kOutstanding; ++slot) {
      added += value[slot] = (uint64_t)rand_r(&random) % 1000 + 1;
      if (post(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, m, 0, value[slot], 0, slot)) return -1;
    }
    for (int slot = 0; slot < kOutstanding; ++slot) {
      if (complete()) return -1;
      if (words[slot] < last) return fprintf(stderr, "given back %lu after %lu\n", words[slot], last), -1;
      last = words[slot] + value[slot];
    }
  }
  m->added[me] = added;
  return 0;
}

static int swap(struct ibv_qp* qp, struct meeting* m, uint64_t count) {
  uint64_t seen = 0;
  for (uint64_t won = 0; won < count;) {
    if (post(qp, IBV_WR_ATOMIC_CMP_AND_SWP, m, 1, seen, seen + 1, 0) || complete()) return -1;
    won += words[0] == seen ? 1 : 0;
    seen = words[0] == seen ? seen + 1 : words[0];
  }
  return 0;
}

static int ask(struct meeting* m, int me, uint64_t count, const struct verbs_pair_options* options) {
  if (wait_for(&m->server_qpn[me])) return fprintf(stderr, "no server\n"), 1;
  const union ibv_gid peer = m->server_gid;
  struct ibv_qp* qp = make_qp();
  if (qp == NULL || verbs_connect_qp(qp, m->server_qpn[me], &peer, kFirstPsn, kFirstPsn, options)) return 1;
  m->client_gid[me] = gid;
  m->client_qpn[me] = qp->qp_num;
  if (wait_for(&m->ready[me])) return fprintf(stderr, "the server does not answer\n"), 1;
  if (add(qp, m, me, count) || swap(qp, m, count / 2)) return 1;
  m->done[me] = 1;
  return 0;
}

int main(int argc, char** argv) {
  const int clients = argc == 5 ? atoi(argv[2]) : 0;
  if (clients < 1 || clients > kMaxClients) {
    fprintf(stderr, "usage: contended_atomics FILE CLIENTS COUNT server|NUMBER\n");
    return 2;
  }
  const int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(struct meeting)) != 0) return perror(argv[1]), 2;
  struct meeting* m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (m == MAP_FAILED) return perror("mmap"), 2;
  struct verbs_pair_options options = verbs_pair_defaults();
  options.timeout = 12;  // 17 ms: shorter than what a process may wait for a processor
  struct ibv_context* context = verbs_open_first_device();
  if (context == NULL || ibv_query_gid(context, 1, options.gid_index, &gid)) return 1;
  pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 64, NULL, NULL, 0);
  mr = ibv_reg_mr(pd, words, sizeof words, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  if (pd == NULL || cq == NULL || mr == NULL) return perror("verbs"), 1;
  const uint64_t count = strtoull(argv[3], NULL, 0);
  return strcmp(argv[4], "server") == 0 ? serve(m, clients, count, &options) : ask(m, atoi(argv[4]), count, &options);
}
