// SPDX-License-Identifier: Apache-2.0
//
// Device: the receive path. Never waits for a transmit slot: machines record what they owe (nic_rules 1).
#include <cstring>

#include "nic/engine/copy.h"
#include "nic/engine/device.h"
#include "protocols/base/packet.h"
#include "protocols/wire/opcode.h"

namespace weft::nic {
namespace {

/// Frames of one pass; then acknowledges and completions go out before more is taken.
constexpr uint32_t kReceiveBudget = 64;
constexpr uint32_t kReleaseBatch = 16;
constexpr uint32_t kGrhBytes = 40;
constexpr uint8_t kSlUdpIpv4 = 0xA;
constexpr uint8_t kSlUdpIpv6 = 0x9;
constexpr uint32_t kEventQpRequestError = 2;  // ibv_event_type
constexpr uint32_t kEventQpAccessError = 3;
constexpr uint32_t kEventCommEstablished = 4;

constexpr uint8_t service_of(Opcode opcode) { return static_cast<uint8_t>(opcode) & 0xE0; }
constexpr uint8_t kServiceRc = 0x00;
constexpr uint8_t kServiceUc = 0x20;
constexpr uint8_t kServiceUd = 0x60;

bool may_receive(QpState state) { return state >= QpState::kReadyToReceive && state <= QpState::kSendError; }

}  // namespace

uint32_t Device::receive_frames(Instant now) {
  attach::ReceivedFrame frame;
  uint32_t count = 0;
  for (; count < kReceiveBudget && port_.receive(frame); ++count) {
    handle_frame(frame, now);
    port_.release(frame.slot);
    // Slots go back early, so that the daemon can fill them while the rest is copied.
    if (count % kReleaseBatch == kReleaseBatch - 1 && port_.flush()) kick();
  }
  if (count == kReceiveBudget) pending_.store(1, std::memory_order_relaxed);
  return count;
}

QueuePair* Device::destination(uint32_t qpn) const {
  if (qpn - welcome_.qpn_base > qpn_mask_) return nullptr;
  const uint32_t entry = qp_of_qpn_[qpn & qpn_mask_];
  return entry == 0 ? nullptr : qps_.at(entry - 1);
}

void Device::handle_frame(const attach::ReceivedFrame& raw, Instant now) {
  ++counters_.frames_in;
  counters_.bytes_in += raw.header_bytes + raw.payload_bytes;
  RoceFrame frame;
  if (parse_headers(Bytes(raw.header, raw.header_bytes), raw.payload_bytes, frame) != ParseError::kOk) {
    ++counters_.malformed;
    return;
  }
  QueuePair* qp = destination(frame.transport.dest_qpn);
  if (qp == nullptr) {
    if (frame.transport.dest_qpn == kMulticastQpn) {
      handle_multicast(frame, raw, now);
    } else {
      ++counters_.no_such_qpn;
    }
    return;
  }
  if (!may_receive(qp->now_state())) {
    ++counters_.wrong_state;
    return;
  }
  const uint8_t service = service_of(frame.transport.opcode);
  if (qp->type == QpType::kUd && service == kServiceUd) {
    handle_ud(*qp, frame, raw, now);
    return;
  }
  // A connected QP listens to its peer only. IBTA Vol 1, 9.6.1.
  if (frame.source_gid != qp->route.dgid) {
    ++counters_.wrong_source;
    return;
  }
  if (qp->type == QpType::kRc && service == kServiceRc) {
    handle_rc(*qp, frame, raw.payload, now);
  } else if (qp->type == QpType::kUc && service == kServiceUc) {
    handle_uc(*qp, frame, raw.payload, now);
  } else {
    ++counters_.wrong_service;  // CNPs too, until a reaction point asks for them
  }
}

// --- connected services --------------------------------------------------------------------------------------

void Device::handle_rc(QueuePair& qp, const RoceFrame& frame, const uint8_t* payload, Instant now) {
  RcMachines& rc = *qp.rc();
  const TransportHeader& header = frame.transport;
  if (opcode_info(static_cast<uint8_t>(header.opcode)).response) {
    if (qp.now_state() == QpState::kReadyToReceive) {
      ++counters_.wrong_state;
      return;
    }
    const Placement p = rc.requester.on_response(now, header, frame.payload_bytes);
    if (p.wanted) {
      const uint64_t original = header.atomic_original;
      const uint8_t* from = p.from_header ? reinterpret_cast<const uint8_t*>(&original) : payload;
      const WorkRecord& work = qp.work(p.work);
      rc.requester.placed(now, scatter(work.sges, work.sge_count, p.offset, from, p.length, qp.pd));
    }
    reap_sends(qp, now);
    if (qp.now_state() != QpState::kError) timers_.schedule(qp.index, rc.requester.next_deadline());
  } else {
    if (qp.ending) return;
    const Demand demand = rc.responder.on_request(now, header, frame.payload_bytes);
    if (demand.need != Need::kNothing) {
      uint64_t original = 0;
      const Outcome outcome = perform(qp, demand, payload, original);
      rc.responder.settle(now, outcome, original);
      if (demand.first && outcome == Outcome::kDone) count_request(demand.need);
      if (outcome == Outcome::kDone) finish_receive(qp, demand);
      if (outcome == Outcome::kDone) note_established(qp);
    }
    if (rc.responder.fatal() && !qp.ending) {
      end_refused(qp, demand);
      activate(qp);
    }
  }
  if (qp.now_state() != QpState::kError && has_more(qp, now)) activate(qp);
}

/// The connection ends once the NAK is out. Only what no completion tells is an event. IBTA Vol 1, 11.6.3.2.
void Device::end_refused(QueuePair& qp, const Demand& demand) {
  qp.ending = true;
  if (qp.receive_told) return;
  explain_refusal(qp, demand);
  raise(qp.async, qp.user_handle, qp.access_error ? kEventQpAccessError : kEventQpRequestError, qp.async_queued);
}

/// The memory, its key or its window went while a READ of it was answered.
void Device::end_failed_read(QueuePair& qp, const OutFrame& frame, Instant now) {
  qp.rc()->responder.read_failed(now);
  if (qp.ending) return;
  qp.access_error = true;
  qp.receive_told = false;
  Demand demand;
  demand.need = Need::kStartRead;
  demand.first = true;
  demand.rkey = frame.rkey;
  demand.va = frame.va;
  demand.length = demand.message_bytes = frame.payload_bytes;
  end_refused(qp, demand);
}

/// The program has not seen the connection come up when the first message is already there. IBTA Vol 1, 11.6.3.1.
void Device::note_established(QueuePair& qp) {
  if (qp.now_state() != QpState::kReadyToReceive || qp.established) return;
  qp.established = true;
  raise(qp.async, qp.user_handle, kEventCommEstablished, qp.async_queued);
}

void Device::count_request(Need need) {
  CounterBlock& counters = port_.counters();
  if (need == Need::kPlaceWrite || need == Need::kAtomicWrite) counters.add(NicCounter::kWriteRequests);
  if (need == Need::kStartRead) counters.add(NicCounter::kReadRequests);
  if (need == Need::kAtomic) counters.add(NicCounter::kAtomicRequests);
}

void Device::handle_uc(QueuePair& qp, const RoceFrame& frame, const uint8_t* payload, Instant now) {
  UcMachines& uc = *qp.uc();
  const Demand demand = uc.receiver.on_request(frame.transport, frame.payload_bytes);
  if (demand.need == Need::kNothing) return;
  uint64_t unused = 0;
  const Outcome outcome = perform(qp, demand, payload, unused);
  uc.receiver.settle(outcome);
  if (demand.first && outcome == Outcome::kDone) count_request(demand.need);
  if (outcome == Outcome::kDone) {
    finish_receive(qp, demand);
    note_established(qp);
  }
  if (outcome == Outcome::kReceiverNotReady) {
    ++counters_.no_receive;
    port_.counters().add(NicCounter::kOutOfBuffer);
  }
  // The program's own receive request was bad: that is an error of this QP, not of the packet.
  if (outcome == Outcome::kRemoteOperation) to_error(qp, now);
}

Outcome Device::perform(QueuePair& qp, const Demand& demand, const uint8_t* payload, uint64_t& original) {
  if (demand.takes_receive) {
    if (!take_receive(qp)) return Outcome::kReceiverNotReady;
    if (qp.receive.malformed) {
      complete_malformed(qp);
      return Outcome::kRemoteOperation;
    }
  }
  const uint32_t access = qp.attributes.access;
  qp.access_error = false;
  qp.receive_told = false;
  switch (demand.need) {
    case Need::kNothing:
      return Outcome::kDone;
    case Need::kPlaceSend:
      return place_send(qp, demand, payload);
    case Need::kPlaceWrite:
      if ((access & kAccessRemoteWrite) == 0) return Outcome::kInvalidRequest;
      return place_write(qp, demand, payload);
    case Need::kStartRead:
      if ((access & kAccessRemoteRead) == 0) return Outcome::kInvalidRequest;
      if (demand.message_bytes == 0 ||
          remote_address(qp, demand.rkey, demand.va, demand.message_bytes, kAccessRemoteRead) != nullptr) {
        return Outcome::kDone;
      }
      qp.access_error = true;
      return Outcome::kRemoteAccess;
    case Need::kAtomic:
      if ((access & kAccessRemoteAtomic) == 0) return Outcome::kInvalidRequest;
      return execute_atomic(qp, demand, original);
    case Need::kAtomicWrite:
      if ((access & kAccessRemoteWrite) == 0) return Outcome::kInvalidRequest;
      return write_atomically(qp, demand, payload);
  }
  return Outcome::kInvalidRequest;
}

Outcome Device::place_send(QueuePair& qp, const Demand& demand, const uint8_t* payload) {
  if (!qp.rq_taken) return Outcome::kInvalidRequest;
  Completion bad;
  bad.opcode = CompletionOpcode::kReceive;
  if (static_cast<uint64_t>(demand.offset) + demand.length > qp.receive.bytes) {
    // UC drops a message that is too long and keeps the request; RC is broken by it. IBTA Vol 1, 9.9.3.
    if (qp.type == QpType::kRc) {
      bad.status = WorkStatus::kLocalLength;
      qp.receive_told = true;
      complete_receive(qp, bad);
    }
    return Outcome::kInvalidRequest;
  }
  if (scatter(qp.receive.sges, qp.receive.sge_count, demand.offset, payload, demand.length, qp.receive_pd())) {
    return !demand.with_invalidate || invalidate_for_peer(qp, demand.immediate) ? Outcome::kDone
                                                                                : Outcome::kRemoteAccess;
  }
  bad.status = WorkStatus::kLocalProtection;
  qp.receive_told = true;
  complete_receive(qp, bad);
  return Outcome::kRemoteOperation;
}

Outcome Device::place_write(QueuePair& qp, const Demand& demand, const uint8_t* payload) {
  if (demand.message_bytes == 0 && demand.length == 0) return Outcome::kDone;
  qp.access_error = true;
  // The whole range is judged before its first byte is written. IBTA Vol 1, 9.7.4.1.5.
  if (demand.first && remote_address(qp, demand.rkey, demand.va, demand.message_bytes, kAccessRemoteWrite) == nullptr) {
    return Outcome::kRemoteAccess;
  }
  if (demand.length == 0) return Outcome::kDone;
  uint8_t* to = remote_address(qp, demand.rkey, demand.va, demand.length, kAccessRemoteWrite);
  if (to == nullptr || !copy_to_user(to, payload, demand.length)) return Outcome::kRemoteAccess;
  qp.access_error = false;
  return Outcome::kDone;
}

Outcome Device::execute_atomic(QueuePair& qp, const Demand& demand, uint64_t& original) {
  uint8_t* at = remote_address(qp, demand.rkey, demand.va, 8, kAccessRemoteAtomic);
  // The address in the request is aligned (the machine has looked); what it stands for may not be.
  if (reinterpret_cast<uintptr_t>(at) % 8 != 0) return Outcome::kInvalidRequest;
  qp.access_error = true;
  if (at == nullptr) return Outcome::kRemoteAccess;
  const AtomicEth& a = demand.atomic;
  const bool done = demand.opcode == Opcode::kRcCompareSwap ? compare_swap_user(at, a.compare, a.swap_add, original)
                                                            : fetch_add_user(at, a.swap_add, original);
  if (!done) return Outcome::kRemoteAccess;
  qp.access_error = false;
  return Outcome::kDone;
}

/// Eight aligned bytes leave the copy routine in one store, which nobody can see half of. IBTA Vol 1, annex A19.
Outcome Device::write_atomically(QueuePair& qp, const Demand& demand, const uint8_t* payload) {
  uint8_t* to = remote_address(qp, demand.rkey, demand.va, demand.length, kAccessRemoteWrite);
  if (reinterpret_cast<uintptr_t>(to) % 8 != 0) return Outcome::kInvalidRequest;
  qp.access_error = to == nullptr || !copy_to_user(to, payload, demand.length);
  return qp.access_error ? Outcome::kRemoteAccess : Outcome::kDone;
}

void Device::finish_receive(QueuePair& qp, const Demand& demand) {
  if (!demand.completes_receive || !qp.rq_taken) return;
  Completion completion;
  completion.opcode =
      demand.need == Need::kPlaceWrite ? CompletionOpcode::kReceiveWriteImm : CompletionOpcode::kReceive;
  completion.byte_len = demand.message_bytes;
  completion.with_immediate = demand.with_immediate;
  completion.with_invalidate = demand.with_invalidate;
  completion.immediate = demand.immediate;
  completion.solicited = demand.solicited;
  completion.sl = qp.route.sl;
  complete_receive(qp, completion);
}

// --- datagrams -----------------------------------------------------------------------------------------------

void Device::handle_ud(QueuePair& qp, const RoceFrame& frame, const attach::ReceivedFrame& raw, Instant now) {
  if (!ud_accepts(frame.transport, qp.attributes.qkey)) {
    ++counters_.wrong_qkey;
    return;
  }
  const uint64_t total = static_cast<uint64_t>(frame.payload_bytes) + kGrhBytes;
  // What is too long must not carry off a request that other QPs can use.
  if (qp.srq != nullptr && !qp.rq_taken && !qp.srq->queue->empty() && total > qp.srq->queue->next_bytes()) {
    ++counters_.receive_error;
    return;
  }
  if (!take_receive(qp)) {
    ++counters_.no_receive;
    port_.counters().add(NicCounter::kOutOfBuffer);
    return;
  }
  if (qp.receive.malformed) {
    ++counters_.receive_error;
    complete_malformed(qp);
    return;
  }
  // 40 bytes of GRH precede the payload; for IPv4 its header fills the last 20 of them. IBTA annex A17, A17.4.5.1.
  uint8_t grh[kGrhBytes] = {};
  const uint32_t ip_bytes = frame.ipv4 ? 20 : 40;
  memcpy(grh + kGrhBytes - ip_bytes, raw.header + frame.ip_offset, ip_bytes);
  if (total > qp.receive.bytes) {
    ++counters_.receive_error;  // dropped; the request stays for the next datagram. IBTA Vol 1, 9.8.3.2.3
    return;
  }
  Completion completion;
  completion.opcode = CompletionOpcode::kReceive;
  completion.source_qpn = frame.transport.deth.source_qpn;
  if (!scatter(qp.receive.sges, qp.receive.sge_count, 0, grh, kGrhBytes, qp.receive_pd()) ||
      !scatter(qp.receive.sges, qp.receive.sge_count, kGrhBytes, raw.payload, frame.payload_bytes, qp.receive_pd())) {
    ++counters_.receive_error;
    completion.status = WorkStatus::kLocalProtection;
    complete_receive(qp, completion);
    to_error(qp, now);  // an error of the receive queue, unlike one of the send queue. IBTA Vol 1, 10.3.1
    return;
  }
  completion.byte_len = static_cast<uint32_t>(total);
  completion.with_grh = true;
  // A datagram's completion tells which header the area holds (IBTA annex A17, A17.4.5.1). Where is left open; mlx5 does it
  // in the service level, bit 3: UDP, bits 2-0: 1 IPv6, 2 IPv4, and UCX drops what does not say so.
  completion.sl = frame.ipv4 ? kSlUdpIpv4 : kSlUdpIpv6;
  completion.with_immediate = frame.transport.opcode == Opcode::kUdSendOnlyImm;
  completion.immediate = frame.transport.immediate;
  completion.solicited = frame.transport.solicited;
  complete_receive(qp, completion);
}

/// Copies to a scatter list that the program may be changing: each entry is read once and checked as read.
bool Device::scatter(const Sge* sges, uint32_t count, uint64_t offset, const uint8_t* from, uint32_t bytes,
                     uint32_t pd) {
  for (uint32_t i = 0; i < count && bytes != 0; ++i) {
    Sge sge;
    memcpy(&sge, &sges[i], sizeof sge);
    asm volatile("" ::: "memory");
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const uint32_t room = sge.length - static_cast<uint32_t>(offset);
    const uint32_t part = bytes < room ? bytes : room;
    uint8_t* to = regions_.user_address(sge.lkey, sge.addr + offset, part, kAccessLocalWrite, pd);
    if (to == nullptr || !copy_to_user(to, from, part)) return false;
    from += part;
    bytes -= part;
    offset = 0;
  }
  return bytes == 0;
}

}  // namespace weft::nic
