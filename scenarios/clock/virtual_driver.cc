// SPDX-License-Identifier: Apache-2.0
#include "scenarios/clock/virtual_driver.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "protocols/base/assert.h"
#include "protocols/transport/segment.h"

namespace weft {

namespace {

bool is_response(Opcode opcode) {
  return opcode >= Opcode::kRcReadResponseFirst && opcode <= Opcode::kRcAtomicAcknowledge;
}

EventQueue::Settings queue_settings(Duration bucket_width) {
  EventQueue::Settings s;
  s.bucket_width = bucket_width;
  return s;
}

}  // namespace

VirtualWorld::VirtualWorld(const Settings& settings)
    : settings_(settings), queue_(queue_settings(settings.bucket_width)) {
  WEFT_ASSERT(settings.transmit_slots > 0 && settings.receive_slots > 0);
  peers_.reserve(settings.peers);
  for (uint32_t i = 0; i < settings.peers; ++i) {
    Peer& p = peers_.emplace_back(settings.link, settings.seed, i);
    p.memory.resize(settings.memory_bytes);
    p.source.id = i;
  }
}

QpId VirtualWorld::connect(uint32_t peer_a, uint32_t peer_b, const RequesterConfig& requester,
                           const ResponderConfig& responder) {
  WEFT_ASSERT(peer_a < peers_.size() && peer_b < peers_.size());
  const QpId first = static_cast<QpId>(qps_.size());
  for (uint32_t end = 0; end < 2; ++end) {
    const QpId id = first + end;
    Qp& qp = qps_.emplace_back();
    qp.peer = end == 0 ? peer_a : peer_b;
    qp.other = first + (1 - end);
    qp.mtu_bytes = requester.mtu_bytes;
    RequesterConfig r = requester;
    r.dest_qpn = qp.other;
    // Each direction numbers its packets from a place of its own.
    r.first_psn = (requester.first_psn + end * 0x1000) & kPsnMask;
    qp.requester.configure(r);
    ResponderConfig s = responder;
    s.dest_qpn = qp.other;
    s.first_psn = (requester.first_psn + (1 - end) * 0x1000) & kPsnMask;
    qp.responder.configure(s);
    qp.timer.id = static_cast<uint32_t>(peers_.size()) + id;
    peers_[qp.peer].qps.push_back(id);
  }
  return first;
}

// --- what tests do
// ----------------------------------------------------------------------------------------------------

void VirtualWorld::post_send(QpId id, const SendWork& work, uint32_t local_offset) {
  qps_[id].backlog.push_back({work, local_offset});
  feed(qps_[id]);
  collect(id);
  pump(qps_[id].peer);
}

void VirtualWorld::post_receive(QpId id, uint32_t offset, uint32_t bytes) {
  Qp& qp = qps_[id];
  WEFT_ASSERT(uint64_t{offset} + bytes <= settings_.memory_bytes);
  qp.receive_queue.push_back({qp.receives_posted++, offset, bytes});
}

void VirtualWorld::run_until(Instant limit) {
  queue_.run_until(limit, [this](const Event& e) { handle(e); });
}

void VirtualWorld::run(Instant limit) {
  Event event;
  while (queue_.next_due() <= limit && queue_.pop_due(limit, event)) handle(event);
}

void VirtualWorld::stop(uint32_t peer) { peers_[peer].stopped = true; }

void VirtualWorld::resume(uint32_t peer) {
  peers_[peer].stopped = false;
  drain(peer);  // what has arrived comes before timers
  for (QpId id : peers_[peer].qps) arm(id);
}

void VirtualWorld::kill(uint32_t peer, bool notify) {
  Peer& p = peers_[peer];
  p.dead = true;
  p.dead_notify = notify;
  p.receive_reserved -= static_cast<uint32_t>(p.receive_ring.size());
  for (uint32_t frame : p.receive_ring) drop_reference(frame);
  p.receive_ring.clear();
  for (uint32_t waiting : std::exchange(p.waiting, {})) start_sending(waiting);
}

bool VirtualWorld::quiet() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& p) { return p.slots_used == 0 && p.receive_ring.empty(); }) &&
         free_frames_.size() == frames_.size();
}

// --- events
// -----------------------------------------------------------------------------------------------------------

void VirtualWorld::mix(uint64_t value) { hash_ = std::rotl(hash_ ^ value, 27) * 0x100000001b3u + 0x9E3779B97F4A7C15u; }

