// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tools/weft/process_setup.h"

namespace weft::tools {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point after(Duration patience) {
  return Clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(patience);
}

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left) + 1;
}

/// /proc/net/tcp and tcp6: "  0: 0100007F:4853 00000000:0000 0A …", the state 0A is LISTEN.
bool is_listening(uint16_t port) {
  char wanted[8];
  std::snprintf(wanted, sizeof wanted, ":%04X", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string index;
    std::string local;
    std::string remote;
    std::string state;
    std::string rest;
    while (lines >> index >> local >> remote >> state && std::getline(lines, rest)) {
      if (state == "0A" && local.size() > 5 && local.compare(local.size() - 5, 5, wanted) == 0) return true;
    }
  }
  return false;
}

[[noreturn]] void become(const std::vector<std::string>& command, const Environment& environment, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  undo_process_setup();
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

}  // namespace

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pidfd_ >= 0) close(pidfd_);
  if (output_fd_ >= 0) close(output_fd_);
}

std::string ChildProcess::start(const std::vector<std::string>& command, const Environment& environment) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "cannot make a pipe: " + error_text(errno);
  pid_ = fork();
  if (pid_ == 0) become(command, environment, ends[1]);
  close(ends[1]);
  output_fd_ = ends[0];
  fcntl(output_fd_, F_SETFL, O_NONBLOCK);
  if (pid_ < 0) return "cannot start a process: " + error_text(errno);
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  return pidfd_ < 0 ? std::string("cannot watch a process: ") + std::strerror(errno) : std::string();
}

void ChildProcess::read_output() {
  char buffer[4096];
  for (ssize_t got; (got = read(output_fd_, buffer, sizeof buffer)) > 0;) output_.append(buffer, static_cast<size_t>(got));
}

bool ChildProcess::wait_for_listener(uint16_t port, Duration patience, int stop_fd) {
  // The kernel tells nobody that a socket listens; the table is looked at until it does.
  constexpr int kLookAgainMs = 5;
  const auto until = after(patience);
  while (Clock::now() < until) {
    if (is_listening(port)) return true;
    pollfd watched[] = {{pidfd_, POLLIN, 0}, {stop_fd, POLLIN, 0}};
    if (poll(watched, 2, kLookAgainMs) > 0) return false;
  }
  return false;
}

ChildProcess::Ended ChildProcess::finish(Duration patience, int stop_fd) {
  const auto until = after(patience);
  Ended ended;
  for (;;) {
    pollfd watched[] = {{pidfd_, POLLIN, 0}, {output_fd_, POLLIN, 0}, {stop_fd, POLLIN, 0}};
    const int got = poll(watched, 3, milliseconds_until(until));
    if (got < 0 && errno == EINTR) continue;
    if ((watched[1].revents & POLLIN) != 0) read_output();
    if ((watched[0].revents & POLLIN) != 0) {
      ended.in_time = true;
      break;
    }
    if (got <= 0 || (watched[2].revents & POLLIN) != 0) break;
    if ((watched[1].revents & (POLLHUP | POLLERR)) != 0 && (watched[1].revents & POLLIN) == 0) {
      // It closed its output and runs on: only its end is waited for.
      close(output_fd_);
      output_fd_ = -1;
    }
  }
  if (!ended.in_time) kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (output_fd_ >= 0) read_output();
  ended.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  ended.output = output_;
  return ended;
}

uint16_t free_tcp_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(fd);
  return bound ? ntohs(address.sin_port) : 0;
}

}  // namespace weft::tools
