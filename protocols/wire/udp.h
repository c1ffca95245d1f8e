// SPDX-License-Identifier: Apache-2.0
//
// UDP (RFC 768) and the rule that gives a RoCE v2 flow its source port.
#pragma once

#include <cstdint>

#include "protocols/base/bytes.h"

namespace weft {

inline constexpr uint16_t kRocePort = 4791;  ///< IBTA annex A17

struct UdpHeader {
  Be16 source_port;
  Be16 destination_port{kRocePort};
  Be16 length;
  Be16 checksum;
};
static_assert(sizeof(UdpHeader) == 8 && alignof(UdpHeader) == 1);

/// UDP source port of a flow label; the rule of the kernel and of ibv_flow_label_to_udp_sport.
constexpr uint16_t udp_source_port(uint32_t flow_label) {
  const uint32_t low = flow_label & 0x03FFF;
  const uint32_t high = flow_label & 0xFC000;
  return static_cast<uint16_t>((low ^ (high >> 14)) | 0xC000);
}

/// The label that drivers use where the program gave none (0); symmetric in the two QPNs.
constexpr uint32_t flow_label_of_qpns(uint32_t local_qpn, uint32_t remote_qpn) {
  uint64_t v = static_cast<uint64_t>(local_qpn) * remote_qpn;
  v ^= v >> 20;
  v ^= v >> 40;
  return static_cast<uint32_t>(v & 0xFFFFF);
}

}  // namespace weft
