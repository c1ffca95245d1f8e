// SPDX-License-Identifier: Apache-2.0
//
// Completion queues: arming, events and their accounting, overruns, and that no completion overtakes its acknowledge.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

bool readable(int fd) {
  struct pollfd look = {fd, POLLIN, 0};
  return ::poll(&look, 1, 0) == 1;
}

uint64_t read_event(int channel) {
  uint64_t element = 0;
  return read(channel, &element, sizeof element) == sizeof element ? element : 0;
}

}  // namespace

TEST_CASE("An armed CQ tells once, for the next completion and not for those already there", "[nic][cq]") {
  Rig rig(2);
  Client a(rig, 0), b(rig, 1);
  const int channel = b.create_channel();
  fcntl(channel, F_SETFL, O_NONBLOCK);
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq(256, channel);
  const Qp qa = a.create_qp(a_cq, a_cq), qb = b.create_qp(b_cq, b_cq);
  connect(a, qa, b, qb);
  for (uint64_t i = 0; i < 20; ++i) b.post_recv(qb, i, {});
  auto send = [&](uint32_t flags = 0) {
    REQUIRE(a.post(qa, {.opcode = kSend, .flags = kSignaled | flags}) > 0);
    ib_uverbs_wc wc;
    REQUIRE(rig.run([&] { return a.poll(a_cq, wc); }));
  };
  ib_uverbs_wc wc;
  send();
  CHECK_FALSE(readable(channel));
  REQUIRE(b.arm(b_cq) > 0);
  rig.settle(10);
  CHECK_FALSE(readable(channel));
  send();
  REQUIRE(readable(channel));
  CHECK(read_event(channel) == b_cq.user_handle);
  send();
  CHECK_FALSE(readable(channel));
  SECTION("solicited only") {
    REQUIRE(b.arm(b_cq, true) > 0);
    send();
    CHECK_FALSE(readable(channel));
    send(kSolicited);
    CHECK(readable(channel));
    CHECK(read_event(channel) == b_cq.user_handle);
  }
  SECTION("an error counts as solicited") {
    REQUIRE(b.arm(b_cq, true) > 0);
    REQUIRE(b.to_state(qb, 6) > 0);
    CHECK(readable(channel));
  }
  SECTION("what was armed for any completion stays so") {
    REQUIRE(b.arm(b_cq) > 0);
    REQUIRE(b.arm(b_cq, true) > 0);
    send();
    CHECK(readable(channel));
  }
  SECTION("the destroyed CQ reports the events that were read, and only those") {
    REQUIRE(b.arm(b_cq) > 0);
    send();  // queued, not read
    const Cq other = b.create_cq(16, channel);
    REQUIRE(b.destroy_qp(qb) > 0);
    uint32_t completion_events = 99, async_events = 99;
    REQUIRE(b.destroy_cq(b_cq, &completion_events, &async_events) == 24);
    CHECK(completion_events == 1);
    CHECK(async_events == 0);
    CHECK_FALSE(readable(channel));
    REQUIRE(b.destroy_cq(other, &completion_events) == 24);
    CHECK(completion_events == 0);
  }
  while (b.poll(b_cq, wc)) CHECK((wc.status == 0 || wc.status == kFlushErr));
}

TEST_CASE("Purging one CQ's events leaves another's on the same channel, in order", "[nic][cq]") {
  Rig rig(1);
  Client b(rig, 0);
  const int channel = b.create_channel();
  fcntl(channel, F_SETFL, O_NONBLOCK);
  const Cq first = b.create_cq(64, channel), second = b.create_cq(64, channel), third = b.create_cq(64, channel);
  const Qp qb[] = {b.create_qp(first, first), b.create_qp(second, second), b.create_qp(third, third)};
  for (const Cq* cq : {&first, &second, &third, &second}) {
    const Qp& qp = qb[cq == &first ? 0 : cq == &second ? 1 : 2];
    REQUIRE(b.arm(*cq) > 0);
    REQUIRE(b.to_init(qp) > 0);
    b.post_recv(qp, 1, {});
    REQUIRE(b.to_state(qp, 6) > 0);
    REQUIRE(b.to_state(qp, 0) > 0);
  }
  for (const Qp& qp : qb) REQUIRE(b.destroy_qp(qp) > 0);
  uint32_t events = 99;
  REQUIRE(b.destroy_cq(second, &events) > 0);
  CHECK(events == 0);
  CHECK(read_event(channel) == first.user_handle);
  CHECK(read_event(channel) == third.user_handle);
  CHECK(read_event(channel) == 0);
  REQUIRE(b.destroy_cq(first, &events) > 0);
  CHECK(events == 1);
}

