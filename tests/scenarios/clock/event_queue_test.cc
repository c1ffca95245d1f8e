// SPDX-License-Identifier: Apache-2.0
#include "scenarios/clock/event_queue.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <new>
#include <set>

#include "protocols/base/random.h"

using namespace weft;

namespace {
std::atomic<uint64_t> allocations{0};
}

// Counts every allocation of this test program; steady state must make none.
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = std::malloc(bytes);
  if (p == nullptr) std::abort();
  return p;
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace {

/// Delays of a fabric: serialisation, propagation, timers.
Duration fabric_delay(Random& random, uint64_t zero_in_1024 = 40) {
  const uint64_t draw = random.below(1024);
  const int64_t noise = static_cast<int64_t>(random.below(1024));
  if (draw < zero_in_1024) return Duration::zero();
  if (draw < 460) return picoseconds(83'560 + noise);
  if (draw < 920) return picoseconds(500'000 + noise);
  if (draw < 1012) return picoseconds(1'720 + noise);
  return picoseconds(55'000'000 + noise * 1024);
}

}  // namespace

TEST_CASE("the order is (time, kind, source, counter), whatever the order of scheduling") {
  EventQueue queue;
  EventSource one{1};
  EventSource two{2};
  const Instant t{nanoseconds(5)};
  queue.schedule(t, 3, two, 30);
  queue.schedule(t, 1, two, 10);
  queue.schedule(t, 3, one, 20);
  queue.schedule(t, 3, one, 21);
  queue.schedule(t - picoseconds(1), 9, two, 1);
  std::vector<uint64_t> seen;
  queue.run_until(kNever, [&](const Event& e) { seen.push_back(e.a); });
  REQUIRE(seen == std::vector<uint64_t>{1, 10, 20, 21, 30});
  REQUIRE(queue.now() == t);
}

TEST_CASE("any widths and horizons give the order of a sorted set", "[property]") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Random random(seed, 1);
    EventQueue::Settings settings;
    settings.bucket_width = picoseconds(int64_t{1} << random.below(26));
    settings.wheel_log2 = static_cast<uint32_t>(6 + random.below(9));
    settings.expected_events = random.below(100);
    EventQueue queue(settings);
    std::set<std::pair<std::pair<int64_t, uint64_t>, uint64_t>> reference;  // ((due, order), a)
    std::vector<EventSource> sources(8);
    for (uint32_t i = 0; i < sources.size(); ++i) sources[i].id = i * 1000;
    uint64_t next_id = 0;
    const auto add = [&](Instant due) {
      EventSource& source = sources[random.below(sources.size())];
      const uint32_t kind = static_cast<uint32_t>(random.below(4));
      const uint64_t order = (uint64_t{kind} << 58) | (uint64_t{source.id} << 36) | source.scheduled;
      reference.insert({{due.time_since_epoch().count(), order}, next_id});
      queue.schedule(due, kind, source, next_id++);
    };
    for (int i = 0; i < 300; ++i) add(Instant{fabric_delay(random)});
    size_t executed = 0;
    Instant limit{};
    while (executed < 20'000) {
      // Mixed: one by one as far as it goes, or up to a clock that jumps.
      const bool live = random.below(2) == 0;
      limit = live ? limit + picoseconds(static_cast<int64_t>(random.below(3'000'000))) : kNever;
      Event e;
      for (int steps = 0; steps < 200 && queue.pop_due(limit, e); ++steps) {
        REQUIRE(!reference.empty());
        REQUIRE(reference.begin()->second == e.a);
        REQUIRE(reference.begin()->first.first == e.due.time_since_epoch().count());
        REQUIRE(queue.now() == e.due);
        reference.erase(reference.begin());
        ++executed;
        if (queue.size() < 300 || random.below(2) == 0) add(e.due + fabric_delay(random));
        if (queue.size() < 300 && random.below(3) == 0) add(e.due + fabric_delay(random) * 700);
      }
      REQUIRE(queue.size() == reference.size());
      if (random.below(4) == 0) REQUIRE(queue.next_due().time_since_epoch().count() == reference.begin()->first.first);
      limit = queue.now();
    }
    queue.run_until(kNever, [&](const Event& e) {
      REQUIRE(reference.begin()->second == e.a);
      reference.erase(reference.begin());
    });
    REQUIRE(reference.empty());
    REQUIRE(queue.empty());
    REQUIRE(queue.next_due() == kNever);
  }
}

TEST_CASE("live: run_until executes what is due, no more, and tells when to come again") {
  EventQueue queue;
  EventSource source{7};
  queue.schedule(Instant{microseconds(10)}, 1, source, 1);
  queue.schedule(Instant{milliseconds(67)}, 1, source, 2);
  queue.schedule(Instant{seconds(3600)}, 1, source, 3);
  std::vector<uint64_t> seen;
  const auto note = [&](const Event& e) { seen.push_back(e.a); };
  REQUIRE(queue.run_until(Instant{microseconds(9)}, note) == 0);
  REQUIRE(queue.now() == Instant{microseconds(9)});
  REQUIRE(queue.next_due() == Instant{microseconds(10)});
  REQUIRE(queue.run_until(Instant{microseconds(10)}, note) == 1);
  // A frame stamped before the clock was last read is due now, not in the past.
  queue.schedule(Instant{microseconds(5)}, 1, source, 4);
  REQUIRE(queue.late() == 1);
  REQUIRE(queue.next_due() == Instant{microseconds(10)});
  REQUIRE(queue.run_until(Instant{milliseconds(50)}, note) == 1);
  REQUIRE(queue.run_until(Instant{milliseconds(80)}, note) == 1);
  REQUIRE(queue.run_until(Instant{seconds(3599)}, note) == 0);
  queue.schedule(Instant{seconds(3599)} + nanoseconds(3), 1, source, 5);
  REQUIRE(queue.next_due() == Instant{seconds(3599)} + nanoseconds(3));
  REQUIRE(queue.run_until(Instant{seconds(7200)}, note) == 2);
  REQUIRE(seen == std::vector<uint64_t>{1, 4, 2, 5, 3});
}

TEST_CASE("a handler's events of the same instant run in the same pass") {
  EventQueue queue;
  EventSource source{1};
  queue.schedule(Instant{nanoseconds(1)}, 1, source, 5);
  uint64_t count = 0;
  queue.run_until(Instant{nanoseconds(1)}, [&](const Event& e) {
    ++count;
    if (e.a > 0) queue.schedule(queue.now(), 1, source, e.a - 1);
  });
  REQUIRE(count == 6);
}

TEST_CASE("no allocation in steady state") {
  EventQueue::Settings settings;
  settings.expected_events = 5000;
  EventQueue queue(settings);
  std::vector<EventSource> sources(64);
  for (uint32_t i = 0; i < sources.size(); ++i) sources[i].id = i;
  Random random(3, 3);
  for (uint64_t i = 0; i < 4000; ++i) queue.schedule(Instant{fabric_delay(random)}, 1, sources[i % 64], i);
  uint64_t steps = 0;
  const auto go = [&](uint64_t count) {
    Event e;
    for (steps = 0; steps < count && queue.pop_due(kNever, e); ++steps)
      queue.schedule(e.due + fabric_delay(random), 1, sources[e.a % 64], e.a);
  };
  go(50'000);
  const uint64_t before = allocations.load();
  go(500'000);
  REQUIRE(steps == 500'000);
  REQUIRE(allocations.load() == before);
}

TEST_CASE("a far event at the end of the open bucket does not make the queue grow") {
  // As in a live fabric with one timer: frames come and go in front of it, all in one wide bucket.
  EventQueue::Settings settings;
  settings.bucket_width = milliseconds(100);
  EventQueue queue(settings);
  EventSource source{1};
  queue.schedule(Instant{milliseconds(90)}, 1, source, 0);
  const uint64_t before = allocations.load();
  for (int64_t i = 1; i < 200'000; ++i) {
    queue.schedule(Instant{nanoseconds(i)}, 1, source, 1);
    REQUIRE(queue.run_until(Instant{nanoseconds(i)}, [](const Event&) {}) == 1);
  }
  REQUIRE(allocations.load() - before < 10);
}

// Not a test of speed: prints what this machine does. Run with the tag [bench].
TEST_CASE("event queue throughput", "[.][bench]") {
  for (const uint64_t pending : {50'000u, 200'000u, 1'000'000u}) {
    EventQueue::Settings settings;
    settings.expected_events = pending;
    EventQueue queue(settings);
    std::vector<EventSource> sources(4096);
    for (uint32_t i = 0; i < sources.size(); ++i) sources[i].id = i;
    Random random(5, 5);
    for (uint64_t i = 0; i < pending; ++i) queue.schedule(Instant{fabric_delay(random, 0)}, 1, sources[i % 4096], i);
    const uint64_t operations = 4'000'000;
    const auto start = std::chrono::steady_clock::now();
    Event e;
    for (uint64_t n = 0; n < operations && queue.pop_due(kNever, e); ++n)
      queue.schedule(e.due + fabric_delay(random, 0), 1, sources[e.a % 4096], e.a);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    WARN(pending << " pending: " << static_cast<double>(operations) / took.count() / 1e6 << " M events/s");
  }
}
