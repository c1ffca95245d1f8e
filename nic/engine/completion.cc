// SPDX-License-Identifier: Apache-2.0
//
// Device: completions, their publication and the events they cause.
#include <algorithm>

#include "nic/engine/device.h"

namespace weft::nic {
namespace {

constexpr uint32_t kEventCqError = 0;  // ibv_event_type
constexpr uint32_t kEventQpFatal = 1;

/// Events that found their channel full are tried again after this, then less and less often: most programs never look.
constexpr Duration kFirstEventRetry = milliseconds(1);
constexpr Duration kLastEventRetry = milliseconds(100);

/// What the program reads from its async fd: ib_uverbs_async_event_desc.
struct AsyncRecord {
  uint64_t element;
  uint32_t event_type;
  uint32_t reserved;
};

bool before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

}  // namespace

void Device::raise(EventTarget* target, uint64_t element, uint32_t event_type, uint32_t& queued) {
  if (target == nullptr || target->channel == nullptr) return;
  const AsyncRecord record{element, event_type, 0};
  if (!target->channel->post(&record, sizeof record)) {
    ++target->lost;
    return;
  }
  ++queued;
  if (target->channel->kept() != 0 && !events_kept_) {
    events_kept_ = true;
    event_retry_at_ = last_pass_;
    event_retry_after_ = kFirstEventRetry;
  }
}

CompletionQueue* Device::create_cq(CompletionSink* sink, EventChannel* channel, EventTarget* async,
                                   uint64_t user_handle) {
  uint32_t index = 0;
  CompletionQueue* cq = cqs_.take(index);
  if (cq == nullptr) return nullptr;
  cq->index = index;
  cq->sink = sink;
  cq->channel = channel;
  cq->async = async;
  cq->user_handle = user_handle;
  if (channel != nullptr) ++channel->users;
  return cq;
}

void Device::destroy_cq(CompletionQueue& cq) {
  for (CompletionQueue** link = &dirty_; *link != nullptr; link = &(*link)->next_dirty) {
    if (*link != &cq) continue;
    *link = cq.next_dirty;
    break;
  }
  if (withdrawn() != 0) found_withdrawn(cq.sink->withdrawn());
  if (cq.events_owed != 0) --cqs_owed_;
  if (cq.channel != nullptr) --cq.channel->users;
  cqs_.give(cq.index);
}

void Device::arm(CompletionQueue& cq, bool solicited_only) {
  // Asking for any completion is the stronger wish and stays until it fires.
  if (cq.armed != Armed::kAny) cq.armed = solicited_only ? Armed::kSolicited : Armed::kAny;
}

void Device::complete(CompletionQueue& cq, const Completion& completion) {
  if (cq.overrun || !cq.sink->put(completion)) {
    if (!cq.overrun) raise(cq.async, cq.user_handle, kEventCqError, cq.async_queued);
    cq.overrun = overrun_seen_ = true;
    ++counters_.completions_lost;
    return;
  }
  ++cq.staged;
  if (completion.solicited || completion.status != WorkStatus::kSuccess) {
    if (!cq.solicited_staged) cq.solicited_first = cq.staged;
    cq.solicited_last = cq.staged;
    cq.solicited_staged = true;
  }
  if (cq.dirty) return;
  cq.dirty = true;
  cq.next_dirty = dirty_;
  dirty_ = &cq;
}

/// A CQ that has lost a completion is of no use any more, and no QP can work without its completions: they go to ERR
/// and their program hears it for each. IBTA Vol 1, 11.6.3.3 (CQ error) and 11.6.3.2 (local work queue catastrophic
/// error).
void Device::fail_after_overrun(Instant now) {
  while (overrun_seen_) {
    overrun_seen_ = false;  // the flushes may overrun other CQs
    for (uint32_t i = 0; i < qps_.high_water(); ++i) {
      QueuePair* qp = qps_.at(i);
      if (qp == nullptr || !(qp->send_cq->overrun || qp->receive_cq->overrun)) continue;
      if (qp->now_state() == QpState::kReset || qp->now_state() == QpState::kError) continue;
      raise(qp->async, qp->user_handle, kEventQpFatal, qp->async_queued);
      to_error(*qp, now);
    }
  }
}

/// What of `cq` is visible now includes a solicited completion that was not before.
bool Device::solicited_published(CompletionQueue& cq) {
  if (!cq.solicited_staged || before(cq.visible, cq.solicited_first)) return false;
  // Those between the first and the last are told with the last.
  cq.solicited_staged = before(cq.visible, cq.solicited_last);
  cq.solicited_first = cq.solicited_last;
  return true;
}

/// A receive completion waits until its acknowledge is in the transmit ring: programs exit right after the last one,
/// and the peer would never hear (nic_rules 4).
void Device::complete_receive(QueuePair& qp, Completion& completion) {
  completion.wr_id = qp.receive.wr_id;
  completion.qpn = qp.qpn;
  if (completion.source_qpn == 0) completion.source_qpn = qp.attributes.dest_qpn;
  completion.pkey_index = qp.attributes.pkey_index;
  qp.rq_taken = false;
  count_receive(completion);
  explain_receive(qp, completion);
  CompletionQueue& cq = *qp.receive_cq;
  if (!qp.holding && qp.type == QpType::kRc && completion.status == WorkStatus::kSuccess) {
    qp.holding = true;
    qp.hold_position = cq.staged;
    qp.next_holding = holding_;
    holding_ = &qp;
  }
  complete(cq, completion);
}

/// Nothing carries the number of a QP that was reset or destroyed.
void Device::withdraw_completions(const QueuePair& qp) {
  CompletionQueue* const cqs[] = {qp.send_cq, qp.receive_cq == qp.send_cq ? nullptr : qp.receive_cq};
  for (CompletionQueue* cq : cqs) {
    if (cq == nullptr || !platform_.steps_over_withdrawn(cq->user_handle)) continue;
    withdrawn_.fetch_add(cq->sink->withdraw(qp.qpn), std::memory_order_relaxed);
  }
}

void Device::count_send(WorkOpcode opcode, WorkStatus status) {
  CounterBlock& counters = port_.counters();
  if (status == WorkStatus::kSuccess) {
    if (opcode == WorkOpcode::kSend || opcode == WorkOpcode::kSendImm || opcode == WorkOpcode::kSendInvalidate) {
      counters.add(NicCounter::kSends);
    }
  } else {
    counters.add(status == WorkStatus::kFlushed ? NicCounter::kRequesterFlush : NicCounter::kRequesterError);
  }
}

void Device::count_receive(const Completion& completion) {
  CounterBlock& counters = port_.counters();
  switch (completion.status) {
    case WorkStatus::kSuccess:
      if (completion.opcode == CompletionOpcode::kReceive) counters.add(NicCounter::kReceives);
      return;
    case WorkStatus::kFlushed:
      counters.add(NicCounter::kResponderFlush);
      return;
    case WorkStatus::kLocalLength:
      counters.add(NicCounter::kResponderLocalLength);
      [[fallthrough]];
    default:
      counters.add(NicCounter::kResponderError);
  }
}

/// What is counted per frame is shown once a pass.
void Device::show_counters() {
  CounterBlock& counters = port_.counters();
  counters.set(NicCounter::kSentPackets, counters_.frames_out);
  counters.set(NicCounter::kReceivedPackets, counters_.frames_in);
  counters.set(NicCounter::kWrongQkey, counters_.wrong_qkey);
  counters.set(NicCounter::kMalformed, counters_.malformed);
}

void Device::publish_completions() {
  for (CompletionQueue* cq = dirty_; cq != nullptr; cq = cq->next_dirty) cq->limit = cq->staged;
  for (QueuePair** link = &holding_; *link != nullptr;) {
    QueuePair& qp = **link;
    RcMachines* rc = qp.rc();
    const bool waits =
        !dead() && qp.now_state() != QpState::kError && rc != nullptr && rc->responder.owes_acknowledge();
    if (waits) {
      CompletionQueue& cq = *qp.receive_cq;
      if (before(qp.hold_position, cq.limit)) cq.limit = qp.hold_position;
      link = &qp.next_holding;
    } else {
      qp.holding = false;
      *link = qp.next_holding;
    }
  }
  for (CompletionQueue** link = &dirty_; *link != nullptr;) {
    CompletionQueue& cq = **link;
    if (before(cq.visible, cq.limit)) {
      cq.visible = cq.limit;
      cq.sink->publish(cq.visible);
      const bool solicited = solicited_published(cq);
      if (cq.armed == Armed::kAny || (cq.armed == Armed::kSolicited && solicited)) announce(cq);
    }
    if (cq.visible == cq.staged) {
      cq.dirty = false;
      *link = cq.next_dirty;
    } else {
      link = &cq.next_dirty;
    }
  }
}

/// One event, then disarmed. A channel whose reader sleeps over hundreds of events is full; what it is owed is kept per
/// CQ, as the kernel's list would.
void Device::announce(CompletionQueue& cq) {
  cq.armed = Armed::kNo;
  if (cq.channel == nullptr) return;
  if (cq.events_owed == 0 && cq.channel->send(&cq.user_handle, sizeof cq.user_handle)) {
    ++cq.events_queued;
    return;
  }
  if (cq.channel->abandoned()) return;
  if (cq.events_owed++ == 0) ++cqs_owed_;
}

void Device::retry_events(Instant now) {
  if (now < event_retry_at_) return;
  bool went = false;
  events_kept_ = false;
  for (EventTarget* target = listeners_; target != nullptr; target = target->next) {
    if (target->channel == nullptr || target->channel->kept() == 0) continue;
    went |= target->channel->flush_kept();
    events_kept_ |= target->channel->kept() != 0;
  }
  event_retry_after_ = went ? kFirstEventRetry : std::min(2 * event_retry_after_, kLastEventRetry);
  event_retry_at_ = now + event_retry_after_;
}

bool Device::retry_announcements() {
  const uint32_t scan = cqs_.high_water();
  for (uint32_t i = 0; i < scan && cqs_owed_ != 0; ++i) {
    CompletionQueue* cq = cqs_.at(i);
    if (cq == nullptr || cq->events_owed == 0) continue;
    while (cq->events_owed != 0 && cq->channel->send(&cq->user_handle, sizeof cq->user_handle)) {
      ++cq->events_queued;
      --cq->events_owed;
    }
    if (cq->events_owed != 0 && cq->channel->abandoned()) cq->events_owed = 0;
    if (cq->events_owed == 0) --cqs_owed_;
  }
  return cqs_owed_ == 0;
}

}  // namespace weft::nic
