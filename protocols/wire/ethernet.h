// SPDX-License-Identifier: Apache-2.0
//
// Ethernet II and the 802.1Q tag as header values.
#pragma once

#include <array>
#include <cstdint>

#include "protocols/base/bytes.h"

namespace weft {

using MacAddress = std::array<uint8_t, 6>;

inline constexpr uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr uint16_t kEtherTypeArp = 0x0806;
inline constexpr uint16_t kEtherTypeVlan = 0x8100;
inline constexpr uint16_t kEtherTypeIpv6 = 0x86DD;
inline constexpr uint16_t kEtherTypeMacControl = 0x8808;  ///< PAUSE and PFC, 802.1Qbb

struct EthernetHeader {
  MacAddress destination{};
  MacAddress source{};
  Be16 type;  ///< EtherType, or kEtherTypeVlan when a VlanTag follows
};
static_assert(sizeof(EthernetHeader) == 14 && alignof(EthernetHeader) == 1);

/// What follows EtherType 0x8100. 802.1Q, 9.6.
struct VlanTag {
  Be16 tci;   ///< PCP 3, DEI 1, VID 12
  Be16 type;  ///< EtherType of what follows

  constexpr uint8_t priority() const { return static_cast<uint8_t>(tci.get() >> 13); }
  constexpr uint16_t vid() const { return tci.get() & 0xFFF; }
};
static_assert(sizeof(VlanTag) == 4 && alignof(VlanTag) == 1);

}  // namespace weft
