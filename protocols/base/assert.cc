// SPDX-License-Identifier: Apache-2.0
#include "protocols/base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

namespace weft {

void assertion_failed(const char* condition, const char* file, int line) {
  char text[512];
  const int length = snprintf(text, sizeof text, "weft: assertion failed: %s (%s:%d)\n", condition, file, line);
  if (length > 0) {
    const size_t size = static_cast<size_t>(length) < sizeof text ? static_cast<size_t>(length) : sizeof text - 1;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, size);
  }
  abort();
}

}  // namespace weft
