// SPDX-License-Identifier: Apache-2.0
//
// Seeded integer randomness. Each component owns one generator, seeded from (run seed, component id); probabilities
// are ratios (STYLE 4). Generator: xoshiro256** of Blackman and Vigna, state filled by splitmix64.
// Not thread-safe; one owner each.
#pragma once

#include <array>
#include <cstdint>

namespace weft {

/// A probability as an exact ratio: 1 % is {1, 100}. denominator must not be 0.
struct Probability {
  uint64_t numerator = 0;
  uint64_t denominator = 1;
  constexpr bool never() const { return numerator == 0; }
};

constexpr uint64_t splitmix64(uint64_t& state) {
  state += 0x9E3779B97F4A7C15u;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

class Random {
 public:
  constexpr Random(uint64_t run_seed, uint64_t component) {
    uint64_t state = run_seed;
    const uint64_t mixed = splitmix64(state) ^ (component * 0xD6E8FEB86659FD93u);
    state = mixed;
    for (uint64_t& word : state_) word = splitmix64(state);
  }

  constexpr uint64_t next() {
    const uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate_left(state_[3], 45);
    return result;
  }

  /// Uniform in [0, bound); bound must not be 0. Lemire's method, with rejection: exact.
  constexpr uint64_t below(uint64_t bound) {
    using Wide = unsigned __int128;
    Wide product = static_cast<Wide>(next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) product = static_cast<Wide>(next()) * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

  constexpr bool happens(Probability p) {
    return !p.never() && (p.numerator >= p.denominator || below(p.denominator) < p.numerator);
  }

 private:
  static constexpr uint64_t rotate_left(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  std::array<uint64_t, 4> state_{};
};

}  // namespace weft
