// SPDX-License-Identifier: Apache-2.0
//
// memory_access CASE: posts one work request that must fail in a named way, and judges the completion's status.
// Afterwards a second, healthy pair of the same process must still work: an error of one QP is its own affair.
// Prints "CASE: status <text>"; exit code 0 when it is the expected one, 1 when not, 2 for an unknown case.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "verbs_pair.h"

enum { kBytes = 65536 };

struct access_case {
  const char* name;
  enum ibv_wr_opcode opcode;
  int expected;           // status of side 0
  int expected_receiver;  // status of side 1, or -1 when it completes nothing
};

// IBTA Vol 1, 10.8.2: local errors are found by the requester; 9.7.4.1.5: remote ones come back as a NAK.
static const struct access_case kCases[] = {
    {"bad-lkey", IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR, -1},
    {"bad-lkey-send", IBV_WR_SEND, IBV_WC_LOC_PROT_ERR, -1},
    {"bad-rkey-write", IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, -1},
    {"bad-rkey-read", IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR, -1},
    {"beyond-local", IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR, -1},
    {"beyond-remote-write", IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, -1},
    {"beyond-remote-read", IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR, -1},
    {"before-remote", IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, -1},
    {"wrapping-remote", IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, -1},
    {"no-remote-write", IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, -1},
    {"no-remote-read", IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR, -1},
    {"deregistered-local", IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR, -1},
    {"deregistered-remote", IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, -1},
    {"unmapped-local", IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR, -1},
    {"unmapped-local-read", IBV_WR_RDMA_READ, IBV_WC_LOC_PROT_ERR, -1},
    {"unmapped-remote-write", IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, -1},
    {"unmapped-remote-read", IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR, -1},
    {"receive-too-short", IBV_WR_SEND, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR},
};

struct request {
  uint64_t local, remote;
  uint32_t lkey, rkey;
  size_t bytes, receive_bytes;
};

static void unmap(struct verbs_pair* pair, int side) {
  // The second half only: the fault comes in the middle of a message.
  munmap(pair->buffer[side] + kBytes / 2, pair->options.buffer_bytes - kBytes / 2);
}

static void deregister(struct verbs_pair* pair, int side) {
  ibv_dereg_mr(pair->mr[side]);
  pair->mr[side] = NULL;
}

static void spoil(struct verbs_pair* pair, const char* name, struct request* r) {
  if (!strncmp(name, "bad-lkey", 8)) r->lkey ^= 0x5a5a00;
  if (!strncmp(name, "bad-rkey", 8)) r->rkey ^= 0x5a5a00;
  if (!strcmp(name, "beyond-local")) r->local += pair->options.buffer_bytes - r->bytes / 2;
  if (!strncmp(name, "beyond-remote", 13)) r->remote += pair->options.buffer_bytes - r->bytes / 2;
  if (!strcmp(name, "before-remote")) r->remote -= 8;
  if (!strcmp(name, "wrapping-remote")) r->remote = UINT64_MAX - 15;
  if (!strcmp(name, "deregistered-local")) deregister(pair, 0);
  if (!strcmp(name, "deregistered-remote")) deregister(pair, 1);
  if (!strncmp(name, "unmapped-local", 14)) unmap(pair, 0);
  if (!strncmp(name, "unmapped-remote", 15)) unmap(pair, 1);
  if (!strcmp(name, "receive-too-short")) r->receive_bytes = r->bytes / 2;
}

static int run(struct verbs_pair* pair, const struct access_case* test) {
  struct request r = {
      (uintptr_t)pair->buffer[0], (uintptr_t)pair->buffer[1], pair->mr[0]->lkey, pair->mr[1]->rkey, kBytes, kBytes};
  spoil(pair, test->name, &r);
  pair->status[0] = pair->status[1] = -1;
  if (test->opcode == IBV_WR_SEND && verbs_pair_post_receive(pair, r.receive_bytes)) return 1;
  if (verbs_pair_post(pair, test->opcode, r.local, r.lkey, r.bytes, r.remote, r.rkey)) return 1;
  int error = verbs_pair_wait(pair, test->expected_receiver >= 0);
  if (error) {
    fprintf(stderr, "%s: no completion: %s\n", test->name, strerror(-error));
    return 1;
  }
  printf("%s: status %s\n", test->name, ibv_wc_status_str((enum ibv_wc_status)pair->status[0]));
  if (pair->status[0] != test->expected) {
    fprintf(stderr, "%s: expected %s\n", test->name, ibv_wc_status_str((enum ibv_wc_status)test->expected));
    return 1;
  }
  if (test->expected_receiver >= 0 && pair->status[1] != test->expected_receiver) {
    fprintf(stderr, "%s: receiver has %d, expected %d\n", test->name, pair->status[1], test->expected_receiver);
    return 1;
  }
  // 10.3.1.6: after the error every further request is flushed.
  pair->status[0] = -1;
  if (verbs_pair_post(pair, IBV_WR_RDMA_WRITE, r.local, r.lkey, 8, r.remote, r.rkey)) return 0;
  if (verbs_pair_wait(pair, 0) || pair->status[0] != IBV_WC_WR_FLUSH_ERR) {
    fprintf(stderr, "%s: the request after the error has status %d, not a flush\n", test->name, pair->status[0]);
    return 1;
  }
  return 0;
}

int main(int argc, char** argv) {
  const struct access_case* test = NULL;
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
    if (argc == 2 && !strcmp(argv[1], "--list")) puts(kCases[i].name);
    if (argc == 2 && !strcmp(argv[1], kCases[i].name)) test = &kCases[i];
  }
  if (!test) return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 2;
  struct verbs_pair_options options = verbs_pair_defaults();
  struct verbs_pair healthy, broken;
  if (verbs_pair_open(&healthy, &options)) return 1;
  if (!strcmp(test->name, "no-remote-write")) options.target_access &= ~IBV_ACCESS_REMOTE_WRITE;
  if (!strcmp(test->name, "no-remote-read")) options.target_access &= ~IBV_ACCESS_REMOTE_READ;
  if (verbs_pair_open(&broken, &options)) return 1;
  if (run(&broken, test)) return 1;
  for (uint32_t seed = 1; seed <= 8; seed++) {
    int status = verbs_pair_write(&healthy, kBytes, seed);
    if (status) {
      fprintf(stderr, "%s: the healthy pair failed afterwards: %d\n", test->name, status);
      return 1;
    }
  }
  broken.buffer_gone[0] = broken.buffer_gone[1] = 1;  // parts may be unmapped; the process ends anyway
  verbs_pair_close(&broken);
  verbs_pair_close(&healthy);
  return 0;
}
