// SPDX-License-Identifier: Apache-2.0
//
// The device as the preload library sees it: passes, sleep, deadlines, the end of the daemon, forks, threads.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

int kicks(Rig& rig, uint32_t node) {
  char bytes[256];
  const ssize_t n = read(rig.node(node).kick[0], bytes, sizeof bytes);
  return n > 0 ? static_cast<int>(n) : 0;
}

}  // namespace

TEST_CASE("An idle device is quiet, has no deadline and may sleep", "[nic][device]") {
  Rig rig(2);
  Pair p(rig);
  rig.settle(5);
  nic::Device& a = rig.device(0);
  nic::Device& b = rig.device(1);
  CHECK(a.quiet());
  CHECK(a.next_deadline() == kNever);
  CHECK(a.prepare_sleep());
  CHECK(rig.node(0).control()->process_sleeping.load() == 1);

  p.b.post_recv(p.b_qp, 1, {});
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  // Its acknowledge may get lost: there is a timer now, and the sleeping thread was told.
  CHECK(a.next_deadline() != kNever);
  CHECK(rig.node(0).platform->wakes == 1);
  a.woke();
  CHECK(rig.node(0).control()->process_sleeping.load() == 0);
  rig.move_only(0);
  CHECK_FALSE(b.quiet());
  CHECK_FALSE(b.prepare_sleep());
  CHECK(b.try_progress(rig.now));
  CHECK(b.quiet());
  CHECK_FALSE(b.try_progress(rig.now));
  rig.settle(2);
  CHECK(a.quiet());
}

TEST_CASE("A sleeping daemon is kicked for what was sent, a waking one is not", "[nic][device]") {
  Rig rig(2);
  Pair p(rig);
  kicks(rig, 0);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite, .wr_id = 1}) > 0);
  CHECK(kicks(rig, 0) == 0);
  rig.node(0).status->daemon_sleeping = 1;
  REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite, .wr_id = 1}) > 0);
  CHECK(kicks(rig, 0) == 1);
  // A pipe that is never read must not stop anybody.
  for (int i = 0; i < 70000; ++i) {
    const char byte = 1;
    if (write(rig.node(0).kick[1], &byte, 1) < 0) break;
  }
  REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite, .wr_id = 1}) > 0);
}

TEST_CASE("Unsent work asks for the thread when nobody polls", "[nic][device]") {
  Rig rig(2, {.tx_slots = 32});
  Pair p(rig, {.type = 3}, {}, 2000);
  std::vector<uint8_t> big(200000);
  const Mr local = p.a.reg_mr(big.data(), big.size()), remote = p.b.reg_mr(big.data(), big.size());
  nic::Device& a = rig.device(0);
  REQUIRE(a.prepare_sleep());
  const uint32_t wakes = rig.node(0).platform->wakes;
  REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite,
                            .wr_id = 1,
                            .remote_addr = reinterpret_cast<uint64_t>(big.data()),
                            .rkey = remote.rkey,
                            .sges = {sge(big.data(), 200000, local.lkey)}}) > 0);
  CHECK(rig.node(0).platform->wakes == wakes + 1);
  CHECK_FALSE(a.quiet());
  CHECK(a.next_deadline() <= rig.now + milliseconds(1));
  a.woke();
  CHECK(a.prepare_sleep());  // starved of slots: nothing to do until some come back
  a.woke();
  rig.move_only(0);
  CHECK_FALSE(a.prepare_sleep());
  expect_wc(rig, p.a, p.a_cq, 1);
}

TEST_CASE("The thread lingers while frames come and nobody polls, not beside a program that spins", "[nic][device]") {
  Rig rig(2);
  Pair p(rig);
  nic::Device& b = rig.device(1);
  auto frame_comes = [&] {
    REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite, .wr_id = 1}) > 0);
    rig.move_only(0);
    b.try_progress(rig.now);
    rig.move_only(1);
    rig.device(0).try_progress(rig.now);
  };
  auto turns = [&](Duration turn) {
    int count = 0;
    while (!b.prepare_sleep()) {
      ++count;
      rig.now += turn;
      b.try_progress(rig.now);
      REQUIRE(count < 100);
    }
    b.woke();
    return count;
  };
  turns(microseconds(1));
  CHECK(turns(microseconds(1)) == 0);
  const uint32_t polls = rig.node(1).control()->poll_seq.load();
  frame_comes();
  const int lingered = turns(microseconds(1));
  CHECK(lingered > 0);
  // The daemon was told that somebody looks.
  CHECK(rig.node(1).control()->poll_seq.load() == polls + static_cast<uint32_t>(lingered));
  CHECK(turns(microseconds(1)) == 0);
  SECTION("an inline poll means that the program does it") {
    frame_comes();
    CHECK(b.quiet());
    CHECK(turns(microseconds(1)) == 0);
  }
  SECTION("a turn that took a time slice bans it for a while") {
    frame_comes();
    CHECK(turns(milliseconds(4)) == 1);
    for (int i = 0; i < 10; ++i) {
      frame_comes();
      CHECK(turns(microseconds(1)) == 0);
    }
    int again = 0;
    for (int i = 0; i < 400; ++i) {
      frame_comes();
      again += turns(microseconds(1));
    }
    CHECK(again > 0);
  }
}

