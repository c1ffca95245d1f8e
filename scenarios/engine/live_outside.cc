// SPDX-License-Identifier: Apache-2.0
//
// The live fabric's ports to the outside: frames in and out, hosts as neighbours, addresses that are not of the fabric.
// The switch's ports behind the endpoints' are these.
#include <errno.h>

#include <algorithm>

#include "nic/host/datapath/classify_outside.h"
#include "scenarios/engine/live_fabric.h"

namespace weft::engine {

using attach::kBurst;
using attach::TakenFrame;

namespace {

constexpr Duration kRetryTime = microseconds(100);  // a device without room tells nobody when it has some
constexpr Duration kHoldTime = milliseconds(20);    // then frames for it are lost, as on a wire

}  // namespace

bool LiveFabric::open_outside(std::string& error) {
  if (plan_.outside.empty()) return true;
  const uint32_t endpoints = static_cast<uint32_t>(endpoints_.size());
  for (const OutsidePlan& plan : plan_.outside) {
    const uint32_t port = ports();
    auto end = std::make_unique<OutsideEnd>(
        plan, LinkDirection(plan_.seed, link_id(port, Direction::kUp), plan.name + "->" + plan_.switch_name, plan_.drop),
        LinkDirection(plan_.seed, link_id(port, Direction::kDown), plan_.switch_name + "->" + plan.name, plan_.drop));
    for (const dpdk::OutsideDevice& device : devices_of(plan)) {
      if (end->port == nullptr) end->port = dpdk::OutsidePort::open(store_, device, error);
    }
    if (end->port == nullptr) {
      error = "no outside port " + plan.name + " (" + outside_kind_name(plan.kind) + " " + plan.device + "): " + error;
      return false;
    }
    switch_->set_route(port, static_cast<fabric::SwitchPort>(port));
    outside_.push_back(std::move(end));
  }
  nic::NeighbourSettings settings;
  settings.endpoints = endpoints;
  settings.ports = static_cast<uint32_t>(outside_.size());
  neighbours_ = std::make_unique<nic::Neighbours>(settings, map_);
  neighbour_events_.id = link_id(ports(), Direction::kUp);
  return true;
}

LinkDirection& LiveFabric::link(uint32_t port, Direction direction) {
  if (port < endpoints_.size()) {
    Endpoint& e = endpoints_[port];
    return direction == Direction::kUp ? e.up : e.down;
  }
  OutsideEnd& end = *outside_[port - endpoints_.size()];
  return direction == Direction::kUp ? end.up : end.down;
}

const std::string& LiveFabric::owner_name(uint32_t port) const {
  return port < endpoints_.size() ? plan_.hosts[endpoints_[port].host].name : outside_[port - endpoints_.size()]->plan.name;
}

// --- in ---------------------------------------------------------------------------------------------------------------

bool LiveFabric::outside_paused(uint32_t index) const {
  return switch_->paused(static_cast<fabric::SwitchPort>(endpoints_.size() + index)) != 0;
}

bool LiveFabric::poll_outside(Instant now, uint32_t index) {
  if (outside_paused(index)) return false;
  std::array<TakenFrame, kBurst> taken;
  const uint32_t count = outside_[index]->port->take(0, taken);
  for (uint32_t i = 0; i < count; ++i) take_outside(now, index, taken[i]);
  if (count == 0) return false;
  drain(now);
  serve_neighbours(now);
  return true;
}

void LiveFabric::take_outside(Instant now, uint32_t index, const TakenFrame& taken) {
  OutsideEnd& end = *outside_[index];
  const uint32_t endpoints = static_cast<uint32_t>(endpoints_.size());
  const std::span<uint8_t> raw = end.port->raw(taken.packet);
  PacketDescriptor& d = store_.arena()[taken.packet];
  d.head = d.tail = now;
  nic::OutsideFrame split;
  const DropReason reason =
      nic::classify_outside(raw.first(taken.payload_bytes), endpoints + index, map_, endpoints, d, split);
  if (reason == DropReason::kNotIp || reason == DropReason::kNotUdp) {
    uint32_t bytes = taken.payload_bytes;
    const nic::NeighbourVerdict verdict = neighbours_->on_frame(now, index, raw, bytes);
    if (verdict == nic::NeighbourVerdict::kAnswer) {
      end.port->send_raw(taken.packet, bytes);
      return;
    }
    if (verdict == nic::NeighbourVerdict::kTaken) {
      store_.release(taken.packet);
      return;
    }
  }
  if (reason != DropReason::kNone) {
    ++end.drops[static_cast<size_t>(reason)];
    store_.release(taken.packet);
    return;
  }
  end.port->adopt(taken.packet, split.header_bytes, split.payload_bytes);
  cross(now, endpoints + index, Direction::kUp, taken.packet);
}

// --- out --------------------------------------------------------------------------------------------------------------

void LiveFabric::arrive_outside(uint32_t index, PacketRef packet) {
  OutsideEnd& end = *outside_[index];
  if (end.held) store_.park(packet);
  end.waiting.push(store_.arena(), packet);
}

/// Gives the device what it takes. What it does not take holds the egress, and is lost when that lasts.
void LiveFabric::finish_outside(Instant now, uint32_t index) {
  OutsideEnd& end = *outside_[index];
  bool room = true;
  while (room && !end.waiting.empty()) {
    std::array<PacketRef, kBurst> burst;
    uint32_t offered = 0;
    while (offered < kBurst && !end.waiting.empty()) burst[offered++] = end.waiting.pop(store_.arena());
    const uint32_t accepted = end.port->deliver({burst.data(), offered});
    for (uint32_t i = offered; i > accepted; --i) end.waiting.push_front(store_.arena(), burst[i - 1]);
    room = accepted == offered;
    if (accepted > 0) {
      end.last_progress = now;
      end.stalled = false;
    }
  }
  if (room || !end.held) end.last_progress = now;
  if (!room && now - end.last_progress >= kHoldTime) end.stalled = true;
  if (end.stalled) lose_waiting(now, index);
  hold_egress(now, index, !end.waiting.empty());
}

void LiveFabric::lose_waiting(Instant now, uint32_t index) {
  OutsideEnd& end = *outside_[index];
  for (PacketRef packet; (packet = end.waiting.pop(store_.arena())) != kNoPacket;) {
    ++end.drops[static_cast<size_t>(DropReason::kReceiverStalled)];
    dropped(now, packet, DropReason::kReceiverStalled, static_cast<uint32_t>(endpoints_.size() + index));
  }
}

void LiveFabric::hold_egress(Instant now, uint32_t index, bool hold) {
  OutsideEnd& end = *outside_[index];
  const auto port = static_cast<fabric::SwitchPort>(endpoints_.size() + index);
  if (hold != end.held) {
    end.held = hold;
    for (uint8_t priority = 0; priority < kPriorityCount; ++priority) switch_->set_paused(port, priority, hold);
  }
  if (hold && !end.retry_queued) {
    end.retry_queued = true;
    events_.schedule(now + kRetryTime, kOutsideRetry, end.down.events, index);
  }
}

void LiveFabric::retry_outside(Instant now, uint32_t index) {
  outside_[index]->retry_queued = false;
  finish_outside(now, index);
  drain(now);
}

// --- neighbours -------------------------------------------------------------------------------------------------------

void LiveFabric::serve_neighbours(Instant now) {
  for (uint32_t i = 0; i < outside_.size(); ++i) {
    std::array<uint8_t, nic::Neighbours::kMaxQuestionBytes> question;
    for (uint32_t bytes; (bytes = neighbours_->pull(now, i, question)) != 0;) {
      outside_[i]->port->send(std::span<const uint8_t>(question).first(bytes));
    }
  }
  const Instant deadline = neighbours_->next_deadline();
  if (deadline == kNever || neighbour_queued_) return;  // one queued event; it looks again when it is due
  neighbour_queued_ = true;
  events_.schedule(deadline, kNeighbour, neighbour_events_, 0);
}

void LiveFabric::neighbour_timer(Instant now) {
  neighbour_queued_ = false;
  neighbours_->on_timer(now);
  serve_neighbours(now);
}

int LiveFabric::resolve(Instant now, uint64_t token, HostIndex host, uint32_t nic, const GidBytes& gid) {
  const uint32_t endpoint = endpoint_of(host, nic);
  if (neighbours_ == nullptr) return ETIMEDOUT;  // what an unanswered ARP ends in
  if (endpoint == kNoEndpoint) return EINVAL;
  neighbours_->resolve(now, token, endpoint, gid);
  serve_neighbours(now);
  return 0;
}

}  // namespace weft::engine
