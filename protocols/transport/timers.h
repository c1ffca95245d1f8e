// SPDX-License-Identifier: Apache-2.0
//
// The two tables of time in RC: the local ACK timeout (IBTA Vol 1, 9.7.6.1.3) and the RNR NAK timer field (table 45).
#pragma once

#include <array>
#include <cstdint>

#include "protocols/base/time.h"

namespace weft {

/// 4.096 us · 2^exponent; 0 means "no timeout" and gives the largest duration. Only the low five bits count.
constexpr Duration ack_timeout(uint8_t exponent) {
  const uint8_t code = exponent & 0x1f;
  return code == 0 ? Duration::max() : Duration{int64_t{4'096'000} << code};
}

/// How long a requester waits after an RNR NAK with this timer code. Only the low five bits count.
constexpr Duration rnr_delay(uint8_t code) {
  // In units of 10 us.
  constexpr std::array<uint32_t, 32> kTable = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                               48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                               2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return microseconds(int64_t{kTable[code & 0x1f]} * 10);
}

static_assert(ack_timeout(14) == picoseconds(67'108'864'000));
static_assert(rnr_delay(0) == microseconds(655'360) && rnr_delay(1) == microseconds(10));
static_assert(rnr_delay(12) == microseconds(640) && rnr_delay(25) == microseconds(61'440));
static_assert(rnr_delay(31) == microseconds(491'520));

}  // namespace weft
