// SPDX-License-Identifier: Apache-2.0
//
// UD: one packet, one message, of at most one MTU, to any QP (IBTA Vol 1, 9.8.3). The sender completes a work once its
// packet has been pulled. A work that UD cannot carry ends in an error after all earlier ones, then failed().
//
// Q_Key rule (IBTA Vol 1, 10.2.5; also rdma-core's ibv_post_send): a Q_Key with its top bit set in a work request means
// "use the QP's own".
//
// fail(work, status): the engine could not read what it just pulled. Call it before next_completion(). Nothing here has
// time. No allocation after configure(). Not thread-safe.
#pragma once

#include <cstdint>

#include "protocols/transport/one_way_queue.h"
#include "protocols/transport/work.h"

namespace weft {

class UdSender {
 public:
  static constexpr uint32_t kMaxWorks = OneWayQueue::kMaxWorks;
  void configure(uint32_t mtu_bytes, uint32_t own_qpn, uint32_t own_qkey, uint32_t first_psn);
  /// After an error: the queue is empty and works again, PSNs go on.
  void resume() { queue_.reset(); }
  void set_qkey(uint32_t own_qkey) { own_qkey_ = own_qkey; }
  bool can_post() const { return queue_.can_post(); }
  void post(const SendWork& work);
  bool pull(OutFrame& out);  ///< out.work says whose address (AH) the engine uses
  void fail(WorkNumber work, WorkStatus status) { queue_.fail(work, status); }
  void flush() { queue_.flush(); }
  bool next_completion(SendCompletion& out) { return queue_.next_completion(out); }
  bool failed() const { return queue_.failed(); }
  bool idle() const { return queue_.idle(); }  ///< nothing posted whose completion has not been taken
  bool wants_to_send() const { return queue_.sendable(); }

 private:
  uint32_t mtu_bytes_ = 1024;
  uint32_t own_qpn_ = 0;
  uint32_t own_qkey_ = 0;
  uint32_t psn_ = 0;
  OneWayQueue queue_;
};

/// True when the frame is a UD SEND for a QP with this Q_Key. IBTA Vol 1, 9.6.1.
bool ud_accepts(const TransportHeader& header, uint32_t own_qkey);

}  // namespace weft
