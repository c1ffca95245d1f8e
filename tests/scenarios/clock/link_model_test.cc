// SPDX-License-Identifier: Apache-2.0
#include "scenarios/clock/link_model.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace weft;

TEST_CASE("a clean link adds serialisation and delay") {
  LinkSettings settings;
  settings.rate_bps = 100'000'000'000;
  settings.delay = nanoseconds(500);
  LinkModel link(settings, 1, 1);
  const auto p = link.transmit(Instant{nanoseconds(10)}, 1250);
  REQUIRE(p.departs == Instant{nanoseconds(110)});
  REQUIRE(p.copies == 1);
  REQUIRE(p.arrivals[0] == Instant{nanoseconds(610)});
}

TEST_CASE("loss, duplication and reordering come at their probability") {
  LinkSettings settings;
  settings.loss = {3, 100};
  settings.duplicate = {1, 10};
  settings.reorder = {1, 4};
  constexpr uint64_t kFrames = 100'000;
  LinkModel link(settings, 42, 7);
  uint64_t arrived = 0;
  uint64_t held = 0;
  for (uint64_t i = 0; i < kFrames; ++i) {
    const auto p = link.transmit(Instant{}, 100);
    arrived += p.copies;
    for (uint32_t c = 0; c < p.copies; ++c) {
      REQUIRE(p.arrivals[c] >= p.departs + settings.delay);
      REQUIRE(p.arrivals[c] <= p.departs + settings.delay + settings.reorder_span);
      held += p.arrivals[c] > p.departs + settings.delay ? 1 : 0;
    }
  }
  REQUIRE(link.frames() == kFrames);
  REQUIRE(arrived == kFrames - link.lost() + link.duplicated());
  // Four standard deviations of a binomial count.
  const auto near = [](uint64_t count, double n, double p) {
    return std::abs(static_cast<double>(count) - n * p) <= 4 * std::sqrt(n * p * (1 - p));
  };
  REQUIRE(near(link.lost(), kFrames, 0.03));
  REQUIRE(near(link.duplicated(), static_cast<double>(kFrames - link.lost()), 0.1));
  REQUIRE(near(link.reordered(), static_cast<double>(arrived), 0.25));
  REQUIRE(held <= link.reordered());
}

TEST_CASE("components draw from streams of their own, the same again for the same seed") {
  LinkSettings settings;
  settings.loss = {1, 2};
  const auto pattern = [&](uint64_t seed, uint64_t component) {
    LinkModel link(settings, seed, component);
    uint64_t bits = 0;
    for (int i = 0; i < 64; ++i) bits = bits << 1 | link.transmit(Instant{}, 1).copies;
    return bits;
  };
  REQUIRE(pattern(1, 1) == pattern(1, 1));
  REQUIRE(pattern(1, 1) != pattern(1, 2));
  REQUIRE(pattern(1, 1) != pattern(2, 1));
}
