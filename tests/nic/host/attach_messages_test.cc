// SPDX-License-Identifier: Apache-2.0
//
// What each message means, and that every field is checked.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "nic/host/port_memory.h"
#include "tests/nic/host/server_fixture.h"

using namespace weft;
using namespace weft::host;
using attach::MessageType;

namespace {

attach::QpState qp_state(uint32_t qpn, uint32_t state) {
  attach::QpState qp{};
  qp.head.type = MessageType::kQpState;
  qp.qpn = qpn;
  qp.state = state;
  qp.type = 2;
  return qp;
}

attach::PeerQuery peer_query(const Gid& gid, uint32_t qpn) {
  attach::PeerQuery query{};
  query.head = {MessageType::kPeerQuery, 99};
  query.qpn = qpn;
  std::copy(gid.begin(), gid.end(), query.gid);
  return query;
}

/// Attaches, says it, and tells whether the client survived.
template <typename T>
bool survives(const T& message) {
  ServerFixture f;
  TestClient client(f.path(0));
  client.hello();
  f.run();
  REQUIRE(client.receive().head.type == MessageType::kWelcome);
  client.say(message);
  f.run();
  return f.server->seats().size() == 1;
}

}  // namespace

TEST_CASE("An address that is not of the fabric is asked for outside") {
  ServerFixture f;
  f.sink.resolve_error = 0;
  TestClient client(f.path(0));
  client.hello();
  f.run();
  REQUIRE(client.receive().head.type == MessageType::kWelcome);
  attach::Resolve question{};
  question.head = {MessageType::kResolve, 5};
  question.gid[10] = question.gid[11] = 0xFF;
  question.gid[12] = 10;
  client.say(question);
  f.run();
  REQUIRE(f.sink.asked.size() == 1);
  CHECK(f.sink.asked[0].second[12] == 10);
  f.server->on_resolved(f.sink.asked[0].first, 0, Mac{1, 2, 3, 4, 5, 6}, f.now);
  f.server->on_resolved(f.sink.asked[0].first, 0, Mac{9}, f.now);  // a second answer is nobody's
  const auto resolved = client.receive().as<attach::Resolved>();
  CHECK(resolved.head.type == MessageType::kResolved);
  CHECK(resolved.head.tag == 5);
  CHECK(resolved.error == 0);
  CHECK(resolved.outside == 1);
  CHECK(resolved.mac[5] == 6);

  // Eight questions may be under way; a client that is gone gets no answer and does no harm.
  for (uint32_t i = 0; i < 9; ++i) {
    question.head.tag = 100 + i;
    client.say(question);
    f.run();
  }
  const auto busy = client.receive().as<attach::Resolved>();
  CHECK(busy.head.tag == 108);
  CHECK(busy.error == EBUSY);
  attach::Bye bye{};
  bye.head.type = MessageType::kBye;
  client.say(bye);
  f.run();
  CHECK(f.server->seats().empty());
  for (const auto& [token, gid] : f.sink.asked) f.server->on_resolved(token, ETIMEDOUT, {}, f.now);
}

