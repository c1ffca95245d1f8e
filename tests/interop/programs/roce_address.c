// SPDX-License-Identifier: Apache-2.0
//
// LD_PRELOAD for programs that address their peer by LID only, as InfiniBand allows and RoCE does not (qperf without
// rdma_cm): every address without a GRH gets one, towards ROCE_PEER (an IPv4 address), from GID index 1.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

enum { kSourceGid = 1, kHopLimit = 64 };

static struct ibv_ah_attr with_grh(const struct ibv_ah_attr* attr) {
  struct ibv_ah_attr out = *attr;
  const char* peer = getenv("ROCE_PEER");
  struct in_addr address;
  if (out.is_global || peer == NULL || inet_pton(AF_INET, peer, &address) != 1) return out;
  out.is_global = 1;
  memset(&out.grh, 0, sizeof out.grh);
  out.grh.dgid.raw[10] = out.grh.dgid.raw[11] = 0xff;
  memcpy(&out.grh.dgid.raw[12], &address, 4);
  out.grh.sgid_index = kSourceGid;
  out.grh.hop_limit = kHopLimit;
  return out;
}

int ibv_modify_qp(struct ibv_qp* qp, struct ibv_qp_attr* attr, int mask) {
  static int (*next)(struct ibv_qp*, struct ibv_qp_attr*, int);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "ibv_modify_qp");
  struct ibv_qp_attr changed = *attr;
  if (mask & IBV_QP_AV) changed.ah_attr = with_grh(&attr->ah_attr);
  return next(qp, &changed, mask);
}

struct ibv_ah* ibv_create_ah(struct ibv_pd* pd, struct ibv_ah_attr* attr) {
  static struct ibv_ah* (*next)(struct ibv_pd*, struct ibv_ah_attr*);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "ibv_create_ah");
  struct ibv_ah_attr changed = with_grh(attr);
  return next(pd, &changed);
}
