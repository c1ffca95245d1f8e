// SPDX-License-Identifier: Apache-2.0
//
// The daemon of a fabric: takes the run folder's lock, builds the fabric, serves attach and control sockets until `weft
// down`, SIGTERM or SIGINT, and leaves nothing behind.
//
//   run_daemon(folder, settings, report)   returns the exit code
//
// report is called exactly once: with an empty line when the fabric can be used, else with why not.
#pragma once

#include <functional>
#include <string>

#include "tools/weft/options.h"
#include "tools/weft/run_folder.h"

namespace weft::tools {

struct DaemonMode {
  bool foreground = false;  ///< else standard output and error go to daemon.log
  std::function<void(const std::string& error)> report;
};

int run_daemon(const RunFolder& folder, const FabricSettings& settings, const DaemonMode& mode);

}  // namespace weft::tools
