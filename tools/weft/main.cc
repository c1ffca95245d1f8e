// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "tools/weft/commands.h"

int main(int argc, char** argv) {
  using namespace weft::tools;
  const ParsedLine line = parse_command_line(argc, argv);
  switch (line.verb) {
    case Verb::kNone:
      std::fputs(line.text.c_str(), line.exit_code == 0 ? stdout : stderr);
      if (line.text.empty() || line.text.back() != '\n') std::fputc('\n', line.exit_code == 0 ? stdout : stderr);
      return line.exit_code;
    case Verb::kUp: return command_up(line);
    case Verb::kDaemon: return command_daemon(line);
    case Verb::kRun: return command_run(line);
    case Verb::kEnv: return command_env(line);
    case Verb::kShow: return command_show(line);
    case Verb::kCapture: return command_capture(line);
    case Verb::kDemo: return command_demo(line);
    case Verb::kDown: return command_down(line);
    case Verb::kDoctor: return command_doctor(line);
  }
  return kUsageError;
}
