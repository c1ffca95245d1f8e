// SPDX-License-Identifier: Apache-2.0
//
// The control socket against strangers: whatever one sends, the others are answered.
#include "tools/weft/control_server.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "protocols/base/bytes.h"
#include "protocols/base/random.h"
#include "tools/weft/control_wire.h"
#include "tools/weft/version.h"

using namespace weft;
using namespace weft::tools;

namespace {

class Echo : public ControlHandler {
 public:
  control::Reply handle(const control::Request& request, ControlSession& s) override {
    ++requests;
    session = &s;
    control::Reply reply = new_reply();
    reply.mutable_version()->set_name(std::string(reply_bytes, 'x'));
    return reply;
  }
  void closed(ControlSession& s) override {
    ++closes;
    if (session == &s) session = nullptr;
  }
  int requests = 0;
  int closes = 0;
  size_t reply_bytes = 1;
  ControlSession* session = nullptr;
};

struct Fixture {
  Fixture() : server(io, echo, [this](const std::string& line) { log.push_back(line); }) {
    char pattern[] = "/tmp/weft-control-test-XXXXXX";
    folder = mkdtemp(pattern);
    path = folder + "/control";
    REQUIRE(server.listen(path) == "");
  }
  ~Fixture() {
    server.stop();
    io.poll();
    unlink(path.c_str());
    rmdir(folder.c_str());
  }
  void run() {
    io.restart();
    while (io.poll() > 0) {
    }
  }

  boost::asio::io_context io;
  Echo echo;
  std::vector<std::string> log;
  ControlServer server;
  std::string folder;
  std::string path;
};

class Client {
 public:
  explicit Client(const std::string& path) {
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(fd_); }

