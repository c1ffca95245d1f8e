// SPDX-License-Identifier: Apache-2.0
//
// The live data plane as the control plane sees it: build a fabric, attach ports, read counters, watch. Implementation:
// one DPDK lcore thread that owns switches, links and host NICs; every call here is made from the control thread, is
// passed over a lock-free queue and answered when the data plane has done it (bounded: it never sleeps on a command).
//
//   auto plane = start_data_plane(plan, error);      // nullptr and one line when it cannot
//   plane->attach_port(setup);                        // a process; its descriptors and mappings are ours from now on
//   poll(plane->event_fd()) -> plane->pump();         // captured frames, hostile ports
//
// Threads: one control thread at a time. DPDK starts once per process; several planes after (or beside) each other are
// fine and share its memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocols/attach/port_layout.h"
#include "protocols/base/metrics.h"
#include "protocols/base/random.h"
#include "protocols/base/time.h"
#include "scenarios/engine/outside_plan.h"

namespace weft {

using HostIndex = uint32_t;
using SeatId = uint32_t;

struct NicPlan {
  std::array<uint8_t, 6> mac{};
  uint32_t ipv4 = 0;  ///< host order
  uint64_t rate_bps = 100'000'000'000;
};
struct HostPlan {
  std::string name;
  std::vector<NicPlan> nics;
};
/// What `weft up` without a file builds: one switch s0, every NIC on a port of it. Later schema-driven.
struct FabricPlan {
  std::string name;
  std::vector<HostPlan> hosts;
  std::string switch_name = "s0";
  uint64_t seed = 1;
  Duration link_delay = Duration::zero();
  Probability drop;          ///< the seeded drop stage on every link direction
  bool force_icrc = false;   ///< compute and verify the ICRC on every hop
  Duration stall_time = milliseconds(500);  ///< a stopped process may hold its host up for so long
  std::string run_folder;    ///< for EAL's runtime directory
  std::vector<OutsidePlan> outside;  ///< ports behind those of the hosts
};

/// Everything the data plane needs of one process's port. Descriptors and mappings become the data plane's.
struct PortSetup {
  HostIndex host = 0;
  uint32_t nic = 0;
  SeatId seat = 0;
  uint32_t qpn_base = 0;
  uint32_t qpn_log2 = 14;
  attach::PortLayout layout{};
  uint8_t* memory = nullptr;          ///< mapped port memfd (shared, read-write)
  attach::NoticeRing* notices = nullptr;  ///< mapped notice memfd (shared, read-write here)
  int kick_read = -1;   ///< end of the pipe that the process writes
  int kick_write = -1;  ///< end of the pipe that wakes the process; O_NONBLOCK
};

/// One metric sample; names and labels in the registry's vocabulary (DECISIONS 31).
struct MetricSample {
  std::string name;
  std::vector<std::pair<std::string, std::string>> labels;
  uint64_t value = 0;
};

/// What one NIC has done since the fabric came up.
struct NicTotals {
  uint64_t tx_packets = 0;
  uint64_t tx_bytes = 0;
  uint64_t rx_packets = 0;
  uint64_t rx_bytes = 0;
  uint64_t tx_multicast = 0;  ///< packets; part of tx_packets
  uint64_t rx_multicast = 0;
  uint64_t refused = 0;       ///< frames of its processes that it would not send
  uint64_t bad_icrc = 0;
  std::array<uint64_t, kNicCounters> transport{};  ///< of its processes, the gone ones included, by NicCounter
};

/// A frame seen by a capture, with Ethernet header through ICRC.
struct CapturedFrame {
  uint64_t unix_ns = 0;
  std::string interface;  ///< "h0->s0"
  bool inbound = false;
  std::vector<uint8_t> bytes;
  std::string comment;
};

class DataPlane {
 public:
  virtual ~DataPlane() = default;
  virtual const attach::StatusPage* status() const = 0;
  virtual int status_memfd() const = 0;  ///< to be passed read-only to clients
  /// 0, or errno and everything stays the caller's: EINVAL no such host or NIC, seat attached already or bad geometry;
  /// EADDRINUSE the QPN range is not free.
  virtual int attach_port(const PortSetup& setup) = 0;
  /// What it had published is still sent. died: its peers are told (NoticeReason::kPeerDied). Unknown seats are ignored,
  /// so a port that was shut as hostile may be detached once more.
  virtual void detach_port(SeatId seat, uint32_t nic, bool died) = 0;
  /// The port gets the frames of that multicast group from now on, or no more. 0, EINVAL (no group address, or leaving one
  /// it is not in), ENOMEM (too many groups), ENOENT (no such port). A port that is detached leaves its groups.
  virtual int set_member(SeatId seat, uint32_t nic, const std::array<uint8_t, 16>& group, bool join) = 0;
  /// The link of that NIC, both ways: down loses every frame on it. False: no such NIC.
  virtual bool set_link(HostIndex host, uint32_t nic, bool up) = 0;
  /// Asks the outside who has an address that is not of the fabric. 0: on_resolved will be called with the token; else
  /// errno at once (ETIMEDOUT: there is no outside).
  virtual int resolve(uint64_t token, HostIndex host, uint32_t nic, const std::array<uint8_t, 16>& gid) = 0;
  virtual std::vector<MetricSample> metrics() = 0;
  /// All zero for a NIC that does not exist.
  virtual NicTotals nic_totals(HostIndex host, uint32_t nic) = 0;
  /// Frames crossing the links of `place` go to the sink, called on the control thread from pump(). A host's name: all its
  /// links, both ways. "h0->s0" or "s0->h0" (NIC k > 0: "h0/k->s0"): that direction. The switch's name: every link.
  /// Returns the capture's id (> 0), or -ENOENT. Frames that were lost by a slow reader: metric capture_lost_frames.
  virtual int start_capture(const std::string& place, std::function<void(CapturedFrame&&)> sink) = 0;
  virtual void stop_capture(int id) = 0;
  /// Becomes readable when pump() has something (captures, hostile ports, resolved addresses).
  virtual int event_fd() const = 0;
  virtual void pump() = 0;
  /// Called from pump(): a port broke the rules and was shut; the reason is one line.
  std::function<void(SeatId, uint32_t nic, const std::string& reason)> on_hostile_port;
  /// Called from pump(). error: 0, or errno such as ETIMEDOUT: nobody answered.
  std::function<void(uint64_t token, int error, const std::array<uint8_t, 6>& mac)> on_resolved;
};

/// Starts EAL (no hugepages, no PCI, no root), builds the fabric and runs its thread. Error: one line for people.
std::unique_ptr<DataPlane> start_data_plane(const FabricPlan& plan, std::string& error);

}  // namespace weft
