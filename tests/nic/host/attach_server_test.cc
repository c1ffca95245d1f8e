// SPDX-License-Identifier: Apache-2.0
//
// Connections: who may come, who is dropped, how a death is seen.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "nic/host/port_memory.h"
#include "protocols/base/random.h"
#include "tests/nic/host/server_fixture.h"

using namespace weft;
using namespace weft::host;
using attach::MessageType;

TEST_CASE("A client that ends its socket without BYE counts as dead, one that says BYE does not") {
  ServerFixture f;
  REQUIRE(f.error.empty());
  TestClient quits(f.path(0));
  TestClient leaves(f.path(0));
  REQUIRE((quits.hello() && leaves.hello()));
  f.run();
  REQUIRE(f.sink.ports.size() == 2);
  const SeatId quitter = quits.receive().as<attach::Welcome>().seat;
  attach::Bye bye{};
  bye.head.type = MessageType::kBye;
  REQUIRE(leaves.say(bye));
  f.run();
  REQUIRE(f.sink.detached.size() == 1);
  CHECK_FALSE(f.sink.detached[0].died);
  quits.hang_up();
  f.run();
  REQUIRE(f.sink.detached.size() == 2);
  CHECK(f.sink.detached[1].died);
  CHECK(f.sink.detached[1].seat == quitter);
  CHECK(f.server->seats().empty());
  CHECK(f.server->statistics().died == 1);
}

// A forked child keeps the socket open, so its end does not come; the pidfd tells.
TEST_CASE("kill -9 is seen although a child of the program still holds the socket") {
  ServerFixture f;
  int alive[2];
  REQUIRE(pipe2(alive, O_CLOEXEC) == 0);
  const pid_t program = fork();
  if (program == 0) {
    TestClient client(f.path(0));
    client.hello();
    const pid_t holder = fork();
    if (holder == 0) {
      char byte;
      // Lives until the test closes its end.
      close(alive[1]);
      (void)!read(alive[0], &byte, 1);
      _exit(0);
    }
    for (;;) pause();
  }
  while (f.sink.ports.empty()) REQUIRE(f.wait());
  REQUIRE(f.server->seats().begin()->second.pid == program);
  kill(program, SIGKILL);
  waitpid(program, nullptr, 0);
  while (!f.sink.ports.empty()) REQUIRE(f.wait());
  REQUIRE(f.sink.detached.size() == 1);
  CHECK(f.sink.detached[0].died);
  close(alive[0]);
  close(alive[1]);
}

TEST_CASE("Messages of a wrong size end their client and nobody else's") {
  ServerFixture f;
  TestClient good(f.path(0));
  good.hello();
  f.run();
  REQUIRE(good.receive().head.type == MessageType::kWelcome);
  const std::vector<uint8_t> garbage(4096, 1);
  for (const size_t size : {size_t{1}, size_t{8}, size_t{255}, size_t{257}, size_t{4096}}) {
    CAPTURE(size);
    TestClient bad(f.path(0));
    bad.send_bytes(garbage.data(), size);
    f.run();
    CHECK(bad.receive().end);
    TestClient later(f.path(0));
    later.hello();
    f.run();
    REQUIRE(later.receive().head.type == MessageType::kWelcome);
    later.send_bytes(garbage.data(), size);
    f.run();
    const Received last = later.receive();
    CHECK(last.head.type == MessageType::kEvent);
    CHECK(last.as<attach::Event>().event == 8);
    CHECK(later.receive().end);
  }
  CHECK(f.server->seats().size() == 1);
  CHECK(f.server->statistics().dropped == 10);
  CHECK(f.logged("instead of 256"));
  CHECK(good.receive().none);
}

TEST_CASE("Random messages of the right size never hurt a neighbour") {
  ServerFixture f(2);
  TestClient good(f.path(1));
  good.hello();
  f.run();
  REQUIRE(good.receive().head.type == MessageType::kWelcome);
  REQUIRE(good.receive().head.type == MessageType::kWelcome);
  const uint64_t seed = 20240611;
  CAPTURE(seed);
  Random random(seed, 1);
  for (int round = 0; round < 2000; ++round) {
    // Each a different run of time, so that no range is ever short.
    f.now += seconds(61);
    TestClient bad(f.path(round % 2));
    if (random.below(2) == 0) bad.hello();
    for (int i = 0; i < 4; ++i) {
      std::array<uint64_t, 32> message;
      for (uint64_t& word : message) word = random.below(4) == 0 ? random.below(8) : random.next();
      // Mostly a known type, so that the fields are looked at.
      const uint32_t type = random.below(8) == 0 ? static_cast<uint32_t>(random.next()) : static_cast<uint32_t>(random.below(14));
      std::memcpy(message.data(), &type, sizeof type);
      bad.send_bytes(message.data(), sizeof message);
    }
    f.run();
  }
  f.run();
  CHECK(f.server->seats().size() == 1);
  CHECK(f.sink.ports.size() == 2);
  attach::Resolve ask{};
  ask.head.type = MessageType::kResolve;
  std::memcpy(ask.gid, f.plan.nic(0, 0).gids[1].data(), 16);
  good.say(ask);
  f.run();
  CHECK(good.receive().head.type == MessageType::kResolved);
}

