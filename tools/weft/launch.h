// SPDX-License-Identifier: Apache-2.0
//
// What makes a program run as a host of a fabric: its environment, and why it may have opened no device.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/weft/run_folder.h"
#include "tools/weft/run_notes.h"

namespace weft::tools {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// libweft.so beside this binary or where it was installed; an error line when there is none.
Outcome<std::string> find_preload_library();

/// A path that LD_PRELOAD can carry: with a space or a colon in it, a link in the run folder stands for it.
Outcome<std::string> preloadable_path(const std::string& library, const RunFolder& folder);

/// run_id 0: none is set. program: what will be run, if that is known.
Outcome<Environment> host_environment(const RunFolder& folder, const std::string& host, uint64_t run_id,
                                      const std::string& program = {});

/// The AddressSanitizer library that an ELF program is linked with ("libasan.so.8"), or nothing.
std::string needed_sanitizer(const std::string& program);

/// As execvp finds it; empty when it does not.
std::string find_program(const std::string& name);

/// A `weft run` that is over, as far as it matters for what to say about it.
struct EndedRun {
  std::vector<std::string> command;
  pid_t pid = 0;
  std::string last_name;  ///< of the program that the child was at its end; empty: not known
  NotedRun notes;
};

/// Why a program that ended had opened no RDMA device: one clause.
std::string why_nothing_opened(const EndedRun& run);

bool is_rxe_provider_installed();

/// Never 0.
uint64_t new_run_id();

}  // namespace weft::tools
