// SPDX-License-Identifier: Apache-2.0
//
// memory_rights CASE: atomics, local rights, domains, addresses and sizes of memory regions.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "memory_rig.h"

static struct ibv_mr* register_target(int access) {
  return ibv_reg_mr(pair.pd, pair.buffer[1], pair.options.buffer_bytes, access);
}

static const int kAtomicTarget = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

static int atomics(void) {
  struct ibv_mr* target = register_target(kAtomicTarget);
  EXPECT(target);
  volatile uint64_t* word = (volatile uint64_t*)(void*)(pair.buffer[1] + 8);
  volatile uint64_t* before_it = (volatile uint64_t*)(void*)pair.buffer[0];
  for (uint64_t i = 0; i < 100; i++) {
    EXPECT(access_remote(IBV_WR_ATOMIC_FETCH_AND_ADD, target->rkey, 8, 8) == IBV_WC_SUCCESS);
    EXPECT(*before_it == i && *word == i + 1);
  }
  *word = 1;
  EXPECT(access_remote(IBV_WR_ATOMIC_CMP_AND_SWP, target->rkey, 8, 8) == IBV_WC_SUCCESS);
  EXPECT(*before_it == 1 && *word == 2);
  EXPECT(access_remote(IBV_WR_ATOMIC_CMP_AND_SWP, target->rkey, 8, 8) == IBV_WC_SUCCESS);
  EXPECT(*before_it == 2 && *word == 2);
  EXPECT(ibv_dereg_mr(target) == 0);
  return 0;
}

// The provider refuses what is not aligned to eight bytes.
static int atomic_misaligned(void) {
  struct ibv_mr* target = register_target(kAtomicTarget);
  EXPECT(target);
  EXPECT(access_remote(IBV_WR_ATOMIC_FETCH_AND_ADD, target->rkey, 4, 8) == -EINVAL);
  EXPECT(access_remote(IBV_WR_ATOMIC_FETCH_AND_ADD, target->rkey, pair.options.buffer_bytes, 8) ==
         IBV_WC_REM_ACCESS_ERR);
  EXPECT(ibv_dereg_mr(target) == 0);
  return 0;
}

static int write_atomically(uint32_t rkey, size_t offset, const char* value) {
  struct ibv_qp_ex* qp = ibv_qp_to_qp_ex(pair.qp[0]);
  ibv_wr_start(qp);
  qp->wr_id = kAsker;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_atomic_write(qp, rkey, (uintptr_t)pair.buffer[1] + offset, value);
  int error = ibv_wr_complete(qp);
  return error ? -error : wait_for(kAsker);
}

static int atomic_write(void) {
  struct ibv_device_attr_ex device;
  EXPECT(ibv_query_device_ex(pair.context, NULL, &device) == 0);
  EXPECT(device.device_cap_flags_ex & (1ull << 40));  // IBV_DEVICE_ATOMIC_WRITE
  struct ibv_mr* target = register_target(kAtomicTarget);
  EXPECT(target);
  for (int i = 0; i < 200; i++) {
    char value[9];
    snprintf(value, sizeof value, "%08d", i);
    EXPECT(write_atomically(target->rkey, 16, value) == IBV_WC_SUCCESS);
    EXPECT(!memcmp(pair.buffer[1] + 16, value, 8) && !pair.buffer[1][24] && !pair.buffer[1][15]);
  }
  EXPECT(ibv_dereg_mr(target) == 0);
  return 0;
}

static int atomic_write_misaligned(void) {
  struct ibv_mr* target = register_target(kAtomicTarget);
  EXPECT(target);
  EXPECT(write_atomically(target->rkey, 12, "abcdefgh") == IBV_WC_REM_INV_REQ_ERR);
  EXPECT(ibv_dereg_mr(target) == 0);
  return 0;
}

// Side 0's buffer registered without the right to write it.
static int read_only(enum ibv_wr_opcode opcode) {
  struct ibv_mr* target = register_target(kAtomicTarget | IBV_ACCESS_REMOTE_READ);
  struct ibv_mr* source = ibv_reg_mr(pair.pd, pair.buffer[0], kBytes, 0);
  EXPECT(target && source);
  struct ibv_mr* usual = pair.mr[0];
  pair.mr[0] = source;
  int status = access_remote(IBV_WR_RDMA_WRITE, target->rkey, 0, 8);
  if (status == IBV_WC_SUCCESS) status = access_remote(opcode, target->rkey, 0, 8);
  pair.mr[0] = usual;
  EXPECT(status == IBV_WC_LOC_PROT_ERR);
  EXPECT(ibv_dereg_mr(source) == 0 && ibv_dereg_mr(target) == 0);
  return 0;
}
static int read_only_target(void) { return read_only(IBV_WR_RDMA_READ); }
static int read_only_atomic(void) { return read_only(IBV_WR_ATOMIC_FETCH_AND_ADD); }

