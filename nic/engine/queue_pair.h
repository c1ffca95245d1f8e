// SPDX-License-Identifier: Apache-2.0
//
// A queue pair: attributes, the machines of its service, the records of works in flight, and its places in the device's
// lists. A value without behaviour; receive.cc, transmit.cc and queue_pair.cc act on it with the device's lock held.
#pragma once

#include <atomic>
#include <cstdint>
#include <variant>

#include "nic/engine/completion_queue.h"
#include "nic/engine/local_work.h"
#include "nic/engine/machines.h"
#include "nic/engine/route.h"
#include "nic/engine/shared_receive_queue.h"
#include "nic/engine/work_queue.h"
#include "protocols/attach/port_layout.h"

namespace weft::nic {

/// Numbered as ibv_qp_type and ibv_qp_state.
enum class QpType : uint8_t { kRc = 2, kUc = 3, kUd = 4 };
enum class QpState : uint8_t { kReset, kInit, kReadyToReceive, kReadyToSend, kDrained, kSendError, kError };
inline constexpr uint32_t kQpDestroyed = 7;

/// What MODIFY_QP sets and QUERY_QP returns.
struct QpAttributes {
  AddressAttributes address;
  uint32_t qkey = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
  uint32_t dest_qpn = 0;
  uint32_t access = 0;
  uint16_t pkey_index = 0;
  uint8_t path_mtu = 0;  ///< ibv_mtu, 1..5
  uint8_t path_mig_state = 0;
  uint8_t max_rd_atomic = 0;
  uint8_t max_dest_rd_atomic = 0;
  uint8_t min_rnr_timer = 0;
  uint8_t port_num = 1;
  uint8_t timeout = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry = 0;
  bool drain_event = false;
};

/// One posted work: what its frames and its completion need.
struct WorkRecord {
  uint64_t wr_id = 0;
  const Sge* sges = nullptr;
  const uint8_t* inline_data = nullptr;
  uint32_t sge_count = 0;
  uint32_t length = 0;
  uint32_t address_handle = 0;
  WorkOpcode opcode = WorkOpcode::kSend;
  bool signaled = false;
};

inline constexpr uint32_t kWorkRecords = RcRequester::kMaxWorks;
static_assert((kWorkRecords & (kWorkRecords - 1)) == 0);
static_assert(UcSender::kMaxWorks <= kWorkRecords && UdSender::kMaxWorks <= kWorkRecords);

struct QueuePair {
  // Read without the lock by the doorbell.
  std::atomic<QpState> state{QpState::kReset};

  QpType type = QpType::kRc;
  bool signal_all = false;
  bool active = false;   ///< in the transmit list
  bool holding = false;  ///< in the list of QPs whose completions wait for an acknowledge
  bool in_error_list = false;
  bool ending = false;        ///< a fatal NAK is owed: to ERR once it is pulled
  LocalWait local_wait = LocalWait::kNone;  ///< of the oldest work not taken
  bool rq_taken = false;      ///< `receive` holds a request
  bool drain_told = false;    ///< SQ_DRAINED went out
  bool established = false;   ///< COMM_EST went out
  bool access_error = false;  ///< the last request was refused for its rkey or range
  bool receive_told = false;  ///< a receive completion tells of the last request's error
  uint32_t index = 0;
  uint32_t qpn = 0;
  uint32_t pd = 0;
  uint32_t mtu_bytes = 0;
  uint64_t user_handle = 0;
  uint32_t async_queued = 0;
  bool untold = false;  ///< the platform has not heard of its last state
  attach::NoticeReason last_notice = attach::NoticeReason::kNone;
  uint32_t groups = 0;  ///< multicast groups it is attached to
  EventTarget* async = nullptr;

  SendQueue* send_queue = nullptr;
  ReceiveQueue* receive_queue = nullptr;  ///< nullptr: receives from `srq`
  SharedReceiveQueue* srq = nullptr;
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* receive_cq = nullptr;

  QpAttributes attributes;
  Route route;                 ///< RC, UC
  WorkNumber posted = 0;       ///< works given to the machine since it was configured
  uint32_t hold_position = 0;  ///< of the first held completion in receive_cq

  /// Whose memory a receive request may name. IBTA Vol 1, 10.2.9.1.
  uint32_t receive_pd() const { return srq != nullptr ? srq->pd : pd; }

  QueuePair* next_active = nullptr;
  QueuePair* next_holding = nullptr;
  QueuePair* next_error = nullptr;

  std::variant<std::monostate, RcMachines, UcMachines, UdMachines> machines;
  WorkRecord works[kWorkRecords];
  ReceiveRequest receive;

  RcMachines* rc() { return std::get_if<RcMachines>(&machines); }
  UcMachines* uc() { return std::get_if<UcMachines>(&machines); }
  UdMachines* ud() { return std::get_if<UdMachines>(&machines); }
  WorkRecord& work(WorkNumber number) { return works[number % kWorkRecords]; }
  QpState now_state() const { return state.load(std::memory_order_relaxed); }
};

}  // namespace weft::nic
