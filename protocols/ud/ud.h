// SPDX-License-Identifier: Apache-2.0
//
// UD: one packet, one message (IBTA Vol 1, 9.8.3?). Sender and receiver checks as values; Q_Key rule of IBTA 10.2.5?:
// a Q_Key with its top bit set in a work request means "use the QP's own".
#pragma once

#include <cstdint>

#include "protocols/transport/work.h"

namespace weft {

class UdSender {
 public:
  static constexpr uint32_t kMaxWorks = 128;
  void configure(uint32_t mtu_bytes, uint32_t own_qpn, uint32_t own_qkey, uint32_t first_psn);
  void set_qkey(uint32_t own_qkey);
  bool can_post() const;
  void post(const SendWork& work);
  bool pull(OutFrame& out);  ///< out.work says whose address (AH) the engine uses
  void fail(WorkNumber work, WorkStatus status);
  void flush();
  bool next_completion(SendCompletion& out);
  bool failed() const;
  bool idle() const;
  bool wants_to_send() const;
};

/// True when the frame is for a QP with this Q_Key. IBTA Vol 1, 9.6.1.
bool ud_accepts(const TransportHeader& header, uint32_t own_qkey);

}  // namespace weft
