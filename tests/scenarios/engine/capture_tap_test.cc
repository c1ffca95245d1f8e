// SPDX-License-Identifier: Apache-2.0
#include "scenarios/engine/capture_tap.h"

#include <catch2/catch.hpp>
#include <thread>

#include "protocols/base/random.h"
#include "scenarios/engine/spsc_ring.h"

using namespace weft;
using namespace weft::engine;

TEST_CASE("frames come out as they went in, across the ring's end") {
  CaptureTap tap;
  tap.open(4096);
  TappedFrame out;
  CHECK_FALSE(tap.take(out));
  std::vector<uint8_t> headers(58, 1);
  std::vector<uint8_t> payload(700);
  const std::vector<uint8_t> icrc{9, 8, 7, 6};
  for (uint32_t i = 0; i < 50; ++i) {
    for (size_t k = 0; k < payload.size(); ++k) payload[k] = static_cast<uint8_t>(k * i);
    tap.put(1000 + i, i, headers, payload, icrc);
    tap.put(2000 + i, i, headers, {}, icrc);
    REQUIRE(tap.take(out));
    CHECK(out.unix_ns == 1000 + i);
    CHECK(out.link == i);
    REQUIRE(out.bytes.size() == 58 + 700 + 4);
    CHECK(std::equal(payload.begin(), payload.end(), out.bytes.begin() + 58));
    CHECK(out.bytes.back() == 6);
    REQUIRE(tap.take(out));
    CHECK(out.bytes.size() == 62);
  }
  CHECK(tap.lost() == 0);
}

TEST_CASE("a full ring loses whole frames and counts them") {
  CaptureTap tap;
  tap.open(1024);
  const std::vector<uint8_t> bytes(200, 5);
  for (int i = 0; i < 10; ++i) tap.put(static_cast<uint64_t>(i), 1, bytes, {}, {});
  TappedFrame out;
  uint64_t got = 0;
  while (tap.take(out)) {
    CHECK(out.unix_ns == got++);
    CHECK(out.bytes.size() == 200);
  }
  CHECK(got == 4);
  CHECK(tap.lost() == 6);
  CHECK(tap.put_count() == 4);
}

TEST_CASE("two threads: everything that is not counted as lost arrives, in order") {
  CaptureTap tap;
  tap.open(1 << 16);
  constexpr uint32_t kFrames = 20'000;
  std::thread producer([&] {
    Random random(11, 1);
    std::vector<uint8_t> bytes(2000);
    for (uint32_t i = 0; i < kFrames; ++i) {
      const size_t n = 1 + random.below(1500);
      std::fill_n(bytes.begin(), n, static_cast<uint8_t>(i));
      tap.put(i, i, {bytes.data(), n}, {}, {});
    }
  });
  uint64_t got = 0;
  uint64_t next = 0;
  bool intact = true;
  bool ordered = true;
  TappedFrame out;
  const auto take_all = [&] {
    while (tap.take(out)) {
      ordered = ordered && out.unix_ns >= next;
      next = out.unix_ns + 1;
      for (const uint8_t byte : out.bytes) intact = intact && byte == static_cast<uint8_t>(out.unix_ns);
      ++got;
    }
  };
  while (got + tap.lost() < kFrames) take_all();
  producer.join();
  take_all();
  CHECK(intact);
  CHECK(ordered);
  CHECK(got + tap.lost() == kFrames);
}

TEST_CASE("the command ring refuses when full and keeps order") {
  SpscRing<int, 4> ring;
  for (int i = 0; i < 4; ++i) CHECK(ring.push(i));
  CHECK_FALSE(ring.push(4));
  int out = -1;
  for (int i = 0; i < 4; ++i) {
    REQUIRE(ring.pop(out));
    CHECK(out == i);
  }
  CHECK_FALSE(ring.pop(out));
  CHECK(ring.empty());
}
