// SPDX-License-Identifier: Apache-2.0
#include "nic/host/qpn_ranges.h"

#include <catch2/catch.hpp>
#include <memory>
#include <set>

using namespace weft;
using namespace weft::host;

TEST_CASE("Ranges go round; range 0 and the multicast QPN's are never given; a used one is not given twice") {
  auto ranges = std::make_unique<QpnRanges>(1000);
  const Instant now{seconds(5)};
  std::set<uint32_t> given;
  CHECK(*ranges->take(now) == 1000);
  given.insert(1000);
  while (const auto range = ranges->take(now)) {
    CHECK(*range != 0);
    CHECK(*range != 1023);
    CHECK(given.insert(*range).second);
  }
  CHECK(given.size() == 1022);
  CHECK(ranges->in_use() == 1022);
}

TEST_CASE("A returned range rests for a minute; when all free ones rest, the oldest is better than none") {
  auto ranges = std::make_unique<QpnRanges>(1);
  const Instant start{seconds(100)};
  while (ranges->take(start)) {
  }
  ranges->give_back(5, start);
  ranges->give_back(3, start + seconds(1));
  // Round robin would come to 3 first, but only 5 has rested.
  CHECK(*ranges->take(start + seconds(60)) == 5);
  ranges->give_back(9, start + seconds(60));
  CHECK(*ranges->take(start + seconds(61) - picoseconds(1)) == 3);
  CHECK(*ranges->take(start + seconds(61)) == 9);
  CHECK_FALSE(ranges->take(start + seconds(200)));
}

TEST_CASE("A fresh fabric gives at once, whatever its clock says") {
  auto ranges = std::make_unique<QpnRanges>(7);
  CHECK(ranges->take(Instant{}));
}
