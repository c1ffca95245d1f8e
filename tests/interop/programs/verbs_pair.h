// SPDX-License-Identifier: Apache-2.0
//
// A pair of RC queue pairs of one process, connected to each other through the fabric (the frames leave by the NIC and
// come back from the switch), for tests of what happens to a program rather than between two programs.
//
//   struct verbs_pair pair;
//   struct verbs_pair_options options = verbs_pair_defaults();
//   if (verbs_pair_open(&pair, &options)) return 1;       // says on stderr what failed
//   int status = verbs_pair_send(&pair, 4096, seed);       // IBV_WC_SUCCESS, a status, or a negative errno
//   verbs_pair_close(&pair);
//
// Side 0 asks, side 1 answers. Every transfer fills the source with a pattern made of the seed and checks the target.
// One thread. Waiting is bounded by options.wait_ms (then -ETIMEDOUT).
#pragma once

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

struct verbs_pair_options {
  size_t buffer_bytes;
  int gid_index;
  enum ibv_mtu mtu;
  uint8_t timeout;      // ACK timeout exponent
  uint8_t retry_count;
  int events;           // sleep on a completion channel instead of polling
  int extended_cq;      // ibv_create_cq_ex and start_poll/next_poll
  int target_access;    // IBV_ACCESS_… of side 1's memory region
  int wait_ms;
  uint64_t send_ops;    // IBV_QP_EX_WITH_…: QPs with the extended interface
};

struct verbs_pair {
  struct verbs_pair_options options;
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq;
  struct ibv_cq_ex* cq_ex;
  struct ibv_qp* qp[2];
  struct ibv_mr* mr[2];
  uint8_t* buffer[2];
  int buffer_gone[2];  // the test unmapped it
  int status[2];       // last completion status per side, -1 when there was none
  uint32_t pending_events;
};

struct verbs_pair_options verbs_pair_defaults(void);
int verbs_pair_open(struct verbs_pair* pair, const struct verbs_pair_options* options);
void verbs_pair_close(struct verbs_pair* pair);

int verbs_pair_send(struct verbs_pair* pair, size_t bytes, uint32_t seed);
int verbs_pair_write(struct verbs_pair* pair, size_t bytes, uint32_t seed);
int verbs_pair_read(struct verbs_pair* pair, size_t bytes, uint32_t seed);

// The pieces, for tests that post something wrong on purpose.
int verbs_pair_post_receive(struct verbs_pair* pair, size_t bytes);
int verbs_pair_post(struct verbs_pair* pair, enum ibv_wr_opcode opcode, uint64_t local, uint32_t lkey, size_t bytes,
                    uint64_t remote, uint32_t rkey);
// Waits for one completion of side 0, or of both sides, and stores status[].
int verbs_pair_wait(struct verbs_pair* pair, int both);

// Opens the first device, or says why not.
struct ibv_context* verbs_open_first_device(void);
int verbs_connect_qp(struct ibv_qp* qp, uint32_t peer_qpn, const union ibv_gid* peer, uint32_t rq_psn, uint32_t sq_psn,
                     const struct verbs_pair_options* options);
void verbs_fill(uint8_t* to, size_t bytes, uint32_t seed);
// Offset of the first byte that differs, or -1.
long verbs_check(const uint8_t* from, size_t bytes, uint32_t seed);
double verbs_now(void);  // CLOCK_MONOTONIC, seconds