void VirtualWorld::handle(const Event& event) {
  mix(static_cast<uint64_t>(event.due.time_since_epoch().count()));
  mix(event.order);
  const uint32_t target = static_cast<uint32_t>(event.a);
  const uint32_t frame = static_cast<uint32_t>(event.b);
  switch (event.kind()) {
    case kArrival:
      if (peers_[target].dead) {
        --peers_[target].receive_reserved;
        drop_reference(frame);
        return;
      }
      peers_[target].receive_ring.push_back(frame);
      drain(target);
      return;
    case kDeparture:
      on_departure(target, frame);
      return;
    case kTimer: {
      Qp& qp = qps_[target];
      if (event.due != qp.timer_queued) return;  // one was armed for earlier in the meantime
      qp.timer_queued = kNever;
      if (peers_[qp.peer].stopped || peers_[qp.peer].dead) return;
      qp.requester.on_timer(now());
      collect(target);
      pump(qp.peer);
      arm(target);
      return;
    }
    default:
      WEFT_ASSERT(false);
  }
}

/// One queued event at most counts: earlier deadlines are armed at once, later ones when the queued event comes.
void VirtualWorld::arm(QpId id) {
  Qp& qp = qps_[id];
  if (peers_[qp.peer].stopped || peers_[qp.peer].dead) return;
  Instant deadline = qp.requester.next_deadline();
  if (deadline == kNever) return;
  deadline = std::max(deadline, now());
  if (deadline >= qp.timer_queued) return;
  qp.timer_queued = deadline;
  queue_.schedule(deadline, kTimer, qp.timer, id);
}

// --- receiving
// --------------------------------------------------------------------------------------------------------

/// Only for a world that answers inside receive: all answers must find a slot first.
bool VirtualWorld::may_take(uint32_t peer, const Frame& frame) const {
  if (!settings_.answer_inside_receive || is_response(frame.out.header.opcode)) return true;
  const uint32_t mtu = qps_[frame.from].mtu_bytes;
  const bool read = frame.out.header.opcode == Opcode::kRcReadRequest;
  const uint32_t answers = read ? packets_of(frame.out.header.reth.length, mtu) : 1;
  return settings_.transmit_slots - peers_[peer].slots_used >= answers;
}

void VirtualWorld::drain(uint32_t id) {
  Peer& peer = peers_[id];
  while (!peer.stopped && !peer.receive_ring.empty()) {
    const uint32_t index = peer.receive_ring.front();
    if (!may_take(id, frames_[index])) break;
    peer.receive_ring.pop_front();
    --peer.receive_reserved;
    ++peer.received;
    deliver(frames_[index]);
    drop_reference(index);
    for (uint32_t waiting : std::exchange(peer.waiting, {})) start_sending(waiting);
    if (settings_.answer_inside_receive)
      while (pull_answer(id)) continue;
  }
  pump(id);
}

void VirtualWorld::deliver(const Frame& frame) {
  const QpId id = qps_[frame.from].other;
  Qp& qp = qps_[id];
  if (qp.error) return;
  if (is_response(frame.out.header.opcode)) {
    on_response(qp, frame);
  } else {
    on_request(qp, frame);
  }
  collect(id);
  arm(id);
}

void VirtualWorld::on_response(Qp& qp, const Frame& frame) {
  const uint32_t bytes = static_cast<uint32_t>(frame.payload.size());
  const Placement p = qp.requester.on_response(now(), frame.out.header, bytes);
  if (!p.wanted) return;
  std::vector<uint8_t>& memory = peers_[qp.peer].memory;
  const uint64_t offset = uint64_t{qp.local_offsets[p.work]} + p.offset;
  const bool ok = offset + p.length <= memory.size();
  if (ok) {
    const void* source = p.from_header ? static_cast<const void*>(&frame.out.header.atomic_original)
                                       : static_cast<const void*>(frame.payload.data());
    std::memcpy(memory.data() + offset, source, p.length);
  }
  qp.requester.placed(now(), ok);
}

void VirtualWorld::on_request(Qp& qp, const Frame& frame) {
  const uint32_t bytes = static_cast<uint32_t>(frame.payload.size());
  const Demand d = qp.responder.on_request(now(), frame.out.header, bytes);
  if (d.need == Need::kNothing) return;
  uint64_t original = 0;
  const Outcome outcome = perform(qp, d, frame, original);
  qp.responder.settle(now(), outcome, original);
}

bool VirtualWorld::accessible(const Peer& peer, uint64_t va, uint64_t bytes, uint32_t rkey) const {
  return rkey == kRkey && va >= kMemoryBase && va - kMemoryBase <= peer.memory.size() &&
         bytes <= peer.memory.size() - (va - kMemoryBase);
}

