// SPDX-License-Identifier: Apache-2.0
//
// gid_table: asks for every entry of the GID table by all three APIs, checks that they agree, and prints "index gid" for
// each one in use. An address vector with any other index must be refused.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "verbs_pair.h"

static const union ibv_gid kZero;

static int fail(const char* what, int index) {
  fprintf(stderr, "entry %d: %s\n", index, what);
  return 1;
}

static int refused(struct ibv_pd* pd, const union ibv_gid* gid, int index) {
  struct ibv_ah_attr attributes = {.is_global = 1, .port_num = 1};
  attributes.grh.dgid = *gid;
  attributes.grh.sgid_index = (uint8_t)index;
  struct ibv_ah* ah = ibv_create_ah(pd, &attributes);
  if (ah == NULL) return errno == EINVAL;
  ibv_destroy_ah(ah);
  return 0;
}

static int check(struct ibv_context* context, struct ibv_pd* pd, int length, const struct ibv_gid_entry* table, ssize_t count) {
  union ibv_gid own = kZero;
  for (ssize_t i = 0; i < count; ++i) own = table[i].gid;
  for (int index = 0; index < length; ++index) {
    const struct ibv_gid_entry* listed = NULL;
    for (ssize_t i = 0; i < count; ++i) {
      if (table[i].gid_index == (uint32_t)index) listed = &table[i];
    }
    union ibv_gid plain;
    if (ibv_query_gid(context, 1, index, &plain) != 0) return fail("ibv_query_gid failed", index);
    struct ibv_gid_entry entry;
    const int result = ibv_query_gid_ex(context, 1, (uint32_t)index, &entry, 0);
    const int empty = memcmp(&plain, &kZero, sizeof plain) == 0;
    if (empty != (listed == NULL)) return fail("ibv_query_gid and ibv_query_gid_table disagree", index);
    if (empty && result != ENODATA) return fail("ibv_query_gid_ex finds something in an empty entry", index);
    if (empty && !refused(pd, &own, index)) return fail("an address vector may use an empty entry", index);
    if (empty) continue;
    if (result != 0) return fail("ibv_query_gid_ex finds nothing", index);
    if (memcmp(&plain, &entry.gid, sizeof plain) != 0 || memcmp(&plain, &listed->gid, sizeof plain) != 0)
      return fail("three APIs, different GIDs", index);
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || listed->gid_type != IBV_GID_TYPE_ROCE_V2) return fail("no RoCE v2", index);
    if (entry.ndev_ifindex != listed->ndev_ifindex || entry.ndev_ifindex == 0) return fail("no interface", index);
    printf("%d ", index);
    for (int i = 0; i < 16; ++i) printf("%02x", plain.raw[i]);
    printf("\n");
  }
  union ibv_gid beyond;
  if (ibv_query_gid(context, 1, length, &beyond) == 0) return fail("an entry beyond the table", length);
  return 0;
}

int main(void) {
  struct ibv_context* context = verbs_open_first_device();
  if (context == NULL) return 1;
  struct ibv_port_attr port;
  struct ibv_gid_entry table[512];
  if (ibv_query_port(context, 1, &port) != 0 || port.gid_tbl_len > 512) return fail("ibv_query_port", port.gid_tbl_len);
  const ssize_t count = ibv_query_gid_table(context, table, 512, 0);
  struct ibv_pd* pd = ibv_alloc_pd(context);
  if (count < 0 || pd == NULL) return fail("ibv_query_gid_table failed", (int)count);
  const int result = check(context, pd, port.gid_tbl_len, table, count);
  printf("length %d\n", port.gid_tbl_len);
  ibv_dealloc_pd(pd);
  ibv_close_device(context);
  return result;
}
