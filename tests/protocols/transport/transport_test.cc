// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "protocols/transport/segment.h"
#include "protocols/transport/timers.h"

using namespace weft;

TEST_CASE("packets of a message and their payloads add up") {
  for (const uint32_t mtu : {256u, 512u, 1024u, 2048u, 4096u}) {
    REQUIRE(is_path_mtu(mtu));
    for (const uint32_t length : {0u, 1u, mtu - 1, mtu, mtu + 1, 2 * mtu - 1, 2 * mtu, 10 * mtu + 7}) {
      CAPTURE(mtu, length);
      const uint32_t n = packets_of(length, mtu);
      uint64_t sum = 0;
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t bytes = payload_of(length, mtu, i);
        if (i + 1 < n) REQUIRE(bytes == mtu);
        sum += bytes;
      }
      REQUIRE(sum == length);
      if (n > 1) REQUIRE(payload_of(length, mtu, n - 1) > 0);
    }
    CHECK(packets_of(kMaxMessageBytes, mtu) == kMaxMessageBytes / mtu);
    CHECK(packets_of(UINT32_MAX, mtu) == (uint64_t{1} << 32) / mtu);
  }
  CHECK_FALSE(is_path_mtu(128));
  CHECK_FALSE(is_path_mtu(1000));
  CHECK_FALSE(is_path_mtu(8192));
}

TEST_CASE("what is sent is what is understood") {
  for (const WorkOpcode work : {WorkOpcode::kSend, WorkOpcode::kSendImm, WorkOpcode::kSendInvalidate,
                                WorkOpcode::kWrite, WorkOpcode::kWriteImm}) {
    for (int bits = 0; bits < 4; ++bits) {
      const bool first = (bits & 1) != 0;
      const bool last = (bits & 2) != 0;
      const MessagePacket p = classify_message(static_cast<uint8_t>(message_opcode(work, first, last)));
      CAPTURE(int(work), first, last);
      CHECK(p.valid);
      CHECK(p.write == is_write(work));
      CHECK(p.first == first);
      CHECK(p.last == last);
      CHECK(p.immediate == (last && (work == WorkOpcode::kSendImm || work == WorkOpcode::kWriteImm)));
      CHECK(p.invalidate == (last && work == WorkOpcode::kSendInvalidate));
    }
  }
  for (int opcode = 0x0c; opcode < 0x100; ++opcode)
    if (opcode != 0x16 && opcode != 0x17) CHECK_FALSE(classify_message(static_cast<uint8_t>(opcode)).valid);
}

TEST_CASE("ACK timeouts and RNR delays by their tables") {
  CHECK(ack_timeout(0) == Duration::max());
  CHECK(ack_timeout(1) == picoseconds(8'192'000));
  CHECK(ack_timeout(8) == picoseconds(1'048'576'000));
  CHECK(ack_timeout(17) == picoseconds(536'870'912'000));
  CHECK(ack_timeout(31) == picoseconds(int64_t{4'096'000} << 31));
  const int64_t microsecond_table[32] = {655360, 10,    20,    30,     40,     60,     80,     120,
                                         160,    240,   320,   480,    640,    960,    1280,   1920,
                                         2560,   3840,  5120,  7680,   10240,  15360,  20480,  30720,
                                         40960,  61440, 81920, 122880, 163840, 245760, 327680, 491520};
  for (uint8_t code = 0; code < 32; ++code) CHECK(rnr_delay(code) == microseconds(microsecond_table[code]));
}