TEST_CASE("A channel nobody reads loses no event and blocks nobody", "[nic][cq]") {
  Rig rig(1);
  Client c(rig, 0);
  const int channel = c.create_channel();
  fcntl(channel, F_SETFL, O_NONBLOCK);
  const Cq cq = c.create_cq(8, channel);
  const Qp qp = c.create_qp(cq, cq);
  constexpr uint32_t kEvents = 1000;
  ib_uverbs_wc wc;
  for (uint32_t i = 0; i < kEvents; ++i) {
    REQUIRE(c.arm(cq) > 0);
    REQUIRE(c.to_init(qp) > 0);
    c.post_recv(qp, i, {});
    REQUIRE(c.to_state(qp, 6) > 0);
    REQUIRE(c.to_state(qp, 0) > 0);
    REQUIRE(c.poll(cq, wc));
  }
  CHECK_FALSE(rig.device(0).quiet());  // some found no room and are tried again
  uint32_t read_count = 0;
  REQUIRE(rig.run(
      [&] {
        while (read_event(channel) == cq.user_handle) ++read_count;
        return read_count >= kEvents;
      },
      5000));
  CHECK(read_count == kEvents);
  REQUIRE(c.destroy_qp(qp) > 0);
  uint32_t events = 0;
  REQUIRE(c.destroy_cq(cq, &events) > 0);
  CHECK(events == kEvents);
}

TEST_CASE("A full CQ drops the completion and says CQ_ERR once", "[nic][cq]") {
  Rig rig(2);
  Client a(rig, 0);
  const Cq small = a.create_cq(3);
  CHECK(small.cqe == 3);
  const Qp qp = a.create_qp(small, small);
  REQUIRE(a.to_init(qp) > 0);
  for (uint64_t i = 0; i < 10; ++i) a.post_recv(qp, i, {});
  REQUIRE(a.to_state(qp, 6) > 0);
  ib_uverbs_async_event_desc event = {};
  REQUIRE(recv(a.async_fd, &event, sizeof event, MSG_DONTWAIT) == 16);
  CHECK(event.event_type == 0);
  CHECK(event.element == small.user_handle);
  CHECK(recv(a.async_fd, &event, sizeof event, MSG_DONTWAIT) < 0);
  ib_uverbs_wc wc;
  for (uint64_t i = 0; i < 3; ++i) {
    REQUIRE(a.poll(small, wc));
    CHECK(wc.wr_id == i);
  }
  CHECK_FALSE(a.poll(small, wc));
  REQUIRE(a.destroy_qp(qp) > 0);
  uint32_t async_events = 0;
  REQUIRE(a.destroy_cq(small, nullptr, &async_events) > 0);
  CHECK(async_events == 1);
}

TEST_CASE("A receive completion is not shown before its acknowledge is in the transmit ring", "[nic][cq]") {
  // Minimum slots, the daemon takes nothing from b: its answers run out of slots.
  Rig rig(2, {.tx_slots = 32, .rx_slots = 32});
  Pair p(rig, {.send_wr = 100, .recv_wr = 100});
  for (uint64_t i = 0; i < 100; ++i) p.b.post_recv(p.b_qp, i, {});
  auto answers_published = [&] {
    uint64_t count = 0;
    for (auto& ring : rig.node(1).control()->tx) count += ring.producer.load();
    return count;
  };
  uint64_t shown = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = i}) > 0);
    for (int s = 0; s < 3; ++s) {
      // Only a's frames move: b's transmit slots are used up after a while.
      rig.device(0).try_progress(rig.now);
      rig.move_only(0);
      rig.device(1).try_progress(rig.now);
      ib_uverbs_wc wc;
      while (p.b.poll(p.b_cq, wc)) ++shown;
      // Each SEND was signaled, so each asked for an acknowledge; one acknowledge may stand for several messages only
      // when they came in one pass.
      REQUIRE(shown <= answers_published());
    }
  }
  CHECK(shown < 60);
  CHECK(shown > 0);
  rig.settle(500);
  ib_uverbs_wc wc;
  while (p.b.poll(p.b_cq, wc)) ++shown;
  CHECK(shown == 60);
}

