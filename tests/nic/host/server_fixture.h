// SPDX-License-Identifier: Apache-2.0
//
// An attach server with hosts h0 and h1 in a folder of its own, and a clock that the test turns.
#pragma once

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "nic/host/attach_server.h"
#include "tests/nic/host/attach_client.h"
#include "tests/nic/host/fake_port_sink.h"

namespace weft::host {

class ServerFixture {
 public:
  explicit ServerFixture(uint32_t nics = 1, AttachSettings settings = {}) : plan(2, nics) {
    char pattern[] = "/tmp/weft-attach-test-XXXXXX";
    folder = mkdtemp(pattern);
    settings.owner_uid = geteuid();
    settings.log = [this](const std::string& line) { log.push_back(line); };
    server = std::make_unique<AttachServer>(plan, sink, settings);
    error = server->listen(0, "h0", path(0));
    if (error.empty()) error = server->listen(1, "h1", path(1));
  }
  ServerFixture(const ServerFixture&) = delete;
  ServerFixture& operator=(const ServerFixture&) = delete;
  ~ServerFixture() {
    server.reset();
    rmdir(folder.c_str());
  }

  std::string path(uint32_t host) const { return folder + "/a" + std::to_string(host); }

  /// Everything that is ready now. Local sockets: what a client sent is there when its send returned.
  void run() {
    for (pollfd ready{server->event_fd(), POLLIN, 0}; poll(&ready, 1, 0) > 0;) server->on_ready(now);
  }
  /// Waits for something to happen (a death), at most five seconds.
  bool wait() {
    pollfd ready{server->event_fd(), POLLIN, 0};
    if (poll(&ready, 1, 5000) <= 0) return false;
    run();
    return true;
  }
  bool logged(const std::string& part) const {
    for (const std::string& line : log) {
      if (line.find(part) != std::string::npos) return true;
    }
    return false;
  }

  AddressPlan plan;
  FakePortSink sink;
  std::string folder;
  std::string error;
  std::vector<std::string> log;
  Instant now{seconds(1000)};
  std::unique_ptr<AttachServer> server;
};

}  // namespace weft::host
