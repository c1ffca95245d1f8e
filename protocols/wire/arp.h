// SPDX-License-Identifier: Apache-2.0
//
// ARP for IPv4 over Ethernet as a value (RFC 826). What follows the 28 bytes is padding.
#pragma once

#include <cstdint>

#include "protocols/base/bytes.h"
#include "protocols/wire/ethernet.h"

namespace weft {

inline constexpr uint16_t kArpRequest = 1;
inline constexpr uint16_t kArpReply = 2;

struct ArpPacket {
  Be16 hardware{1};  ///< Ethernet
  Be16 protocol{kEtherTypeIpv4};
  uint8_t hardware_bytes = 6;
  uint8_t protocol_bytes = 4;
  Be16 operation{kArpRequest};
  MacAddress sender_mac{};
  Be32 sender_ipv4;
  MacAddress target_mac{};
  Be32 target_ipv4;

  constexpr bool for_ipv4_over_ethernet() const {
    return hardware.get() == 1 && protocol.get() == kEtherTypeIpv4 && hardware_bytes == 6 && protocol_bytes == 4;
  }
};
static_assert(sizeof(ArpPacket) == 28 && alignof(ArpPacket) == 1);

}  // namespace weft
