// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/drained_polls.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace drained_polls = weft::preload::drained_polls;

TEST_CASE("A mark is for its thread and its CQ, and is taken once", "[nic][preload]") {
  alignas(16) char queues[2][512];
  CHECK_FALSE(drained_polls::take(queues[0]));
  drained_polls::mark(queues[0]);
  drained_polls::mark(queues[0]);
  CHECK_FALSE(drained_polls::take(queues[1]));
  bool elsewhere = true;
  std::thread([&] { elsewhere = drained_polls::take(queues[0]); }).join();
  CHECK_FALSE(elsewhere);
  CHECK(drained_polls::take(queues[0]));
  CHECK_FALSE(drained_polls::take(queues[0]));
}

TEST_CASE("Sixty-four threads lose no mark, whether they share a CQ or not", "[nic][preload]") {
  static char queues[16][512];
  std::atomic<uint32_t> lost{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 64; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 2000; ++i) {
        const char* cq = queues[(t + i) % 16];
        drained_polls::mark(cq);
        if (i % 64 == 0) std::this_thread::yield();
        if (!drained_polls::take(cq)) ++lost;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(lost == 0);
}
