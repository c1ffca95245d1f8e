// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/process_setup.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace weft::tools {
namespace {

void (*inherited_xfsz)(int) = SIG_DFL;

void close_range_of(unsigned first, unsigned last) {
  if (first <= last) (void)syscall(SYS_close_range, first, last, 0u);
}

}  // namespace

void prepare_process() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    const int wrong_direction = number == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    // The lowest free number is this one, because those below are open by now.
    (void)open("/dev/null", wrong_direction | O_CLOEXEC);
  }
  inherited_xfsz = std::signal(SIGXFSZ, SIG_IGN);
}

void undo_process_setup() {
  if (inherited_xfsz != SIG_ERR) std::signal(SIGXFSZ, inherited_xfsz);
}

int finish_output(int code) {
  errno = 0;
  const bool failed_before = std::ferror(stdout) != 0;
  const bool failed_now = std::fflush(stdout) != 0;
  if (!failed_before && !failed_now) return code;
  const std::string why = failed_now && errno != 0 ? ": " + error_text(errno) : std::string();
  std::fprintf(stderr, "weft: cannot write standard output%s\n", why.c_str());
  return code == 0 ? kOutputFailed : code;
}

std::string error_text(int error) {
  const std::string text = std::strerror(error);
  switch (error) {
    case EMFILE: return text + " (the limit is ulimit -n)";
    case EFBIG: return text + " (the limit is ulimit -f)";
    case EAGAIN: return text + " (the limit may be ulimit -u)";
    case ENOMEM: return text + " (the limit may be ulimit -v)";
    default: return text;
  }
}

void close_inherited_descriptors(int keep) {
  const unsigned first = STDERR_FILENO + 1;
  if (keep < static_cast<int>(first)) return close_range_of(first, ~0u);
  close_range_of(first, static_cast<unsigned>(keep) - 1);
  close_range_of(static_cast<unsigned>(keep) + 1, ~0u);
}

}  // namespace weft::tools
