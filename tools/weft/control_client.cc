// SPDX-License-Identifier: Apache-2.0
//
// An edge file: Asio's constructors throw when descriptors run out.
#include "tools/weft/control_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/system_error.hpp>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "tools/weft/control_wire.h"
#include "tools/weft/version.h"

namespace weft::tools {

namespace asio = boost::asio;

struct ControlClient::State {
  State(const RunFolder& f) : folder(f), socket(io), reader(socket) {}

  asio::io_context io;
  RunFolder folder;
  ControlSocket socket;
  MessageReader reader;
  bool reading = false;
  std::optional<control::Reply> reply;
  std::string error;
  std::optional<asio::posix::stream_descriptor> stop;
  bool stopped = false;
};

namespace {

/// Why nobody answers, and what to do. met: this daemon was talked to before.
std::string no_daemon(const RunFolder& folder, int error, bool met = false) {
  const std::string start_it = "weft up" + (folder.name == "default" ? "" : " --name " + folder.name);
  const std::string fabric = "fabric '" + folder.name + "'";
  if (error == EMFILE || error == ENFILE) return "no file descriptor is left to talk to the daemon: raise ulimit -n";
  if (error == EACCES || error == EPERM) return fabric + " belongs to another user: " + folder.path;
  const auto is_there = [](const std::string& path) { return access(path.c_str(), F_OK) == 0; };
  if (is_there(folder.ended())) {
    std::string by = read_file(folder.ended());
    while (!by.empty() && by.back() == '\n') by.pop_back();
    return fabric + " was taken down (" + (by.empty() ? "just now" : by) + "); start it again with: " + start_it;
  }
  if (is_there(folder.control()) || is_there(folder.file("daemon.pid"))) {
    if (!met && is_locked(folder)) return fabric + " is just starting or ending; try again";
    return "the daemon of " + fabric + " died (its last words: " + folder.file("daemon.log") + "); start it again with: " + start_it;
  }
  if (met) return fabric + " was taken down; start it again with: " + start_it;
  return "no " + fabric + " is running; start one with: " + start_it;
}

}  // namespace

ControlClient::ControlClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
ControlClient::~ControlClient() {
  if (state_ && state_->stop) state_->stop->release();
}

Outcome<std::unique_ptr<ControlClient>> ControlClient::connect(const RunFolder& folder) {
  std::unique_ptr<State> state;
  try {
    state = std::make_unique<State>(folder);
  } catch (const boost::system::system_error& error) {
    return Failure{no_daemon(folder, error.code().value())};
  }
  boost::system::error_code error;
  state->socket.connect(asio::local::stream_protocol::endpoint(folder.control()), error);
  if (error) return Failure{no_daemon(folder, error.value())};
  std::unique_ptr<ControlClient> client(new ControlClient(std::move(state)));
  control::Request request;
  request.mutable_version();
  Outcome<control::Reply> version = client->call(request);
  if (!version) return Failure{version.error()};
  return client;
}

bool ControlClient::is_reachable(const RunFolder& folder) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder.control();
  if (path.size() >= sizeof address.sun_path) return false;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const bool connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return connected;
}

int ControlClient::daemon_pid() const {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(state_->socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return 0;
  return credentials.pid;
}

std::string ControlClient::send(control::Request request) {
  request.set_protocol(kControlProtocol);
  request.set_client_version(kWeftVersion);
  const std::string bytes = frame_message(request);
  boost::system::error_code error;
  asio::write(state_->socket, asio::buffer(bytes), error);
  return error ? no_daemon(state_->folder, 0, true) : std::string();
}

Outcome<control::Reply> ControlClient::next(Duration patience, int stop_fd) {
  State& s = *state_;
  if (stop_fd >= 0 && !s.stop) {
    s.stop.emplace(s.io, stop_fd);
    s.stop->async_wait(asio::posix::stream_descriptor::wait_read, [&s](const boost::system::error_code& error) {
      s.stopped = !error;
    });
  }
  if (!s.reading && !s.reply) {
    s.reading = true;
    s.reader.read([&s](const std::string& error, Bytes body) {
      s.reading = false;
      s.reply.emplace();
      s.error = error == kClosed ? no_daemon(s.folder, 0, true) : error;
      if (error.empty() && !s.reply->ParseFromArray(body.data(), static_cast<int>(body.size()))) {
        s.error = "the daemon's answer cannot be read; it is another version of weft than this program";
      }
    });
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(patience);
  s.io.restart();
  while (!s.reply && !(stop_fd >= 0 && s.stopped)) {
    if (s.io.run_one_until(until) == 0) break;
  }
  if (!s.reply) return Failure{kTimedOut};
  control::Reply reply = std::move(*s.reply);
  s.reply.reset();
  if (!s.error.empty()) return Failure{s.error};
  return reply;
}

Outcome<control::Reply> ControlClient::call(control::Request request, Duration patience) {
  if (std::string error = send(std::move(request)); !error.empty()) return Failure{error};
  Outcome<control::Reply> reply = next(patience);
  if (!reply) {
    if (reply.error() == kTimedOut) return Failure{"the daemon of fabric '" + state_->folder.name + "' does not answer"};
    return reply;
  }
  if (reply->has_error()) return Failure{reply->error().text()};
  return reply;
}

}  // namespace weft::tools
