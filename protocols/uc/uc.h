// SPDX-License-Identifier: Apache-2.0
//
// UC: SEND and WRITE without acknowledgement (IBTA Vol 1, 9.8). The sender completes a work when its last packet has
// been pulled; the receiver drops the rest of a message after a gap and starts again at the next first or only packet.
//
//   sender      configure, post while can_post(), pull, next_completion; a work that UC cannot carry (READ, atomics,
//   SEND
//               with invalidate, more than 2^31 bytes) ends in an error after all earlier ones, then failed().
//               fail(work, status): the engine could not read what it just pulled. Call it before next_completion().
//   receiver    on_request, then settle() unless need is kNothing. A message dropped after its first packet leaves its
//               receive request at the head of the queue: the next first packet takes the same one again.
//
// Nothing here has time. No allocation after configure(). Not thread-safe.
#pragma once

#include <cstdint>

#include "protocols/transport/one_way_queue.h"
#include "protocols/transport/segment.h"
#include "protocols/transport/work.h"

namespace weft {

class UcSender {
 public:
  static constexpr uint32_t kMaxWorks = OneWayQueue::kMaxWorks;
  void configure(uint32_t mtu_bytes, uint32_t dest_qpn, uint32_t first_psn);
  /// After an error: the queue is empty and works again, PSNs go on.
  void resume() {
    packet_ = 0;
    queue_.reset();
  }
  bool can_post() const { return queue_.can_post(); }
  void post(const SendWork& work);
  bool pull(OutFrame& out);
  void fail(WorkNumber work, WorkStatus status) { queue_.fail(work, status); }
  void flush() { queue_.flush(); }
  bool next_completion(SendCompletion& out) { return queue_.next_completion(out); }
  bool failed() const { return queue_.failed(); }
  bool idle() const { return queue_.idle(); }  ///< nothing posted whose completion has not been taken
  bool wants_to_send() const { return queue_.sendable(); }

 private:
  uint32_t mtu_bytes_ = 1024;
  uint32_t dest_qpn_ = 0;
  uint32_t psn_ = 0;
  uint32_t packet_ = 0;  ///< of the current work
  OneWayQueue queue_;
};

/// Outcomes: kDone, kReceiverNotReady (message dropped, no NAK), others (message dropped).
class UcReceiver {
 public:
  void configure(uint32_t mtu_bytes, uint32_t first_psn);
  Demand on_request(const TransportHeader& header, uint32_t payload_bytes);
  void settle(Outcome outcome);

  uint64_t messages_dropped() const { return messages_dropped_; }  ///< cut off by a gap, an error or an empty queue
  uint64_t packets_dropped() const { return packets_dropped_; }

 private:
  Demand drop();

  uint32_t mtu_bytes_ = 1024;
  uint32_t expected_ = 0;
  uint32_t offset_ = 0;
  uint32_t message_bytes_ = 0;
  uint64_t message_va_ = 0;
  uint32_t message_rkey_ = 0;
  bool in_message_ = false;
  bool message_is_write_ = false;
  bool pending_ = false;
  MessagePacket kind_{};
  uint32_t pending_bytes_ = 0;
  uint64_t messages_dropped_ = 0;
  uint64_t packets_dropped_ = 0;
};

}  // namespace weft
