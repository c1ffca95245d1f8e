// SPDX-License-Identifier: Apache-2.0
//
// An address vector: what a program asked for, and what frames need of it.
#pragma once

#include <cstdint>

#include "protocols/attach/messages.h"
#include "protocols/wire/frame_template.h"
#include "protocols/wire/gid.h"

namespace weft::nic {

/// As in ib_uverbs_qp_dest and ib_uverbs_ah_attr.
struct AddressAttributes {
  GidBytes dgid{};
  uint32_t flow_label = 0;
  uint16_t dlid = 0;
  uint8_t sgid_index = 0;
  uint8_t hop_limit = 0;
  uint8_t traffic_class = 0;
  uint8_t sl = 0;
  uint8_t src_path_bits = 0;
  uint8_t static_rate = 0;
  uint8_t is_global = 0;
  uint8_t port_num = 0;
};

struct Route {
  FrameTemplate frame;
  GidBytes dgid{};
  uint32_t peer_ipv4 = 0;  ///< 0 for an IPv6 peer
  uint8_t priority = 0;
  uint8_t sl = 0;
  bool outside = false;     ///< strict timers
  bool fixed_port = false;  ///< the UDP source port came from a flow label
};

/// What is wrong with the attributes on this NIC: 0, or EINVAL (no GRH, another port, an index without a GID, an
/// address family that is not the source's).
int check_address(const attach::Welcome& nic, const AddressAttributes& attributes);

/// Priority 0..7: from the DSCP when a traffic class is set, else from the SL (DECISIONS 25).
uint8_t priority_of(uint8_t traffic_class, uint8_t sl);

/// `udp_label` stands in for a flow label of 0. check_address must have passed.
void make_route(const attach::Welcome& nic, const AddressAttributes& attributes, const MacAddress& peer_mac,
                bool outside, uint32_t udp_label, Route& out);

}  // namespace weft::nic
