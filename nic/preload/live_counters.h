// SPDX-License-Identifier: Apache-2.0
//
// Live `counters/` and `hw_counters/` files (DECISIONS 24): open() gives a memfd that holds the value of that moment. The
// daemon is asked over a connection of its own, so that a program that never opens a device (cat, a dashboard) can read
// them too.
//
//   open_live_counter(path, flags)   path as it is after rewriting. A descriptor, or -1: not such a file, not opened for
//                                    reading, or the daemon does not answer; the file in the tree is then as good as any.
#pragma once

namespace weft::preload {

int open_live_counter(const char* path, int flags);

}  // namespace weft::preload