  ssize_t say(const std::string& bytes) { return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void ask(uint32_t protocol = kControlProtocol) {
    control::Request request;
    request.set_protocol(protocol);
    request.set_client_version("9.9");
    request.mutable_version();
    say(frame_message(request));
  }
  /// The next whole reply, if one is there.
  bool receive(control::Reply& reply) {
    char chunk[65536];
    for (ssize_t got; (got = recv(fd_, chunk, sizeof chunk, 0)) != -1;) {
      if (got == 0) {
        ended_ = true;
        break;
      }
      buffer_.append(chunk, static_cast<size_t>(got));
    }
    if (buffer_.size() < 4) return false;
    Be32 length;
    std::copy_n(buffer_.begin(), 4, length.raw.begin());
    if (buffer_.size() < 4 + length.get()) return false;
    REQUIRE(reply.ParseFromArray(buffer_.data() + 4, static_cast<int>(length.get())));
    buffer_.erase(0, 4 + length.get());
    return true;
  }
  bool ended() {
    control::Reply ignored;
    receive(ignored);
    return ended_;
  }

 private:
  int fd_;
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace

TEST_CASE("Requests are answered in order") {
  Fixture f;
  Client client(f.path);
  client.ask();
  client.ask();
  f.run();
  control::Reply reply;
  CHECK(client.receive(reply));
  CHECK(reply.protocol() == kControlProtocol);
  CHECK(reply.has_version());
  CHECK(client.receive(reply));
  CHECK_FALSE(client.receive(reply));
  CHECK(f.echo.requests == 2);
}

TEST_CASE("A request that comes byte by byte is one request") {
  Fixture f;
  Client client(f.path);
  control::Request request;
  request.set_protocol(kControlProtocol);
  request.mutable_show_hosts();
  for (const char c : frame_message(request)) {
    client.say(std::string(1, c));
    f.run();
  }
  control::Reply reply;
  CHECK(client.receive(reply));
}

TEST_CASE("Thousands of requests in one piece are thousands of answers") {
  Fixture f;
  Client client(f.path);
  control::Request request;
  request.set_protocol(kControlProtocol);
  request.mutable_version();
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes += frame_message(request);
  size_t sent = 0;
  int answers = 0;
  control::Reply reply;
  for (int round = 0; round < 10000 && answers < 5000; ++round) {
    const ssize_t more = sent < bytes.size() ? client.say(bytes.substr(sent)) : 0;
    if (more > 0) sent += static_cast<size_t>(more);
    f.run();
    while (client.receive(reply)) ++answers;
  }
  CHECK(answers == 5000);
}

TEST_CASE("Another protocol version is told which versions met, and ended") {
  Fixture f;
  Client client(f.path);
  client.ask(kControlProtocol + 1);
  f.run();
  control::Reply reply;
  REQUIRE(client.receive(reply));
  CHECK(reply.error().text().find("9.9") != std::string::npos);
  CHECK(reply.error().text().find("weft up") != std::string::npos);
  CHECK(client.ended());
  CHECK(f.echo.requests == 0);
}

TEST_CASE("A length beyond 1 MiB ends the client before anything is allocated for it") {
  Fixture f;
  for (const uint32_t length : {kMaxControlMessage + 1, UINT32_MAX}) {
    Client client(f.path);
    const Be32 head(length);
    client.say(std::string(reinterpret_cast<const char*>(head.raw.data()), 4) + "xxxx");
    f.run();
    control::Reply reply;
    REQUIRE(client.receive(reply));
    CHECK(reply.error().text().find("too long") != std::string::npos);
    CHECK(client.ended());
  }
  CHECK(f.log.size() == 2);
}

TEST_CASE("Garbage of any kind ends its sender only") {
  Fixture f;
  Client good(f.path);
  const uint64_t seed = 977;
  CAPTURE(seed);
  Random random(seed, 2);
  for (int round = 0; round < 500; ++round) {
    Client bad(f.path);
    std::string bytes;
    const uint64_t size = random.below(400);
    for (uint64_t i = 0; i < size; ++i) bytes += static_cast<char>(random.next());
    if (round % 2 == 0) {  // a right length before wrong content
      const Be32 head(static_cast<uint32_t>(bytes.size()));
      bytes.insert(0, reinterpret_cast<const char*>(head.raw.data()), 4);
    }
    bad.say(bytes);
    f.run();
  }
  f.run();
  good.ask();
  f.run();
  control::Reply reply;
  CHECK(good.receive(reply));
  CHECK(reply.has_version());
}

TEST_CASE("A client that asks and never reads cannot make the daemon grow") {
  Fixture f;
  f.echo.reply_bytes = 100'000;
  Client deaf(f.path);
  for (int i = 0; i < 2000; ++i) {
    deaf.ask();
    f.run();
  }
  // Answers for about a message beyond the socket's own buffer were made, not 200 MB of them.
  CHECK(f.echo.requests < 100);
  Client good(f.path);
  good.ask();
  f.run();
  control::Reply reply;
  CHECK(good.receive(reply));
}

TEST_CASE("What is sent unasked is bounded as well, and told to the sender") {
  Fixture f;
  Client deaf(f.path);
  deaf.ask();
  f.run();
  REQUIRE(f.echo.session != nullptr);
  control::Reply frame = new_reply();
  frame.mutable_frame()->set_data(std::string(100'000, 'y'));
  int taken = 0;
  while (taken < 1000 && f.echo.session->send(frame)) ++taken;
  CHECK(taken > 100);
  CHECK(taken < 400);
}

TEST_CASE("A client that goes is noticed, and the socket is free for the next") {
  Fixture f;
  for (int i = 0; i < 200; ++i) {
    Client client(f.path);
    client.ask();
    f.run();
  }
  f.run();
  CHECK(f.echo.closes == 200);
}

TEST_CASE("A crowd beyond the limit is turned away, not served and not waited for") {
  Fixture f;
  std::vector<std::unique_ptr<Client>> crowd;
  for (int i = 0; i < 70; ++i) crowd.push_back(std::make_unique<Client>(f.path));
  f.run();
  CHECK(crowd.back()->ended());
  CHECK_FALSE(crowd.front()->ended());
  crowd.clear();
  f.run();
  Client later(f.path);
  later.ask();
  f.run();
  control::Reply reply;
  CHECK(later.receive(reply));
}