Outcome VirtualWorld::perform(Qp& qp, const Demand& d, const Frame& frame, uint64_t& original) {
  Peer& peer = peers_[qp.peer];
  switch (d.need) {
    case Need::kPlaceSend:
    case Need::kPlaceWrite:
      return place(qp, d, frame);
    case Need::kStartRead:
      return d.message_bytes == 0 || accessible(peer, d.va, d.message_bytes, d.rkey) ? Outcome::kDone
                                                                                     : Outcome::kRemoteAccess;
    case Need::kAtomic: {
      if (!accessible(peer, d.va, 8, d.rkey)) return Outcome::kRemoteAccess;
      uint8_t* at = peer.memory.data() + (d.va - kMemoryBase);
      std::memcpy(&original, at, 8);
      const bool add = d.opcode == Opcode::kRcFetchAdd;
      const uint64_t value = add                            ? original + d.atomic.swap_add
                             : original == d.atomic.compare ? d.atomic.swap_add
                                                            : original;
      std::memcpy(at, &value, 8);
      return Outcome::kDone;
    }
    case Need::kAtomicWrite:
      return place(qp, d, frame);
    case Need::kNothing:
      break;
  }
  return Outcome::kInvalidRequest;
}

Outcome VirtualWorld::place(Qp& qp, const Demand& d, const Frame& frame) {
  Peer& peer = peers_[qp.peer];
  if (d.takes_receive && qp.receive_queue.empty()) return Outcome::kReceiverNotReady;
  if (d.need == Need::kPlaceSend) {
    const ReceiveRequest& r = qp.receive_queue.front();
    if (uint64_t{d.offset} + d.length > r.bytes) return Outcome::kInvalidRequest;
    std::copy(frame.payload.begin(), frame.payload.end(), peer.memory.begin() + r.offset + d.offset);
  } else if (d.length != 0) {
    if (!accessible(peer, d.va, d.length, d.rkey)) return Outcome::kRemoteAccess;
    std::copy(frame.payload.begin(), frame.payload.end(),
              peer.memory.begin() + static_cast<std::ptrdiff_t>(d.va - kMemoryBase));
  }
  if (d.completes_receive) {
    const uint32_t number = qp.receive_queue.front().number;
    qp.receives.push_back({number, d.message_bytes, d.with_immediate, d.with_invalidate, d.immediate, now()});
    qp.receive_queue.pop_front();
  }
  return Outcome::kDone;
}

/// Completions to the test; a failed queue pair goes to its error state.
void VirtualWorld::collect(QpId id) {
  Qp& qp = qps_[id];
  if (qp.responder.fatal() && !qp.responder.owes()) qp.error = true;
  SendCompletion done;
  for (;;) {
    while (qp.requester.next_completion(done)) {
      qp.completions.push_back({done, now()});
      mix((uint64_t{done.work} << 8) | static_cast<uint64_t>(done.status));
      feed(qp);
    }
    if (!qp.requester.failed() && !qp.error) return;
    qp.error = true;
    qp.requester.flush();
    feed(qp);
    if (qp.requester.idle()) return;
  }
}

void VirtualWorld::feed(Qp& qp) {
  while (!qp.backlog.empty() && qp.requester.can_post()) {
    qp.requester.post(qp.backlog.front().work);
    qp.local_offsets.push_back(qp.backlog.front().local_offset);
    qp.backlog.pop_front();
  }
}

// --- sending
// ----------------------------------------------------------------------------------------------------------

void VirtualWorld::pump(uint32_t peer) {
  if (peers_[peer].dead || peers_[peer].stopped) return;
  do {
    while (pull_answer(peer)) continue;
  } while (pull_request(peer));
}

bool VirtualWorld::pull_answer(uint32_t id) {
  Peer& peer = peers_[id];
  if (peer.slots_used == settings_.transmit_slots) return false;
  for (size_t i = 0; i < peer.qps.size(); ++i) {
    const QpId qp_id = peer.qps[(peer.turn + i) % peer.qps.size()];
    Qp& qp = qps_[qp_id];
    OutFrame out;
    if (qp.error || !qp.responder.pull(now(), out)) continue;
    peer.turn += i + 1;
    if (out.source == PayloadSource::kMemory && !accessible(peer, out.va, out.payload_bytes, out.rkey)) {
      qp.responder.read_failed(now());
    } else {
      publish(qp, qp_id, out, true);
    }
    collect(qp_id);
    return true;
  }
  return false;
}

