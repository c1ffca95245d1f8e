// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/control_server.h"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "tools/weft/control_wire.h"
#include "tools/weft/version.h"

namespace weft::tools {
namespace {

namespace asio = boost::asio;
constexpr size_t kMaxSessions = 64;
constexpr size_t kMaxQueuedBytes = 32u << 20;
constexpr auto kDescriptorPause = std::chrono::milliseconds(100);

class Session;

}  // namespace

struct ControlServer::State {
  State(asio::io_context& context, ControlHandler& h, std::function<void(const std::string&)> l)
      : io(context), acceptor(context), pause(context), handler(h), log(std::move(l)) {}

  asio::io_context& io;
  asio::local::stream_protocol::acceptor acceptor;
  asio::steady_timer pause;
  ControlHandler& handler;
  std::function<void(const std::string&)> log;
  std::map<uint64_t, std::shared_ptr<Session>> sessions;
  uint64_t next_id = 1;
  std::string path;
};

namespace {

class Session : public ControlSession, public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<ControlServer::State> server, ControlSocket socket, uint64_t session_id)
      : server_(std::move(server)), socket_(std::move(socket)), reader_(socket_), id_(session_id) {}

  uint64_t id() const override { return id_; }

  bool has_room() const override { return queued_bytes() <= kMaxQueuedBytes && !ending_; }

  bool send(const control::Reply& reply) override {
    if (!has_room()) return false;
    enqueue(reply);
    return true;
  }

  void read_next() {
    reading_ = true;
    reader_.read([self = shared_from_this()](const std::string& error, Bytes body) {
      self->reading_ = false;
      if (error == kClosed) return self->close({});
      if (!error.empty()) return self->refuse(EMSGSIZE, error);
      self->on_message(body);
    });
  }

  void close(const std::string& reason) {
    if (closed_) return;
    closed_ = true;
    if (!reason.empty()) server_->log("control client " + std::to_string(id_) + " dropped: " + reason);
    boost::system::error_code ignored;
    socket_.close(ignored);
    server_->handler.closed(*this);
    server_->sessions.erase(id_);
  }

 private:
  void on_message(Bytes body) {
    control::Request request;
    if (!request.ParseFromArray(body.data(), static_cast<int>(body.size()))) return refuse(EBADMSG, "that is no control request");
    if (request.protocol() != kControlProtocol) {
      return refuse(EPROTO, "the daemon is weft " + std::string(kWeftVersion) + " (control protocol " +
                                std::to_string(kControlProtocol) + "), this program is weft " +
                                (request.client_version().empty() ? "?" : request.client_version().substr(0, 40)) +
                                " (protocol " + std::to_string(request.protocol()) +
                                "); end the fabric with its own weft down, then weft up again");
    }
    const control::Reply reply = server_->handler.handle(request, *this);
    if (closed_) return;
    enqueue(reply);
    maybe_read();
  }

  /// Says why, then ends.
  void refuse(int code, const std::string& text) {
    reason_ = text;
    enqueue(error_reply(code, text));
    ending_ = true;
  }

  void enqueue(const control::Reply& reply) {
    std::string bytes = frame_message(reply);
    if (bytes.empty()) bytes = frame_message(error_reply(EMSGSIZE, "the answer is longer than a message may be"));
    waiting_ += bytes;
    if (writing_.empty()) write_next();
  }

  // All that waits goes in one write: a capture is many small messages.
  void write_next() {
    writing_.swap(waiting_);
    asio::async_write(socket_, asio::buffer(writing_),
                      [self = shared_from_this()](const boost::system::error_code& error, size_t) {
                        if (self->closed_) return;
                        if (error) return self->close({});
                        self->writing_.clear();
                        if (!self->waiting_.empty()) {
                          self->write_next();
                        } else if (self->ending_) {
                          return self->close(self->reason_);
                        }
                        self->maybe_read();
                      });
  }

  size_t queued_bytes() const { return writing_.size() + waiting_.size(); }

  // Requests are read alongside what is sent, but nobody can pile up answers that he does not fetch.
  void maybe_read() {
    if (!reading_ && !ending_ && !closed_ && queued_bytes() <= kMaxControlMessage) read_next();
  }

 private:
  std::shared_ptr<ControlServer::State> server_;
  ControlSocket socket_;
  MessageReader reader_;
  uint64_t id_;
  std::string writing_;
  std::string waiting_;
  bool reading_ = false;
  bool ending_ = false;
  bool closed_ = false;
  std::string reason_;
};

bool is_allowed(ControlSocket& socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  return credentials.uid == geteuid() || credentials.uid == 0;
}

void accept_next(const std::shared_ptr<ControlServer::State>& state) {
  state->acceptor.async_accept([state](const boost::system::error_code& error, ControlSocket socket) {
    if (error == asio::error::operation_aborted || !state->acceptor.is_open()) return;
    if (error == asio::error::no_descriptors) {
      // Nothing tells when descriptors come free; asking again at once would spin.
      state->pause.expires_after(kDescriptorPause);
      state->pause.async_wait([state](const boost::system::error_code& stopped) {
        if (!stopped) accept_next(state);
      });
      return;
    }
    if (!error && state->sessions.size() < kMaxSessions && is_allowed(socket)) {
      const uint64_t id = state->next_id++;
      auto session = std::make_shared<Session>(state, std::move(socket), id);
      state->sessions.emplace(id, session);
      session->read_next();
    }
    accept_next(state);
  });
}

}  // namespace

ControlServer::ControlServer(asio::io_context& io, ControlHandler& handler, std::function<void(const std::string&)> log)
    : state_(std::make_shared<State>(io, handler, std::move(log))) {}

ControlServer::~ControlServer() { stop(); }

std::string ControlServer::listen(const std::string& path) {
  boost::system::error_code error;
  state_->path = path;
  state_->acceptor.open(asio::local::stream_protocol(), error);
  if (!error) state_->acceptor.bind(asio::local::stream_protocol::endpoint(path), error);
  if (!error) state_->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return "cannot listen on " + path + ": " + error.message();
  accept_next(state_);
  return {};
}

void ControlServer::stop() {
  boost::system::error_code ignored;
  state_->acceptor.close(ignored);
  state_->pause.cancel();
  while (!state_->sessions.empty()) {
    const std::shared_ptr<Session> session = state_->sessions.begin()->second;
    session->close({});
  }
}

control::Reply new_reply() {
  control::Reply reply;
  reply.set_protocol(kControlProtocol);
  reply.set_daemon_version(kWeftVersion);
  return reply;
}

control::Reply error_reply(int code, const std::string& text) {
  control::Reply reply = new_reply();
  reply.mutable_error()->set_code(code);
  reply.mutable_error()->set_text(text);
  return reply;
}

}  // namespace weft::tools
