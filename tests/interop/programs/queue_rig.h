// SPDX-License-Identifier: Apache-2.0
//
// Several pairs of RC queue pairs of one process, connected through the fabric, for tests of queues: the askers on one
// CQ, the answerers on another, which may have a channel; the answerers may share an SRQ.
//
//   struct queue_rig rig = {.pairs = 2, .use_srq = 1, .use_channel = 1};
//   if (queue_rig_open(&rig)) return 1;                    // says on stderr what failed
//   queue_rig_post_srq(&rig, wr_id); queue_rig_send(&rig, pair, wr_id, IBV_SEND_SOLICITED);
//   struct ibv_wc wc; if (queue_rig_take(rig.cq[1], &wc)) ...   // waits, bounded
//   queue_rig_close(&rig);
//
// CHECK(condition) prints the line and returns 1 from the calling test.
#pragma once

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                \
    }                                                                          \
  } while (0)

enum { kMaxPairs = 16, kRigBytes = 65536, kRigWaitMs = 10000 };

struct queue_rig {
  // Wishes; 0 means the default.
  int pairs;
  int use_srq;
  int use_channel;
  uint32_t srq_wr;
  int cqe;        // of the answerers' CQ
  int rnr_retry;  // of the askers; 0: endless
  // What is there.
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq[2];
  struct ibv_srq* srq;
  struct ibv_qp* qp[2][kMaxPairs];
  struct ibv_mr* mr;
  uint8_t* buffer;  // first half: sources, second half: targets
};

int queue_rig_open(struct queue_rig* rig);
// Everything must be destroyable: 0, or 1 and a line for the first call that refused.
int queue_rig_close(struct queue_rig* rig);
int queue_rig_post_srq(struct queue_rig* rig, uint64_t wr_id);
int queue_rig_post_receive(struct queue_rig* rig, int pair, uint64_t wr_id);
int queue_rig_send(struct queue_rig* rig, int pair, uint64_t wr_id, int flags);
int queue_rig_post(struct queue_rig* rig, int pair, enum ibv_wr_opcode opcode, uint64_t wr_id, uint32_t bytes,
                   int flags);
// The next completion, or 1 and a line after the wait.
int queue_rig_take(struct ibv_cq* cq, struct ibv_wc* wc);
// Nothing for `ms` milliseconds: 1.
int queue_rig_nothing(struct ibv_cq* cq, int ms);
// The next asynchronous event of the device within `ms`, acknowledged; -1 when there was none. element: its object.
int queue_rig_event(struct queue_rig* rig, int ms, void** element);
int queue_rig_readable(int fd, int ms);
int queue_rig_to_error(struct ibv_qp* qp);

struct queue_test {
  const char* name;
  int (*run)(void);
};
// main(): --list, or the one test that is named; 2 for an unknown one.
int queue_rig_main(int argc, char** argv, const struct queue_test* tests, int count);
