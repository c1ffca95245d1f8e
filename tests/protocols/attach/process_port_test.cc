// SPDX-License-Identifier: Apache-2.0
#include "protocols/attach/process_port.h"

#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "protocols/base/random.h"
#include "tests/protocols/attach/fake_daemon.h"

using namespace weft;
using namespace weft::attach;

namespace {

struct Pair {
  explicit Pair(uint32_t tx_slots = 64, uint32_t rx_slots = 64, uint32_t start = 0)
      : daemon(tx_slots, rx_slots, 1024, start), port(new ProcessPort) {
    REQUIRE(port->open(daemon.memory(), daemon.layout(), daemon.status(), daemon.notices()));
  }
  std::vector<uint32_t> take_all(uint8_t priority, bool answer) {
    std::vector<uint32_t> slots;
    for (uint32_t s; (s = port->begin_frame(priority, answer)) != kNoSlot;) slots.push_back(s);
    return slots;
  }
  FakeDaemon daemon;
  std::unique_ptr<ProcessPort> port;
};

}  // namespace

TEST_CASE("a port refuses a geometry that port_layout does not give") {
  FakeDaemon daemon;
  ProcessPort port;
  const auto opens = [&](const PortLayout& layout) {
    return port.open(daemon.memory(), layout, daemon.status(), daemon.notices());
  };
  PortLayout good = daemon.layout();
  for (const uint32_t bad : {0u, 16u, 33u, 8192u}) {
    PortLayout l = good;
    l.tx_slots = bad;
    CHECK_FALSE(opens(l));
    l = good;
    l.rx_slots = bad;
    CHECK_FALSE(opens(l));
  }
  PortLayout l = good;
  l.slot_payload = 100;
  CHECK_FALSE(opens(l));
  l = good;
  l.rx_slot_offset = l.tx_slot_offset;
  CHECK_FALSE(opens(l));
  l = good;
  l.total -= 4096;
  CHECK_FALSE(opens(l));
  CHECK_FALSE(port.is_open());
  CHECK_FALSE(port.open(nullptr, good, nullptr, nullptr));
  CHECK(opens(good));
  CHECK(port.is_open());
  CHECK(port.free_slots() == 64);
  CHECK(port.slot_payload() == 1024);
}

TEST_CASE("frames reach the daemon with flush, in order per priority, and where the layout says") {
  Pair p(64, 64, 0xFFFFFFFE);  // the indices wrap on the way
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < 5; ++i) {
    const uint32_t slot = p.port->begin_frame(3, false);
    REQUIRE(slot < 64);
    CHECK(p.port->payload(slot) == p.daemon.tx_payload(slot));
    CHECK(p.port->headroom_end(slot) == p.port->payload(slot));
    p.port->publish(slot, 3, 60 + i, 100 * i);
    slots.push_back(slot);
  }
  SlotDescriptor d;
  CHECK_FALSE(p.daemon.take(3, d));
  CHECK_FALSE(p.port->flush());
  for (uint32_t i = 0; i < 5; ++i) {
    REQUIRE(p.daemon.take(3, d));
    CHECK(d.slot == slots[i]);
    CHECK(d.header_bytes == 60 + i);
    CHECK(d.payload_bytes == 100 * i);
    CHECK(d.flags == 0);
  }
  CHECK_FALSE(p.daemon.take(3, d));
  for (uint32_t other = 0; other < kPriorities; ++other) CHECK_FALSE(p.daemon.take(other, d));
}

TEST_CASE("the slot that came back last is used first") {
  Pair p;
  for (int round = 0; round < 1000; ++round) {
    const uint32_t slot = p.port->begin_frame(0, false);
    CHECK(slot == 0);
    p.port->publish(slot, 0, 60, 0);
    p.port->flush();
    SlotDescriptor d;
    REQUIRE(p.daemon.take(0, d));
    p.daemon.give_back(d.slot);
  }
  const uint32_t a = p.port->begin_frame(0, false);
  const uint32_t b = p.port->begin_frame(0, false);
  CHECK(a != b);
  p.port->abandon(a);
  CHECK(p.port->begin_frame(0, false) == a);
}

TEST_CASE("requests leave a reserve for the answers of every priority") {
  Pair p(256, 64);
  const std::vector<uint32_t> requests = p.take_all(0, false);
  CHECK(requests.size() == 256 - kPriorities * kAnswerReserve);
  for (uint8_t priority = 0; priority < kPriorities; ++priority) {
    CHECK(p.port->begin_frame(priority, false) == kNoSlot);
    CHECK(p.take_all(priority, true).size() == kAnswerReserve);
  }
  CHECK(p.port->free_slots() == 0);
  // A request's slot that comes back may go to anybody; an answer's only to answers of that priority.
  p.port->publish(requests[0], 0, 60, 0);
  p.port->flush();
  p.daemon.give_back(requests[0]);
  const uint32_t again = p.port->begin_frame(7, true);
  CHECK(again == requests[0]);
  p.port->abandon(again);
  CHECK(p.port->begin_frame(1, false) == requests[0]);
}

