// SPDX-License-Identifier: Apache-2.0
//
// The clock of a program: the one place of libweft that reads it. CLOCK_MONOTONIC in picoseconds.
#pragma once

#include <time.h>

#include "protocols/base/time.h"

namespace weft::preload {

inline Instant read_clock() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant{seconds(t.tv_sec) + nanoseconds(t.tv_nsec)};
}

}  // namespace weft::preload
