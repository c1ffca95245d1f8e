// SPDX-License-Identifier: Apache-2.0
//
// memory_windows CASE: memory windows of both types and their invalidation, as a program sees them through libibverbs.
// Side 1 binds windows to its region, side 0 uses them.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory_rig.h"

static struct ibv_mw_bind_info part(size_t offset, size_t bytes, unsigned access) {
  struct ibv_mw_bind_info info = {region, (uintptr_t)pair.buffer[1] + offset, bytes, access};
  return info;
}

static int bind1(struct ibv_mw* mw, size_t offset, size_t bytes, unsigned access) {
  struct ibv_mw_bind bind = {.wr_id = kOwner, .send_flags = IBV_SEND_SIGNALED};
  bind.bind_info = part(offset, bytes, access);
  int error = ibv_bind_mw(pair.qp[1], mw, &bind);
  return error ? -error : wait_for(kOwner);
}

static int bind2(struct ibv_mw* mw, uint32_t rkey, size_t offset, size_t bytes, unsigned access) {
  struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW};
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = rkey;
  wr.bind_mw.bind_info = part(offset, bytes, access);
  return post_and_wait(1, &wr);
}

static int invalidate(int side, enum ibv_wr_opcode opcode, uint32_t rkey) {
  struct ibv_send_wr wr = {.opcode = opcode};
  wr.invalidate_rkey = rkey;
  return post_and_wait(side, &wr);
}

static const unsigned kReadWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

static int type1(void) {
  struct ibv_mw* mw = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1);
  EXPECT(mw);
  EXPECT(bind1(mw, 1024, 1024, kReadWrite) == IBV_WC_SUCCESS);
  uint32_t first = mw->rkey;
  verbs_fill(pair.buffer[0], 1024, 5);
  EXPECT(access_remote(IBV_WR_RDMA_WRITE, first, 1024, 1024) == IBV_WC_SUCCESS);
  EXPECT(verbs_check(pair.buffer[1] + 1024, 1024, 5) < 0);
  memset(pair.buffer[0], 0, 1024);
  EXPECT(access_remote(IBV_WR_RDMA_READ, first, 1024, 1024) == IBV_WC_SUCCESS);
  EXPECT(verbs_check(pair.buffer[0], 1024, 5) < 0);
  EXPECT(ibv_dereg_mr(region) == EBUSY);
  EXPECT(bind1(mw, 0, 64, IBV_ACCESS_REMOTE_WRITE) == IBV_WC_SUCCESS);
  EXPECT(mw->rkey != first);
  EXPECT(access_remote(IBV_WR_RDMA_WRITE, mw->rkey, 0, 64) == IBV_WC_SUCCESS);
  EXPECT(bind1(mw, 0, 0, 0) == IBV_WC_SUCCESS);
  EXPECT(access_remote(IBV_WR_RDMA_WRITE, mw->rkey, 0, 64) == IBV_WC_REM_ACCESS_ERR);
  EXPECT(ibv_dealloc_mw(mw) == 0);
  EXPECT(ibv_dereg_mr(region) == 0);
  region = NULL;
  return 0;
}

static int refused(enum ibv_wr_opcode opcode, unsigned access, size_t offset, uint32_t bytes) {
  struct ibv_mw* mw = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_2);
  EXPECT(mw);
  uint32_t key = ibv_inc_rkey(mw->rkey);
  EXPECT(bind2(mw, key, 1024, 1024, access) == IBV_WC_SUCCESS);
  EXPECT(access_remote(opcode, key, offset, bytes) == IBV_WC_REM_ACCESS_ERR);
  EXPECT(ibv_dealloc_mw(mw) == 0);
  return 0;
}
static int beyond(void) { return refused(IBV_WR_RDMA_WRITE, kReadWrite, 1025, 1024); }
static int before(void) { return refused(IBV_WR_RDMA_READ, kReadWrite, 1023, 8); }
static int no_write(void) { return refused(IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_READ, 1024, 8); }
static int no_read(void) { return refused(IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_WRITE, 1024, 8); }
static int no_atomic(void) { return refused(IBV_WR_ATOMIC_FETCH_AND_ADD, kReadWrite, 1024, 8); }

static int type2(void) {
  struct ibv_mw* mw = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_2);
  EXPECT(mw);
  uint32_t key = mw->rkey;
  for (int round = 0; round < 300; round++) {  // the key's byte goes round
    key = ibv_inc_rkey(key);
    EXPECT(bind2(mw, key, 1024, 1024, kReadWrite) == IBV_WC_SUCCESS);
    mw->rkey = key;
    EXPECT(access_remote(IBV_WR_RDMA_WRITE, key, 1024, 64) == IBV_WC_SUCCESS);
    if (round % 2) {
      EXPECT(invalidate(1, IBV_WR_LOCAL_INV, key) == IBV_WC_SUCCESS);
      continue;
    }
    memset(&receive_wc, 0, sizeof receive_wc);
    EXPECT(post_receive(region->lkey) == 0);
    EXPECT(invalidate(0, IBV_WR_SEND_WITH_INV, key) == IBV_WC_SUCCESS);
    EXPECT(receive_wc.wr_id == kReceiver || wait_for(kReceiver) == IBV_WC_SUCCESS);
    EXPECT(receive_wc.wc_flags & IBV_WC_WITH_INV);
    EXPECT(receive_wc.invalidated_rkey == key);
  }
  EXPECT(access_remote(IBV_WR_RDMA_WRITE, key, 1024, 8) == IBV_WC_REM_ACCESS_ERR);
  EXPECT(ibv_dealloc_mw(mw) == 0);
  return 0;
}