TEST_CASE("HELLO is answered with a seat, a range and five descriptors") {
  ServerFixture f;
  TestClient client(f.path(1));
  REQUIRE(client.hello());
  f.run();
  const Received got = client.receive();
  REQUIRE(got.head.type == MessageType::kWelcome);
  CHECK(got.head.tag == 77);
  const auto w = got.as<attach::Welcome>();
  const NicIdentity id = f.plan.nic(1, 0);
  CHECK(w.version == attach::kAttachVersion);
  CHECK(w.nic_count == 1);
  CHECK(w.qpn_log2 == 14);
  CHECK(w.qpn_base % (1u << 14) == 0);
  CHECK(w.qpn_base >= 1u << 14);
  CHECK(w.ipv4 == id.ipv4);
  CHECK(w.node_guid == id.guid);
  CHECK(w.gid_count == 2);
  CHECK(w.gid_first == 0);
  CHECK(w.gid_table == 16);
  CHECK(std::memcmp(w.gids[1], id.gids[1].data(), 16) == 0);
  CHECK(std::string(w.device) == "rxe0");
  CHECK(w.max_qp_wr >= 16384);
  CHECK(w.max_cqe >= 16384);
  CHECK(w.max_qp <= 4096);
  const auto layout = attach::port_layout(w.tx_slots, w.rx_slots, w.slot_payload);
  CHECK(w.port_bytes == layout.total);

  REQUIRE(got.fds.size() == static_cast<size_t>(attach::WelcomeDescriptor::kCount));
  struct stat info{};
  REQUIRE(fstat(got.fds[0], &info) == 0);
  CHECK(info.st_size == static_cast<off_t>(layout.total));
  CHECK(ftruncate(got.fds[0], 4096) != 0);
  CHECK(ftruncate(got.fds[0], 1 << 24) != 0);
  REQUIRE(f.sink.ports.size() == 1);
  const SeatPort& port = f.sink.ports.begin()->second;
  CHECK(port.host == 1);
  CHECK(port.qpn_base == w.qpn_base);

  // Both see the same memory.
  void* mapped = mmap(nullptr, layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, got.fds[0], 0);
  REQUIRE(mapped != MAP_FAILED);
  static_cast<uint8_t*>(mapped)[layout.tx_slot_offset] = 0xA5;
  CHECK(port.memory[layout.tx_slot_offset] == 0xA5);
  munmap(mapped, layout.total);

  // A pipe each way, ours without blocking.
  CHECK(write(got.fds[2], "k", 1) == 1);
  char byte = 0;
  CHECK(read(port.kick_read, &byte, 1) == 1);
  CHECK(write(port.kick_write, "w", 1) == 1);
  CHECK(read(got.fds[1], &byte, 1) == 1);
  CHECK(byte == 'w');
  CHECK(read(port.kick_read, &byte, 1) == -1);
  CHECK(errno == EAGAIN);
  ssize_t filled = 0;
  while (filled >= 0) filled = write(port.kick_write, "wwww", 4);
  CHECK(errno == EAGAIN);
}