bool VirtualWorld::pull_request(uint32_t id) {
  Peer& peer = peers_[id];
  const uint32_t reserve = settings_.answer_reserve;
  const uint32_t reserved = reserve - std::min(reserve, peer.answer_slots_used);
  if (settings_.transmit_slots - peer.slots_used <= reserved) return false;
  for (size_t i = 0; i < peer.qps.size(); ++i) {
    const QpId qp_id = peer.qps[(peer.turn + i) % peer.qps.size()];
    Qp& qp = qps_[qp_id];
    OutFrame out;
    if (qp.error || !qp.requester.pull(now(), out)) continue;
    peer.turn += i + 1;
    const bool local = out.source == PayloadSource::kWork;
    if (local && uint64_t{qp.local_offsets[out.work]} + out.offset + out.payload_bytes > peer.memory.size()) {
      qp.requester.fail(now(), out.work, WorkStatus::kLocalProtection);
    } else {
      publish(qp, qp_id, out, false);
    }
    collect(qp_id);
    arm(qp_id);
    return true;
  }
  return false;
}

void VirtualWorld::publish(Qp& qp, QpId id, OutFrame& out, bool answer) {
  Peer& peer = peers_[qp.peer];
  const uint32_t index = new_frame();
  Frame& frame = frames_[index];
  frame.out = out;
  frame.from = id;
  frame.answer = answer;
  frame.payload.clear();
  if (out.source != PayloadSource::kNone) {
    const uint64_t start =
        out.source == PayloadSource::kWork ? uint64_t{qp.local_offsets[out.work]} + out.offset : out.va - kMemoryBase;
    const auto from = peer.memory.begin() + static_cast<std::ptrdiff_t>(start);
    frame.payload.assign(from, from + out.payload_bytes);
  }
  mix((uint64_t{out.header.psn} << 8) | static_cast<uint64_t>(out.header.opcode));
  if (recording_ && !answer) qp.transmissions.push_back({out.header.psn, now()});
  ++peer.slots_used;
  peer.answer_slots_used += answer ? 1 : 0;
  peer.transmit_ring.push_back(index);
  start_sending(qp.peer);
}

void VirtualWorld::start_sending(uint32_t id) {
  Peer& peer = peers_[id];
  if (peer.sending || peer.transmit_ring.empty()) return;
  const uint32_t index = peer.transmit_ring.front();
  Frame& frame = frames_[index];
  const uint32_t target_id = qps_[qps_[frame.from].other].peer;
  Peer& target = peers_[target_id];
  if (!target.dead && target.receive_reserved >= settings_.receive_slots) {
    if (std::find(target.waiting.begin(), target.waiting.end(), id) == target.waiting.end())
      target.waiting.push_back(id);
    return;
  }
  peer.sending = true;
  const uint32_t wire_bytes = kFrameOverhead + static_cast<uint32_t>(frame.payload.size());
  const LinkModel::Passage passage = peer.link.transmit(now(), wire_bytes);
  for (uint32_t i = 0; i < passage.copies && !target.dead; ++i) {
    if (target.receive_reserved >= settings_.receive_slots) break;  // no room for a second copy
    ++target.receive_reserved;
    ++frame.references;
    queue_.schedule(passage.arrivals[i], kArrival, peer.source, target_id, index);
  }
  frame.lost = frame.references == 0;
  ++frame.references;  // the departure's own
  queue_.schedule(passage.departs, kDeparture, peer.source, id, index);
}

void VirtualWorld::on_departure(uint32_t id, uint32_t index) {
  Peer& peer = peers_[id];
  peer.transmit_ring.pop_front();
  peer.sending = false;
  --peer.slots_used;
  peer.answer_slots_used -= frames_[index].answer ? 1 : 0;
  if (frames_[index].lost) tell_loss(frames_[index]);
  drop_reference(index);
  start_sending(id);
  if (settings_.answer_inside_receive) drain(id);
  pump(id);
}

/// The frame reached nobody: the requester whose request or answer it was may be told.
void VirtualWorld::tell_loss(const Frame& frame) {
  const QpId other = qps_[frame.from].other;
  const Peer& target = peers_[qps_[other].peer];
  if (target.dead ? !target.dead_notify : !notices_) return;
  const QpId concerned = frame.answer ? other : frame.from;
  qps_[concerned].requester.on_notice(now());
  arm(concerned);
}

uint32_t VirtualWorld::new_frame() {
  if (!free_frames_.empty()) {
    const uint32_t index = free_frames_.back();
    free_frames_.pop_back();
    return index;
  }
  frames_.emplace_back();
  return static_cast<uint32_t>(frames_.size() - 1);
}

void VirtualWorld::drop_reference(uint32_t index) {
  WEFT_ASSERT(frames_[index].references > 0);
  if (--frames_[index].references == 0) free_frames_.push_back(index);
}

}  // namespace weft
