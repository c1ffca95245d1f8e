// SPDX-License-Identifier: Apache-2.0
//
// Time of the fabric: an argument, never read from a clock.
//
//   Instant   a point in time, picoseconds since the start of the fabric (live) or of the run (virtual)
//   Duration  a difference, picoseconds; 2^63 ps are 106 days
//   kNever    "no deadline"
//
// Conversions from a system clock happen in exactly two places: nic/preload (programs) and the live driver of
// scenarios/engine (daemon). Thread-safe: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <ratio>

namespace weft {

struct FabricClock {
  using rep = int64_t;
  using period = std::pico;
  using duration = std::chrono::duration<rep, period>;
  using time_point = std::chrono::time_point<FabricClock>;
  static constexpr bool is_steady = true;
};

using Duration = FabricClock::duration;
using Instant = FabricClock::time_point;

inline constexpr Instant kNever = Instant::max();

constexpr Duration picoseconds(int64_t n) { return Duration{n}; }
constexpr Duration nanoseconds(int64_t n) { return Duration{n * 1'000}; }
constexpr Duration microseconds(int64_t n) { return Duration{n * 1'000'000}; }
constexpr Duration milliseconds(int64_t n) { return Duration{n * 1'000'000'000}; }
constexpr Duration seconds(int64_t n) { return Duration{n * 1'000'000'000'000}; }

/// Time `bytes` take on a link of `bits_per_second`, rounded up to a picosecond; 128-bit inside, so no size overflows.
constexpr Duration serialisation(uint64_t bytes, uint64_t bits_per_second) {
  using Wide = unsigned __int128;
  const Wide numerator = static_cast<Wide>(bytes) * 8u * 1'000'000'000'000u;
  return Duration{static_cast<int64_t>((numerator + bits_per_second - 1) / bits_per_second)};
}

static_assert(serialisation(1, 800'000'000'000) == picoseconds(10));

}  // namespace weft
