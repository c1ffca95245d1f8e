// SPDX-License-Identifier: Apache-2.0
//
// A running fabric inside the daemon: data plane, hosts' identities, sysfs trees and attach server, without the event loop.
//
//   auto fabric = Fabric::start(name, settings, folder, log);      one line when it cannot
//   poll (*fabric)->attach().event_fd()  ->  attach().on_ready(now)
//   poll (*fabric)->plane().event_fd()   ->  plane().pump()
//
// Control thread only. The destructor ends every channel, then the data plane.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "nic/host/attach_server.h"
#include "nic/host/identity.h"
#include "nic/host/machine_tree.h"
#include "scenarios/engine/data_plane.h"
#include "tools/weft/loopback_claim.h"
#include "tools/weft/options.h"
#include "tools/weft/run_folder.h"

namespace weft::tools {

using LogLine = std::function<void(const std::string&)>;

FabricPlan plan_of(const std::string& name, const FabricSettings& settings, const std::string& run_folder);
std::string host_name(uint32_t host);

class Fabric {
 public:
  static Outcome<std::unique_ptr<Fabric>> start(const std::string& name, const FabricSettings& settings,
                                                const RunFolder& folder, LogLine log);
  ~Fabric();

  const FabricPlan& plan() const { return plan_; }
  const host::AddressPlan& addresses() const { return addresses_; }
  const RunFolder& folder() const { return folder_; }
  DataPlane& plane() { return *plane_; }
  host::AttachServer& attach() { return *attach_; }

  /// Makes what a program reads that acts for several hosts: the folder "hosts/h0,h1". Empty or one line.
  std::string join_hosts(const std::vector<uint32_t>& hosts) const;

  /// Where on loopback a host's TCP and UDP are.
  uint32_t loopback_of(uint32_t host) const { return host::loopback_address(loopback_.number(), host); }

  /// "h0-s0", the link of a host's first NIC; "h0/1-s0" that of its second.
  std::string link_name(uint32_t host, uint32_t nic) const;
  /// The link directions that the name of a link stands for ("h0-s0": "h0->s0" and "s0->h0"); any other name for itself.
  std::vector<std::string> capture_places(const std::string& name) const;

  /// The port of a NIC goes down, frames on its link are lost and its programs are told; or it comes up again.
  void set_port(uint32_t host, uint32_t nic, bool up);

  /// Hosts whose processes left have their sysfs counters written anew. Call it when the loop has time.
  void refresh_counters();
  bool counters_are_stale() const { return !stale_hosts_.empty(); }

 private:
  class Sink;
  Fabric(const FabricSettings& settings, const RunFolder& folder, FabricPlan plan);
  std::string write_folder() const;
  std::string open_sockets(const FabricSettings& settings, const LogLine& log);

  RunFolder folder_;
  FabricPlan plan_;
  host::AddressPlan addresses_;
  LoopbackClaim loopback_;
  std::unique_ptr<DataPlane> plane_;
  std::unique_ptr<Sink> sink_;
  std::unique_ptr<host::AttachServer> attach_;
  std::set<uint32_t> stale_hosts_;
};

}  // namespace weft::tools
