// SPDX-License-Identifier: Apache-2.0
//
// The daemon's end of the control API: a Unix socket, a session per client, requests in order.
//
//   ControlServer server(io, handler, log);
//   std::string error = server.listen("<run folder>/control");
//
// The handler gets one Request at a time and returns its Reply; a session may also be sent Replies unasked (captures).
// Whatever a client sends is a stranger's: garbage, another protocol version, more than 1 MiB, or not fetching what it
// asked for ends that session with a reason; others do not notice. One thread: the io_context's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "control.pb.h"

namespace weft::tools {

class ControlSession {
 public:
  virtual ~ControlSession() = default;
  virtual uint64_t id() const = 0;
  virtual bool has_room() const = 0;
  /// False: too much waits for this client already, and the message was not taken.
  virtual bool send(const control::Reply& reply) = 0;
};

class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  virtual control::Reply handle(const control::Request& request, ControlSession& session) = 0;
  virtual void closed(ControlSession& session) = 0;
};

class ControlServer {
 public:
  ControlServer(boost::asio::io_context& io, ControlHandler& handler, std::function<void(const std::string&)> log);
  ~ControlServer();
  std::string listen(const std::string& path);
  void stop();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// A Reply that says no, with protocol and version filled in.
control::Reply error_reply(int code, const std::string& text);
/// An empty Reply of this daemon.
control::Reply new_reply();

}  // namespace weft::tools
