// SPDX-License-Identifier: Apache-2.0
//
// A live fabric: one switch, a link and a NIC per endpoint, and what happens to a frame between two processes. It knows
// no threads, pipes or clocks; the live driver calls it with `now`.
//
//   poll(now, seat)     takes from a process what it published and moves it as far as it goes
//   serve(now, seat)    gives a process that made room what waited for it
//   run_due(now)        delayed frames and stall clocks; next_due() says when there is something
//   poll_outside(now, i)  takes from a port to the outside; the switch has those behind the endpoints' ports
//
// Without link delay a frame goes from ring to ring within poll(): taken, checked, over the link (drop stage, ICRC,
// capture), through the switch, over the second link, to the NIC and into the receiver's slot. Frames that wait are
// copied to switch memory, see attach/frame_port.h.
//
// Drops become notices for the process that sent the frame and, when it was an answer, for the one that waits for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nic/host/datapath/host_nic.h"
#include "nic/host/datapath/neighbours.h"
#include "scenarios/clock/event_queue.h"
#include "scenarios/engine/capture_tap.h"
#include "scenarios/engine/data_plane.h"
#include "scenarios/engine/link.h"
#include "scenarios/engine/live_seat.h"
#include "scenarios/engine/outside_end.h"
#include "switch/core/switch_core.h"
#include "switch/dpdk/frame_store.h"

namespace weft::engine {

/// One NIC of a host, its port on the switch and the link between.
struct Endpoint {
  HostIndex host = 0;
  uint32_t nic_index = 0;
  std::unique_ptr<nic::HostNic> nic;
  LinkDirection up;
  LinkDirection down;
  EventSource stall_events;
  bool stall_queued = false;
  std::array<uint64_t, kNicCounters> gone_counters{};  ///< of processes that are gone
  std::vector<LiveSeat*> seats;
};

class LiveFabric final : public nic::NicDrops {
 public:
  explicit LiveFabric(const FabricPlan& plan);
  ~LiveFabric();

  bool open(std::string& error);
  /// What DPDK must be given for so many NICs; never less than a few fabrics of tests need.
  static uint32_t megabytes_for(size_t endpoints);

  /// nullptr: no such host or NIC, or the QPN range is not free; errno in `error`.
  LiveSeat* attach(const PortSetup& setup, int& error);
  /// Off its NIC; what it had published is still sent. Reaped once nothing refers to it any more.
  void start_draining(Instant now, LiveSeat& seat);
  /// Tells everybody: what they sent to its QPNs and is not answered will not be.
  void announce_death(const LiveSeat& seat);
  LiveSeat* find(SeatId seat, uint32_t nic);
  /// A process joins or leaves a multicast group. 0, or EINVAL (not multicast, not a member), ENOMEM (too many groups).
  int set_member(LiveSeat& seat, const GidBytes& group, bool join);
  bool drained(LiveSeat& seat) const;
  void destroy(LiveSeat& seat);

  bool poll(Instant now, LiveSeat& seat);
  void serve(Instant now, LiveSeat& seat);
  void run_due(Instant now);
  Instant next_due() const { return events_.next_due(); }
  /// Priorities of `seat` that have something and may send.
  uint8_t takeable(LiveSeat& seat) const;

  void dropped(Instant now, PacketRef packet, DropReason reason, uint32_t endpoint) override;

  LiveSeat& seat_of(dpdk::ProcessPort& port) { return *seats_[tag_index(port.seat_tag())]; }
  /// nullptr: that seat is gone.
  LiveSeat* seat_of_tag(uint32_t tag) {
    const uint32_t index = tag_index(tag);
    return index < seats_.size() && seats_[index] != nullptr && seats_[index]->tag == tag ? seats_[index].get() : nullptr;
  }
  /// Seats in use, draining ones included.
  size_t attached() const { return seats_.size() - free_tags_.size(); }
  const std::vector<std::unique_ptr<LiveSeat>>& seats() const { return seats_; }
  std::vector<Endpoint>& endpoints() { return endpoints_; }
  dpdk::FrameStore& store() { return store_; }
  CaptureTap& tap() { return tap_; }
  void set_unix_offset(int64_t ns) { unix_offset_ns_ = ns; }
  /// Processes whose NIC may send again; the driver polls them. Emptied by it.
  std::vector<LiveSeat*>& resumed() { return resumed_; }

  std::vector<MetricSample> metrics();
  NicTotals totals(uint32_t endpoint) const;
  uint32_t endpoint_of(HostIndex host, uint32_t nic) const;

  // Ports to the outside (live_outside.cc).
  std::vector<std::unique_ptr<OutsideEnd>>& outside() { return outside_; }
  bool outside_paused(uint32_t index) const;
  bool poll_outside(Instant now, uint32_t index);
  /// 0: take_resolved() will have it; else errno.
  int resolve(Instant now, uint64_t token, HostIndex host, uint32_t nic, const GidBytes& gid);
  bool take_resolved(nic::NeighbourAnswer& out) { return neighbours_ != nullptr && neighbours_->take_answer(out); }

  /// Of the switch: the endpoints' and behind them those to the outside.
  uint32_t ports() const { return static_cast<uint32_t>(endpoints_.size() + outside_.size()); }
  LinkDirection& link(uint32_t port, Direction direction);
  const std::string& owner_name(uint32_t port) const;

 private:
  enum EventKind : uint32_t { kArrival, kStall, kOutsideRetry, kNeighbour };
  static uint32_t tag_index(uint32_t tag) { return (tag & 0xFFFF) - 1; }

  void cross(Instant now, uint32_t endpoint, Direction direction, PacketRef packet);
  void arrive(Instant now, uint32_t endpoint, Direction direction, PacketRef packet);
  void capture(Instant now, const LinkDirection& link, PacketRef packet);
  void finish_nic(Instant now, uint32_t endpoint);
  void drain(Instant now);
  void notify(PacketRef packet, DropReason reason, uint32_t endpoint);
  void schedule_stall(Endpoint& endpoint);

  bool open_outside(std::string& error);
  void take_outside(Instant now, uint32_t index, const attach::TakenFrame& taken);
  void arrive_outside(uint32_t index, PacketRef packet);
  void finish_outside(Instant now, uint32_t index);
  void lose_waiting(Instant now, uint32_t index);
  void hold_egress(Instant now, uint32_t index, bool hold);
  void retry_outside(Instant now, uint32_t index);
  void serve_neighbours(Instant now);
  void neighbour_timer(Instant now);
  void leave_groups(LiveSeat& seat);

  const FabricPlan plan_;
  dpdk::FrameStore store_;
  nic::AddressMap map_;
  std::unique_ptr<fabric::SwitchCore> switch_;
  std::vector<Endpoint> endpoints_;
  std::vector<std::unique_ptr<OutsideEnd>> outside_;
  std::unique_ptr<nic::Neighbours> neighbours_;  ///< where there is an outside
  EventSource neighbour_events_;
  bool neighbour_queued_ = false;
  std::vector<uint32_t> first_endpoint_;  ///< by host
  std::vector<uint8_t> applied_pause_;    ///< by endpoint: what the switch knows of the NIC's pauses
  std::vector<std::unique_ptr<LiveSeat>> seats_;
  std::vector<uint16_t> generation_;
  std::vector<uint32_t> free_tags_;
  std::vector<LiveSeat*> resumed_;
  EventQueue events_;
  CaptureTap tap_;
  int64_t unix_offset_ns_ = 0;
  bool by_event_ = false;  ///< links take time
  bool park_all_ = false;  ///< so much time that frames must not stay in their slots
};

}  // namespace weft::engine
