// SPDX-License-Identifier: Apache-2.0
//
// The rig's multicast: memberships as a daemon keeps them, and a client's commands.
#include "tests/nic/engine/rig.h"

#include <array>

// As in rig.cc: no Catch here.
#define REQUIRE(...) ((__VA_ARGS__) ? void() : ::weft::test::rig_failed(__FILE__, __LINE__, #__VA_ARGS__))

namespace weft::test {

int TestPlatform::multicast(uint32_t, uint32_t, const nic::Gid& gid, bool join) {
  if (multicast_error != 0) return multicast_error;
  const GidBytes group = std::to_array(gid);
  if (join) {
    groups.insert(group);
  } else {
    REQUIRE(groups.count(group) != 0);
    groups.erase(groups.find(group));
  }
  return 0;
}

bool Rig::deliver_to_group(const RoceFrame& frame, const uint8_t* payload, const attach::SlotDescriptor& d) {
  REQUIRE(frame.transport.dest_qpn == 0xFFFFFF);
  for (auto& n : nodes_) {
    if (n->platform->groups.count(frame.destination_gid) != 0) REQUIRE(deliver_to(*n, payload, d));
  }
  return true;
}

long Client::multicast(const Qp& qp, const GidBytes& group, bool attach) {
  ib_uverbs_attach_mcast in = {};
  memcpy(in.gid, group.data(), sizeof in.gid);
  in.qp_handle = qp.handle;
  return plain(attach ? IB_USER_VERBS_CMD_ATTACH_MCAST : IB_USER_VERBS_CMD_DETACH_MCAST, &in, sizeof in, 0);
}

uint32_t Client::create_group_ah(const GidBytes& group, uint8_t sgid_index) {
  struct {
    uint32_t handle, ah_num, reserved;
  } out = {};
  ib_uverbs_create_ah in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.pd_handle = pd;
  memcpy(in.attr.grh.dgid, group.data(), sizeof in.attr.grh.dgid);
  in.attr.grh.sgid_index = sgid_index;
  in.attr.is_global = 1;
  in.attr.port_num = 1;
  REQUIRE(plain(IB_USER_VERBS_CMD_CREATE_AH, &in, sizeof in, 12) == 64);
  return out.ah_num;
}

}  // namespace weft::test
