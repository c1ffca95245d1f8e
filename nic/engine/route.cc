// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/route.h"

#include <algorithm>
#include <cerrno>

#include "protocols/wire/udp.h"

namespace weft::nic {
namespace {

/// All zero where the table is empty or ends.
GidBytes gid_at(const attach::Welcome& nic, uint32_t index) {
  const uint32_t used = std::min<uint32_t>(nic.gid_count, sizeof nic.gids / sizeof nic.gids[0]);
  GidBytes gid{};
  if (index >= nic.gid_first && index - nic.gid_first < used) {
    std::copy_n(nic.gids[index - nic.gid_first], gid.size(), gid.begin());
  }
  return gid;
}

}  // namespace

int check_address(const attach::Welcome& nic, const AddressAttributes& attributes) {
  // RoCE has no LIDs: a global route is the only one. IBTA annex A17.
  if (attributes.is_global == 0) return EINVAL;
  if (attributes.port_num != 1) return EINVAL;
  const GidBytes source = gid_at(nic, attributes.sgid_index);
  if (source == GidBytes{} || attributes.dgid == GidBytes{}) return EINVAL;
  if (gid_is_ipv4(source) != gid_is_ipv4(attributes.dgid)) return EINVAL;
  if (attributes.sl > 15) return EINVAL;
  return 0;
}

uint8_t priority_of(uint8_t traffic_class, uint8_t sl) {
  const uint8_t dscp = traffic_class >> 2;
  return traffic_class != 0 ? static_cast<uint8_t>(dscp >> 3) : static_cast<uint8_t>(sl & 7);
}

void make_route(const attach::Welcome& nic, const AddressAttributes& attributes, const MacAddress& peer_mac,
                bool outside, uint32_t udp_label, Route& out) {
  FrameAddress address;
  address.destination_mac = peer_mac;
  std::copy_n(nic.mac, address.source_mac.size(), address.source_mac.begin());
  address.source_gid = gid_at(nic, attributes.sgid_index);
  address.destination_gid = attributes.dgid;
  address.traffic_class = attributes.traffic_class;
  // TTL 64 whatever hop_limit says, as the kernel does (DECISIONS 22): the default of FrameAddress.
  address.flow_label = attributes.flow_label & 0xFFFFF;
  const uint32_t label = address.flow_label != 0 ? address.flow_label : udp_label;
  address.udp_sport = udp_source_port(label);
  out.frame.prepare(address);
  out.dgid = attributes.dgid;
  out.peer_ipv4 = gid_is_ipv4(attributes.dgid) ? ipv4_of_gid(attributes.dgid) : 0;
  out.priority = priority_of(attributes.traffic_class, attributes.sl);
  out.sl = attributes.sl;
  out.outside = outside;
  out.fixed_port = address.flow_label != 0;
}

}  // namespace weft::nic
