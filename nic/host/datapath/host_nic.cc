// SPDX-License-Identifier: Apache-2.0
#include "nic/host/datapath/host_nic.h"

#include <algorithm>
#include <bit>

namespace weft::nic {

using attach::kBurst;

HostNic::HostNic(const HostNicSettings& settings, PacketArena& arena, attach::FrameBytes& bytes, const AddressMap& map,
                 NicDrops& drops)
    : settings_(settings), arena_(arena), bytes_(bytes), map_(map), drops_(drops),
      by_range_(1u << (24 - kRangeLog2), nullptr) {}

// --- attaching ----------------------------------------------------------------------------------------------------

bool HostNic::attach(NicSeat& seat) {
  if (seat.port == nullptr || seat.qpn_log2 < kRangeLog2 || seat.qpn_log2 > 23) return false;
  const uint32_t size = 1u << seat.qpn_log2;
  if (seat.qpn_base % size != 0 || seat.qpn_base >= 1u << 24) return false;
  if (seat.qpn_base + size > kMulticastQpn) return false;
  const auto first = by_range_.begin() + (seat.qpn_base >> kRangeLog2);
  const auto last = first + (size >> kRangeLog2);
  if (std::any_of(first, last, [](const NicSeat* owner) { return owner != nullptr; })) return false;
  std::fill(first, last, &seat);
  listed_.reserve(listed_.size() + 1 + by_range_.size());
  blocked_.reserve(by_range_.size());
  return true;
}

void HostNic::detach(Instant now, NicSeat& seat) {
  for (auto group = groups_.begin(); group != groups_.end();) {
    std::erase(group->second, &seat);
    group = group->second.empty() ? groups_.erase(group) : std::next(group);
  }
  std::replace(by_range_.begin(), by_range_.end(), &seat, static_cast<NicSeat*>(nullptr));
  drop_waiting(now, seat, DropReason::kReceiverGone);
  set_blocked(now, seat, false);
  std::erase(listed_, &seat);
  seat.listed = false;
}

// --- from processes to the link -------------------------------------------------------------------------------------

uint32_t HostNic::collect(Instant now, NicSeat& seat, uint8_t priority, std::span<PacketRef> out) {
  std::array<attach::TakenFrame, kBurst> taken;
  const uint32_t count = seat.port->take(priority, {taken.data(), std::min<size_t>(out.size(), kBurst)});
  uint32_t good = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const PacketRef packet = taken[i].packet;
    PacketDescriptor& d = arena_[packet];
    const DropReason reason = classify(taken[i], settings_.identity, map_, d);
    d.head = d.tail = now;
    if (reason != DropReason::kNone) {
      drop(now, packet, reason);
      continue;
    }
    ++counters_.tx_packets[priority];
    counters_.tx_bytes[priority] += d.wire_bytes;
    out[good++] = packet;
  }
  return good;
}

// --- from the link to processes -------------------------------------------------------------------------------------

void HostNic::receive(Instant now, PacketRef packet) {
  const PacketDescriptor& d = arena_[packet];
  NicSeat* const seat = by_range_[d.dest_qpn >> kRangeLog2];
  if (seat == nullptr && !is_group(d.destination)) {
    drop(now, packet, DropReason::kNoSuchQpn);
    return;
  }
  ++counters_.rx_packets[d.priority];
  counters_.rx_bytes[d.priority] += d.wire_bytes;
  // Nobody owns the QPN of multicast packets: its range is never given to a process.
  seat != nullptr ? queue_for(*seat, packet) : fan_out(now, packet);
}

inline void HostNic::queue_for(NicSeat& seat_, PacketRef packet) {
  NicSeat* const seat = &seat_;
  const PacketDescriptor& d = arena_[packet];
  if (seat->blocked && seat->waiting_packets >= settings_.by_reference_packets) bytes_.park(packet);
  seat->waiting[d.priority].push(arena_, packet);
  seat->waiting_mask = static_cast<uint8_t>(seat->waiting_mask | 1u << d.priority);
  ++seat->waiting_packets;
  if (!seat->listed) {
    seat->listed = true;
    listed_.push_back(seat);
  }
}

void HostNic::fan_out(Instant now, PacketRef packet) {
  const auto found = groups_.find(arena_[packet].destination);
  ++counters_.rx_multicast;
  if (found == groups_.end()) {
    drop(now, packet, DropReason::kNoMember);  // its last process left while the frame was under way
    return;
  }
  const std::vector<NicSeat*>& members = found->second;
  for (size_t i = 0; i + 1 < members.size(); ++i) {
    const PacketRef copy = bytes_.clone(packet);
    if (copy == kNoPacket) {
      count_drop(DropReason::kBufferFull);
    } else {
      queue_for(*members[i], copy);
    }
  }
  queue_for(*members.back(), packet);
}

bool HostNic::join(uint32_t group, NicSeat& seat) {
  std::vector<NicSeat*>& members = groups_[group];
  if (std::find(members.begin(), members.end(), &seat) != members.end()) return false;
  members.push_back(&seat);
  return members.size() == 1;
}

bool HostNic::leave(uint32_t group, NicSeat& seat) {
  const auto found = groups_.find(group);
  if (found == groups_.end() || std::erase(found->second, &seat) == 0 || !found->second.empty()) return false;
  groups_.erase(found);
  return true;
}

