// SPDX-License-Identifier: Apache-2.0
//
// The verbs of `weft`. Each takes the parsed line, does its work and returns the exit code; errors are one line on stderr.
#pragma once

#include <string>

#include "tools/weft/options.h"
#include "tools/weft/run_folder.h"

namespace weft::tools {

int command_up(const ParsedLine& line);
int command_daemon(const ParsedLine& line);
int command_run(const ParsedLine& line);
int command_with(const ParsedLine& line);
int command_env(const ParsedLine& line);
int command_show(const ParsedLine& line);
int command_capture(const ParsedLine& line);
int command_demo(const ParsedLine& line);
int command_down(const ParsedLine& line);
int command_port(const ParsedLine& line);
int command_doctor(const ParsedLine& line);

/// Prints "weft: text" on stderr; returns code.
int complain(const std::string& text, int code = 1);

/// kWithStarter: the daemon ends, in order, when the process that started it is gone, killed too.
enum class Lifetime { kUntilDown, kWithStarter };

/// Starts the daemon as a process of its own and waits until the fabric can be used; empty or one line.
std::string start_fabric(const RunFolder& folder, const FabricSettings& settings, Lifetime lifetime = Lifetime::kUntilDown);
/// Ends a fabric and waits until it is gone; empty or one line.
std::string end_fabric(const RunFolder& folder);

/// Runs the line's command as a host of a fabric that is up; its exit code, or kOwnFailure with one line on stderr.
int run_as_host(const RunFolder& folder, const std::string& host, const ParsedLine& line);

}  // namespace weft::tools
