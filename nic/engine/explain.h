// SPDX-License-Identifier: Apache-2.0
//
// Why a work, or a connection, ended in an error: what the engine knows at that moment, as plain values. Text is made of
// it where there is room for text (nic/preload/explain.h). Off the hot path: one per error completion, flushes apart.
#pragma once

#include <cstdint>

#include "nic/engine/queue_pair.h"
#include "protocols/attach/port_layout.h"
#include "protocols/rc/requester.h"

namespace weft::nic {

enum class ErrorSide : uint8_t {
  kSend,      ///< a completion of a send work
  kReceive,   ///< a completion of a receive request
  kResponder  ///< a request of the peer was refused; its completion has the error, here it is an event
};

struct ErrorReport {
  uint32_t qpn = 0;
  uint32_t peer_qpn = 0;
  GidBytes peer{};
  QpType type = QpType::kRc;
  ErrorSide side = ErrorSide::kSend;
  WorkStatus status = WorkStatus::kSuccess;
  WorkOpcode opcode = WorkOpcode::kSend;  ///< kSend
  uint64_t wr_id = 0;
  attach::NoticeReason notice = attach::NoticeReason::kNone;  ///< the fabric's last word on this path since it progressed
  RequesterFailure failure;     ///< of RC sends; failure.status says whether it is about this error
  const char* refusal = nullptr;  ///< why memory or a request was refused; nullptr: nothing to say
  const char* action = nullptr;   ///< kResponder: what the peer asked for
  uint32_t key = 0;               ///< of that memory
  uint64_t address = 0;
  uint64_t length = 0;
};

}  // namespace weft::nic