void HostNic::deliver(Instant now) {
  for (size_t i = 0; i < listed_.size(); ++i) {  // by index: a drop's consequences may list another seat
    NicSeat& seat = *listed_[i];
    seat.listed = false;
    serve(now, seat);
  }
  listed_.clear();
}

/// One burst of one priority. Returns how many the port accepted.
uint32_t HostNic::hand_over(NicSeat& seat, uint8_t priority, uint32_t& offered) {
  std::array<PacketRef, kBurst> burst;
  PacketList& list = seat.waiting[priority];
  offered = 0;
  while (offered < kBurst && !list.empty()) burst[offered++] = list.pop(arena_);
  const uint32_t accepted = seat.port->deliver({burst.data(), offered});
  for (uint32_t i = offered; i > accepted; --i) list.push_front(arena_, burst[i - 1]);
  seat.waiting_packets -= accepted;
  if (list.empty()) seat.waiting_mask = static_cast<uint8_t>(seat.waiting_mask & ~(1u << priority));
  return accepted;
}

void HostNic::serve(Instant now, NicSeat& seat) {
  // Looked at before delivering: what the process took since it was blocked is progress, whatever fits now.
  bool progress = seat.blocked || seat.stalled ? seat.port->collect() : false;
  const uint8_t had = seat.waiting_mask;
  bool full = false;
  while (seat.waiting_mask != 0 && !full) {
    const uint8_t priority =
        static_cast<uint8_t>((std::countr_zero(std::rotr(seat.waiting_mask, seat.turn)) + seat.turn) % kPriorityCount);
    seat.turn = static_cast<uint8_t>((priority + 1) % kPriorityCount);
    uint32_t offered = 0;
    const uint32_t accepted = hand_over(seat, priority, offered);
    progress = progress || accepted > 0;
    full = accepted < offered;
  }
  if (progress) {
    seat.last_progress = now;
    seat.stalled = false;
  }
  if (seat.waiting_mask != 0 && seat.stalled) drop_waiting(now, seat, DropReason::kReceiverStalled);
  for (uint8_t mask = static_cast<uint8_t>(had | seat.pausing); mask != 0; mask = static_cast<uint8_t>(mask & (mask - 1))) {
    update_pause(seat, static_cast<uint8_t>(std::countr_zero(mask)));
  }
  set_blocked(now, seat, seat.waiting_mask != 0);
}

// --- waiting, pausing, stalling -------------------------------------------------------------------------------------

void HostNic::update_pause(NicSeat& seat, uint8_t priority) {
  const uint32_t packets = seat.waiting[priority].packets;
  const bool was = (seat.pausing >> priority & 1) != 0;
  const bool is = packets >= settings_.pause_packets || (was && packets > settings_.resume_packets);
  if (is == was) return;
  const uint8_t bit = static_cast<uint8_t>(1u << priority);
  seat.pausing ^= bit;
  uint32_t& seats = pausing_seats_[priority];
  seats += is ? 1u : UINT32_MAX;
  if (is && seats == 1) {
    paused_ = static_cast<uint8_t>(paused_ | bit);
    ++counters_.pauses[priority];
  } else if (!is && seats == 0) {
    paused_ = static_cast<uint8_t>(paused_ & ~bit);
  }
}

void HostNic::set_blocked(Instant now, NicSeat& seat, bool blocked) {
  if (seat.blocked == blocked) {
    if (blocked && deadline_ == kNever) find_deadline();
    return;
  }
  seat.blocked = blocked;
  if (blocked) {
    seat.last_progress = now;
    blocked_.push_back(&seat);
    deadline_ = std::min(deadline_, now + settings_.stall_time);
  } else {
    std::erase(blocked_, &seat);
    if (blocked_.empty()) deadline_ = kNever;
  }
}

void HostNic::find_deadline() {
  deadline_ = kNever;
  for (const NicSeat* seat : blocked_) deadline_ = std::min(deadline_, seat->last_progress + settings_.stall_time);
}

void HostNic::on_timer(Instant now) {
  // A seat leaves the list when its frames are dropped, so the index only advances past those that stay.
  for (size_t i = 0; i < blocked_.size();) {
    NicSeat& seat = *blocked_[i];
    serve(now, seat);
    if (i >= blocked_.size() || blocked_[i] != &seat) continue;
    if (now - seat.last_progress >= settings_.stall_time) {
      seat.stalled = true;
      ++counters_.stalls;
      serve(now, seat);
      if (i >= blocked_.size() || blocked_[i] != &seat) continue;
    }
    ++i;
  }
  find_deadline();
}

void HostNic::drop_waiting(Instant now, NicSeat& seat, DropReason reason) {
  for (uint8_t priority = 0; priority < kPriorityCount; ++priority) {
    PacketRef packet;
    while ((packet = seat.waiting[priority].pop(arena_)) != kNoPacket) drop(now, packet, reason);
    update_pause(seat, priority);
  }
  seat.waiting_mask = 0;
  seat.waiting_packets = 0;
}

void HostNic::drop(Instant now, PacketRef packet, DropReason reason) {
  count_drop(reason);
  drops_.dropped(now, packet, reason, settings_.identity.endpoint);
}

}  // namespace weft::nic
