// SPDX-License-Identifier: Apache-2.0
//
// RC requester: the sending half of a reliable connection, as a pulled machine (IBTA Vol 1, 9.7).
//
//   configure(config)     once per RTS; forgets everything
//   post(work)            appends one request; allowed while can_post()
//   pull(now, out)        gives the next frame this side wants on the wire, or false. Called only when a transmit slot is
//                         at hand; a frame given is taken to be sent.
//   on_response(...)      ACK, NAK, RNR NAK, READ response, ATOMIC acknowledge; then placed() if the Placement is wanted
//   on_timer(now)         when next_deadline() is reached (or later)
//   next_completion(out)  finished work, strictly in order, one per posted work (signaled or not)
//   fail(now, work, s)    the engine could not read the payload of a frame it pulled: that work ends in `s` once all
//                         earlier work has completed; nothing after it is sent
//   flush()               the QP went to ERR: everything not completed completes as kFlushed
//   on_notice(now)        the fabric knows of a loss or a death on this path since the last progress (patient timers)
//   failed()              a completion other than success was produced: the engine moves the QP to ERR
//
// Work is numbered from 0 since configure(). Time: picoseconds, an argument. No allocation after configure(). Not
// thread-safe.
//
// ACK requests: at the end of a message when it is signaled or the last one posted, every `ack_every` packets, and
// whenever the window closes.
#pragma once

#include <cstdint>

#include "protocols/base/time.h"
#include "protocols/transport/work.h"

namespace weft {

struct RequesterConfig {
  uint32_t mtu_bytes = 1024;
  uint32_t dest_qpn = 0;
  uint32_t first_psn = 0;
  uint8_t timeout = 14;      ///< 4.096 us · 2^timeout; 0 = never
  uint8_t retry_count = 7;   ///< 1 + retry_count transmissions
  uint8_t rnr_retry = 7;     ///< 7 = for ever
  uint8_t max_rd_atomic = 1; ///< READs and atomics outstanding; 0 means none may be posted (they never start)
  uint32_t window_packets = 256;  ///< unacknowledged request packets
  uint32_t ack_every = 32;
  bool patient = true;       ///< DECISIONS 12
};

class RcRequester {
 public:
  /// Works in flight that are kept here; more stay with the engine.
  static constexpr uint32_t kMaxWorks = 128;

  void configure(const RequesterConfig& config);
  bool can_post() const;
  void post(const SendWork& work);
  bool pull(Instant now, OutFrame& out);
  Placement on_response(Instant now, const TransportHeader& header, uint32_t payload_bytes);
  void placed(Instant now, bool ok);
  void on_timer(Instant now);
  void on_notice(Instant now);
  void fail(Instant now, WorkNumber work, WorkStatus status);
  void flush();
  bool next_completion(SendCompletion& out);
  Instant next_deadline() const;
  bool failed() const;
  bool idle() const;  ///< nothing posted that has not completed
  bool wants_to_send(Instant now) const;  ///< pull() would give a frame
};

}  // namespace weft
