// SPDX-License-Identifier: Apache-2.0
//
// The rig's client: memory windows, and regions registered anew.
#include "tests/nic/engine/rig.h"

namespace weft::test {

long Client::dereg_mr(const Mr& mr) { return plain(IB_USER_VERBS_CMD_DEREG_MR, &mr.handle, 4, 0); }

long Client::try_alloc_mw(uint8_t type, Mw& out) {
  ib_uverbs_alloc_mw in = {};
  ib_uverbs_alloc_mw_resp response = {};
  in.response = reinterpret_cast<uint64_t>(&response);
  in.pd_handle = pd;
  in.mw_type = type;
  const long result = plain(IB_USER_VERBS_CMD_ALLOC_MW, &in, sizeof in, 8);
  out = {response.mw_handle, response.rkey};
  return result;
}

Mw Client::alloc_mw(uint8_t type) {
  Mw mw;
  if (try_alloc_mw(type, mw) != 24) rig_failed(__FILE__, __LINE__, "ALLOC_MW");
  return mw;
}

long Client::dealloc_mw(const Mw& mw) { return plain(IB_USER_VERBS_CMD_DEALLOC_MW, &mw.handle, 4, 0); }

long Client::rereg_mr(const Mr& mr, uint32_t flags, const void* start, uint64_t length, uint32_t access,
                      uint32_t new_pd) {
  ib_uverbs_rereg_mr in = {};
  ib_uverbs_rereg_mr_resp response = {};
  in.response = reinterpret_cast<uint64_t>(&response);
  in.mr_handle = mr.handle;
  in.flags = flags;
  in.start = in.hca_va = reinterpret_cast<uint64_t>(start);
  in.length = length;
  in.pd_handle = new_pd;
  in.access_flags = access;
  const long result = plain(IB_USER_VERBS_CMD_REREG_MR, &in, sizeof in, 8);
  const bool same_keys = response.lkey == mr.lkey && response.rkey == mr.rkey;
  if (result > 0 && !same_keys) rig_failed(__FILE__, __LINE__, "REREG_MR changed the keys");
  return result;
}

}  // namespace weft::test
