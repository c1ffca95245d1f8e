// SPDX-License-Identifier: Apache-2.0
//
// The pipeline of one switch, on descriptors: forward, admit, queue, schedule. No clock, no bytes, no DPDK.
//
//   receive(now, port, packet)  takes a packet in. Dropped packets stay the caller's, with the reason.
//   transmit(now, port)         next packet to leave by that port, or kNoPacket: empty, or everything paused
//   set_paused(port, priority)  the neighbour's pause state for what we send
//   paused(port)                our pause state towards the neighbour on that port: bit mask by priority
//   take_ready_port()           ports that have something that may go, each named once; kNoSwitchPort when none
//   take_changed_port()         ports whose paused() changed since they were last named
//
// Routes map a dense destination to an egress port; a frame may leave by the port it came in on (same-host traffic).
// A frame for a group leaves by the ports that joined it and by no other, a copy each; copies come from set_copies().
//
//   join(group, port), leave(group, port)    once each per port; the owner counts the members behind a port
//
// One thread. Capacities come from the settings; nothing allocates after construction.
//
//   while ((port = core.take_ready_port()) != kNoSwitchPort)
//     while ((packet = core.transmit(now, port)) != kNoPacket) link(port).send(now, packet);
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "protocols/base/drop_reason.h"
#include "protocols/base/packet.h"
#include "switch/core/admission.h"
#include "switch/core/scheduler.h"
#include "switch/core/settings.h"

namespace weft::fabric {

/// One (egress port, priority): the queue and its counters share a cache line.
struct alignas(64) EgressQueue {
  PacketList list;
  uint32_t held_bytes = 0;
  uint32_t max_bytes = 0;  ///< high-water mark
  uint64_t packets = 0;    ///< sent so far
  uint64_t bytes = 0;
  uint64_t pauses = 0;     ///< times the neighbour paused it
};
static_assert(sizeof(EgressQueue) == 64);

struct Arrival {
  DropReason drop = DropReason::kNone;
  bool waits = false;  ///< its egress is paused or long: its bytes should not stay in the sender's slot
};

class SwitchCore {
 public:
  SwitchCore(const SwitchSettings& settings, PacketArena& arena);

  void set_route(uint32_t destination, SwitchPort port) { routes_[destination] = port; }

  void set_copies(PacketCopies& copies) { copies_ = &copies; }
  void join(uint32_t group, SwitchPort port);
  void leave(uint32_t group, SwitchPort port);

  Arrival receive(Instant now, SwitchPort port, PacketRef packet);
  PacketRef transmit(Instant now, SwitchPort port);

  void set_paused(SwitchPort port, uint8_t priority, bool paused);
  uint8_t paused(SwitchPort port) const { return admission_.paused(port); }

  SwitchPort take_ready_port();
  SwitchPort take_changed_port();

  uint32_t ports() const { return settings_.ports; }
  uint32_t held_packets() const { return held_packets_; }
  const EgressQueue& queue(SwitchPort port, uint8_t priority) const { return queues_[port * kPriorityCount + priority]; }
  const IngressClass& ingress(SwitchPort port, uint8_t priority) const { return admission_.at(port, priority); }
  uint64_t drops(SwitchPort port, DropReason reason) const { return ports_[port].drops[static_cast<size_t>(reason)]; }
  uint64_t multicast_in(SwitchPort port) const { return ports_[port].multicast_in; }
  uint64_t multicast_out(SwitchPort port) const { return ports_[port].multicast_out; }
  uint8_t egress_paused(SwitchPort port) const { return ports_[port].gate.paused(); }

 private:
  struct Port {
    PauseGate gate;
    uint8_t backlog = 0;  ///< priorities with something queued
    bool listed_ready = false;
    bool listed_changed = false;
    Scheduler scheduler;
    std::array<uint64_t, kDropReasons> drops{};
    uint64_t multicast_in = 0;
    uint64_t multicast_out = 0;
  };

  Arrival queue_for(SwitchPort egress, SwitchPort port, PacketRef packet);
  Arrival replicate(SwitchPort port, PacketRef packet);

  void mark_ready(SwitchPort port);
  void mark_changed(SwitchPort port);

  SwitchSettings settings_;
  PacketArena& arena_;
  Admission admission_;
  PacketCopies* copies_ = nullptr;
  std::vector<SwitchPort> routes_;
  std::vector<std::vector<SwitchPort>> groups_;  ///< member ports, ascending
  std::vector<Port> ports_;
  std::vector<EgressQueue> queues_;
  std::vector<SwitchPort> ready_;
  std::vector<SwitchPort> changed_;
  uint32_t held_packets_ = 0;
};

}  // namespace weft::fabric
