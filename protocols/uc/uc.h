// SPDX-License-Identifier: Apache-2.0
//
// UC: SEND and WRITE without acknowledgement (IBTA Vol 1, 9.8). The sender completes a work when its last packet has
// been pulled; the receiver drops the rest of a message after a gap and starts again at the next first or only packet.
#pragma once

#include <cstdint>

#include "protocols/base/time.h"
#include "protocols/transport/work.h"

namespace weft {

class UcSender {
 public:
  static constexpr uint32_t kMaxWorks = 128;
  void configure(uint32_t mtu_bytes, uint32_t dest_qpn, uint32_t first_psn);
  bool can_post() const;
  void post(const SendWork& work);
  bool pull(OutFrame& out);
  void fail(WorkNumber work, WorkStatus status);
  void flush();
  bool next_completion(SendCompletion& out);
  bool failed() const;
  bool idle() const;
  bool wants_to_send() const;
};

/// Outcomes: kDone, kReceiverNotReady (message dropped, no NAK), others (message dropped).
class UcReceiver {
 public:
  void configure(uint32_t mtu_bytes, uint32_t first_psn);
  Demand on_request(const TransportHeader& header, uint32_t payload_bytes);
  void settle(Outcome outcome);
};

}  // namespace weft
