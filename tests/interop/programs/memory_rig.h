// SPDX-License-Identifier: Apache-2.0
//
// What memory_windows and memory_rights share: a connected pair, a region of side 1, requests and their statuses.
//
//   int main(int argc, char** argv) { return run_named_case(argc, argv, kCases, count); }
//
// A case returns 0 when all was as expected; EXPECT says on stderr what was not. --list prints the names; exit code 2
// for an unknown one. Side 0 asks, side 1 owns the memory. One thread.
#pragma once

#include <errno.h>
#include <stdio.h>

#include "verbs_pair.h"

enum {
  kBytes = 4096,
  kAsker = 10,
  kOwner = 11,
  kReceiver = 12
};  // wr_ids: requests of side 0 and 1, receive of side 1

extern struct verbs_pair pair;
extern struct ibv_mr* region;  // of side 1's buffer: windows may be bound to it, peers may not touch it; NULL when gone
extern struct ibv_wc receive_wc;  // the last completion of a receive

struct named_case {
  const char* name;
  int (*run)(void);
};
int run_named_case(int argc, char** argv, const struct named_case* cases, size_t count);

// Waits for the completion with that wr_id: its status, or a negative errno.
int wait_for(uint64_t wr_id);
// Posts one request of that side and waits.
int post_and_wait(int side, struct ibv_send_wr* wr);
// Side 0's request on side 1's buffer at that offset.
int access_remote(enum ibv_wr_opcode opcode, uint32_t rkey, size_t offset, uint32_t bytes);
int post_receive(uint32_t lkey);

#define EXPECT(condition)                                                       \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
      return 1;                                                                 \
    }                                                                           \
  } while (0)
