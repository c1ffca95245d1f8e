// SPDX-License-Identifier: Apache-2.0
//
// A bounded line of text on the stack: what libweft has instead of std::string and printf.
//
//   Text<200> line; line.add("no daemon at ").add(path); line.c_str()
// Text that does not fit is cut; overflowed() tells. Async-signal-safe.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace weft::preload {

template <size_t kCapacity>
class Text {
 public:
  Text() { data_[0] = '\0'; }  // not the whole array: wrappers make one of these for every path
  Text& add(const char* text) {
    while (*text != '\0') add(*text++);
    return *this;
  }
  Text& add(const char* text, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) add(text[i]);
    return *this;
  }
  Text& add(char c) {
    if (size_ + 1 < kCapacity) {
      data_[size_++] = c;
      data_[size_] = '\0';
    } else {
      overflowed_ = true;
    }
    return *this;
  }
  Text& number(uint64_t value) {
    char digits[20];
    size_t count = 0;
    do {
      digits[count++] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value != 0);
    while (count > 0) add(digits[--count]);
    return *this;
  }
  const char* c_str() const { return data_; }
  size_t size() const { return size_; }
  bool overflowed() const { return overflowed_; }
  void clear() {
    size_ = 0;
    data_[0] = '\0';
    overflowed_ = false;
  }

 private:
  size_t size_ = 0;
  bool overflowed_ = false;
  char data_[kCapacity];
};

inline bool same(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}

inline size_t length(const char* text) {
  size_t n = 0;
  while (text[n] != '\0') ++n;
  return n;
}

/// `text` behind `prefix`, or nullptr when it does not begin with it.
inline const char* after(const char* text, const char* prefix) {
  while (*prefix != '\0') {
    if (*text++ != *prefix++) return nullptr;
  }
  return text;
}

/// Reads decimal digits; -1 when there is none or the number exceeds `limit`. `end` is set behind them.
inline long parse_number(const char* text, long limit, const char** end) {
  long value = 0;
  const char* p = text;
  while (*p >= '0' && *p <= '9') {
    value = value * 10 + (*p++ - '0');
    if (value > limit) return -1;
  }
  if (end != nullptr) *end = p;
  return p == text ? -1 : value;
}

}  // namespace weft::preload
