// SPDX-License-Identifier: Apache-2.0
//
// edges CASE: legal use at its edges: sizes around the path MTU, inline data up to the limit and past it, immediate
// data, nothing at all, scatter lists of odd shapes, peers of different MTU. Bytes are compared. Exit code 0 when all
// is right, 1 with a line on stderr, 2 for an unknown case.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qp_rig.h"
#include "verbs_pair.h"

enum { kBig = 8 << 20, kGuard = 64, kGuardByte = 0xEE };

// One completion of that side: success, that wr_id, and its length in *bytes where that is asked.
static int succeeded(struct rig* rig, int side, uint64_t wr_id, uint32_t* bytes) {
  struct ibv_wc wc;
  if (rig_wait(rig, side, &wc)) return 0;
  if (wc.status || wc.wr_id != wr_id) {
    fprintf(stderr, "side %d: wr_id %d, %s\n", side, (int)wc.wr_id, ibv_wc_status_str(wc.status));
    return 0;
  }
  if (bytes) *bytes = wc.byte_len;
  return 1;
}

// --- sizes around the MTU ----------------------------------------------------------------------------------------

static int transfer(struct rig* rig, enum ibv_wr_opcode opcode, size_t bytes, uint32_t seed) {
  uint8_t* from = rig->side[opcode == IBV_WR_RDMA_READ].buffer;
  uint8_t* to = rig->side[opcode != IBV_WR_RDMA_READ].buffer;
  verbs_fill(from, bytes, seed);
  memset(to, kGuardByte, bytes + kGuard);
  uint32_t length = 0;
  if (opcode == IBV_WR_SEND) MUST(!rig_receive(rig, 1, 7, 0, bytes));
  MUST(!rig_send(rig, 0, 1, opcode, 0, bytes, 0));
  MUST(succeeded(rig, 0, 1, NULL));
  if (opcode == IBV_WR_SEND) MUST(succeeded(rig, 1, 7, &length) && length == bytes);
  long at = verbs_check(to, bytes, seed);
  if (at >= 0) fprintf(stderr, "opcode %d, %zu bytes: byte %ld differs\n", (int)opcode, bytes, at);
  MUST(at < 0);
  for (size_t i = 0; i < kGuard; i++) MUST(to[bytes + i] == kGuardByte);
  return 0;
}

static int sizes_at(enum ibv_mtu mtu) {
  static const enum ibv_wr_opcode kOpcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
  size_t unit = 128u << mtu;
  const size_t sizes[] = {1, unit - 1, unit, unit + 1, 2 * unit, kBig};
  struct rig rig;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  options.bytes = kBig + kGuard;
  options.mtu[0] = options.mtu[1] = mtu;
  MUST(!rig_start(&rig, &options));
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (size_t o = 0; o < 3; o++)
      if (transfer(&rig, kOpcodes[o], sizes[s], (uint32_t)(s * 3 + o + mtu))) return 1;
  rig_close(&rig);
  return 0;
}
static int mtu_256(void) { return sizes_at(IBV_MTU_256); }
static int mtu_512(void) { return sizes_at(IBV_MTU_512); }
static int mtu_1024(void) { return sizes_at(IBV_MTU_1024); }
static int mtu_2048(void) { return sizes_at(IBV_MTU_2048); }
static int mtu_4096(void) { return sizes_at(IBV_MTU_4096); }

// What fits the smaller MTU crosses both ways; what does not is in errors.c (rem-inv-req-mtu). IBTA Vol 1, 9.7.4.1.7.
static int mixed_mtu(void) {
  struct rig rig;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  options.mtu[0] = IBV_MTU_4096;
  options.mtu[1] = IBV_MTU_256;
  MUST(!rig_start(&rig, &options));
  for (uint32_t seed = 1; seed <= 20; seed++) {
    size_t bytes = seed == 1 ? 0 : seed == 20 ? 256 : seed * 12;
    MUST(!transfer(&rig, IBV_WR_SEND, bytes, seed) && !transfer(&rig, IBV_WR_RDMA_WRITE, bytes, seed + 100) &&
         !transfer(&rig, IBV_WR_RDMA_READ, bytes, seed + 200));
    MUST(!rig_receive(&rig, 0, 8, 0, bytes) && !rig_send(&rig, 1, 9, IBV_WR_SEND, 0, bytes, 0));
    MUST(succeeded(&rig, 0, 8, NULL) && succeeded(&rig, 1, 9, NULL));
  }
  rig_close(&rig);
  return 0;
}

// --- inline ------------------------------------------------------------------------------------------------------

