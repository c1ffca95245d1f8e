// SPDX-License-Identifier: Apache-2.0
//
// `weft up`, `weft down` and the hidden verb that a daemon is started with.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tools/weft/commands.h"
#include "tools/weft/control_client.h"
#include "tools/weft/daemon.h"
#include "tools/weft/outside_words.h"
#include "tools/weft/process_setup.h"

namespace weft::tools {
namespace {

constexpr const char* kReady = "ok\n";

std::vector<std::string> daemon_arguments(const RunFolder& folder, const FabricSettings& settings, int ready_fd) {
  std::vector<std::string> arguments = {"weft", "daemon", "--name", folder.name, "--hosts", std::to_string(settings.hosts),
                                        "--nics", std::to_string(settings.nics), "--seed", std::to_string(settings.seed),
                                        "--drop", settings.drop, "--gid-holes", std::to_string(settings.gid_holes),
                                        "--ready-fd", std::to_string(ready_fd)};
  if (settings.first_host != 0) arguments.insert(arguments.end(), {"--first-host", std::to_string(settings.first_host)});
  for (const OutsidePlan& plan : settings.outside) arguments.insert(arguments.end(), {"--outside", words_of_outside(plan)});
  if (settings.force_icrc) arguments.push_back("--force-icrc");
  if (settings.strict_timers) arguments.push_back("--strict-timers");
  if (settings.shared_tcp) arguments.push_back("--shared-tcp");
  return arguments;
}

/// In the child: becomes the daemon. A daemon started inside `weft run` must not be a host's program itself.
[[noreturn]] void become_daemon(std::vector<std::string> arguments, int ready_fd, pid_t starter) {
  setsid();
  if (starter != 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != starter) _exit(1);
  }
  for (const char* name : {"LD_PRELOAD", "WEFT_RUN", "WEFT_HOST", "WEFT_RUN_ID", "WEFT_SHARED_TCP"}) unsetenv(name);
  fcntl(ready_fd, F_SETFD, 0);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv("/proc/self/exe", argv.data());
  const char* text = "cannot start the daemon: /proc is not mounted\n";
  (void)!write(ready_fd, text, std::strlen(text));
  _exit(1);
}

std::string read_all(int fd) {
  std::string text;
  char buffer[512];
  for (;;) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

std::string name_option(const std::string& name) { return name == "default" ? "" : " --name " + name; }

void print_next_steps(const RunFolder& folder, const FabricSettings& settings) {
  const std::string option = name_option(folder.name);
  const std::string last = "h" + std::to_string(settings.hosts > 1 ? 1 : 0);
  std::printf("fabric '%s' is up: %u host%s on switch s0\n\n", folder.name.c_str(), settings.hosts, settings.hosts == 1 ? "" : "s");
  for (const OutsidePlan& plan : settings.outside) {
    std::printf("  to the outside: %s, %s %s\n", plan.name.c_str(), outside_kind_name(plan.kind), plan.device.c_str());
  }
  if (!settings.outside.empty()) std::printf("\n");
  std::printf("  weft run h0%s -- ib_write_bw &\n", option.c_str());
  std::printf("  weft run %s%s -- ib_write_bw h0\n", last.c_str(), option.c_str());
  std::printf("  weft show ports%s\n  weft down%s\n", option.c_str(), option.c_str());
  std::fflush(stdout);
}

/// True when the process is gone within the time.
bool wait_for_end(int pidfd, int timeout_ms) {
  pollfd ended{pidfd, POLLIN, 0};
  int got;
  do {
    got = poll(&ended, 1, timeout_ms);
  } while (got < 0 && errno == EINTR);
  return got > 0;
}

}  // namespace

int complain(const std::string& text, int code) {
  std::fprintf(stderr, "weft: %s\n", text.c_str());
  return code;
}

std::string start_fabric(const RunFolder& folder, const FabricSettings& settings, Lifetime lifetime) {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return "cannot make a pipe: " + error_text(errno);
  const pid_t starter = lifetime == Lifetime::kWithStarter ? getpid() : 0;
  const pid_t child = fork();
  if (child < 0) {
    const std::string error = "cannot start the daemon: " + error_text(errno);
    close(ready[0]);
    close(ready[1]);
    return error;
  }
  if (child == 0) become_daemon(daemon_arguments(folder, settings, ready[1]), ready[1], starter);
  close(ready[1]);
  std::string answer = read_all(ready[0]);
  close(ready[0]);
  if (answer == kReady) return {};
  int status = 0;
  waitpid(child, &status, 0);
  while (!answer.empty() && answer.back() == '\n') answer.pop_back();
  if (!answer.empty()) return answer;
  const std::string how = WIFSIGNALED(status) ? "by signal " + std::to_string(WTERMSIG(status)) : "with code " + std::to_string(WEXITSTATUS(status));
  return "the daemon ended " + how + " while it started; its last words: " + folder.file("daemon.log");
}

int command_up(const ParsedLine& line) {
  Outcome<RunFolder> folder = find_run_folder(line.name);
  if (!folder) return complain(folder.error());
  FabricSettings settings = line.fabric;
  if (!line.file.empty()) {
    if (std::string error = apply_file(line, settings); !error.empty()) return complain(error, kUsageError);
  }
  if (line.foreground) {
    DaemonMode mode;
    mode.foreground = true;
    mode.report = [&](const std::string& error) {
      if (error.empty()) {
        print_next_steps(*folder, settings);
      } else {
        complain(error);
      }
    };
    return run_daemon(*folder, settings, mode);
  }
  if (std::string error = start_fabric(*folder, settings); !error.empty()) return complain(error);
  print_next_steps(*folder, settings);
  return 0;
}

int command_daemon(const ParsedLine& line) {
  Outcome<RunFolder> folder = find_run_folder(line.name);
  if (!folder) return complain(folder.error());
  close_inherited_descriptors(line.ready_fd);
  DaemonMode mode;
  mode.report = [ready_fd = line.ready_fd](const std::string& error) {
    const std::string text = error.empty() ? kReady : error + "\n";
    if (ready_fd < 0) return;
    (void)!write(ready_fd, text.data(), text.size());
    close(ready_fd);
  };
  return run_daemon(*folder, line.fabric, mode);
}

namespace {

/// A client; or an error; or neither, when the fabric is gone already and nothing is left of it. One that is just
/// starting, or that another `weft down` is ending, is waited for: nothing tells when it listens or when it is gone.
Outcome<std::unique_ptr<ControlClient>> connect_to_end(const RunFolder& folder) {
  constexpr int kTries = 1000;
  constexpr int kAgainMs = 5;
  for (int tries = 0;; ++tries) {
    auto client = ControlClient::connect(folder);
    if (client || ControlClient::is_reachable(folder)) return client;
    switch (remove_leftovers(folder)) {
      case FolderLock::Taken::kYes:
        return std::unique_ptr<ControlClient>();
      case FolderLock::Taken::kGone:
        if (tries > 0) return std::unique_ptr<ControlClient>();
        return ControlClient::connect(folder);  // it may have gone after it said why it does not answer
      case FolderLock::Taken::kFailed:
        return client;
      case FolderLock::Taken::kHeldByAnother:
        if (tries == kTries) return client;
        poll(nullptr, 0, kAgainMs);
    }
  }
}

}  // namespace

std::string end_fabric(const RunFolder& folder) {
  auto client = connect_to_end(folder);
  if (!client) return client.error();
  if (*client == nullptr) return {};
  const int pid = (*client)->daemon_pid();
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  control::Request request;
  request.mutable_down();
  Outcome<control::Reply> reply = (*client)->call(request);
  client->reset();
  if (pidfd < 0) return reply || !is_locked(folder) ? std::string() : reply.error();
  constexpr int kPatienceMs = 5000;
  if (!wait_for_end(pidfd, reply ? kPatienceMs : kPatienceMs / 5)) {
    syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
    wait_for_end(pidfd, kPatienceMs);
    remove_leftovers(folder);
  }
  close(pidfd);
  return {};
}

int command_down(const ParsedLine& line) {
  Outcome<RunFolder> folder = find_run_folder(line.name);
  if (!folder) return complain(folder.error());
  if (std::string error = end_fabric(*folder); !error.empty()) return complain(error);
  return 0;
}

}  // namespace weft::tools
