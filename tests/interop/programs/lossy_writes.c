// SPDX-License-Identifier: Apache-2.0
//
// lossy_writes SECONDS TIMEOUT_EXPONENT
//
// RC WRITEs of 1 B to 20 kB over a fabric that loses frames, several outstanding, each into a slot of its own that is
// compared when its completion comes. Ends with one line of JSON: messages, mismatches, status of the first bad
// completion, the median time of a small WRITE alone (the round trip) and the longest time of any.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs_pair.h"

enum { kDepth = 4, kSlotBytes = 20000, kAlone = 101 };

struct flight {
  size_t bytes;
  uint32_t seed;
  double posted;
};

static struct verbs_pair pair;
static struct flight flights[kDepth];

static int post(uint32_t number, size_t bytes) {
  struct flight* f = &flights[number % kDepth];
  const size_t at = number % kDepth * kSlotBytes;
  *f = (struct flight){bytes, number, verbs_now()};
  verbs_fill(pair.buffer[0] + at, bytes, number);
  struct ibv_sge sge = {(uintptr_t)pair.buffer[0] + at, (uint32_t)bytes, pair.mr[0]->lkey};
  struct ibv_send_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = (uintptr_t)pair.buffer[1] + at;
  wr.wr.rdma.rkey = pair.mr[1]->rkey;
  return ibv_post_send(pair.qp[0], &wr, &bad);
}

// The next completion: its time, or a negative number. Adds to *mismatches.
static double complete(uint32_t expected, int* status, long* mismatches) {
  struct ibv_wc wc;
  int count;
  while ((count = ibv_poll_cq(pair.cq, 1, &wc)) == 0)
    if (verbs_now() - flights[expected % kDepth].posted > 60) return -1;
  if (count < 0 || wc.wr_id != expected || wc.status != IBV_WC_SUCCESS) {
    *status = count < 0 ? -1 : (int)wc.status;
    return -1;
  }
  const struct flight* f = &flights[expected % kDepth];
  if (verbs_check(pair.buffer[1] + expected % kDepth * kSlotBytes, f->bytes, f->seed) >= 0) ++*mismatches;
  return verbs_now() - f->posted;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: lossy_writes SECONDS TIMEOUT_EXPONENT\n");
    return 2;
  }
  struct verbs_pair_options options = verbs_pair_defaults();
  options.buffer_bytes = kDepth * kSlotBytes;
  options.timeout = (uint8_t)atoi(argv[2]);
  options.retry_count = 7;
  if (verbs_pair_open(&pair, &options)) return 1;

  int status = 0;
  long mismatches = 0;
  double alone[kAlone], longest = 0, took = 0;
  uint32_t posted = 0, completed = 0;
  for (; completed < kAlone && took >= 0; completed++) {
    if (post(posted++, 8)) return 1;
    alone[completed] = took = complete(completed, &status, &mismatches);
  }
  qsort(alone, kAlone, sizeof alone[0], ascending);
  const double end = verbs_now() + atof(argv[1]);
  int over = took < 0;
  while (took >= 0 && !(over && completed == posted)) {
    while (!over && posted - completed < kDepth) {
      if (post(posted, 1 + posted * 7919u % kSlotBytes)) return 1;
      posted++;
    }
    took = complete(completed++, &status, &mismatches);
    if (took > longest) longest = took;
    over = verbs_now() >= end;
  }
  printf("{\"messages\": %u, \"mismatches\": %ld, \"status\": %d, \"lost\": %d, \"round_trip\": %.9f, \"longest\": %.9f}\n",
         completed, mismatches, status, took < 0, alone[kAlone / 2], longest);
  verbs_pair_close(&pair);
  return took < 0 || mismatches ? 3 : 0;
}