TEST_CASE("When the daemon dies everything ends in errors and an event, and nothing new begins", "[nic][device]") {
  Rig rig(2);
  Pair p(rig);
  rig.daemon_stopped = true;
  p.a.post_recv(p.a_qp, 5, {});
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  rig.device(0).fatal(rig.now);
  rig.device(0).fatal(rig.now);
  expect_wc(rig, p.a, p.a_cq, 1, kFlushErr);
  expect_wc(rig, p.a, p.a_cq, 5, kFlushErr);
  ib_uverbs_async_event_desc event = {};
  REQUIRE(recv(p.a.async_fd, &event, sizeof event, MSG_DONTWAIT) == 16);
  CHECK(event.event_type == 8);
  CHECK(recv(p.a.async_fd, &event, sizeof event, MSG_DONTWAIT) < 0);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 2}) > 0);
  expect_wc(rig, p.a, p.a_cq, 2, kFlushErr);
  ib_uverbs_alloc_pd in = {};
  ib_uverbs_alloc_pd_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  CHECK(p.a.plain(IB_USER_VERBS_CMD_ALLOC_PD, &in, sizeof in, 4) == -EIO);
  CHECK(rig.device(0).prepare_sleep());
  rig.device(0).woke();
  CHECK(p.a.destroy_qp(p.a_qp) > 0);
  CHECK(p.a.destroy_cq(p.a_cq) > 0);
}

TEST_CASE("Port events reach every context of the device", "[nic][device]") {
  Rig rig(1);
  Client a(rig, 0), b(rig, 0);
  rig.device(0).dispatch_event(10, 1);
  for (const Client* c : {&a, &b}) {
    ib_uverbs_async_event_desc event = {};
    REQUIRE(recv(c->async_fd, &event, sizeof event, MSG_DONTWAIT) == 16);
    CHECK(event.event_type == 10);
    CHECK(event.element == 1);
  }
}

TEST_CASE("A detached device answers EIO and does nothing", "[nic][device]") {
  Rig rig(2);
  Pair p(rig);
  rig.device(0).detach();
  CHECK(p.a.ring_doorbell(p.a_qp) == -EIO);
  CHECK(p.a.destroy_qp(p.a_qp) == -EIO);
  CHECK_FALSE(rig.device(0).try_progress(rig.now));
  rig.device(0).fatal(rig.now);
  CHECK(rig.device(0).drain(rig.now));
}

TEST_CASE("Draining gives up what is owed to a daemon that does not take it", "[nic][device]") {
  Rig rig(2);
  Pair p(rig);
  p.b.post_recv(p.b_qp, 1, {});
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  rig.move_only(0);
  CHECK(rig.device(1).drain(rig.now));
  expect_wc(rig, p.a, p.a_cq, 1);
}

TEST_CASE("Several threads post, poll and command at once and nothing is lost", "[nic][device]") {
  Rig rig(2);
  constexpr int kThreads = 4, kWorks = 2000;
  Client a(rig, 0), b(rig, 1);
  std::vector<uint8_t> source(256, 1), target(256, 0);
  const Mr local = a.reg_mr(source.data(), 256), remote = b.reg_mr(target.data(), 256);
  struct Lane {
    Cq cq;
    Qp qp;
  };
  std::vector<Lane> lanes;
  for (int i = 0; i < kThreads; ++i) {
    const Cq ca = a.create_cq(256), cb = b.create_cq(256);
    const Qp qa = a.create_qp(ca, ca), qb = b.create_qp(cb, cb);
    connect(a, qa, b, qb);
    lanes.push_back({ca, qa});
  }
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  const Instant now = rig.now;
  std::vector<std::thread> threads;
  for (Lane& lane : lanes) {
    threads.emplace_back([&, lane] {
      const Post post = {.opcode = kWrite,
                         .wr_id = 1,
                         .remote_addr = reinterpret_cast<uint64_t>(target.data()),
                         .rkey = remote.rkey,
                         .sges = {sge(source.data(), 256, local.lkey)}};
      int done = 0;
      for (int posted = 0; done < kWorks;) {
        // Catch is not thread-safe: count instead of checking.
        if (posted < kWorks && posted - done < 50) {
          if (a.post_quietly(lane.qp, post) > 0) ++posted;
        }
        if (!rig.device(0).quiet()) rig.device(0).try_progress(now);
        ib_uverbs_wc wc;
        while (a.poll(lane.cq, wc)) {
          ++done;
          if (wc.status != 0) ++failures;
        }
        std::this_thread::yield();
      }
    });
  }
  std::thread commands([&] {
    while (!stop) {
      Mr mr;
      if (a.try_reg_mr(source.data(), 256, 1, reinterpret_cast<uint64_t>(source.data()), mr) < 0) ++failures;
      if (a.dereg_mr(mr) < 0) ++failures;
      std::this_thread::yield();
    }
  });
  std::thread daemon([&] {
    while (!stop) {
      rig.move_only(0);
      rig.move_only(1);
      rig.device(1).try_progress(now);
      std::this_thread::yield();
    }
  });
  for (std::thread& t : threads) t.join();
  stop = true;
  commands.join();
  daemon.join();
  CHECK(failures == 0);
}
