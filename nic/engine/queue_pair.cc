// SPDX-License-Identifier: Apache-2.0
//
// Device: the life of a queue pair. States and what they do to queues: IBTA Vol 1, 10.3.1.
#include <sched.h>

#include <algorithm>
#include <cerrno>

#include "nic/engine/device.h"
#include "nic/engine/qp_rules.h"
#include "protocols/wire/udp.h"

namespace weft::nic {
namespace {

/// Attempts to get the last answers of a QP that is destroyed into the port; each gives the daemon the processor once.
constexpr uint32_t kFarewells = 64;
constexpr uint32_t kAnswersAtOnce = 256;
/// Unacknowledged data of one QP: with small MTUs a window of packets alone would be a few scheduling rounds of
/// nothing.
constexpr uint32_t kWindowBytes = 1u << 20;
constexpr uint16_t kPkeys = 1;

uint32_t mtu_of(uint8_t path_mtu) { return 128u << path_mtu; }

bool sends_idle(QueuePair& qp) {
  if (RcMachines* rc = qp.rc()) return rc->idle();
  if (UcMachines* uc = qp.uc()) return uc->idle();
  if (UdMachines* ud = qp.ud()) return ud->idle();
  return true;
}

uint32_t power_of_two_at_most(uint32_t value, uint32_t most) {
  // The kernel's soft-RoCE rounds resource counts up to a power of two.
  uint32_t rounded = 1;
  while (rounded < value) rounded *= 2;
  return value == 0 ? 0 : std::min(rounded, most);
}

}  // namespace

QueuePair* Device::create_qp(const QpSetup& setup) {
  uint32_t index = 0;
  QueuePair* qp = qps_.take(index);
  if (qp == nullptr) return nullptr;
  // Numbers go round the whole range before one comes again (nic_rules 7). There are twice as many as QPs.
  do {
    next_qpn_ = (next_qpn_ + 1) & qpn_mask_;
  } while (qp_of_qpn_[next_qpn_] != 0);
  qp_of_qpn_[next_qpn_] = static_cast<uint16_t>(index + 1);
  qp->index = index;
  qp->qpn = welcome_.qpn_base + next_qpn_;
  qp->type = setup.type;
  qp->signal_all = setup.signal_all;
  qp->pd = setup.pd;
  qp->user_handle = setup.user_handle;
  qp->async = setup.async;
  qp->send_queue = setup.send_queue;
  qp->receive_queue = setup.receive_queue;
  qp->srq = setup.srq;
  if (qp->srq != nullptr) ++qp->srq->users;
  qp->send_cq = setup.send_cq;
  qp->receive_cq = setup.receive_cq;
  ++qp->send_cq->users;
  ++qp->receive_cq->users;
  if (ProtectionDomain* pd = pds_.at(qp->pd)) ++pd->users;
  return qp;
}

void Device::destroy_qp(QueuePair& qp, Instant now) {
  qp.async = nullptr;  // its last answers may fail; whoever waits for its events has counted them
  if (RcMachines* rc = qp.rc(); rc != nullptr && !dead() && qp.now_state() != QpState::kError) {
    for (uint32_t i = 0; i < kFarewells && rc->responder.owes_acknowledge(); ++i) {
      serve_answers(qp, now, kAnswersAtOnce);
      if (port_.flush()) kick();
      if (rc->responder.owes_acknowledge()) sched_yield();
    }
  }
  qp.state.store(QpState::kReset, std::memory_order_relaxed);
  unlink(qp);
  windows_.release(regions_, qp.qpn);
  withdraw_completions(qp);
  // What was held back for an acknowledge is shown now: nobody waits for this QP any more.
  publish_completions();
  qp_of_qpn_[qp.qpn & qpn_mask_] = 0;
  --qp.send_cq->users;
  --qp.receive_cq->users;
  if (qp.srq != nullptr) --qp.srq->users;
  if (ProtectionDomain* pd = pds_.at(qp.pd)) --pd->users;
  qps_.give(qp.index);
}

/// Out of every list of the device.
void Device::unlink(QueuePair& qp) {
  timers_.remove(qp.index);
  if (qp.active) {
    QueuePair* previous = nullptr;
    for (QueuePair* at = active_first_; at != nullptr; previous = at, at = at->next_active) {
      if (at != &qp) continue;
      (previous == nullptr ? active_first_ : previous->next_active) = qp.next_active;
      if (active_last_ == &qp) active_last_ = previous;
      --active_count_;
      break;
    }
    qp.active = false;
  }
  for (QueuePair** link = &holding_; *link != nullptr; link = &(*link)->next_holding) {
    if (*link != &qp) continue;
    *link = qp.next_holding;
    break;
  }
  qp.holding = false;
  for (QueuePair** link = &errors_; *link != nullptr; link = &(*link)->next_error) {
    if (*link != &qp) continue;
    *link = qp.next_error;
    --error_count_;
    break;
  }
  qp.in_error_list = false;
}

// --- transitions ---------------------------------------------------------------------------------------------

void Device::configure_receive(QueuePair& qp) {
  const QpAttributes& a = qp.attributes;
  switch (qp.type) {
    case QpType::kRc: {
      RcMachines& rc = qp.machines.emplace<RcMachines>();
      ResponderConfig config;
      config.mtu_bytes = qp.mtu_bytes;
      config.dest_qpn = a.dest_qpn;
      config.first_psn = a.rq_psn;
      config.max_dest_rd_atomic = a.max_dest_rd_atomic;
      config.min_rnr_timer = a.min_rnr_timer;
      config.counters = &port_.counters();
      rc.responder.configure(config);
      break;
    }
    case QpType::kUc:
      qp.machines.emplace<UcMachines>().receiver.configure(qp.mtu_bytes, a.rq_psn);
      break;
    case QpType::kUd:
      qp.mtu_bytes = mtu_of(welcome_.active_mtu);
      qp.machines.emplace<UdMachines>();
      break;
  }
}

RequesterConfig Device::requester_config(const QueuePair& qp) const {
  const QpAttributes& a = qp.attributes;
  RequesterConfig config;
  config.mtu_bytes = qp.mtu_bytes;
  config.dest_qpn = a.dest_qpn;
  config.first_psn = a.sq_psn;
  config.timeout = a.timeout;
  config.retry_count = a.retry_count;
  config.rnr_retry = a.rnr_retry;
  config.max_rd_atomic = a.max_rd_atomic;
  config.window_packets = std::max(config.window_packets, kWindowBytes / qp.mtu_bytes);
  config.patient = (welcome_.flags & attach::kWelcomeStrictTimers) == 0 && !qp.route.outside;
  config.counters = &port_.counters();
  return config;
}

void Device::configure_send(QueuePair& qp) {
  const QpAttributes& a = qp.attributes;
  qp.posted = 0;
  forget_refused_sends(qp);
  if (RcMachines* rc = qp.rc()) rc->requester.configure(requester_config(qp));
  if (UcMachines* uc = qp.uc()) uc->sender.configure(qp.mtu_bytes, a.dest_qpn, a.sq_psn);
  if (UdMachines* ud = qp.ud()) ud->sender.configure(qp.mtu_bytes, qp.qpn, a.qkey, a.sq_psn);
}

/// SQE → RTS. IBTA Vol 1, 10.3.1.7.
void Device::resume_sends(QueuePair& qp) {
  qp.posted = 0;
  if (UcMachines* uc = qp.uc()) uc->sender.resume();
  if (UdMachines* ud = qp.ud()) ud->sender.resume();
}

/// The provider puts a work into the ring before POST_SEND answers that the QP is not ready to send. The program was
/// told so: such a work is neither sent later nor flushed.
void Device::forget_refused_sends(QueuePair& qp) { qp.send_queue->reset(); }

bool Device::draining(QueuePair& qp) { return qp.now_state() == QpState::kDrained && !sends_idle(qp); }

/// What only this device can judge of the attributes; rxe_qp_chk_attr() in the kernel's soft-RoCE.
int Device::check_values(QueuePair& qp, QpState to, uint32_t mask, const QpAttributes& values) const {
  if ((mask & kMaskPathMtu) != 0) {
    if (values.path_mtu < 1 || values.path_mtu > welcome_.active_mtu) return EINVAL;
    if (mtu_of(values.path_mtu) > port_.slot_payload()) return EINVAL;
  }
  if ((mask & kMaskMaxRdAtomic) != 0 && values.max_rd_atomic > limits_.max_rd_atomic) return EINVAL;
  if ((mask & kMaskMaxDestRdAtomic) != 0 && values.max_dest_rd_atomic > limits_.max_rd_atomic) return EINVAL;
  if ((mask & kMaskPkeyIndex) != 0 && values.pkey_index >= kPkeys) return EINVAL;
  // Works under way belong to the state that is being left. IBTA Vol 1, 10.3.1.5.
  if (to == QpState::kReadyToSend && draining(qp)) return EINVAL;
  return 0;
}

void Device::take_values(QueuePair& qp, uint32_t mask, const QpAttributes& values) {
  QpAttributes& a = qp.attributes;
  if ((mask & kMaskPathMtu) != 0) {
    a.path_mtu = values.path_mtu;
    qp.mtu_bytes = mtu_of(values.path_mtu);
  }
  if ((mask & kMaskMaxRdAtomic) != 0) {
    a.max_rd_atomic = static_cast<uint8_t>(power_of_two_at_most(values.max_rd_atomic, limits_.max_rd_atomic));
  }
  if ((mask & kMaskMaxDestRdAtomic) != 0) {
    a.max_dest_rd_atomic = static_cast<uint8_t>(power_of_two_at_most(values.max_dest_rd_atomic, limits_.max_rd_atomic));
  }
  if ((mask & kMaskTimeout) != 0) a.timeout = values.timeout;
  if ((mask & kMaskRetryCount) != 0) a.retry_count = values.retry_count;
  if ((mask & kMaskRnrRetry) != 0) a.rnr_retry = values.rnr_retry;
  if ((mask & kMaskMinRnrTimer) != 0) a.min_rnr_timer = values.min_rnr_timer;
  if ((mask & kMaskRqPsn) != 0) a.rq_psn = values.rq_psn & kPsnMask;
  if ((mask & kMaskSqPsn) != 0) a.sq_psn = values.sq_psn & kPsnMask;
  if ((mask & kMaskDestQpn) != 0) a.dest_qpn = values.dest_qpn & kQpnMask;
  if ((mask & kMaskAccess) != 0) a.access = values.access;
  if ((mask & kMaskPkeyIndex) != 0) a.pkey_index = values.pkey_index;
  if ((mask & kMaskPort) != 0) a.port_num = values.port_num;
  if ((mask & kMaskMigrationState) != 0) a.path_mig_state = values.path_mig_state;
  if ((mask & kMaskQkey) != 0) a.qkey = values.qkey;
}

/// Machines that run already take what changed.
void Device::adjust(QueuePair& qp) {
  const QpAttributes& a = qp.attributes;
  if (UdMachines* ud = qp.ud()) ud->sender.set_qkey(a.qkey);
  if (RcMachines* rc = qp.rc()) {
    rc->responder.adjust(a.max_dest_rd_atomic, a.min_rnr_timer);
    rc->requester.adjust(requester_config(qp));
  }
}

int Device::modify_qp(QueuePair& qp, QpState to, uint32_t mask, const QpAttributes& values, const ResolvedPeer* peer,
                      Instant now) {
  const QpState from = qp.now_state();
  // Everything that can be wrong is looked at before anything changes.
  if (const int error = check_values(qp, to, mask, values); error != 0) return error;
  take_values(qp, mask, values);
  if ((mask & kMaskAddress) != 0) {
    qp.attributes.address = values.address;
    make_route(welcome_, values.address, std::to_array(peer->mac), peer->outside,
               flow_label_of_qpns(qp.qpn, qp.attributes.dest_qpn), qp.route);
    if (peer->ipv4 != 0) qp.route.peer_ipv4 = peer->ipv4;
  }
  if (mask != kMaskState) adjust(qp);
  if (to == from) return 0;
  // Asked for each time anew.
  qp.attributes.drain_event = (mask & kMaskDrainNotify) != 0 && values.drain_event;
  qp.drain_told = false;
  enter(qp, from, to, now);
  return 0;
}

void Device::enter(QueuePair& qp, QpState from, QpState to, Instant now) {
  switch (to) {
    case QpState::kReset:
      reset(qp);
      break;
    case QpState::kError:
      to_error(qp, now);
      break;
    case QpState::kReadyToReceive:
      configure_receive(qp);
      break;
    case QpState::kReadyToSend:
      if (from == QpState::kReadyToReceive) configure_send(qp);
      if (from == QpState::kSendError) resume_sends(qp);
      break;
    default:
      break;
  }
  qp.state.store(to, std::memory_order_relaxed);
  if (to == QpState::kDrained && sends_idle(qp)) tell_drained(qp);
  // Works may have been posted while it was drained.
  if (to == QpState::kReadyToSend && has_more(qp, now)) activate(qp);
}

void Device::reset(QueuePair& qp) {
  unlink(qp);
  windows_.release(regions_, qp.qpn);
  qp.local_wait = LocalWait::kNone;
  withdraw_completions(qp);
  qp.machines.emplace<std::monostate>();
  qp.posted = 0;
  qp.rq_taken = false;
  qp.ending = false;
  qp.drain_told = false;
  qp.established = false;
  qp.access_error = false;
  qp.send_queue->reset();
  if (qp.receive_queue != nullptr) qp.receive_queue->reset();
  const QpAttributes fresh;
  qp.attributes = fresh;
}

// --- errors --------------------------------------------------------------------------------------------------

void Device::to_error(QueuePair& qp, Instant now) {
  if (qp.now_state() == QpState::kError) return;
  if (qp.now_state() < QpState::kReadyToSend) forget_refused_sends(qp);
  // Answers to what was delivered still go out, as far as there are slots.
  if (!dead() && qp.rc() != nullptr) serve_answers(qp, now, kAnswersAtOnce);
  qp.state.store(QpState::kError, std::memory_order_relaxed);
  qp.ending = false;
  timers_.remove(qp.index);
  flush_sends(qp);
  flush_receives(qp);
  tell_last_request(qp);
  link_error(qp);
  tell_state(qp);
}

/// A work of UC or UD failed: the send queue stops, the receive queue goes on. IBTA Vol 1, 10.3.1.7.
void Device::to_send_error(QueuePair& qp) {
  qp.state.store(QpState::kSendError, std::memory_order_relaxed);
  flush_sends(qp);
  tell_state(qp);
}

void Device::sends_failed(QueuePair& qp, Instant now) {
  if (qp.type == QpType::kRc) {
    to_error(qp, now);
  } else {
    to_send_error(qp);
  }
}

void Device::link_error(QueuePair& qp) {
  if (qp.in_error_list) return;
  qp.in_error_list = true;
  qp.next_error = errors_;
  errors_ = &qp;
  ++error_count_;
}

void Device::flush_sends(QueuePair& qp) {
  SendCompletion done;
  if (RcMachines* rc = qp.rc()) {
    rc->flush();
    while (rc->next_completion(done)) complete_send(qp, done);
  } else if (UcMachines* uc = qp.uc()) {
    uc->flush();
    while (uc->next_completion(done)) complete_send(qp, done);
  } else if (UdMachines* ud = qp.ud()) {
    ud->flush();
    while (ud->next_completion(done)) complete_send(qp, done);
  }
  SendRequest request;
  while (qp.send_queue->peek(request)) {
    qp.send_queue->take();
    WorkRecord& record = qp.work(qp.posted);
    record = WorkRecord{};
    record.wr_id = request.wr_id;
    record.opcode = request.work.opcode;
    complete_send(qp, SendCompletion{qp.posted, WorkStatus::kFlushed});
    ++qp.posted;
  }
}

void Device::flush_receives(QueuePair& qp) {
  // What is in an SRQ is for others.
  while (qp.srq != nullptr ? qp.rq_taken : take_receive(qp)) {
    Completion completion;
    completion.status = WorkStatus::kFlushed;
    completion.opcode = CompletionOpcode::kReceive;
    complete_receive(qp, completion);
  }
}

/// Receive requests that were posted after the QP went to ERR, which no system call tells (kernel_abi C.3).
void Device::flush_errors() {
  for (QueuePair* qp = errors_; qp != nullptr; qp = qp->next_error) {
    if (qp->receive_queue != nullptr && !qp->receive_queue->empty()) flush_receives(*qp);
    if (!qp->send_queue->empty()) flush_sends(*qp);
  }
}

}  // namespace weft::nic