TEST_CASE("answers of one priority cannot use up those of another") {
  Pair p(64, 64);
  const std::vector<uint32_t> mine = p.take_all(2, true);
  CHECK(mine.size() == 64 - 7 * kAnswerReserve);
  for (uint8_t priority = 0; priority < kPriorities; ++priority) {
    if (priority != 2) CHECK(p.take_all(priority, true).size() == kAnswerReserve);
  }
  for (const uint32_t slot : mine) p.port->abandon(slot);
  CHECK(p.take_all(0, false).size() == mine.size() - kAnswerReserve);
}

TEST_CASE("the smallest port still carries requests and answers") {
  Pair p(32, 32);
  CHECK(p.take_all(0, false).size() == 16);
  for (uint8_t priority = 0; priority < kPriorities; ++priority) CHECK(p.take_all(priority, true).size() == 2);
}

TEST_CASE("the reserve holds under any order of taking and returning") {
  const uint64_t seed = 20240611;
  INFO("seed " << seed);
  Random random(seed, 1);
  for (const uint32_t slots : {32u, 64u, 256u}) {
    Pair p(slots, 32);
    const uint32_t reserve = std::min(kAnswerReserve, slots / 16);
    std::vector<std::pair<uint32_t, int>> out;  // slot, priority of an answer or -1
    std::vector<uint32_t> answers(kPriorities);
    std::set<uint32_t> held;
    for (int step = 0; step < 20000; ++step) {
      if (random.below(100) < 55) {
        const uint8_t priority = static_cast<uint8_t>(random.below(kPriorities));
        const bool answer = random.below(2) == 0;
        const uint32_t slot = p.port->begin_frame(priority, answer);
        if (answer && answers[priority] < reserve) REQUIRE(slot != kNoSlot);
        if (slot == kNoSlot) continue;
        REQUIRE(held.insert(slot).second);
        answers[priority] += answer;
        out.emplace_back(slot, answer ? priority : -1);
      } else if (!out.empty()) {
        const size_t which = random.below(out.size());
        const auto [slot, priority] = out[which];
        if (random.below(2) == 0) {
          p.port->abandon(slot);
        } else {
          p.port->publish(slot, 0, 60, 0);
          p.port->flush();
          SlotDescriptor d;
          while (p.daemon.take(0, d)) p.daemon.give_back(d.slot);
        }
        if (priority >= 0) --answers[static_cast<size_t>(priority)];
        held.erase(slot);
        out.erase(out.begin() + static_cast<long>(which));
      }
    }
  }
}

TEST_CASE("a return of what the daemon does not have changes nothing") {
  Pair p;
  const uint32_t held = p.port->begin_frame(0, false);
  const uint32_t sent = p.port->begin_frame(0, false);
  p.port->publish(sent, 0, 60, 0);
  p.port->flush();
  p.daemon.give_back(held);  // ours, not published
  p.daemon.give_back(sent);
  p.daemon.give_back(sent);         // twice
  p.daemon.give_back(40);           // in the pool
  p.daemon.give_back(0xFFFFFF00u);  // no slot
  const uint32_t next = p.port->begin_frame(0, false);
  CHECK(next == sent);
  CHECK(p.port->free_slots() == 62);
  std::set<uint32_t> all{held, next};
  for (const uint32_t slot : p.take_all(0, false)) CHECK(all.insert(slot).second);
  // An index that no ring can have is not followed.
  p.daemon.control()->tx_return.producer += 1000;
  CHECK(p.port->begin_frame(0, false) == kNoSlot);
}

TEST_CASE("received frames come in order and their slots go back") {
  Pair p(64, 32, 0xFFFFFFF0);
  ReceivedFrame f;
  CHECK_FALSE(p.port->receive_pending());
  CHECK_FALSE(p.port->receive(f));
  for (uint32_t round = 0; round < 100; ++round) {
    for (uint32_t i = 0; i < 5; ++i)
      p.daemon.deliver({(round + i) % 32, static_cast<uint16_t>(54 + i), 7, 1024 - i, 0});
    for (uint32_t i = 0; i < 5; ++i) {
      CHECK(p.port->receive_pending());
      REQUIRE(p.port->receive(f));
      CHECK(f.slot == (round + i) % 32);
      CHECK(f.payload == p.daemon.rx_payload(f.slot));
      CHECK(f.header == f.payload - (54 + i));
      CHECK(f.header_bytes == 54 + i);
      CHECK(f.payload_bytes == 1024 - i);
      CHECK(f.flags == 7);
      p.port->release(f.slot);
    }
    CHECK_FALSE(p.port->receive_pending());
    CHECK_FALSE(p.port->receive(f));
    uint32_t slot;
    CHECK_FALSE(p.daemon.take_released(slot));
    p.port->flush();
    for (uint32_t i = 0; i < 5; ++i) {
      REQUIRE(p.daemon.take_released(slot));
      CHECK(slot == (round + i) % 32);
    }
  }
}

