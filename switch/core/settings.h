// SPDX-License-Identifier: Apache-2.0
//
// What a switch is told when it is built. Plain values; thresholds in bytes as they are on the wire (without FCS).
#pragma once

#include <cstdint>

#include "protocols/base/packet.h"

namespace weft::fabric {

using SwitchPort = uint16_t;
inline constexpr SwitchPort kNoSwitchPort = UINT16_MAX;

struct SwitchSettings {
  uint32_t ports = 0;
  uint32_t endpoints = 0;           ///< dense destination indices the route table covers
  uint32_t xoff_bytes = 256 << 10;  ///< per (ingress port, priority): above it the sender is paused
  uint32_t xon_bytes = 128 << 10;   ///< at or below it the sender goes on
  uint32_t by_reference_packets = 32;  ///< a longer egress queue means that a frame will wait
  uint32_t cell_bytes = 1;          ///< packets are charged in whole cells: small ones cost memory too
  uint8_t strict_priorities = 0;    ///< bit mask: served before the others, highest number first
  uint32_t quantum_bytes = 4096 + 128;  ///< of the deficit round robin among the rest
};

}  // namespace weft::fabric