TEST_CASE("A CQ that has lost a completion takes every QP that uses it to ERR, and nothing else", "[nic][cq]") {
  Rig rig(2);
  Client a(rig, 0), b(rig, 1);
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq(), small = b.create_cq(3);
  struct Case {
    Qp from, to;
  };
  // On the small CQ: one that receives there, one that sends there; beside them one that does neither.
  Case cases[] = {{a.create_qp(a_cq, a_cq), b.create_qp(b_cq, small)},
                  {a.create_qp(a_cq, a_cq), b.create_qp(small, b_cq)},
                  {a.create_qp(a_cq, a_cq), b.create_qp(b_cq, b_cq)}};
  for (Case& c : cases) connect(a, c.from, b, c.to);
  const Qp unused = b.create_qp(small, small);  // in RESET: nothing to end
  for (uint64_t i = 0; i < 6; ++i) b.post_recv(cases[0].to, i, {});
  b.post_recv(cases[1].to, 77, {});
  for (uint64_t i = 0; i < 5; ++i) REQUIRE(a.post(cases[0].from, {.wr_id = i}) > 0);
  rig.settle(300);
  CHECK(b.query_state(cases[0].to) == 6);
  CHECK(b.query_state(cases[1].to) == 6);
  CHECK(b.query_state(cases[2].to) == 3);
  CHECK(b.query_state(unused) == 0);
  uint32_t cq_errors = 0, fatal = 0;
  for (auto event = b.next_async(); event.event_type != 99; event = b.next_async()) {
    cq_errors += event.event_type == 0 && event.element == small.user_handle ? 1 : 0;
    fatal += event.event_type == 1 ? 1 : 0;
  }
  CHECK(cq_errors == 1);
  CHECK(fatal == 2);
  // What the other CQ can say is said; what fitted is there; what came later is not, although there is room now.
  CHECK(expect_wc(rig, b, b_cq, 77, kFlushErr).qp_num == cases[1].to.qpn);
  for (uint64_t i = 0; i < 3; ++i) expect_wc(rig, b, small, i);
  b.post_recv(cases[0].to, 9, {});
  rig.settle(50);
  ib_uverbs_wc wc;
  CHECK_FALSE(b.poll(small, wc));
  CHECK(rig.device(1).counters().completions_lost >= 2);
  b.post_recv(cases[2].to, 5, {});
  REQUIRE(a.post(cases[2].from, {.wr_id = 5}) > 0);
  expect_wc(rig, b, b_cq, 5);
}

TEST_CASE("Solicited completions wake once each time they become visible, held ones when they are shown", "[nic][cq]") {
  // b's answers run out of slots: its receive completions are held, some at a time.
  Rig rig(2, {.tx_slots = 32, .rx_slots = 32});
  Client a(rig, 0), b(rig, 1);
  const int channel = b.create_channel();
  fcntl(channel, F_SETFL, O_NONBLOCK);
  const Cq a_cq = a.create_cq(), b_cq = b.create_cq(256, channel);
  const Qp qa = a.create_qp(a_cq, a_cq, {.send_wr = 100}), qb = b.create_qp(b_cq, b_cq, {.recv_wr = 100});
  connect(a, qa, b, qb);
  for (uint64_t i = 0; i < 90; ++i) b.post_recv(qb, i, {});
  ib_uverbs_wc wc;
  uint64_t shown = 0;
  auto solicited = [](uint64_t id) { return id % 7 == 3; };
  auto drain = [&] {
    bool any = false;
    for (; b.poll(b_cq, wc); ++shown) any |= solicited(wc.wr_id);
    return any;
  };
  REQUIRE(b.arm(b_cq, true) > 0);
  auto look = [&] {
    const bool any = drain();
    const bool told = read_event(channel) == b_cq.user_handle;
    REQUIRE(told == any);
    if (told) REQUIRE(b.arm(b_cq, true) > 0);
  };
  for (uint64_t i = 0; i < 90; ++i) {
    REQUIRE(a.post(qa, {.wr_id = i, .flags = kSignaled | (solicited(i) ? kSolicited : 0)}) > 0);
    for (int s = 0; s < 3; ++s) {
      rig.device(0).try_progress(rig.now);
      rig.move_only(0);
      rig.device(1).try_progress(rig.now);
      look();
    }
  }
  CHECK(shown < 90);
  for (int i = 0; i < 2000 && shown < 90; ++i) {
    rig.step();
    look();
  }
  CHECK(shown == 90);
}

TEST_CASE("Asynchronous events that nobody reads for a while are all there in the end", "[nic][cq]") {
  Rig rig(1);
  Client c(rig, 0);
  const Cq cq = c.create_cq();
  const Srq srq = c.create_srq();
  std::vector<Qp> qps;
  for (int i = 0; i < 600; ++i) {
    qps.push_back(c.create_qp(cq, cq, {.send_wr = 1, .send_sge = 1, .srq = &srq}));
    REQUIRE(c.to_init(qps.back()) > 0);
    REQUIRE(c.to_state(qps.back(), 6) > 0);
  }
  // One that found no room goes with its QP, and nobody waits for it.
  uint32_t events = 99;
  REQUIRE(c.destroy_qp(qps[550], &events) > 0);
  CHECK(events == 0);
  for (size_t i = 0; i < qps.size(); ++i) {
    if (i == 550) continue;
    ib_uverbs_async_event_desc event = {};
    REQUIRE(rig.run([&] { return (event = c.next_async()).event_type != 99; }));
    REQUIRE(event.element == qps[i].user_handle);
    REQUIRE(event.event_type == 16);
  }
  CHECK(c.next_async().event_type == 99);
  REQUIRE(c.destroy_qp(qps[551], &events) > 0);
  CHECK(events == 1);
}
