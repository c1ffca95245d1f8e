// SPDX-License-Identifier: Apache-2.0
//
// What every `weft` process does first and last with what it was started with: descriptors 0 to 2, limits, its output.
//
//   prepare_process();                    before anything is opened
//   int code = the verb's work;
//   return finish_output(code);           an output that could not be written is an error too
//
// A descriptor 0, 1 or 2 that the starter closed is held by /dev/null in the wrong direction, so that no socket of ours
// gets the number and writing to it still fails; close-on-exec, so that `weft run` hands the program what it was given.
// SIGXFSZ is ignored: a write over ulimit -f fails with EFBIG, which names the limit, instead of killing us silently.
#pragma once

#include <string>

namespace weft::tools {

void prepare_process();

/// In a child, before it becomes somebody else's program: what prepare_process() changed and exec would keep.
void undo_process_setup();

/// Flushes standard output; code, or kOutputFailed with one line on stderr when not all of it could be written.
int finish_output(int code);

inline constexpr int kOutputFailed = 1;

/// strerror, with the limit behind it where there is one to raise.
std::string error_text(int error);

/// Closes every descriptor above 2 but `keep`: what a shell had open by chance must not stay open as long as a daemon.
void close_inherited_descriptors(int keep);

}  // namespace weft::tools