static int read_only_receive(void) {
  struct ibv_mr* target = register_target(0);
  EXPECT(target);
  EXPECT(post_receive(target->lkey) == 0);
  EXPECT(access_remote(IBV_WR_SEND, 0, 0, 8) == IBV_WC_REM_OP_ERR);
  EXPECT(receive_wc.wr_id == kReceiver || wait_for(kReceiver) >= 0);
  EXPECT(receive_wc.status == IBV_WC_LOC_PROT_ERR);
  EXPECT(ibv_dereg_mr(target) == 0);
  return 0;
}

static int other_domain(int remote) {
  struct ibv_pd* pd = ibv_alloc_pd(pair.context);
  EXPECT(pd);
  struct ibv_mr* mr = ibv_reg_mr(pd, pair.buffer[remote], kBytes, kAtomicTarget);
  EXPECT(mr);
  struct ibv_mr* usual = pair.mr[0];
  if (!remote) pair.mr[0] = mr;
  int status = access_remote(IBV_WR_RDMA_WRITE, remote ? mr->rkey : pair.mr[1]->rkey, 0, 8);
  pair.mr[0] = usual;
  EXPECT(status == (remote ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR));
  EXPECT(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
  return 0;
}
static int other_domain_lkey(void) { return other_domain(0); }
static int other_domain_rkey(void) { return other_domain(1); }

// Addresses of the program's choice: what requests name is not where the memory is.
static int iova(void) {
  struct ibv_mr* target = ibv_reg_mr_iova(pair.pd, pair.buffer[1], kBytes, 0x10000, kAtomicTarget);
  EXPECT(target);
  verbs_fill(pair.buffer[0], 64, 3);
  struct ibv_sge sge = {(uintptr_t)pair.buffer[0], 64, pair.mr[0]->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1};
  wr.wr.rdma.remote_addr = 0x10000 + kBytes - 64;
  wr.wr.rdma.rkey = target->rkey;
  EXPECT(post_and_wait(0, &wr) == IBV_WC_SUCCESS);
  EXPECT(verbs_check(pair.buffer[1] + kBytes - 64, 64, 3) < 0);
  wr.wr.rdma.remote_addr = (uintptr_t)pair.buffer[1];
  EXPECT(post_and_wait(0, &wr) == IBV_WC_REM_ACCESS_ERR);
  EXPECT(ibv_dereg_mr(target) == 0);
  return 0;
}

// One past max_mr_size: refused where it is registered, and where it is used.
static int largest(void) {
  struct ibv_device_attr device;
  EXPECT(ibv_query_device(pair.context, &device) == 0);
  size_t most = device.max_mr_size;
  uint8_t* memory = mmap(NULL, most + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT(memory != MAP_FAILED);
  errno = 0;
  EXPECT(!ibv_reg_mr(pair.pd, memory, most + 1, kAtomicTarget) && errno == EINVAL);
  struct ibv_mr* target = ibv_reg_mr(pair.pd, memory, most, kAtomicTarget);
  EXPECT(target);
  size_t offset = (size_t)(memory - pair.buffer[1]);
  EXPECT(access_remote(IBV_WR_RDMA_WRITE, target->rkey, offset + most - 8, 8) == IBV_WC_SUCCESS);
  EXPECT(access_remote(IBV_WR_RDMA_WRITE, target->rkey, offset + most - 7, 8) == IBV_WC_REM_ACCESS_ERR);
  struct ibv_async_event event;
  EXPECT(ibv_get_async_event(pair.context, &event) == 0);
  EXPECT(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == pair.qp[1]);
  ibv_ack_async_event(&event);
  EXPECT(ibv_dereg_mr(target) == 0);
  munmap(memory, most + 8192);
  return 0;
}

static const struct named_case kCases[] = {
    {"atomics", atomics},
    {"atomic-misaligned", atomic_misaligned},
    {"atomic-write", atomic_write},
    {"atomic-write-misaligned", atomic_write_misaligned},
    {"read-only-target", read_only_target},
    {"read-only-receive", read_only_receive},
    {"read-only-atomic", read_only_atomic},
    {"other-domain-lkey", other_domain_lkey},
    {"other-domain-rkey", other_domain_rkey},
    {"iova", iova},
    {"largest", largest},
};

int main(int argc, char** argv) { return run_named_case(argc, argv, kCases, sizeof kCases / sizeof *kCases); }
