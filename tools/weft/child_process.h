// SPDX-License-Identifier: Apache-2.0
//
// A program that is run for its output, within a time.
//
//   ChildProcess server;
//   std::string error = server.start({"ib_write_bw", "-p", "18515"}, environment);
//   ChildProcess::Ended ended = client.finish(seconds(30), stop_fd);
//
// Output and error output are read into one text. The destructor kills what still runs. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "protocols/base/time.h"
#include "tools/weft/launch.h"

namespace weft::tools {

class ChildProcess {
 public:
  struct Ended {
    bool in_time = false;  ///< false: it ran too long, or stop_fd became readable; it was killed
    int exit_code = -1;    ///< 128 + signal when a signal ended it
    std::string output;
  };

  ChildProcess() = default;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  std::string start(const std::vector<std::string>& command, const Environment& environment);
  /// True once a TCP socket of this machine listens on the port; false when the program ended, or the time or stop_fd
  /// came first.
  bool wait_for_listener(uint16_t port, Duration patience, int stop_fd);
  Ended finish(Duration patience, int stop_fd);

 private:
  void read_output();

  pid_t pid_ = -1;
  int pidfd_ = -1;
  int output_fd_ = -1;
  std::string output_;
};

/// A TCP port nobody listens on; 0 when there is none.
uint16_t free_tcp_port();

}  // namespace weft::tools
