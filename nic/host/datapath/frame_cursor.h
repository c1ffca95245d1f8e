// SPDX-License-Identifier: Apache-2.0
//
// Header values out of a frame and into it, by copy; a value that does not fit whole is not read.
//
//   Ipv4Header ip;
//   if (!get(frame, 14, ip)) return …;
//   put(frame, 14, ip);                 // must fit
#pragma once

#include <cstring>
#include <type_traits>

#include "protocols/base/assert.h"
#include "protocols/base/bytes.h"

namespace weft::nic {

template <typename T>
[[nodiscard]] bool fits(Bytes frame, size_t at, const T&) {
  return at <= frame.size() && sizeof(T) <= frame.size() - at;
}

template <typename T>
bool get(Bytes frame, size_t at, T& out) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (!fits(frame, at, out)) return false;
  std::memcpy(&out, frame.data() + at, sizeof out);
  return true;
}

template <typename T>
void put(MutableBytes frame, size_t at, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  WEFT_ASSERT(fits(frame, at, value));
  std::memcpy(frame.data() + at, &value, sizeof value);
}

template <typename T>
Bytes bytes_of(const T& value) {
  return {reinterpret_cast<const uint8_t*>(&value), sizeof value};
}

}  // namespace weft::nic
