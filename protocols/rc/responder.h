// SPDX-License-Identifier: Apache-2.0
//
// RC responder: the receiving half of a reliable connection, as a pulled machine (IBTA Vol 1, 9.7.4, 9.7.5).
//
//   on_request(now, ...)  a request packet. The Demand says what the engine has to do; it then calls settle() at once,
//                         unless need is kNothing (duplicates, out of sequence, malformed: handled inside).
//   settle(now, outcome)  accepts the packet (kDone) or records the NAK
//   pull(now, out)        answers owed: ACK, NAK, RNR NAK, READ responses, ATOMIC acknowledges. Never called from inside
//                         on_request: receiving never waits for sending (nic_rules 1). What is owed is bounded by
//                         max_dest_rd_atomic resources + one acknowledge.
//   read_failed(now)      the engine could not read the memory of a READ response it pulled: a NAK is owed instead
//   fatal()               a NAK other than sequence or RNR was settled: the engine moves the QP to ERR after pulling it
//
// No allocation after configure(). Not thread-safe.
#pragma once

#include <cstdint>

#include "protocols/base/time.h"
#include "protocols/transport/work.h"

namespace weft {

struct ResponderConfig {
  uint32_t mtu_bytes = 1024;
  uint32_t dest_qpn = 0;   ///< the peer's, for answers
  uint32_t first_psn = 0;  ///< expected
  uint8_t max_dest_rd_atomic = 1;
  uint8_t min_rnr_timer = 12;  ///< code sent in RNR NAKs
};

class RcResponder {
 public:
  static constexpr uint32_t kMaxResources = 128;  ///< upper bound of max_dest_rd_atomic

  void configure(const ResponderConfig& config);
  Demand on_request(Instant now, const TransportHeader& header, uint32_t payload_bytes);
  void settle(Instant now, Outcome outcome, uint64_t atomic_original = 0);
  bool pull(Instant now, OutFrame& out);
  void read_failed(Instant now);
  bool owes() const;  ///< pull() would give a frame
  bool owes_acknowledge() const;  ///< an ACK for a delivered message is still unsent (completions wait for it)
  bool fatal() const;
};

}  // namespace weft
