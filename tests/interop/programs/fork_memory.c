// SPDX-License-Identifier: Apache-2.0
//
// fork_memory CASE: forks with registered memory and a live connection, as programs on hardware do with ibv_fork_init
// and without. The parent's data stays the parent's: what arrives is seen there, whoever wrote to the pages since, and
// a child sees its own copy as it was, or with ibv_fork_init no such pages. Exit code 0, or 1 with a line on stderr.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qp_rig.h"
#include "verbs_pair.h"

enum { kBytes = 20000, kRounds = 6 };

static int fail(const char* what, int round) {
  fprintf(stderr, "%s (round %d): %s\n", what, round, strerror(errno));
  return 1;
}

// Sends and writes from side 0 to side 1 and reads back; bytes compared in this process's memory.
static int exchange(struct rig* rig, uint32_t seed) {
  static const enum ibv_wr_opcode kOpcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
  for (int i = 0; i < 3; i++, seed++) {
    int read = kOpcodes[i] == IBV_WR_RDMA_READ;
    struct ibv_wc wc;
    verbs_fill(rig->side[read].buffer, kBytes, seed);
    memset(rig->side[!read].buffer, 0, kBytes);
    if (i == 0 && rig_receive(rig, 1, 7, 0, kBytes)) return 1;
    if (rig_send(rig, 0, 1, kOpcodes[i], 0, kBytes, 0) || rig_wait(rig, 0, &wc) || wc.status) return 1;
    if (i == 0 && (rig_wait(rig, 1, &wc) || wc.status)) return 1;
    if (verbs_check(rig->side[!read].buffer, kBytes, seed) >= 0) return 1;
  }
  return 0;
}

static int mapped(const void* address) {
  return msync((void*)((uintptr_t)address & ~(uintptr_t)4095), 4096, MS_ASYNC) == 0;
}

// In the child. go: the parent has changed everything since the fork.
static int child_sees(struct rig* rig, uint32_t seed, int protected, int go) {
  char byte;
  if (protected) return mapped(rig->side[0].buffer) || mapped(rig->side[1].buffer) ? 11 : 0;
  if (verbs_check(rig->side[1].buffer, kBytes, seed) >= 0) return 12;
  // Its own writes stay its own as well.
  memset(rig->side[0].buffer, 0x11, kBytes);
  memset(rig->side[1].buffer, 0x22, kBytes / 2);
  if (read(go, &byte, 1) != 1) return 13;
  for (int i = 0; i < kBytes / 2; i++)
    if (rig->side[1].buffer[i] != 0x22) return 15;
  // The second half is what it was at the fork: nothing that arrived since.
  static uint8_t expected[kBytes];
  verbs_fill(expected, kBytes, seed);
  return memcmp(rig->side[1].buffer + kBytes / 2, expected + kBytes / 2, kBytes / 2) ? 16 : 0;
}

static int run(int protected) {
  if (protected && ibv_fork_init()) return fail("ibv_fork_init", 0);
  struct rig rig;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  if (rig_open(&rig, &options) || rig_connect(&rig)) return 1;
  for (int round = 0; round < kRounds; round++) {
    uint32_t seed = (uint32_t)round * 100 + 1;
    int go[2];
    if (exchange(&rig, seed) || pipe(go)) return fail("before the fork", round);
    verbs_fill(rig.side[1].buffer, kBytes, seed + 50);
    // A request under way across the fork.
    struct ibv_wc wc;
    if (rig_receive(&rig, 0, 8, 40000, 1000)) return fail("receive", round);
    pid_t child = fork();
    if (child < 0) return fail("fork", round);
    if (child == 0) _exit(child_sees(&rig, seed + 50, protected, go[0]));
    if (rig_send(&rig, 1, 9, IBV_WR_SEND, 0, 1000, 0) || rig_wait(&rig, 1, &wc) || wc.status)
      return fail("send", round);
    if (rig_wait(&rig, 0, &wc) || wc.status || wc.wr_id != 8) return fail("receive completion", round);
    if (verbs_check(rig.side[0].buffer + 40000, 1000, seed + 50) >= 0) return fail("bytes across the fork", round);
    for (uint32_t i = 0; i < 5; i++)
      if (exchange(&rig, seed + 3 + 3 * i)) return fail("while the child lives", round);
    int status = 0;
    if (!protected && write(go[1], "x", 1) != 1) return fail("write", round);
    if (waitpid(child, &status, 0) != child || status) {
      fprintf(stderr, "round %d: the child ended with status 0x%x\n", round, status);
      return 1;
    }
    close(go[0]);
    close(go[1]);
    if (exchange(&rig, seed + 40)) return fail("after the child", round);
  }
  rig_close(&rig);
  return 0;
}

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc == 2 && !strcmp(argv[1], "--list")) return puts("plain") < 0 || puts("fork-init") < 0;
  if (argc == 2 && !strcmp(argv[1], "plain")) return run(0);
  if (argc == 2 && !strcmp(argv[1], "fork-init")) return run(1);
  return 2;
}