TEST_CASE("a nonsensical receive descriptor stays inside the slots") {
  Pair p;
  p.daemon.deliver({0xFFFFFFFF, 0xFFFF, 0, 0xFFFFFFFF, 0});
  ReceivedFrame f;
  REQUIRE(p.port->receive(f));
  CHECK(f.slot == 63);
  CHECK(f.header_bytes == kHeadroom);
  CHECK(f.payload_bytes == 1024);
  CHECK(f.payload + f.payload_bytes <= p.daemon.memory() + p.daemon.layout().total);
  p.daemon.control()->rx.producer += 1000;
  CHECK_FALSE(p.port->receive_pending());
  CHECK_FALSE(p.port->receive(f));
}

TEST_CASE("flush asks for a kick only when the daemon sleeps and can want it") {
  Pair p(64, 64);
  p.daemon.status()->daemon_sleeping = 1;
  CHECK_FALSE(p.port->flush());  // nothing written
  p.port->publish(p.port->begin_frame(0, true), 0, 60, 0);
  CHECK(p.port->flush());
  CHECK_FALSE(p.port->flush());
  p.daemon.status()->daemon_sleeping = 0;
  p.port->publish(p.port->begin_frame(0, true), 0, 60, 0);
  CHECK_FALSE(p.port->flush());

  p.daemon.status()->daemon_sleeping = 1;
  ReceivedFrame f;
  p.daemon.deliver({1, 60, 0, 0, 0});
  REQUIRE(p.port->receive(f));
  p.port->release(f.slot);
  CHECK_FALSE(p.port->flush());  // the daemon has 63 slots more
  for (uint32_t i = 0; i < 64; ++i) p.daemon.deliver({i, 60, 0, 0, 0});
  REQUIRE(p.port->receive(f));
  p.port->release(f.slot);
  CHECK(p.port->flush());  // it had none
}

TEST_CASE("sleep is safe only when nothing has arrived") {
  Pair p;
  PortControl* c = p.daemon.control();
  CHECK(p.port->prepare_sleep(false));
  CHECK(c->process_sleeping == 1);
  p.port->awake();
  CHECK(c->process_sleeping == 0);

  p.daemon.deliver({0, 60, 0, 0, 0});
  CHECK_FALSE(p.port->prepare_sleep(false));
  CHECK(c->process_sleeping == 0);
  ReceivedFrame f;
  REQUIRE(p.port->receive(f));
  CHECK(p.port->prepare_sleep(true));

  p.port->awake();
  p.port->release(f.slot);
  CHECK_FALSE(p.port->prepare_sleep(false));  // not flushed
  CHECK(c->process_sleeping == 0);
  p.port->flush();

  const uint32_t slot = p.port->begin_frame(0, false);
  p.port->publish(slot, 0, 60, 0);
  CHECK_FALSE(p.port->prepare_sleep(false));
  p.port->flush();
  p.daemon.give_back(slot);
  CHECK(p.port->prepare_sleep(false));
  CHECK_FALSE(p.port->prepare_sleep(true));

  const uint32_t before = c->poll_seq;
  p.port->note_poll();
  p.port->note_poll();
  CHECK(c->poll_seq == before + 2);
}

TEST_CASE("notices come in order, and a reader left behind is told so") {
  Pair p(64, 64, 0xFFFFFFF0);
  Notice n;
  CHECK_FALSE(p.port->next_notice(n));
  for (uint32_t i = 0; i < 1000; ++i) {
    p.daemon.notify(i);
    REQUIRE(p.port->next_notice(n));
    CHECK(n.qpn == i);
    CHECK(n.reason == NoticeReason::kFaultDrop);
    CHECK_FALSE(p.port->next_notice(n));
  }
  for (uint32_t i = 0; i < kNoticeEntries - 1; ++i) p.daemon.notify(i);
  for (uint32_t i = 0; i < kNoticeEntries - 1; ++i) {
    REQUIRE(p.port->next_notice(n));
    CHECK(n.qpn == i);
  }
  for (uint32_t i = 0; i < 3 * kNoticeEntries; ++i) p.daemon.notify(i);
  REQUIRE(p.port->next_notice(n));
  CHECK(n.reason == NoticeReason::kOverflow);
  uint32_t expect = 3 * kNoticeEntries - kNoticeEntries / 2;
  while (p.port->next_notice(n)) CHECK(n.qpn == expect++);
  CHECK(expect == 3 * kNoticeEntries);
}

TEST_CASE("the status page says whether the daemon lives; without pages it counts as awake and alive") {
  Pair p;
  CHECK(p.port->daemon_alive());
  p.daemon.status()->daemon_alive = 0;
  CHECK_FALSE(p.port->daemon_alive());
  ProcessPort bare;
  REQUIRE(bare.open(p.daemon.memory(), p.daemon.layout(), nullptr, nullptr));
  CHECK(bare.daemon_alive());
  bare.publish(bare.begin_frame(0, false), 0, 60, 0);
  CHECK_FALSE(bare.flush());
  Notice n;
  CHECK_FALSE(bare.next_notice(n));
}
