// SPDX-License-Identifier: Apache-2.0
//
// memcpy and its relatives for libweft alone. The compiler calls them for plain assignments; libc's would be
// intercepted by ThreadSanitizer and AddressSanitizer in programs under test, which know nothing of our futex locks and
// would report races between our own threads (nic_rules 5). The version script keeps these names inside the library.
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
extern "C" int weft_copy_in(void* to, const void* from, size_t bytes);
#endif

extern "C" {

void* memcpy(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  weft_copy_in(to, from, bytes);
#else
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  for (size_t i = 0; i < bytes; ++i) out[i] = in[i];
#endif
  return to;
}

void* memmove(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  if (out == in) return to;
  if (out < in || out >= in + bytes) {
    for (size_t i = 0; i < bytes; ++i) out[i] = in[i];
  } else {
    for (size_t i = bytes; i > 0; --i) out[i - 1] = in[i - 1];
  }
  return to;
}

void* memset(void* to, int value, size_t bytes) {
#if defined(__x86_64__)
  void* end = to;
  __asm__ volatile("rep stosb" : "+D"(end), "+c"(bytes) : "a"(value) : "memory");
#else
  auto* out = static_cast<uint8_t*>(to);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(value);
#endif
  return to;
}

int memcmp(const void* a, const void* b, size_t bytes) {
  const auto* x = static_cast<const uint8_t*>(a);
  const auto* y = static_cast<const uint8_t*>(b);
  for (size_t i = 0; i < bytes; ++i) {
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  }
  return 0;
}

size_t strlen(const char* text) {
  size_t n = 0;
  while (text[n] != '\0') ++n;
  return n;
}

}  // extern "C"
