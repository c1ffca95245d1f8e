// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/deadline_heap.h"

#include <catch2/catch.hpp>
#include <map>

#include "protocols/base/random.h"

using namespace weft;
using namespace weft::nic;

TEST_CASE("The heap agrees with a map, whatever is scheduled and removed", "[nic][timers]") {
  constexpr uint32_t kIds = 100;
  DeadlineHeap heap;
  REQUIRE(heap.open(kIds));
  Random random(1, 2);
  std::map<uint32_t, int64_t> reference;  // id -> entry
  auto earliest = [&] {
    int64_t at = INT64_MAX;
    for (const auto& [id, t] : reference) at = std::min(at, t);
    return at;
  };
  int64_t now = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto id = static_cast<uint32_t>(random.below(kIds));
    switch (random.below(4)) {
      case 0:
      case 1: {
        const int64_t at = now + static_cast<int64_t>(random.below(1000));
        heap.schedule(id, Instant(Duration(at)));
        // A later deadline does not move the entry.
        if (reference.count(id) == 0 || at < reference[id]) reference[id] = at;
        break;
      }
      case 2:
        heap.remove(id);
        reference.erase(id);
        break;
      default: {
        now += static_cast<int64_t>(random.below(200));
        for (;;) {
          const uint32_t due = heap.due(Instant(Duration(now)));
          if (due == DeadlineHeap::kNone) break;
          REQUIRE(reference.count(due) == 1);
          REQUIRE(reference[due] == earliest());
          REQUIRE(reference[due] <= now);
          reference.erase(due);
        }
        REQUIRE(earliest() > now);
      }
    }
    REQUIRE(heap.next().time_since_epoch().count() == earliest());
  }
}

TEST_CASE("Never is not an entry", "[nic][timers]") {
  DeadlineHeap heap;
  REQUIRE(heap.open(4));
  heap.schedule(1, kNever);
  CHECK(heap.next() == kNever);
  CHECK(heap.due(Instant::max() - Duration(1)) == DeadlineHeap::kNone);
}
