// SPDX-License-Identifier: Apache-2.0
//
// A requester with small limits, and shorthand for what tests do with it.
#pragma once

#include <catch2/catch.hpp>
#include <vector>

#include "protocols/rc/requester.h"

namespace weft::test {

inline constexpr uint32_t kMtu = 256;

struct RequesterFixture {
  RcRequester r;
  Instant now{};

  explicit RequesterFixture(uint32_t first_psn = 100, uint8_t max_rd_atomic = 4, uint32_t window = 256,
                            uint32_t ack_every = 32) {
    RequesterConfig c;
    c.mtu_bytes = kMtu;
    c.dest_qpn = 0x77;
    c.first_psn = first_psn;
    c.max_rd_atomic = max_rd_atomic;
    c.window_packets = window;
    c.ack_every = ack_every;
    c.patient = false;
    c.timeout = 10;
    c.retry_count = 2;
    c.rnr_retry = 2;
    r.configure(c);
  }
  void post(WorkOpcode opcode, uint32_t length, bool signaled = false, bool fence = false) {
    SendWork w;
    w.opcode = opcode;
    w.length = length;
    w.signaled = signaled;
    w.fence = fence;
    w.remote_addr = 0x1000;
    w.rkey = 9;
    w.immediate = 0xabcd;
    w.compare_add = 5;
    w.swap = 6;
    r.post(w);
  }
  std::vector<OutFrame> pull_all() {
    std::vector<OutFrame> frames;
    OutFrame f;
    while (r.wants_to_send(now)) {
      REQUIRE(r.pull(now, f));
      frames.push_back(f);
    }
    REQUIRE_FALSE(r.pull(now, f));
    return frames;
  }
  Placement answer(Opcode opcode, uint32_t psn, uint8_t syndrome = kSyndromeAck, uint32_t bytes = 0) {
    TransportHeader h;
    h.opcode = opcode;
    h.psn = psn & kPsnMask;
    h.aeth.syndrome = syndrome;
    return r.on_response(now, h, bytes);
  }
  void ack(uint32_t psn) { REQUIRE_FALSE(answer(Opcode::kRcAcknowledge, psn).wanted); }
  void nak(uint32_t psn, uint8_t syndrome) { REQUIRE_FALSE(answer(Opcode::kRcAcknowledge, psn, syndrome).wanted); }
  std::vector<SendCompletion> completions() {
    std::vector<SendCompletion> all;
    SendCompletion c;
    while (r.next_completion(c)) all.push_back(c);
    return all;
  }
};

inline std::vector<uint32_t> psns(const std::vector<OutFrame>& frames) {
  std::vector<uint32_t> all;
  for (const OutFrame& f : frames) all.push_back(f.header.psn);
  return all;
}

}  // namespace weft::test
