// SPDX-License-Identifier: Apache-2.0
//
// What every fuzzer here defines: libFuzzer's entry point. Built two ways from the same file:
//
//   tests/fuzz/run TARGET [SECONDS]   with clang and libFuzzer, for hunting
//   meson test fuzz-TARGET            with regression_main.cc: replays the corpus, then a bounded number of seeded
//   random
//                                     mutations of it, with sanitizers; for every build
//
// A target aborts (FUZZ_CHECK) when a property does not hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

#define FUZZ_CHECK(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