static int post_inline(struct rig* rig, size_t bytes, int pieces, int extended) {
  struct rig_work work;
  rig_describe(rig, 0, 1, IBV_WR_SEND, 0, bytes, 0, &work);
  work.wr.send_flags |= IBV_SEND_INLINE;
  work.wr.num_sge = pieces;
  work.sge[0].lkey = 0;  // inline data needs no region
  if (pieces == 2) {
    work.sge[1] = work.sge[0];
    work.sge[0].length = (uint32_t)(bytes / 3);
    work.sge[1].addr += bytes / 3;
    work.sge[1].length = (uint32_t)(bytes - bytes / 3);
  }
  if (!extended) return rig_post(rig, 0, &work);
  struct ibv_qp_ex* qp = ibv_qp_to_qp_ex(rig->side[0].qp);
  ibv_wr_start(qp);
  qp->wr_id = 1;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(qp);
  ibv_wr_set_inline_data(qp, rig->side[0].buffer, bytes);
  return ibv_wr_complete(qp);
}

static int inline_of(int extended) {
  struct rig rig;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  options.inline_bytes = 200;
  options.extended = extended;
  MUST(!rig_start(&rig, &options));
  uint32_t most = rig.side[0].max_inline;
  MUST(most >= 200);
  const uint32_t sizes[] = {0, 1, 64, most};
  for (int pieces = 1; pieces <= (extended ? 1 : 2); pieces++) {
    for (int i = 0; i < 4; i++) {
      uint32_t length = 0;
      memset(rig.side[1].buffer, 0, most);
      MUST(!rig_receive(&rig, 1, 7, 0, most));
      verbs_fill(rig.side[0].buffer, sizes[i], sizes[i]);
      MUST(!post_inline(&rig, sizes[i], pieces, extended));
      memset(rig.side[0].buffer, kGuardByte, most);  // right after the post the source is the program's again
      MUST(succeeded(&rig, 0, 1, NULL) && succeeded(&rig, 1, 7, &length) && length == sizes[i]);
      MUST(verbs_check(rig.side[1].buffer, sizes[i], sizes[i]) < 0);
    }
  }
  MUST(post_inline(&rig, most + 1, 1, extended) != 0);
  // The refused one left nothing behind.
  MUST(!rig_receive(&rig, 1, 7, 0, 8) && !rig_send(&rig, 0, 2, IBV_WR_SEND, 0, 8, 0));
  MUST(succeeded(&rig, 0, 2, NULL) && succeeded(&rig, 1, 7, NULL));
  // More than the device has cannot be asked for.
  struct ibv_qp_init_attr huge = {.send_cq = rig.side[0].cq, .recv_cq = rig.side[0].cq, .qp_type = IBV_QPT_RC};
  huge.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_recv_wr = 1, .max_inline_data = 1 << 16};
  MUST(ibv_create_qp(rig.pd, &huge) == NULL && errno == EINVAL);
  rig_close(&rig);
  return 0;
}
static int inline_legacy(void) { return inline_of(0); }
static int inline_extended(void) { return inline_of(1); }

// --- immediate data ----------------------------------------------------------------------------------------------

static int write_with_immediate(struct rig* rig, uint64_t wr_id, size_t bytes) {
  struct rig_work work;
  rig_describe(rig, 0, wr_id, IBV_WR_RDMA_WRITE_WITH_IMM, 0, bytes, 0, &work);
  work.wr.imm_data = 0x01020304;
  if (bytes == 0) {
    work.wr.num_sge = 0;
    work.wr.wr.rdma.rkey = 0;  // nothing is accessed: not even the key is looked at. IBTA Vol 1, 9.7.4.1.5
  }
  return rig_post(rig, 0, &work);
}

