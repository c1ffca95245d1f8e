// SPDX-License-Identifier: Apache-2.0
//
// One attached process on one NIC, as the data plane keeps it: the daemon's end of its port, its place on the NIC, its
// pipes, and what is known about who drives it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "nic/host/datapath/host_nic.h"
#include "protocols/wire/gid.h"
#include "scenarios/engine/data_plane.h"
#include "switch/dpdk/process_port.h"

namespace weft::engine {

/// Life of a seat: attached, then draining (gone, what it had published is still sent), then without references.
enum class SeatState : uint8_t { kAttached, kDraining };

struct LiveSeat {
  LiveSeat(dpdk::FrameStore& store, const PortSetup& setup_, uint32_t tag_, uint32_t endpoint_)
      : setup(setup_), tag(tag_), endpoint(endpoint_), port(store, setup_.layout, setup_.memory, setup_.notices, tag_) {
    nic_seat.port = &port;
    nic_seat.qpn_base = setup_.qpn_base;
    nic_seat.qpn_log2 = setup_.qpn_log2;
  }
  ~LiveSeat();  ///< unmaps, closes
  LiveSeat(const LiveSeat&) = delete;
  LiveSeat& operator=(const LiveSeat&) = delete;
  /// Refused: the caller keeps what it brought.
  void disown() { setup = PortSetup{}; }

  PortSetup setup;
  const uint32_t tag;       ///< index in the seat table and generation
  const uint32_t endpoint;
  SeatState state = SeatState::kAttached;
  dpdk::ProcessPort port;
  nic::NicSeat nic_seat;
  std::vector<GidBytes> groups;  ///< multicast groups it joined
  bool on_nic = false;
  bool reported = false;    ///< as hostile

  // The driver's.
  bool active = false;      ///< polled in every round
  Instant last_work{};
  uint32_t seen_poll_seq = 0;
  Instant polled_at{};      ///< when poll_seq was last seen moving
  bool delivered = false;   ///< frames were among what was published last

  // The kick policy's.
  uint32_t delivery_poll_seq = 0;
  uint32_t recheck_taken = 0;
  uint32_t recheck_poll_seq = 0;
  bool recheck_slots = false;   ///< slots went back to a process that may wait for them
  Instant recheck_at = kNever;  ///< frames may lie untaken until then
  bool kicked = false;
  uint32_t kicked_taken = 0;
};

}  // namespace weft::engine