TEST_CASE("Status and notices cannot be written by a client, however it tries") {
  ServerFixture f;
  TestClient client(f.path(0));
  client.hello();
  f.run();
  const Received got = client.receive();
  REQUIRE(got.fds.size() == 5);
  for (const size_t index : {size_t{3}, size_t{4}}) {
    CAPTURE(index);
    const int fd = got.fds[index];
    void* readable = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(readable != MAP_FAILED);
    CHECK(mprotect(readable, 4096, PROT_READ | PROT_WRITE) != 0);
    munmap(readable, 4096);
    CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(write(fd, "x", 1) < 0);
    CHECK(ftruncate(fd, 0) != 0);
    // Opening it anew for writing may succeed; the seal stops what follows.
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const int again = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (again < 0) continue;
    CHECK(write(again, "x", 1) < 0);
    CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
    CHECK(fallocate(again, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0);
    close(again);
  }
  // The daemon itself can still write both.
  f.sink.ports.begin()->second.notices->producer.store(5);
}

TEST_CASE("A process may have all NICs of its host or fewer, each with a port of its own") {
  ServerFixture f(3);
  TestClient all(f.path(0));
  TestClient two(f.path(0));
  TestClient too_many(f.path(0));
  all.hello();
  two.hello(attach::kAttachVersion, 2);
  too_many.hello(attach::kAttachVersion, 4000);
  f.run();
  const auto count = [](TestClient& client) {
    uint32_t nics = 0;
    uint32_t range = 0;
    for (Received r = client.receive(); !r.none && !r.end; r = client.receive()) {
      const auto w = r.as<attach::Welcome>();
      CHECK(w.nic == nics);
      CHECK((nics == 0 || w.qpn_base == range));
      range = w.qpn_base;
      ++nics;
    }
    return nics;
  };
  CHECK(count(all) == 3);
  CHECK(count(two) == 2);
  CHECK(count(too_many) == 3);
  CHECK(f.sink.ports.size() == 8);
  two.hang_up();
  f.run();
  CHECK(f.sink.detached.size() == 2);
}

TEST_CASE("Another version is refused in one line that says what to do") {
  ServerFixture f;
  TestClient old(f.path(0));
  old.hello(attach::kAttachVersion + 1);
  f.run();
  const Received got = old.receive();
  REQUIRE(got.head.type == MessageType::kRefused);
  const auto refused = got.as<attach::Refused>();
  CHECK(refused.error == EPROTO);
  CHECK(refused.version == attach::kAttachVersion);
  const std::string text(refused.text);
  CHECK(text.find("version 2") != std::string::npos);
  CHECK(text.find("weft up") != std::string::npos);
  CHECK(text.find('\n') == std::string::npos);
  CHECK(old.receive().end);
  CHECK(f.sink.ports.empty());
}

TEST_CASE("A port that the data plane cannot take is refused and leaves nothing") {
  ServerFixture f(2);
  for (const uint32_t at : {0u, 1u}) {
    f.sink.next_error = ENOMEM;
    f.sink.fail_at_nic = at;
    TestClient client(f.path(0));
    client.hello();
    f.run();
    Received got = client.receive();
    if (at == 1) got = client.receive();  // the first NIC was welcome
    REQUIRE(got.head.type == MessageType::kRefused);
    CHECK(got.as<attach::Refused>().error == ENOMEM);
    CHECK(client.receive().end);
    CHECK(f.sink.ports.empty());
    CHECK(f.server->seats().empty());
  }
}

TEST_CASE("RESOLVE knows every NIC of the fabric, multicast, and nobody else") {
  ServerFixture f(2);
  TestClient client(f.path(0));
  client.hello();
  f.run();
  client.receive();
  client.receive();
  const auto ask = [&](const Gid& gid) {
    attach::Resolve r{};
    r.head = {MessageType::kResolve, 4711};
    std::memcpy(r.gid, gid.data(), 16);
    client.say(r);
    f.run();
    const Received got = client.receive();
    REQUIRE(got.head.type == MessageType::kResolved);
    CHECK(got.head.tag == 4711);
    return got.as<attach::Resolved>();
  };
  for (uint32_t host = 0; host < 2; ++host) {
    for (uint32_t nic = 0; nic < 2; ++nic) {
      const NicIdentity id = f.plan.nic(host, nic);
      for (const Gid& gid : id.gids) {
        const auto r = ask(gid);
        CHECK(r.error == 0);
        CHECK(std::memcmp(r.mac, id.mac.data(), 6) == 0);
      }
    }
  }
  Gid stranger = f.plan.nic(0, 0).gids[1];
  stranger[15] = 200;
  CHECK(ask(stranger).error == ETIMEDOUT);
  Gid group{0xFF, 0x0E};
  group[12] = 1;
  const auto r = ask(group);
  CHECK(r.error == 0);
  CHECK((r.mac[0] == 0x33 && r.mac[1] == 0x33 && r.mac[2] == 1));
}

TEST_CASE("Malformed fields end the channel; right ones do not") {
  ServerFixture reference;
  TestClient probe(reference.path(0));
  probe.hello();
  reference.run();
  const uint32_t base = probe.receive().as<attach::Welcome>().qpn_base;  // the first range of a server is always the same

  CHECK(survives(qp_state(base + 17, 3)));
  CHECK_FALSE(survives(qp_state(base + (1u << 14), 3)));
  CHECK_FALSE(survives(qp_state(1, 3)));
  CHECK_FALSE(survives(qp_state(base + 17 + (1u << 24), 3)));
  CHECK_FALSE(survives(qp_state(base + 17, 8)));
  attach::QpState other_nic = qp_state(base + 17, 3);
  other_nic.nic = 1;
  CHECK_FALSE(survives(other_nic));

  attach::Counters counters{};
  counters.head.type = MessageType::kCounters;
  CHECK(survives(counters));
  counters.folder = 2;
  CHECK_FALSE(survives(counters));
  counters.folder = 1;
  counters.nic = 1;
  CHECK_FALSE(survives(counters));
  counters.nic = 0;
  std::memset(counters.name, 'x', sizeof counters.name);
  CHECK_FALSE(survives(counters));

  attach::Multicast group{};
  group.head.type = MessageType::kMulticast;
  group.qpn = base;
  group.join = 1;
  CHECK(survives(group));
  group.join = 2;
  CHECK_FALSE(survives(group));
  group.join = 1;
  group.qpn = 1;
  CHECK_FALSE(survives(group));

  attach::Resolve resolve{};
  resolve.head.type = MessageType::kResolve;
  resolve.nic = 1;
  CHECK_FALSE(survives(resolve));

  attach::Hello again{};
  again.head.type = MessageType::kHello;
  again.version = attach::kAttachVersion;
  CHECK_FALSE(survives(again));
  for (const uint32_t type : {0u, 2u, 3u, 5u, 9u, 11u, 12u, 14u, UINT32_MAX}) {
    attach::Bye odd{};
    odd.head.type = static_cast<MessageType>(type);
    CHECK_FALSE(survives(odd));
  }
}

TEST_CASE("A port joins a group with its first QP and leaves with the last, or when its process goes") {
  ServerFixture f;
  TestClient client(f.path(0));
  client.hello();
  f.run();
  const uint32_t base = client.receive().as<attach::Welcome>().qpn_base;
  const Gid group{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xEF, 1, 2, 3};
  const auto ask = [&](uint32_t qpn, uint32_t join, const Gid& gid) {
    attach::Multicast message{};
    message.head = {MessageType::kMulticast, 5};
    message.qpn = qpn;
    message.join = join;
    std::memcpy(message.gid, gid.data(), gid.size());
    client.say(message);
    f.run();
    const Received got = client.receive();
    REQUIRE(got.head.type == MessageType::kResolved);
    REQUIRE(got.head.tag == 5);
    return got.as<attach::Resolved>().error;
  };
  CHECK(ask(base + 1, 0, group) == EINVAL);
  CHECK(ask(base + 1, 1, f.plan.nic(1, 0).gids[1]) == EINVAL);
  CHECK(f.sink.members.empty());
  CHECK(ask(base + 1, 1, group) == 0);
  CHECK(ask(base + 2, 1, group) == 0);
  CHECK(f.sink.members.size() == 1);
  CHECK(ask(base + 1, 0, group) == 0);
  CHECK(ask(base + 1, 0, group) == EINVAL);
  CHECK(f.sink.members.size() == 1);
  CHECK(ask(base + 2, 0, group) == 0);
  CHECK(f.sink.members.empty());
  f.sink.member_error = ENOMEM;
  CHECK(ask(base + 2, 1, group) == ENOMEM);
  f.sink.member_error = 0;
  CHECK(ask(base + 2, 0, group) == EINVAL);
}

TEST_CASE("A QP's last error is kept, also when the QP or its process is gone") {
  ServerFixture f;
  TestClient client(f.path(0));
  client.hello();
  f.run();
  const uint32_t base = client.receive().as<attach::Welcome>().qpn_base;
  const auto fail = [&](uint32_t qpn, uint32_t status, const char* text) {
    attach::QpError error{};
    error.head.type = MessageType::kQpError;
    error.qpn = qpn;
    error.status = status;
    std::strncpy(error.because, text, sizeof error.because);
    client.say(error);
    f.run();
  };
  for (uint32_t i = 1; i <= 3; ++i) client.say(qp_state(base + i, 3));
  f.run();
  fail(base + 1, 10, "first");
  fail(base + 1, 12, "no answer\x1b[31m");
  fail(base + 2, 4, "other");
  fail(base + 99, 4, "of a QP that nobody knows");
  client.say(qp_state(base + 1, 6));
  f.run();
  const Seat& seat = f.server->seats().begin()->second;
  CHECK(seat.qps.at(base + 1).error.count == 2);
  CHECK(seat.qps.at(base + 1).error.status == 12);
  CHECK(seat.qps.at(base + 1).error.because == "no answer?[31m");
  CHECK(seat.qps.at(base + 3).error.count == 0);
  CHECK(f.server->past_qps().empty());
  client.say(qp_state(base + 1, 7));
  f.run();
  REQUIRE(f.server->past_qps().size() == 1);
  client.hang_up();
  f.run();
  REQUIRE(f.server->past_qps().size() == 2);
  CHECK(f.server->past_qps()[0].qpn == base + 1);
  CHECK(f.server->past_qps()[1].qp.error.because == "other");
}

TEST_CASE("Counters are told to whoever may attach, without a HELLO") {
  ServerFixture f;
  TestClient client(f.path(1));
  const auto ask = [&](uint32_t folder, const char* name) {
    attach::Counters question{};
    question.head = {MessageType::kCounters, 9};
    question.folder = folder;
    std::strcpy(question.name, name);
    client.say(question);
    f.run();
    const Received got = client.receive();
    REQUIRE(got.head.type == MessageType::kCounters);
    CHECK(got.head.tag == 9);
    return got.as<attach::Counters>();
  };
  CHECK(ask(0, "port_xmit_packets").value == 100);
  CHECK(ask(1, "duplicate_request").value == 7);
  CHECK(ask(1, "duplicate_request").error == 0);
  CHECK(ask(0, "duplicate_request").error == ENOENT);
  CHECK(ask(1, "../../node_guid").error == ENOENT);
  CHECK(f.server->seats().empty());
}

TEST_CASE("QP states and runs are remembered for weft show and weft run") {
  ServerFixture f;
  TestClient client(f.path(0));
  client.hello(attach::kAttachVersion, 0, 99);
  f.run();
  const uint32_t base = client.receive().as<attach::Welcome>().qpn_base;
  client.say(qp_state(base + 1, 1));
  client.say(qp_state(base + 1, 3));
  client.say(qp_state(base + 2, 1));
  f.run();
  const Seat& seat = f.server->seats().begin()->second;
  REQUIRE(seat.qps.size() == 2);
  CHECK(seat.qps.at(base + 1).state == 3);
  CHECK(seat.program == "test");
  client.say(qp_state(base + 1, 7));
  f.run();
  CHECK(f.server->seats().begin()->second.qps.size() == 1);
  client.hang_up();
  f.run();
  const RunRecord run = f.server->run_record(99);
  CHECK(run.attachments == 1);
  CHECK(run.qps == 2);
  CHECK(run.last_program == "test");
  CHECK(f.server->run_record(98).attachments == 0);
}

TEST_CASE("A loop of short programs is never refused; ranges come back in the order they were left") {
  ServerFixture f;
  uint32_t last = 0;
  uint32_t first = 0;
  for (int i = 0; i < 1022; ++i) {
    TestClient client(f.path(0));
    client.hello();
    f.run();
    const Received got = client.receive();
    CAPTURE(i, got.end, f.log.back());
    REQUIRE(got.head.type == MessageType::kWelcome);
    CHECK(got.as<attach::Welcome>().qpn_base != last);
    last = got.as<attach::Welcome>().qpn_base;
    if (i == 0) first = last;
    client.hang_up();
    f.run();
    f.now += milliseconds(10);
  }
  const auto attach_now = [&f] {
    TestClient client(f.path(0));
    client.hello();
    f.run();
    const Received got = client.receive();
    client.hang_up();
    f.run();
    return got;
  };
  const Received again = attach_now();
  REQUIRE(again.head.type == MessageType::kWelcome);
  CHECK(again.as<attach::Welcome>().qpn_base == first);
}

TEST_CASE("Who waits for a QP that nobody serves is told, who waits for one that is slow is not", "[attach]") {
  ServerFixture f;
  TestClient asker(f.path(0)), peer(f.path(1));
  asker.hello();
  f.run();
  REQUIRE(asker.receive().head.type == MessageType::kWelcome);
  peer.hello();
  f.run();
  const uint32_t qpn = peer.receive().as<attach::Welcome>().qpn_base + 5;
  const auto gone = [&](const Gid& gid, uint32_t number) {
    asker.say(peer_query(gid, number));
    attach::Resolve mark{};  // answered in order: what comes before its answer was the query's
    mark.head = {MessageType::kResolve, 1};
    asker.say(mark);
    f.run();
    const auto got = asker.receive();
    if (got.head.type != MessageType::kPeerGone) return false;
    const auto told = got.as<attach::PeerGone>();
    CHECK(told.head.tag == 99);
    CHECK(told.qpn == number);
    CHECK(std::equal(gid.begin(), gid.end(), told.gid));
    CHECK(asker.receive().head.type == MessageType::kResolved);
    return true;
  };
  const NicIdentity nic = f.plan.nic(1, 0);
  CHECK(gone(nic.gids[1], qpn));  // never was
  for (uint32_t state = 0; state <= 7; ++state) {
    INFO("state " << state);
    peer.say(qp_state(qpn, state));
    f.run();
    const bool serves = state >= 2 && state <= 5;
    CHECK(gone(nic.gids[0], qpn) == !serves);
    CHECK(gone(nic.gids[1], qpn) == !serves);
    CHECK(gone(f.plan.nic(0, 0).gids[1], qpn));  // that number on another host
  }
  Gid outside = nic.gids[1];
  outside[15] = 200;
  CHECK_FALSE(gone(outside, qpn));  // not ours to judge
  attach::PeerQuery bad = peer_query(nic.gids[1], qpn);
  bad.nic = 1;
  CHECK_FALSE(survives(bad));
}
