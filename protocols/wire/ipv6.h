// SPDX-License-Identifier: Apache-2.0
//
// The IPv6 header without extension headers (RFC 8200).
#pragma once

#include <array>
#include <cstdint>

#include "protocols/base/bytes.h"

namespace weft {

struct Ipv6Header {
  Be32 version_class_label;  ///< version 4, traffic class 8, flow label 20
  Be16 payload_length;
  uint8_t next_header = 17;
  uint8_t hop_limit = 64;
  std::array<uint8_t, 16> source{};
  std::array<uint8_t, 16> destination{};

  constexpr uint8_t version() const { return static_cast<uint8_t>(version_class_label.get() >> 28); }
  constexpr uint8_t traffic_class() const { return static_cast<uint8_t>(version_class_label.get() >> 20); }
  constexpr uint32_t flow_label() const { return version_class_label.get() & 0xFFFFF; }
  constexpr void set(uint8_t traffic_class, uint32_t flow_label) {
    version_class_label = 6u << 28 | static_cast<uint32_t>(traffic_class) << 20 | (flow_label & 0xFFFFF);
  }
};
static_assert(sizeof(Ipv6Header) == 40 && alignof(Ipv6Header) == 1);

}  // namespace weft