static int write_imm(void) {
  struct rig rig;
  struct ibv_wc wc;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  options.min_rnr_timer = 10;  // 320 us
  MUST(!rig_start(&rig, &options));
  for (size_t bytes = 0; bytes <= 5000; bytes += 2500) {
    // Two requests of no length: one message takes one of them, and writes elsewhere.
    MUST(!rig_receive(&rig, 1, 7, 0, 0) && !rig_receive(&rig, 1, 8, 0, 0));
    verbs_fill(rig.side[0].buffer, bytes, 5);
    memset(rig.side[1].buffer, 0, 5000);
    MUST(!write_with_immediate(&rig, 1, bytes) && succeeded(&rig, 0, 1, NULL));
    MUST(!rig_wait(&rig, 1, &wc) && wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
    MUST(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && (wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == 0x01020304);
    MUST(wc.byte_len == bytes && verbs_check(rig.side[1].buffer, bytes, 5) < 0);
    MUST(!write_with_immediate(&rig, 2, bytes) && succeeded(&rig, 0, 2, NULL) && succeeded(&rig, 1, 8, NULL));
    // None is left: it waits, as a SEND does, until there is one.
    MUST(!write_with_immediate(&rig, 3, bytes));
    double until = verbs_now() + 0.005;
    while (verbs_now() < until) MUST(rig_poll(&rig, 0, &wc) == 0 && rig_poll(&rig, 1, &wc) == 0);
    MUST(!rig_receive(&rig, 1, 9, 0, 0) && succeeded(&rig, 0, 3, NULL) && succeeded(&rig, 1, 9, NULL));
  }
  rig_close(&rig);
  return 0;
}

// --- nothing, and odd lists --------------------------------------------------------------------------------------

static int zero_length(void) {
  struct rig rig;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  MUST(!rig_start(&rig, &options));
  const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
  for (int sges = 0; sges <= 2; sges++) {
    for (int o = 0; o < 3; o++) {
      struct rig_work work;
      uint32_t length = 1;
      rig_describe(&rig, 0, 1, opcodes[o], 0, 0, 0, &work);
      work.sge[1] = work.sge[0];
      work.wr.num_sge = sges;
      if (opcodes[o] == IBV_WR_SEND) MUST(!rig_receive(&rig, 1, 7, 0, 0));
      if (opcodes[o] != IBV_WR_SEND) work.wr.wr.rdma.rkey = 0;
      MUST(!rig_post(&rig, 0, &work) && succeeded(&rig, 0, 1, NULL));
      if (opcodes[o] == IBV_WR_SEND) MUST(succeeded(&rig, 1, 7, &length) && length == 0);
    }
  }
  rig_close(&rig);
  return 0;
}

// rdma-core before 64 adds up the wrong length in ibv_wr_set_sge_list; what the list says is what is sent.
static int sge_lists(void) {
  struct rig rig;
  struct rig_options options = rig_defaults(IBV_QPT_RC);
  options.extended = 1;
  MUST(!rig_start(&rig, &options));
  static const uint32_t kShapes[][4] = {
      {1, 2, 3, 4}, {4000, 0, 1, 3}, {0, 0, 0, 9}, {1023, 1, 1024, 1025}, {7, 0, 0, 0}};
  struct ibv_qp_ex* qp = ibv_qp_to_qp_ex(rig.side[0].qp);
  for (size_t shape = 0; shape < sizeof kShapes / sizeof *kShapes; shape++) {
    for (int write = 0; write < 2; write++) {
      struct ibv_sge list[4];
      uint32_t bytes = 0, length = 0;
      for (int i = 0; i < 4; i++) {
        list[i] = (struct ibv_sge){(uintptr_t)rig.side[0].buffer + bytes, kShapes[shape][i], rig.side[0].mr->lkey};
        bytes += kShapes[shape][i];
      }
      verbs_fill(rig.side[0].buffer, bytes, (uint32_t)shape + 1);
      memset(rig.side[1].buffer, kGuardByte, bytes + kGuard);
      if (!write) MUST(!rig_receive(&rig, 1, 7, 0, bytes + kGuard));
      ibv_wr_start(qp);
      qp->wr_id = 1;
      qp->wr_flags = IBV_SEND_SIGNALED;
      if (write) {
        ibv_wr_rdma_write(qp, rig.side[1].mr->rkey, (uintptr_t)rig.side[1].buffer);
      } else {
        ibv_wr_send(qp);
      }
      ibv_wr_set_sge_list(qp, 4, list);
      MUST(!ibv_wr_complete(qp) && succeeded(&rig, 0, 1, NULL));
      if (!write) MUST(succeeded(&rig, 1, 7, &length) && length == bytes);
      MUST(verbs_check(rig.side[1].buffer, bytes, (uint32_t)shape + 1) < 0 && rig.side[1].buffer[bytes] == kGuardByte);
    }
  }
  rig_close(&rig);
  return 0;
}

static const struct {
  const char* name;
  int (*run)(void);
} kCases[] = {{"mtu-256", mtu_256},      {"mtu-512", mtu_512},
              {"mtu-1024", mtu_1024},    {"mtu-2048", mtu_2048},
              {"mtu-4096", mtu_4096},    {"mixed-mtu", mixed_mtu},
              {"inline", inline_legacy}, {"inline-extended", inline_extended},
              {"write-imm", write_imm},  {"zero-length", zero_length},
              {"sge-lists", sge_lists}};

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
    if (!strcmp(argv[1], "--list")) puts(kCases[i].name);
    if (!strcmp(argv[1], kCases[i].name)) return kCases[i].run();
  }
  return strcmp(argv[1], "--list") ? 2 : 0;
}
