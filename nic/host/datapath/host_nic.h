// SPDX-License-Identifier: Apache-2.0
//
// The switch side of a host's NIC: frames from its processes to the link, frames from the link to its processes.
//
//   collect(now, seat, priority, out)  takes a burst from one process; refused frames are dropped and counted. The owner
//                                      calls it for its processes in turn: round robin by burst. It asks only for
//                                      priorities that the switch has not paused.
//   receive(now, packet)               a frame from the link, to the process that owns its destination QPN; one for a
//                                      group to every process that joined it, a copy each
//   join(group, seat)                  true: the first process here that wants the group's frames
//   leave(group, seat)                 true: it was the last
//   deliver(now)                       hands received frames over; what finds no room waits
//   serve(now, seat)                   the same for one process that made room
//   paused()                           priorities in which the switch must not send: bit mask
//   next_deadline(), on_timer(now)     the stall clock
//
// A process that leaves frames waiting and takes none for stall_time is stalled: what waits and what comes is dropped as
// receiver_stalled and pauses nobody, until it moves (nic_rules 2). Deviation: hardware would go on.
//
// Drops are counted here and then handed to NicDrops, which owns the packet from then on. One thread, no allocation after
// attach.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "nic/host/datapath/address_map.h"
#include "nic/host/datapath/classify.h"
#include "protocols/attach/frame_port.h"
#include "protocols/base/drop_reason.h"
#include "protocols/base/packet.h"

namespace weft::nic {

inline constexpr uint32_t kRangeLog2 = 14;  ///< granule of QPN ranges

struct HostNicSettings {
  NicIdentity identity;
  Duration stall_time = milliseconds(500);
  uint32_t pause_packets = 32;   ///< waiting for one process at one priority: pause the switch
  uint32_t resume_packets = 8;
  uint32_t by_reference_packets = 32;  ///< more than these wait in switch memory
};

struct NicCounters {
  std::array<uint64_t, kPriorityCount> tx_packets{};
  std::array<uint64_t, kPriorityCount> tx_bytes{};
  std::array<uint64_t, kPriorityCount> rx_packets{};
  std::array<uint64_t, kPriorityCount> rx_bytes{};
  std::array<uint64_t, kPriorityCount> pauses{};  ///< times the switch was paused
  std::array<uint64_t, kDropReasons> drops{};
  uint64_t stalls = 0;
  uint64_t rx_multicast = 0;
};

/// One process's place on a NIC. The owner keeps it; between attach and detach it belongs to the NIC.
struct NicSeat {
  attach::FramePort* port = nullptr;
  uint32_t qpn_base = 0;
  uint32_t qpn_log2 = kRangeLog2;

  std::array<PacketList, kPriorityCount> waiting{};
  uint32_t waiting_packets = 0;
  uint8_t waiting_mask = 0;
  uint8_t pausing = 0;     ///< priorities for which it holds the switch
  uint8_t turn = 0;
  bool listed = false;     ///< in the NIC's list for deliver()
  bool blocked = false;    ///< something found no room
  bool stalled = false;
  Instant last_progress{};
};

class NicDrops {
 public:
  virtual void dropped(Instant now, PacketRef packet, DropReason reason, uint32_t endpoint) = 0;

 protected:
  ~NicDrops() = default;
};

class HostNic {
 public:
  HostNic(const HostNicSettings& settings, PacketArena& arena, attach::FrameBytes& bytes, const AddressMap& map,
          NicDrops& drops);

  /// False: the QPN range is not aligned, not below the multicast QPN, smaller than 2^kRangeLog2 or taken.
  [[nodiscard]] bool attach(NicSeat& seat);
  void detach(Instant now, NicSeat& seat);

  bool join(uint32_t group, NicSeat& seat);
  bool leave(uint32_t group, NicSeat& seat);

  uint32_t collect(Instant now, NicSeat& seat, uint8_t priority, std::span<PacketRef> out);
  void receive(Instant now, PacketRef packet);
  void deliver(Instant now);
  void serve(Instant now, NicSeat& seat);

  /// Whose QPN that is; nullptr: nobody's.
  attach::FramePort* owner(uint32_t qpn) const {
    const NicSeat* const seat = by_range_[qpn >> kRangeLog2 & (by_range_.size() - 1)];
    return seat != nullptr ? seat->port : nullptr;
  }

  uint8_t paused() const { return paused_; }
  Instant next_deadline() const { return deadline_; }
  void on_timer(Instant now);

  void count_drop(DropReason reason) { ++counters_.drops[static_cast<size_t>(reason)]; }
  const NicCounters& counters() const { return counters_; }
  const NicIdentity& identity() const { return settings_.identity; }
  /// Processes that wait for room: the driver watches their receive indices.
  const std::vector<NicSeat*>& blocked() const { return blocked_; }

 private:
  void queue_for(NicSeat& seat, PacketRef packet);
  void fan_out(Instant now, PacketRef packet);
  void drop(Instant now, PacketRef packet, DropReason reason);
  void drop_waiting(Instant now, NicSeat& seat, DropReason reason);
  uint32_t hand_over(NicSeat& seat, uint8_t priority, uint32_t& offered);
  void update_pause(NicSeat& seat, uint8_t priority);
  void set_blocked(Instant now, NicSeat& seat, bool blocked);
  void find_deadline();

  const HostNicSettings settings_;
  PacketArena& arena_;
  attach::FrameBytes& bytes_;
  const AddressMap& map_;
  NicDrops& drops_;
  std::vector<NicSeat*> by_range_;  ///< 2^24 / 2^kRangeLog2 entries
  std::unordered_map<uint32_t, std::vector<NicSeat*>> groups_;  ///< members by group destination
  std::vector<NicSeat*> listed_;
  std::vector<NicSeat*> blocked_;
  std::array<uint32_t, kPriorityCount> pausing_seats_{};
  uint8_t paused_ = 0;
  Instant deadline_ = kNever;
  NicCounters counters_;
};

}  // namespace weft::nic
