// SPDX-License-Identifier: Apache-2.0
//
// The command line of `weft`, parsed and checked; nothing is done yet.
//
//   ParsedLine line = parse_command_line(argc, argv);
//   if (line.verb == Verb::kNone) { print line.text; exit with line.exit_code; }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocols/base/random.h"
#include "protocols/base/time.h"
#include "scenarios/engine/outside_plan.h"

namespace weft::tools {

enum class Verb { kNone, kUp, kDaemon, kRun, kWith, kEnv, kShow, kCapture, kDemo, kDown, kDoctor, kPort };

/// What a fabric is built from, as `weft up` takes it and passes it on to its daemon.
struct FabricSettings {
  uint32_t hosts = 2;
  uint32_t nics = 1;
  uint64_t seed = 1;
  std::string drop = "0%";
  bool force_icrc = false;
  bool strict_timers = false;
  uint32_t gid_holes = 0;  ///< empty entries before a NIC's first GID
  bool shared_tcp = false;  ///< hosts have no TCP ports of their own
  uint32_t first_host = 0; ///< of the address plan: how many hosts come before h0
  std::vector<OutsidePlan> outside;
};

struct ParsedLine {
  Verb verb = Verb::kNone;
  int exit_code = 0;
  std::string text;  ///< help, version or an error, for verb kNone; an error when exit_code is not 0

  std::string name = "default";
  FabricSettings fabric;
  std::string file;                  ///< up: a scenario; empty: none
  bool hosts_given = false;          ///< on the line, which goes before the file
  bool nics_given = false;
  bool seed_given = false;
  bool foreground = false;
  int ready_fd = -1;                 ///< daemon
  std::string host;                  ///< run, env; port: with "/1" for its second NIC
  std::vector<std::string> command;  ///< run, with
  bool shared_tcp = false;           ///< run, env
  std::string format = "shell";      ///< env
  std::string what;                  ///< show; port: down or up
  bool json = false;                 ///< show
  std::vector<std::string> places;   ///< capture
  std::string output = "-";          ///< capture
  std::optional<Duration> capture_for;
};

inline constexpr int kUsageError = 2;
inline constexpr int kOwnFailure = 125;  ///< of `run` and `with`, whose exit code is the program's otherwise

ParsedLine parse_command_line(int argc, const char* const* argv);

}  // namespace weft::tools