static int bad_remote_invalidate(void) {
  EXPECT(post_receive(region->lkey) == 0);
  EXPECT(invalidate(0, IBV_WR_SEND_WITH_INV, region->rkey) == IBV_WC_REM_ACCESS_ERR);
  EXPECT(receive_wc.wr_id == kReceiver || wait_for(kReceiver) >= 0);
  EXPECT(receive_wc.status == IBV_WC_REM_INV_REQ_ERR);
  return 0;
}

static int bad_local_invalidate(void) {
  EXPECT(invalidate(1, IBV_WR_LOCAL_INV, region->lkey) == IBV_WC_LOC_QP_OP_ERR);
  return 0;
}

static int bind_error(void) {
  struct ibv_mw* mw = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_2);
  EXPECT(mw);
  EXPECT(bind2(mw, ibv_inc_rkey(mw->rkey), pair.options.buffer_bytes - 8, 9, kReadWrite) == IBV_WC_MW_BIND_ERR);
  EXPECT(bind2(mw, ibv_inc_rkey(mw->rkey), 0, 8, kReadWrite) == IBV_WC_WR_FLUSH_ERR);
  EXPECT(ibv_dealloc_mw(mw) == 0);
  EXPECT(ibv_dereg_mr(region) == 0);
  region = NULL;
  return 0;
}

// A bind and the SEND that tells of it, posted together, over and over: the peer's WRITE finds the window bound.
static int order(void) {
  struct ibv_mw* mw = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1);
  EXPECT(mw);
  for (int round = 0; round < 200; round++) {
    struct ibv_recv_wr receive = {.wr_id = kAsker};
    struct ibv_recv_wr* bad_receive = NULL;
    EXPECT(ibv_post_recv(pair.qp[0], &receive, &bad_receive) == 0);
    size_t at = (size_t)(round % 16) * 64;
    struct ibv_send_wr tell = {.wr_id = kOwner, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad = NULL;
    struct ibv_send_wr bind = {.wr_id = 1, .next = &tell, .opcode = IBV_WR_BIND_MW};
    bind.bind_mw.mw = mw;
    bind.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    bind.bind_mw.bind_info = part(at, 64, IBV_ACCESS_REMOTE_WRITE);
    EXPECT(ibv_post_send(pair.qp[1], &bind, &bad) == 0);
    mw->rkey = bind.bind_mw.rkey;
    EXPECT(wait_for(kAsker) == IBV_WC_SUCCESS);
    EXPECT(access_remote(IBV_WR_RDMA_WRITE, mw->rkey, at, 64) == IBV_WC_SUCCESS);
  }
  EXPECT(ibv_dealloc_mw(mw) == 0);
  return 0;
}

static int limits(void) {
  struct ibv_device_attr device;
  EXPECT(ibv_query_device(pair.context, &device) == 0);
  EXPECT(device.max_mw > 0 && device.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
  EXPECT(device.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
  struct ibv_mw** all = calloc((size_t)device.max_mw + 1, sizeof *all);
  EXPECT(all);
  for (int i = 0; i < device.max_mw; i++) EXPECT((all[i] = ibv_alloc_mw(pair.pd, 1 + i % 2)));
  errno = 0;
  EXPECT(!ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1) && errno == ENOMEM);
  EXPECT(ibv_dealloc_mw(all[7]) == 0);
  EXPECT((all[7] = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1)));
  for (int i = 0; i < device.max_mw; i++) EXPECT(ibv_dealloc_mw(all[i]) == 0);
  free(all);
  struct ibv_pd* pd = ibv_alloc_pd(pair.context);
  struct ibv_mw* mw = pd ? ibv_alloc_mw(pd, IBV_MW_TYPE_2) : NULL;
  EXPECT(mw && ibv_dealloc_pd(pd) == EBUSY);
  EXPECT(ibv_dealloc_mw(mw) == 0 && ibv_dealloc_pd(pd) == 0);
  return 0;
}

// What the device does not have says so, and breaks nothing.
static int unsupported(void) {
  errno = 0;
  EXPECT(!ibv_alloc_null_mr(pair.pd) && errno == EOPNOTSUPP);
  errno = 0;
  EXPECT(!ibv_reg_dmabuf_mr(pair.pd, 0, 4096, 0, 0, 0) && errno == EOPNOTSUPP);
  struct ibv_sge range = {(uintptr_t)pair.buffer[1], kBytes, region->lkey};
  EXPECT(ibv_advise_mr(pair.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1) == EOPNOTSUPP);
  struct ibv_alloc_dm_attr memory = {.length = 64};
  errno = 0;
  EXPECT(!ibv_alloc_dm(pair.context, &memory) && errno == EOPNOTSUPP);
  EXPECT(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) != 0);
  errno = 0;
  EXPECT(!ibv_reg_mr(pair.pd, pair.buffer[1], kBytes, IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
  EXPECT(verbs_pair_write(&pair, kBytes, 9) == IBV_WC_SUCCESS);
  return 0;
}

static const struct named_case kCases[] = {
    {"type1", type1},
    {"type2", type2},
    {"beyond", beyond},
    {"before", before},
    {"no-write", no_write},
    {"no-read", no_read},
    {"no-atomic", no_atomic},
    {"bad-remote-invalidate", bad_remote_invalidate},
    {"bad-local-invalidate", bad_local_invalidate},
    {"bind-error", bind_error},
    {"order", order},
    {"limits", limits},
    {"unsupported", unsupported},
};

int main(int argc, char** argv) { return run_named_case(argc, argv, kCases, sizeof kCases / sizeof *kCases); }
