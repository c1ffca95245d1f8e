// SPDX-License-Identifier: Apache-2.0
//
// Properties of RC over bad links: whatever is lost, duplicated or reordered, every byte arrives where it must, every
// completion comes once and in order. A seed identifies a run and is printed when it fails.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/scenarios/clock/random_traffic.h"

using namespace weft;
using weft::test::RandomTraffic;
using weft::test::TrafficShape;

namespace {

/// What the machines went through in all runs of a test: a property that nothing strained proves nothing.
struct Strain {
  uint64_t lost = 0, timeouts = 0, probes = 0, sequence_naks = 0, implied_naks = 0, rnr_naks = 0, duplicates = 0;
  uint64_t works = 0;
};

Strain run_seeds(uint64_t first, uint32_t count, const TrafficShape& shape) {
  Strain strain;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    CAPTURE(seed);
    RandomTraffic traffic(seed, shape);
    traffic.run();
    CAPTURE(traffic.mtu_bytes());
    REQUIRE(traffic.verdict() == "");
    VirtualWorld& world = traffic.world();
    for (uint32_t p = 0; p < shape.peers; ++p) strain.lost += world.link(p).lost();
    for (QpId q = 0; q < 2 * shape.connections; ++q) {
      const RequesterStats& r = world.requester(q).stats();
      strain.timeouts += r.timeouts;
      strain.probes += r.probes;
      strain.sequence_naks += r.sequence_naks;
      strain.implied_naks += r.implied_naks;
      strain.rnr_naks += r.rnr_naks;
      strain.duplicates += world.responder(q).stats().duplicates;
      strain.works += world.completions(q).size();
    }
  }
  return strain;
}

}  // namespace

TEST_CASE("clean links deliver everything, with no retransmission", "[property]") {
  const Strain strain = run_seeds(1000, 200, TrafficShape{});
  CHECK(strain.works > 20'000);
  CHECK(strain.timeouts + strain.sequence_naks + strain.implied_naks + strain.duplicates == 0);
}

TEST_CASE("loss", "[property]") {
  TrafficShape shape;
  shape.loss = {2, 100};
  const Strain strain = run_seeds(2000, 400, shape);
  CHECK(strain.lost > 2'000);
  CHECK(strain.timeouts > 200);
  CHECK(strain.sequence_naks > 500);
  CHECK(strain.implied_naks > 500);
  CHECK(strain.duplicates > 1'000);
}

TEST_CASE("duplication", "[property]") {
  TrafficShape shape;
  shape.duplicate = {10, 100};
  const Strain strain = run_seeds(3000, 200, shape);
  CHECK(strain.duplicates > 3'000);
}

TEST_CASE("reordering", "[property]") {
  TrafficShape shape;
  shape.reorder = {3, 100};
  const Strain strain = run_seeds(4000, 200, shape);
  CHECK(strain.sequence_naks > 500);
  CHECK(strain.implied_naks > 100);
}

TEST_CASE("loss, duplication and reordering together, three peers", "[property]") {
  TrafficShape shape;
  shape.loss = {1, 100};
  shape.duplicate = {2, 100};
  shape.reorder = {1, 100};
  shape.peers = 3;
  shape.connections = 4;
  run_seeds(5000, 150, shape);
}

TEST_CASE("receives posted late: RNR NAKs, with and without loss", "[property]") {
  TrafficShape shape;
  shape.late_receives = true;
  CHECK(run_seeds(6000, 100, shape).rnr_naks > 500);
  shape.loss = {1, 100};
  CHECK(run_seeds(6500, 100, shape).rnr_naks > 500);
}

TEST_CASE("patient timers deliver through heavy loss and charge nothing", "[property]") {
  TrafficShape shape;
  shape.patient = true;
  shape.loss = {5, 100};
  const Strain strain = run_seeds(7000, 150, shape);
  CHECK(strain.probes > 500);
  CHECK(strain.timeouts == 0);
  shape.notices = true;
  CHECK(run_seeds(7500, 150, shape).timeouts > 200);
}

TEST_CASE("every path MTU under loss", "[property]") {
  TrafficShape shape;
  shape.loss = {2, 100};
  for (uint32_t mtu : {256u, 512u, 1024u, 2048u, 4096u}) {
    shape.mtu_bytes = mtu;
    run_seeds(8000 + mtu, 40, shape);
  }
}

TEST_CASE("one transmit slot for requests, one for answers", "[property]") {
  TrafficShape shape;
  shape.transmit_slots = 2;
  shape.answer_reserve = 1;
  shape.loss = {1, 100};
  run_seeds(9000, 100, shape);
}

TEST_CASE("a run is its seed: same seed same hash, another seed another hash", "[determinism]") {
  TrafficShape shape;
  shape.loss = {2, 100};
  shape.duplicate = {2, 100};
  shape.reorder = {2, 100};
  const auto hash_of = [&](uint64_t seed) {
    RandomTraffic traffic(seed, shape);
    traffic.run();
    REQUIRE(traffic.verdict() == "");
    return traffic.world().hash();
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const uint64_t hash = hash_of(seed);
    REQUIRE(hash == hash_of(seed));
    REQUIRE(hash != hash_of(seed + 100));
  }
}

// The canary: one byte changed behind the reference's back must be noticed.
TEST_CASE("canary: a changed byte is noticed", "[!shouldfail]") {
  TrafficShape shape;
  shape.alter_memory = true;
  run_seeds(1, 1, shape);
}

// More seeds than a test run has time for: WEFT_SEEDS=first:count.
TEST_CASE("more seeds", "[.][soak]") {
  const char* text = std::getenv("WEFT_SEEDS");
  REQUIRE(text != nullptr);
  char* rest = nullptr;
  const uint64_t first = std::strtoull(text, &rest, 10);
  REQUIRE(*rest == ':');
  const uint32_t count = static_cast<uint32_t>(std::strtoul(rest + 1, nullptr, 10));
  TrafficShape shape;
  shape.loss = {2, 100};
  shape.duplicate = {1, 100};
  shape.reorder = {1, 100};
  shape.late_receives = true;
  run_seeds(first, count, shape);
}
