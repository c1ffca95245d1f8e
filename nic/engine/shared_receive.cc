// SPDX-License-Identifier: Apache-2.0
//
// Device: shared receive queues and where a message's receive request comes from.
#include "nic/engine/device.h"

namespace weft::nic {
namespace {

constexpr uint32_t kEventSrqError = 14;  // ibv_event_type
constexpr uint32_t kEventSrqLimit = 15;
constexpr uint32_t kEventLastWqe = 16;

}  // namespace

SharedReceiveQueue* Device::create_srq(ReceiveQueue* queue, uint32_t pd, EventTarget* async, uint64_t user_handle) {
  uint32_t index = 0;
  SharedReceiveQueue* srq = srqs_.take(index);
  if (srq == nullptr) return nullptr;
  srq->index = index;
  srq->queue = queue;
  srq->pd = pd;
  srq->async = async;
  srq->user_handle = user_handle;
  if (ProtectionDomain* domain = pds_.at(pd)) ++domain->users;
  return srq;
}

void Device::destroy_srq(SharedReceiveQueue& srq) {
  if (ProtectionDomain* domain = pds_.at(srq.pd)) --domain->users;
  srqs_.give(srq.index);
}

bool Device::take_receive(QueuePair& qp) {
  if (qp.rq_taken) return true;
  ReceiveQueue* queue = qp.srq != nullptr ? qp.srq->queue : qp.receive_queue;
  if (queue == nullptr || !queue->take(qp.receive)) return false;
  qp.rq_taken = true;
  if (qp.srq != nullptr) taken_from(*qp.srq, qp.receive);
  return true;
}

/// The limit event comes once; the program arms it anew. IBTA Vol 1, 10.2.9.3 and 11.6.3.1.
void Device::taken_from(SharedReceiveQueue& srq, const ReceiveRequest& request) {
  if (srq.limit != 0 && srq.queue->count() < srq.limit) {
    srq.limit = 0;
    raise(srq.async, srq.user_handle, kEventSrqLimit, srq.async_queued);
  }
  if (request.malformed && !srq.failed) {
    srq.failed = true;
    raise(srq.async, srq.user_handle, kEventSrqError, srq.async_queued);
  }
}

/// A list that cannot have been posted through the library. The request is used up all the same.
void Device::complete_malformed(QueuePair& qp) {
  Completion bad;
  bad.opcode = CompletionOpcode::kReceive;
  bad.status = WorkStatus::kLocalQpOperation;
  complete_receive(qp, bad);
}

/// The QP is in ERR, what it had taken is flushed, and it takes no more: whoever waits to destroy it may go on. IBTA
/// Vol 1, 10.2.9.2.
void Device::tell_last_request(QueuePair& qp) {
  if (qp.srq != nullptr) raise(qp.async, qp.user_handle, kEventLastWqe, qp.async_queued);
}

}  // namespace weft::nic
