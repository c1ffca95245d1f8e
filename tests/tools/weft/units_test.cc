// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/units.h"

#include <catch2/catch.hpp>

using namespace weft;
using namespace weft::tools;

namespace {
std::pair<uint64_t, uint64_t> ratio(const std::string& text) {
  const auto p = parse_probability(text);
  return p ? std::make_pair(p->numerator, p->denominator) : std::make_pair(uint64_t{0}, uint64_t{0});
}
}  // namespace

TEST_CASE("Probabilities are exact ratios") {
  CHECK(ratio("1%") == std::make_pair(uint64_t{1}, uint64_t{100}));
  CHECK(ratio("0.25%") == std::make_pair(uint64_t{25}, uint64_t{10000}));
  CHECK(ratio("0.01") == std::make_pair(uint64_t{1}, uint64_t{100}));
  CHECK(ratio("1/1000") == std::make_pair(uint64_t{1}, uint64_t{1000}));
  CHECK(ratio("0") == std::make_pair(uint64_t{0}, uint64_t{1}));
  CHECK(ratio("1") == std::make_pair(uint64_t{1}, uint64_t{1}));
  CHECK(ratio("100%") == std::make_pair(uint64_t{100}, uint64_t{100}));
  for (const char* wrong : {"", "%", "x", "-1%", "101%", "2", "1/0", "1/", "3/2", "0.5/2", "1 %", "1%%", "1e-3", ".", "1/2/3",
                            "99999999999999999999999"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_probability(wrong));
  }
}

TEST_CASE("Times carry a unit") {
  CHECK(parse_duration("500ms") == milliseconds(500));
  CHECK(parse_duration("10s") == seconds(10));
  CHECK(parse_duration("2min") == seconds(120));
  CHECK(parse_duration("0.5us") == nanoseconds(500));
  CHECK(parse_duration("3ns") == nanoseconds(3));
  for (const char* wrong : {"", "10", "s", "-1s", "1h", "1 s", "99999999999min", "1.2.3s"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_duration(wrong));
  }
}
