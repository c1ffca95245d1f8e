// SPDX-License-Identifier: Apache-2.0
#include "switch/core/switch_core.h"

#include <algorithm>

namespace weft::fabric {

SwitchCore::SwitchCore(const SwitchSettings& settings, PacketArena& arena)
    : settings_(settings),
      arena_(arena),
      admission_(settings),
      routes_(settings.endpoints, kNoSwitchPort),
      ports_(settings.ports),
      queues_(settings.ports * kPriorityCount) {
  WEFT_ASSERT(settings.ports < kNoSwitchPort && settings.xon_bytes <= settings.xoff_bytes);
  ready_.reserve(settings.ports);
  changed_.reserve(settings.ports);
}

Arrival SwitchCore::receive(Instant /*now*/, SwitchPort port, PacketRef packet) {
  const PacketDescriptor& d = arena_[packet];
  const SwitchPort egress = d.destination < routes_.size() ? routes_[d.destination] : kNoSwitchPort;
  if (egress == kNoSwitchPort) {
    if (is_group(d.destination)) return replicate(port, packet);
    ++ports_[port].drops[static_cast<size_t>(DropReason::kNoRoute)];
    return {DropReason::kNoRoute, false};
  }
  return queue_for(egress, port, packet);
}

inline Arrival SwitchCore::queue_for(SwitchPort egress, SwitchPort port, PacketRef packet) {
  PacketDescriptor& d = arena_[packet];
  const uint8_t priority = d.priority;
  d.ingress_port = port;
  Port& out = ports_[egress];
  EgressQueue& queue = queues_[egress * kPriorityCount + priority];
  const bool waits = !out.gate.can_send(priority, d.wire_bytes) || queue.list.packets >= settings_.by_reference_packets;
  if (admission_.charge(port, priority, d.wire_bytes)) mark_changed(port);
  queue.list.push(arena_, packet);
  queue.held_bytes += d.wire_bytes;
  queue.max_bytes = std::max(queue.max_bytes, queue.held_bytes);
  out.backlog = static_cast<uint8_t>(out.backlog | 1u << priority);
  ++held_packets_;
  mark_ready(egress);
  return {DropReason::kNone, waits};
}

/// One copy per member port, the last of them being the packet itself. Each is charged to its ingress like any other, so
/// that a slow member slows the sender down instead of losing its copy.
Arrival SwitchCore::replicate(SwitchPort port, PacketRef packet) {
  ++ports_[port].multicast_in;
  const uint32_t group = arena_[packet].destination & ~kGroupDestination;
  const bool known = group < groups_.size() && arena_[packet].dest_qpn == kMulticastQpn;
  if (!known || groups_[group].empty()) {
    ++ports_[port].drops[static_cast<size_t>(DropReason::kNoMember)];
    return {DropReason::kNoMember, false};
  }
  const std::vector<SwitchPort>& members = groups_[group];
  for (size_t i = 0; i + 1 < members.size(); ++i) {
    const PacketRef copy = copies_ != nullptr ? copies_->clone(packet) : kNoPacket;
    if (copy == kNoPacket) {
      ++ports_[members[i]].drops[static_cast<size_t>(DropReason::kBufferFull)];
      continue;
    }
    ++ports_[members[i]].multicast_out;
    queue_for(members[i], port, copy);
  }
  ++ports_[members.back()].multicast_out;
  return queue_for(members.back(), port, packet);
}

void SwitchCore::join(uint32_t group, SwitchPort port) {
  WEFT_ASSERT(port < settings_.ports);
  if (group >= groups_.size()) groups_.resize(group + 1);
  std::vector<SwitchPort>& members = groups_[group];
  const auto at = std::lower_bound(members.begin(), members.end(), port);
  if (at == members.end() || *at != port) members.insert(at, port);
}

void SwitchCore::leave(uint32_t group, SwitchPort port) {
  if (group < groups_.size()) std::erase(groups_[group], port);
}

PacketRef SwitchCore::transmit(Instant /*now*/, SwitchPort port) {
  Port& out = ports_[port];
  const uint8_t ready = static_cast<uint8_t>(out.backlog & ~out.gate.paused());
  if (ready == 0) return kNoPacket;
  EgressQueue* const queues = &queues_[port * kPriorityCount];
  const uint8_t priority =
      out.scheduler.choose(ready, settings_.strict_priorities, settings_.quantum_bytes,
                           [&](uint8_t p) { return arena_[queues[p].list.head].wire_bytes; });
  EgressQueue& queue = queues[priority];
  const PacketRef packet = queue.list.pop(arena_);
  const PacketDescriptor& d = arena_[packet];
  queue.held_bytes -= d.wire_bytes;
  ++queue.packets;
  queue.bytes += d.wire_bytes;
  --held_packets_;
  if (queue.list.empty()) {
    out.backlog = static_cast<uint8_t>(out.backlog & ~(1u << priority));
    out.scheduler.emptied(priority);
  }
  if (admission_.credit(d.ingress_port, priority, d.wire_bytes)) mark_changed(d.ingress_port);
  return packet;
}

void SwitchCore::set_paused(SwitchPort port, uint8_t priority, bool paused) {
  Port& out = ports_[port];
  if (out.gate.can_send(priority, 0) != paused) return;  // no change
  out.gate.set(priority, paused);
  if (paused) {
    ++queues_[port * kPriorityCount + priority].pauses;
  } else {
    mark_ready(port);
  }
}

SwitchPort SwitchCore::take_ready_port() {
  while (!ready_.empty()) {
    const SwitchPort port = ready_.back();
    ready_.pop_back();
    ports_[port].listed_ready = false;
    if ((ports_[port].backlog & ~ports_[port].gate.paused()) != 0) return port;
  }
  return kNoSwitchPort;
}

SwitchPort SwitchCore::take_changed_port() {
  if (changed_.empty()) return kNoSwitchPort;
  const SwitchPort port = changed_.back();
  changed_.pop_back();
  ports_[port].listed_changed = false;
  return port;
}

void SwitchCore::mark_ready(SwitchPort port) {
  Port& p = ports_[port];
  if (p.listed_ready || (p.backlog & ~p.gate.paused()) == 0) return;
  p.listed_ready = true;
  ready_.push_back(port);
}

void SwitchCore::mark_changed(SwitchPort port) {
  if (ports_[port].listed_changed) return;
  ports_[port].listed_changed = true;
  changed_.push_back(port);
}

}  // namespace weft::fabric