TEST_CASE("A client that does not fetch its answers is dropped") {
  ServerFixture f;
  TestClient deaf(f.path(0));
  deaf.hello();
  f.run();
  attach::Resolve ask{};
  ask.head.type = MessageType::kResolve;
  for (int i = 0; i < 100000 && !f.server->seats().empty(); ++i) {
    deaf.say(ask);
    f.run();
  }
  CHECK(f.server->seats().empty());
  CHECK(f.logged("does not fetch"));
}

TEST_CASE("A client that connects and says nothing is dropped after its time") {
  ServerFixture f;
  TestClient silent(f.path(0));
  TestClient good(f.path(0));
  good.hello();
  f.run();
  CHECK(f.server->next_deadline() == f.now + seconds(5));
  f.now += seconds(4);
  f.server->on_timer(f.now);
  CHECK(silent.receive().none);
  f.now += seconds(1);
  f.server->on_timer(f.now);
  CHECK(silent.receive().end);
  CHECK(f.server->next_deadline() == kNever);
  CHECK(f.server->seats().size() == 1);
}

TEST_CASE("Too many silent clients are refused, not waited for") {
  ServerFixture f;
  std::vector<std::unique_ptr<TestClient>> crowd;
  for (int i = 0; i < 64; ++i) crowd.push_back(std::make_unique<TestClient>(f.path(0)));
  f.run();
  TestClient one_more(f.path(0));
  TestClient other_host(f.path(1));
  other_host.hello();
  f.run();
  const Received refused = one_more.receive();
  CHECK(refused.head.type == MessageType::kRefused);
  CHECK(refused.as<attach::Refused>().error == EBUSY);
  CHECK(other_host.receive().head.type == MessageType::kWelcome);
  crowd.clear();
  f.run();
  TestClient after(f.path(0));
  after.hello();
  f.run();
  CHECK(after.receive().head.type == MessageType::kWelcome);
}

TEST_CASE("Without file descriptors a client is refused with a line, and the next one is served again") {
  ServerFixture f;
  TestClient first(f.path(0));
  TestClient second(f.path(0));
  first.hello();
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int lowest_free = dup(0);
  close(lowest_free);
  for (rlim_t spare = 0; spare < 12; ++spare) {
    rlimit tight = before;
    tight.rlim_cur = static_cast<rlim_t>(lowest_free) + spare;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &tight) == 0);
    TestClient* client = spare == 0 ? &first : &second;
    if (spare > 0) {
      REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
      second.~TestClient();
      new (&second) TestClient(f.path(0));
      second.hello();
      const int free_now = dup(0);
      close(free_now);
      tight.rlim_cur = static_cast<rlim_t>(free_now) + spare;
      REQUIRE(setrlimit(RLIMIT_NOFILE, &tight) == 0);
    }
    f.run();
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    const Received answer = client->receive();
    CAPTURE(spare);
    if (answer.head.type == MessageType::kWelcome) continue;
    CHECK(answer.head.type == MessageType::kRefused);
    CHECK(std::string(answer.as<attach::Refused>().text).find("file descriptors") != std::string::npos);
  }
  TestClient last(f.path(0));
  last.hello();
  f.run();
  CHECK(last.receive().head.type == MessageType::kWelcome);
  CHECK(f.server->statistics().refused >= 2);
}

TEST_CASE("A port that finds no room is refused with a line that names the limit, and all its pages are there otherwise") {
  ServerFixture f;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto inherited = signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{1 << 20, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &tight) == 0);
  TestClient poor(f.path(0));
  poor.hello();
  f.run();
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  signal(SIGXFSZ, inherited);
  const Received refused = poor.receive();
  REQUIRE(refused.head.type == MessageType::kRefused);
  CHECK(std::string(refused.as<attach::Refused>().text).find("ulimit -f") != std::string::npos);
  CHECK(f.sink.ports.empty());

  PortMemory memory;
  const int status = memfd_create("status", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(status, 4096) == 0);
  const attach::PortLayout layout = attach::port_layout(256, 256, 4096);
  REQUIRE(memory.create(layout, status) == 0);
  struct stat info{};
  REQUIRE(fstat(memory.client_fds()[0], &info) == 0);
  CHECK(static_cast<uint64_t>(info.st_blocks) * 512 >= layout.total);
  close(status);
}

TEST_CASE("The data plane's verdict on a port ends its process with DEVICE_FATAL") {
  ServerFixture f;
  TestClient bad(f.path(0));
  TestClient good(f.path(0));
  bad.hello();
  good.hello();
  f.run();
  const SeatId seat = bad.receive().as<attach::Welcome>().seat;
  good.receive();
  f.server->drop_seat(seat, "published a slot twice", f.now);
  CHECK(bad.receive().as<attach::Event>().event == 8);
  CHECK(bad.receive().end);
  CHECK(good.receive().none);
  CHECK(f.logged("published a slot twice"));
  f.server->drop_seat(seat, "again", f.now);  // nobody has that seat any more
  CHECK(f.server->seats().size() == 1);
}

TEST_CASE("A host's socket path must fit, and an existing one is an error") {
  ServerFixture f;
  CHECK(f.server->listen(0, "h0", "/tmp/" + std::string(200, 'x')).find("too long") != std::string::npos);
  CHECK_FALSE(f.server->listen(0, "h0", f.path(0)).empty());
}
