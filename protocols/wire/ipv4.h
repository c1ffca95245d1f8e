// SPDX-License-Identifier: Apache-2.0
//
// IPv4 without options (RFC 791), its checksum (RFC 1071) and its ECN field (RFC 3168).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "protocols/base/bytes.h"

namespace weft {

inline constexpr uint8_t kIpProtocolUdp = 17;
inline constexpr uint16_t kIpv4DontFragment = 0x4000;
inline constexpr uint16_t kIpv4MoreFragments = 0x2000;
inline constexpr uint16_t kIpv4FragmentOffset = 0x1FFF;

/// Low two bits of TOS or traffic class. RFC 3168, 5.
enum class Ecn : uint8_t { kNotCapable = 0, kCapable1 = 1, kCapable0 = 2, kCongestion = 3 };

struct Ipv4Header {
  uint8_t version_ihl = 0x45;
  uint8_t tos = 0;  ///< DSCP 6, ECN 2
  Be16 total_length;
  Be16 id;
  Be16 fragment;  ///< flags 3, offset 13
  uint8_t ttl = 64;
  uint8_t protocol = kIpProtocolUdp;
  Be16 checksum;
  Be32 source;
  Be32 destination;

  constexpr uint8_t version() const { return version_ihl >> 4; }
  constexpr uint32_t header_bytes() const { return (version_ihl & 0xFu) * 4u; }
};
static_assert(sizeof(Ipv4Header) == 20 && alignof(Ipv4Header) == 1);

/// Folds a sum of 16-bit words to one's complement.
constexpr uint16_t fold_checksum(uint64_t sum) {
  sum = (sum & 0xFFFFFFFF) + (sum >> 32);
  sum = (sum & 0xFFFF) + ((sum >> 16) & 0xFFFF) + (sum >> 32);
  sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>((sum & 0xFFFF) + (sum >> 16));
}

/// One's complement sum of the header's words, checksum field included: 0xFFFF for a good header.
constexpr uint16_t ipv4_header_sum(const Ipv4Header& h) {
  // Whole words in the machine's order: the sum does not care, only its result has to be turned. RFC 1071, 2 (B).
  uint64_t sum = 0;
  for (const uint32_t word : std::bit_cast<std::array<uint32_t, 5>>(h)) sum += word;
  const uint16_t folded = fold_checksum(sum);
  return std::endian::native == std::endian::little ? static_cast<uint16_t>(folded << 8 | folded >> 8) : folded;
}

constexpr bool ipv4_checksum_good(const Ipv4Header& h) { return ipv4_header_sum(h) == 0xFFFF; }

/// The value for the checksum field; what it holds now is ignored.
constexpr uint16_t ipv4_checksum(Ipv4Header h) {
  h.checksum = 0;
  return static_cast<uint16_t>(~ipv4_header_sum(h));
}

/// New checksum after a 16-bit word of the header changed. RFC 1624, equation 3.
constexpr uint16_t ipv4_checksum_update(uint16_t checksum, uint16_t old_word, uint16_t new_word) {
  const uint32_t sum =
      static_cast<uint16_t>(~checksum) + static_cast<uint32_t>(static_cast<uint16_t>(~old_word)) + new_word;
  return static_cast<uint16_t>(~fold_checksum(sum));
}

}  // namespace weft
