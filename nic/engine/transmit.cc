// SPDX-License-Identifier: Apache-2.0
//
// Device: the transmit path. QPs that want to send wait in a list and are served round robin, a burst at a time; a QP's
// answers go before its requests (engine_rules 19, nic_rules 1).
#include <cstring>

#include "nic/engine/copy.h"
#include "nic/engine/device.h"
#include "protocols/wire/opcode.h"
#include "protocols/wire/udp.h"

namespace weft::nic {
namespace {

constexpr uint32_t kBurst = 16;
constexpr uint32_t kTransmitBudget = 64;
constexpr uint32_t kMaxMessage = 1u << 31;
constexpr uint32_t kUdpHeaderBytes = 8;
constexpr uint32_t kEventSqDrained = 5;  // ibv_event_type

/// In SQD, works that were begun go on; no new one begins. IBTA Vol 1, 10.3.1.5.
bool may_send(QpState state) { return state == QpState::kReadyToSend || state == QpState::kDrained; }

CompletionOpcode completion_opcode(WorkOpcode opcode) {
  switch (opcode) {
    case WorkOpcode::kWrite:
    case WorkOpcode::kWriteImm:
      return CompletionOpcode::kWrite;
    case WorkOpcode::kRead:
      return CompletionOpcode::kRead;
    case WorkOpcode::kCompareSwap:
      return CompletionOpcode::kCompareSwap;
    case WorkOpcode::kFetchAdd:
      return CompletionOpcode::kFetchAdd;
    case WorkOpcode::kLocalInvalidate:
      return CompletionOpcode::kLocalInvalidate;
    case WorkOpcode::kBindWindow:
      return CompletionOpcode::kBindWindow;
    case WorkOpcode::kAtomicWrite:
      return CompletionOpcode::kAtomicWrite;
    case WorkOpcode::kSend:
    case WorkOpcode::kSendImm:
    case WorkOpcode::kSendInvalidate:
      break;
  }
  return CompletionOpcode::kSend;
}

bool is_atomic(WorkOpcode opcode) { return opcode == WorkOpcode::kCompareSwap || opcode == WorkOpcode::kFetchAdd; }

bool service_carries(QpType type, WorkOpcode opcode) {
  switch (opcode) {
    case WorkOpcode::kSend:
    case WorkOpcode::kSendImm:
      return true;
    case WorkOpcode::kWrite:
    case WorkOpcode::kWriteImm:
      return type != QpType::kUd;
    case WorkOpcode::kRead:
    case WorkOpcode::kCompareSwap:
    case WorkOpcode::kFetchAdd:
      return type == QpType::kRc;
    case WorkOpcode::kSendInvalidate:
    case WorkOpcode::kLocalInvalidate:
    case WorkOpcode::kAtomicWrite:
      return type == QpType::kRc;
    case WorkOpcode::kBindWindow:
      return type != QpType::kUd;
  }
  return false;
}

}  // namespace

// --- the list ------------------------------------------------------------------------------------------------

void Device::activate(QueuePair& qp) {
  if (qp.active) return;
  qp.active = true;
  qp.next_active = nullptr;
  (active_last_ == nullptr ? active_first_ : active_last_->next_active) = &qp;
  active_last_ = &qp;
  ++active_count_;
}

uint32_t Device::transmit(Instant now) {
  starved_ = false;
  uint32_t sent = 0;
  uint32_t fruitless = 0;
  // Ends when the budget is used, or when a whole round brought nothing: no slot came free meanwhile.
  while (active_first_ != nullptr && sent < kTransmitBudget && fruitless < active_count_) {
    QueuePair* qp = active_first_;
    active_first_ = qp->next_active;
    if (active_first_ == nullptr) active_last_ = nullptr;
    qp->active = false;
    --active_count_;
    const uint32_t now_sent = serve(*qp, now, kBurst);
    sent += now_sent;
    // The daemon starts on a burst while the next one is copied.
    if (now_sent == kBurst && port_.flush()) kick();
    const bool more = has_more(*qp, now);
    fruitless = now_sent != 0 || !more ? 0 : fruitless + 1;
    if (more) activate(*qp);
  }
  if (starved_) ++counters_.slots_short;
  return sent;
}

bool Device::has_more(QueuePair& qp, Instant now) {
  const QpState state = qp.now_state();
  if (state == QpState::kError || state == QpState::kReset) return false;
  if (RcMachines* rc = qp.rc(); rc != nullptr && (rc->responder.owes() || qp.ending)) return true;
  if (!may_send(state)) return false;
  const bool posted = state == QpState::kReadyToSend && !qp.send_queue->empty();
  if (RcMachines* rc = qp.rc()) return rc->wants(now) || (posted && rc->can_post() && local_turn(qp.local_wait, *rc));
  if (UcMachines* uc = qp.uc()) return uc->wants(now) || (posted && uc->can_post() && local_turn(qp.local_wait, *uc));
  if (UdMachines* ud = qp.ud()) return ud->wants(now) || (posted && ud->can_post() && local_turn(qp.local_wait, *ud));
  return false;
}

uint32_t Device::serve(QueuePair& qp, Instant now, uint32_t budget) {
  uint32_t sent = 0;
  if (RcMachines* rc = qp.rc()) {
    sent = serve_answers(qp, now, budget);
    if (qp.ending && !rc->responder.owes()) {
      to_error(qp, now);
      return sent;
    }
    if (may_send(qp.now_state())) {
      sent += serve_requests(qp, *rc, now, budget - sent);
      if (qp.now_state() != QpState::kError) timers_.schedule(qp.index, rc->requester.next_deadline());
    }
  } else if (may_send(qp.now_state())) {
    if (UcMachines* uc = qp.uc()) sent = serve_requests(qp, *uc, now, budget);
    if (UdMachines* ud = qp.ud()) sent = serve_requests(qp, *ud, now, budget);
  }
  return sent;
}

uint32_t Device::serve_answers(QueuePair& qp, Instant now, uint32_t budget) {
  RcResponder& responder = qp.rc()->responder;
  uint32_t sent = 0;
  while (sent < budget && responder.owes()) {
    const uint32_t slot = port_.begin_frame(qp.route.priority, true);
    if (slot == attach::kNoSlot) {
      starved_ = true;
      break;
    }
    OutFrame frame;
    if (!responder.pull(now, frame)) {
      port_.abandon(slot);
      break;
    }
    if (!emit(qp, qp.route, frame, slot)) end_failed_read(qp, frame, now);
    ++sent;
  }
  if (responder.fatal()) qp.ending = true;
  return sent;
}

// --- requests ------------------------------------------------------------------------------------------------

template <typename Machines>
uint32_t Device::serve_requests(QueuePair& qp, Machines& machines, Instant now, uint32_t budget) {
  uint32_t sent = 0;
  for (;;) {
    if (qp.now_state() == QpState::kReadyToSend) refill(qp, machines, now);
    const uint32_t before = sent;
    while (sent < budget && machines.wants(now)) {
      const uint32_t slot = port_.begin_frame(qp.route.priority, false);
      if (slot == attach::kNoSlot) {
        starved_ = true;
        break;
      }
      OutFrame frame;
      if (!machines.pull(now, frame)) {
        port_.abandon(slot);
        break;
      }
      ++sent;
      Route* route = route_of(qp, frame);
      if (route == nullptr) {
        port_.abandon(slot);
        machines.fail(now, frame.work, WorkStatus::kLocalQpOperation);
      } else if (!emit(qp, *route, frame, slot)) {
        machines.fail(now, frame.work, WorkStatus::kLocalProtection);
      }
    }
    // UC and UD complete with their last packet, which makes room for the next works.
    reap(qp, machines);
    if (machines.failed()) sends_failed(qp, now);
    const bool local_next = qp.local_wait != LocalWait::kNone && local_turn(qp.local_wait, machines);
    if (!may_send(qp.now_state()) || (sent == before && !local_next) || sent >= budget) return sent;
  }
}

template <typename Machines>
void Device::refill(QueuePair& qp, Machines& machines, Instant now) {
  SendRequest request;
  qp.local_wait = LocalWait::kNone;
  while (machines.can_post() && qp.send_queue->peek(request)) {
    const LocalWait wait = local_wait_of(request.work);
    if (!local_turn(wait, machines)) {
      qp.local_wait = wait;
      return;
    }
    qp.send_queue->take();
    WorkRecord& record = qp.work(qp.posted);
    record.wr_id = request.wr_id;
    record.sges = request.sges;
    record.inline_data = request.inline_data;
    record.sge_count = request.sge_count;
    record.length = request.work.length;
    record.address_handle = request.address_handle;
    record.opcode = request.work.opcode;
    record.signaled = request.work.signaled || qp.signal_all;
    request.work.signaled = record.signaled;
    WorkStatus status = check_request(qp, request);
    if (status == WorkStatus::kSuccess && wait != LocalWait::kNone) status = execute_local(qp, request);
    if (status == WorkStatus::kSuccess) {
      machines.post(request.work);
    } else {
      // A work that is wrong keeps its place in the order of completions, and nothing else: not even its opcode.
      SendWork placeholder;
      placeholder.signaled = true;
      machines.post(placeholder);
      machines.fail(now, qp.posted, status);
    }
    ++qp.posted;
  }
}

/// What a NIC finds wrong with a work before it sends anything.
WorkStatus Device::check_request(const QueuePair& qp, const SendRequest& request) const {
  if (request.fault != WorkStatus::kSuccess) return request.fault;
  const SendWork& work = request.work;
  if (!service_carries(qp.type, work.opcode)) return WorkStatus::kLocalQpOperation;
  if (work.length > kMaxMessage) return WorkStatus::kLocalLength;
  if (qp.type == QpType::kUd && work.length > qp.mtu_bytes) return WorkStatus::kLocalLength;
  if (work.opcode == WorkOpcode::kAtomicWrite && qp.attributes.max_rd_atomic == 0) return WorkStatus::kLocalQpOperation;
  const bool fetches = work.opcode == WorkOpcode::kRead || is_atomic(work.opcode);
  if (fetches && (request.inline_data != nullptr || qp.attributes.max_rd_atomic == 0))
    return WorkStatus::kLocalQpOperation;
  if (is_atomic(work.opcode) && work.length != 8) return WorkStatus::kLocalLength;
  return WorkStatus::kSuccess;
}

template <typename Machines>
void Device::reap(QueuePair& qp, Machines& machines) {
  SendCompletion done;
  while (machines.next_completion(done)) complete_send(qp, done);
  if (qp.now_state() == QpState::kDrained && machines.idle()) tell_drained(qp);
}

/// Works begun before SQD have completed. IBTA Vol 1, 10.3.1.5.
void Device::tell_drained(QueuePair& qp) {
  if (qp.drain_told || !qp.attributes.drain_event) return;
  qp.drain_told = true;
  raise(qp.async, qp.user_handle, kEventSqDrained, qp.async_queued);
}

void Device::reap_sends(QueuePair& qp, Instant now) {
  bool failed = false;
  if (RcMachines* rc = qp.rc()) {
    reap(qp, *rc);
    failed = rc->failed();
  }
  if (failed) to_error(qp, now);
}

void Device::complete_send(QueuePair& qp, const SendCompletion& done) {
  const WorkRecord& work = qp.work(done.work);
  qp.send_queue->retire();
  count_send(work.opcode, done.status);
  explain_send(qp, work, done.status);
  if (!work.signaled && done.status == WorkStatus::kSuccess) return;
  Completion completion;
  completion.wr_id = work.wr_id;
  completion.status = done.status;
  completion.opcode = completion_opcode(work.opcode);
  completion.byte_len = work.length;
  completion.qpn = qp.qpn;
  complete(*qp.send_cq, completion);
}

// --- frames --------------------------------------------------------------------------------------------------

Route* Device::route_of(QueuePair& qp, const OutFrame& frame) {
  if (qp.type != QpType::kUd) return &qp.route;
  AddressHandle* ah = ahs_.at(qp.work(frame.work).address_handle - 1);
  return ah != nullptr && ah->pd == qp.pd ? &ah->route : nullptr;
}

/// Fills the slot and hands it over; false when the payload could not be read, and the slot is back in the pool.
bool Device::emit(QueuePair& qp, Route& route, const OutFrame& frame, uint32_t slot) {
  uint8_t* payload = port_.payload(slot);
  const uint32_t bytes = frame.payload_bytes;
  bool ok = true;
  if (frame.source == PayloadSource::kWork) {
    ok = gather(qp.work(frame.work), frame.offset, payload, bytes, qp.pd);
  } else if (frame.source == PayloadSource::kMemory) {
    const uint8_t* from = remote_address(qp, frame.rkey, frame.va, bytes, kAccessRemoteRead);
    ok = from != nullptr && copy_from_user(payload, from, bytes);
  }
  if (!ok) {
    port_.abandon(slot);
    return false;
  }
  const uint32_t pad = pad_of(bytes);
  memset(payload + bytes, 0, pad);
  const uint32_t header_bytes = route.frame.encode(frame.header, bytes, payload);
  if (qp.type == QpType::kUd && !route.fixed_port) {
    // One address handle serves many QP pairs; each pair is a flow of its own.
    const uint16_t port = udp_source_port(flow_label_of_qpns(qp.qpn, frame.header.dest_qpn));
    uint8_t* udp = payload - opcode_info(static_cast<uint8_t>(frame.header.opcode)).header_bytes - kUdpHeaderBytes;
    udp[0] = static_cast<uint8_t>(port >> 8);
    udp[1] = static_cast<uint8_t>(port);
  }
  port_.publish(slot, route.priority, header_bytes, bytes + pad);
  ++counters_.frames_out;
  counters_.bytes_out += header_bytes + bytes + pad;
  return true;
}

bool Device::gather(const WorkRecord& work, uint32_t offset, uint8_t* to, uint32_t bytes, uint32_t pd) {
  if (work.inline_data != nullptr) return copy_from_user(to, work.inline_data + offset, bytes);
  for (uint32_t i = 0; i < work.sge_count && bytes != 0; ++i) {
    Sge sge;
    memcpy(&sge, &work.sges[i], sizeof sge);
    asm volatile("" ::: "memory");
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const uint32_t room = sge.length - offset;
    const uint32_t part = bytes < room ? bytes : room;
    const uint8_t* from = regions_.user_address(sge.lkey, sge.addr + offset, part, 0, pd);
    if (from == nullptr || !copy_from_user(to, from, part)) return false;
    to += part;
    bytes -= part;
    offset = 0;
  }
  return bytes == 0;
}

}  // namespace weft::nic
