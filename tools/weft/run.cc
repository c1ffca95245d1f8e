// SPDX-License-Identifier: Apache-2.0
//
// `weft run`, `weft with` and `weft env`: a program in the place of a host's.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/weft/commands.h"
#include "tools/weft/control_client.h"
#include "tools/weft/launch.h"
#include "tools/weft/private_fabric.h"
#include "tools/weft/process_setup.h"
#include "tools/weft/text_output.h"

namespace weft::tools {
namespace {

volatile sig_atomic_t child_pid = 0;
constexpr size_t kMaxHostList = 63;  // what libweft keeps

// A terminal sends its signals to the program too; only what somebody sent to this process alone is passed on.
void pass_on(int signal, siginfo_t* info, void*) {
  if (info->si_code <= 0 && child_pid > 0) kill(static_cast<pid_t>(child_pid), signal);
}

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT};

void forward_signals() {
  struct sigaction action{};
  action.sa_sigaction = pass_on;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&action.sa_mask);
  for (const int signal : kPassedOn) sigaction(signal, &action, nullptr);
}

[[noreturn]] void become_program(const std::vector<std::string>& command, const Environment& environment, const sigset_t& mask, pid_t parent) {
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  undo_process_setup();
  // kill -9 of `weft run` is meant for the program.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kOwnFailure);
  execvp(argv[0], argv.data());
  const int error = errno;
  std::fprintf(stderr, "weft: cannot run %s: %s\n", argv[0], std::strerror(error));
  _exit(error == ENOENT ? 127 : 126);
}

/// Waits for its end; name: of the program that it was then, which a zombie still tells.
int exit_code_of(pid_t child, std::string& name) {
  siginfo_t ended;
  while (waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  name = read_file("/proc/" + std::to_string(child) + "/comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// The hosts of a list are checked by the daemon's own; of several it makes a place that is all of them.
std::string check_hosts(ControlClient& client, const std::string& list) {
  control::Request request;
  request.mutable_show_hosts();
  Outcome<control::Reply> reply = client.call(request);
  if (!reply) return reply.error();
  control::Request join;
  for (size_t from = 0; from <= list.size();) {
    const size_t end = std::min(list.find(',', from), list.size());
    const std::string name = list.substr(from, end - from);
    const auto& hosts = reply->hosts().hosts();
    if (std::none_of(hosts.begin(), hosts.end(), [&name](const control::Host& h) { return h.name() == name; })) {
      return "there is no host '" + name + "' in fabric '" + reply->hosts().fabric() + "'; it has " +
             (hosts.size() == 1 ? "h0 only" : "h0 to " + hosts[hosts.size() - 1].name());
    }
    join.mutable_join_hosts()->add_names(name);
    from = end + 1;
  }
  if (join.join_hosts().names_size() == 1) return {};
  if (list.size() > kMaxHostList) return "the list of hosts is too long for one program";
  reply = client.call(join);
  return reply ? std::string() : reply.error();
}

/// Says on stderr when the run used no RDMA device, and why.
void tell_if_nothing_opened(const RunFolder& folder, uint64_t run_id, const EndedRun& run) {
  if (run.notes.nested) return;  // its programs are told about by the inner `weft run`
  const char* program = run.command[0].c_str();
  const auto client = ControlClient::connect(folder);
  if (!client) {
    std::fprintf(stderr, "weft: while %s ran its fabric went away: %s\n", program, client.error().c_str());
    return;
  }
  control::Request request;
  request.mutable_run_report()->set_run_id(run_id);
  Outcome<control::Reply> reply = (*client)->call(request);
  if (!reply || reply->run_report().attachments() > 0) return;
  std::fprintf(stderr, "weft: nothing under %s opened an RDMA device: %s\n", program, why_nothing_opened(run).c_str());
}

}  // namespace

int run_as_host(const RunFolder& folder, const std::string& host, const ParsedLine& line) {
  auto client = ControlClient::connect(folder);
  if (!client) return complain(client.error(), kOwnFailure);
  if (std::string error = check_hosts(**client, host); !error.empty()) return complain(error, kOwnFailure);
  client->reset();
  const uint64_t run_id = new_run_id();
  Outcome<Environment> environment = host_environment(folder, host, run_id, line.command[0]);
  if (!environment) return complain(environment.error(), kOwnFailure);
  if (line.shared_tcp) environment->emplace_back("WEFT_SHARED_TCP", "1");

  note_nested_run();
  const RunNotes notes(folder, run_id);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);  // no signal is lost between fork and the handlers
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) become_program(line.command, *environment, before, self);
  if (child < 0) return complain("cannot start a process: " + error_text(errno), kOwnFailure);
  child_pid = child;
  forward_signals();
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EndedRun run{line.command, child, {}, {}};
  const int code = exit_code_of(child, run.last_name);
  child_pid = 0;
  run.notes = notes.read();
  if (code != 127 && code != 126) tell_if_nothing_opened(folder, run_id, run);
  return code;
}

int command_run(const ParsedLine& line) {
  Outcome<RunFolder> folder = find_run_folder(line.name);
  if (!folder) return complain(folder.error(), kOwnFailure);
  return run_as_host(*folder, line.host, line);
}

int command_with(const ParsedLine& line) {
  // Several at once, also below each other, do not meet.
  Outcome<RunFolder> folder = find_run_folder("with-" + std::to_string(getpid()));
  if (!folder) return complain(folder.error(), kOwnFailure);
  PrivateFabric fabric(*folder);
  if (std::string error = fabric.start(line.fabric); !error.empty()) return complain(error, kOwnFailure);
  return run_as_host(*folder, "h0", line);
}

int command_env(const ParsedLine& line) {
  Outcome<RunFolder> folder = find_run_folder(line.name);
  if (!folder) return complain(folder.error());
  auto client = ControlClient::connect(*folder);
  if (!client) return complain(client.error());
  if (std::string error = check_hosts(**client, line.host); !error.empty()) return complain(error);
  Outcome<Environment> environment = host_environment(*folder, line.host, 0);
  if (!environment) return complain(environment.error());
  if (line.shared_tcp) environment->emplace_back("WEFT_SHARED_TCP", "1");
  if (line.format == "json") {
    JsonWriter json;
    json.begin_object();
    for (const auto& [name, value] : *environment) json.member(name, std::string_view(value));
    json.end_object();
    std::fputs(json.text().c_str(), stdout);
    return 0;
  }
  for (const auto& [name, value] : *environment) {
    if (line.format == "shell") {
      std::printf("export %s=%s\n", name.c_str(), shell_quoted(value).c_str());
    } else {
      std::printf("%s=%s\n", name.c_str(), value.c_str());
    }
  }
  return 0;
}

}  // namespace weft::tools
