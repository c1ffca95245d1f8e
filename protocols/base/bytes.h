// SPDX-License-Identifier: Apache-2.0
//
// Big-endian integers of alignment 1, the building blocks of header values (STYLE 5).
//
//   Be16 Be24 Be32 Be64   hold N bytes in network order; .get() and .set() convert; implicit from/to the host integer
//   Bytes / MutableBytes  spans of bytes
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft {

using Bytes = std::span<const uint8_t>;
using MutableBytes = std::span<uint8_t>;

template <typename Host, size_t kSize>
struct BigEndian {
  std::array<uint8_t, kSize> raw{};

  constexpr BigEndian() = default;
  constexpr BigEndian(Host value) { set(value); }  // NOLINT(google-explicit-constructor): a header field is its value
  constexpr operator Host() const { return get(); }  // NOLINT(google-explicit-constructor)

  constexpr Host get() const {
    Host value = 0;
    for (size_t i = 0; i < kSize; ++i) value = static_cast<Host>((static_cast<uint64_t>(value) << 8) | raw[i]);
    return value;
  }
  constexpr void set(Host value) {
    for (size_t i = 0; i < kSize; ++i) raw[i] = static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * (kSize - 1 - i)));
  }
};

using Be16 = BigEndian<uint16_t, 2>;
using Be24 = BigEndian<uint32_t, 3>;
using Be32 = BigEndian<uint32_t, 4>;
using Be64 = BigEndian<uint64_t, 8>;

static_assert(sizeof(Be16) == 2 && alignof(Be16) == 1);
static_assert(sizeof(Be24) == 3 && alignof(Be24) == 1);
static_assert(sizeof(Be32) == 4 && alignof(Be32) == 1);
static_assert(sizeof(Be64) == 8 && alignof(Be64) == 1);

}  // namespace weft
