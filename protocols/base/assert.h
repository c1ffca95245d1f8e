// SPDX-License-Identifier: Apache-2.0
//
// WEFT_ASSERT(condition): a programmer's error; stays on in release builds and ends the process.
// Never use it for what a packet, a program or a file may contain: those are data (enums, Result).
#pragma once

namespace weft {
/// Prints one line with raw write(2) and aborts. Needs no allocation.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
}  // namespace weft

#define WEFT_ASSERT(condition) \
  (__builtin_expect(static_cast<bool>(condition), 1) ? (void)0 : ::weft::assertion_failed(#condition, __FILE__, __LINE__))
