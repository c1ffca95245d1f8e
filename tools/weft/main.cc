// SPDX-License-Identifier: Apache-2.0
//
// An edge file: whatever a library throws for want of memory, descriptors or threads ends here as one line.
#include <cstdio>
#include <exception>
#include <new>

#include "tools/weft/commands.h"
#include "tools/weft/process_setup.h"

namespace weft::tools {
namespace {

int print_text(const ParsedLine& line) {
  std::FILE* out = line.exit_code == 0 ? stdout : stderr;
  std::fputs(line.text.c_str(), out);
  if (line.text.empty() || line.text.back() != '\n') std::fputc('\n', out);
  return line.exit_code;
}

int run_verb(const ParsedLine& line) {
  switch (line.verb) {
    case Verb::kNone: return print_text(line);
    case Verb::kUp: return command_up(line);
    case Verb::kDaemon: return command_daemon(line);
    case Verb::kRun: return command_run(line);
    case Verb::kWith: return command_with(line);
    case Verb::kEnv: return command_env(line);
    case Verb::kShow: return command_show(line);
    case Verb::kCapture: return command_capture(line);
    case Verb::kDemo: return command_demo(line);
    case Verb::kDown: return command_down(line);
    case Verb::kPort: return command_port(line);
    case Verb::kDoctor: return command_doctor(line);
  }
  return kUsageError;
}

}  // namespace
}  // namespace weft::tools

int main(int argc, char** argv) {
  using namespace weft::tools;
  prepare_process();
  int own_failure = 1;
  try {
    const ParsedLine line = parse_command_line(argc, argv);
    if (line.verb == Verb::kRun || line.verb == Verb::kWith) own_failure = kOwnFailure;
    return finish_output(run_verb(line));
  } catch (const std::bad_alloc&) {
    return complain("no memory is left (ulimit -v, or the machine's)", own_failure);
  } catch (const std::exception& error) {
    return complain(std::string("a limit of this machine or shell is in the way: ") + error.what(), own_failure);
  }
}
