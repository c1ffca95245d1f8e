// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/nic/engine/rig.h"

namespace weft::test {

void rig_failed(const char* file, int line, const char* what) {
  FAIL(file << ":" << line << ": " << what);
  std::abort();  // not reached: FAIL throws
}

}  // namespace weft::test
