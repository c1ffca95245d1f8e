// SPDX-License-Identifier: Apache-2.0
//
// Two queue pairs of one process with everything about them to choose, for tests of what a QP does: its states, its
// errors, its edges. Frames leave by the NIC and come back from the switch. verbs_pair.h is the simple one.
//
//   struct rig rig;
//   struct rig_options options = rig_defaults(IBV_QPT_RC);
//   MUST(!rig_start(&rig, &options));                              // else says where and returns 1
//   rig_receive(&rig, 1, 7, 0, 4096);
//   rig_send(&rig, 0, 3, IBV_WR_SEND, 0, 4096, 0);                 // from side 0's buffer at 0, to side 1's at 0
//   struct ibv_wc wc;
//   if (rig_wait(&rig, 0, &wc)) ...                                // -1 after wait_ms without a completion
//
// Side 0 asks, side 1 answers; each has a CQ of its own, asynchronous events of both come from rig_event(). One thread.
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MUST(condition)                                                                     \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      fprintf(stderr, "line %d: not so: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
      return 1;                                                                             \
    }                                                                                       \
  } while (0)

enum { kRigQkey = 0x1234, kRigNoEvent = -1 };

struct rig_options {
  enum ibv_qp_type type;
  size_t bytes;  // of each side's buffer
  enum ibv_mtu mtu[2];
  uint8_t timeout, retry, rnr_retry, min_rnr_timer;
  uint8_t rd_atomic[2], dest_rd_atomic[2];
  int qp_access[2], mr_access;
  uint32_t depth, sges, inline_bytes;
  int wait_ms;
  int extended;  // ibv_create_qp_ex and ibv_wr_*
};

struct rig_side {
  uint8_t* buffer;
  struct ibv_mr* mr;
  struct ibv_cq* cq;
  struct ibv_comp_channel* channel;
  struct ibv_qp* qp;
  struct ibv_ah* ah;  // UD: to the other side
  uint32_t max_inline;
  uint32_t channel_events;
};

struct rig {
  struct rig_options options;
  struct ibv_context* context;
  struct ibv_pd* pd;
  union ibv_gid gid;
  uint32_t psn[2];  // first ones, of what each side sends; fresh for each connection
  struct rig_side side[2];
};

struct rig_options rig_defaults(enum ibv_qp_type type);
int rig_open(struct rig* rig, const struct rig_options* options);
int rig_start(struct rig* rig, const struct rig_options* options);  // opened and connected
void rig_close(struct rig* rig);

// Each 0 or the errno of ibv_modify_qp.
int rig_to_init(struct rig* rig, int side);
int rig_to_rtr(struct rig* rig, int side);
int rig_to_rts(struct rig* rig, int side);
int rig_to(struct rig* rig, int side, enum ibv_qp_state state);
int rig_connect(struct rig* rig);  // all three, both sides
int rig_state(struct rig* rig, int side);

// Offsets are into the sides' own buffers. 0 or the errno of the post.
int rig_receive(struct rig* rig, int side, uint64_t wr_id, size_t offset, size_t bytes);
int rig_send(struct rig* rig, int side, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t offset, size_t bytes,
             size_t remote_offset);
// The same with the work request at hand before it is posted.
struct rig_work {
  struct ibv_sge sge[8];
  struct ibv_send_wr wr;
};
void rig_describe(struct rig* rig, int side, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t offset, size_t bytes,
                  size_t remote_offset, struct rig_work* out);
int rig_post(struct rig* rig, int side, struct rig_work* work);

int rig_wait(struct rig* rig, int side, struct ibv_wc* wc);
int rig_poll(struct rig* rig, int side, struct ibv_wc* wc);  // 1, 0, or -1
// Sleeps on the side's channel, not polling, until its CQ (armed before) has an event. 0 or -1.
int rig_sleep(struct rig* rig, int side);
// Type of the next asynchronous event and the side it is for (-1: no QP's); kRigNoEvent after `wait_ms`.
int rig_event(struct rig* rig, int wait_ms, int* side);
