// SPDX-License-Identifier: Apache-2.0
//
// A host's sysfs tree: the files that libibverbs and its users read to find RDMA devices.
//
//   write_sysfs_tree("<run folder>/hosts/h0/sys", nics)
//
// makes <root>/class/infiniband_verbs/{abi_version,uverbsN/…} and <root>/class/infiniband/rxeN/… in the kernel's formats
// (Linux, Documentation/ABI/stable/sysfs-class-infiniband). The GID table has as many files as QUERY_PORT says.
// The directory of a device gets its files here and none later: libibverbs takes its mtime for the device's identity.
//
//   update_counters(root, nic, counters)   rewrites ports/1/counters and hw_counters in place, for readers without libweft;
//                                          others are told the value of the moment (COUNTERS of the attach channel)
//
// Errors: one line for people. Control thread only.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "nic/host/identity.h"
#include "nic/host/sysfs_counters.h"

namespace weft::host {

/// Empty on success, else one line.
std::string write_sysfs_tree(const std::string& root, const std::string& host_name, std::span<const NicIdentity> nics);
std::string update_counters(const std::string& root, const NicIdentity& nic, const PortCounters& counters);

std::string update_port_state(const std::string& root, const NicIdentity& nic, bool up);

/// "100 Gb/sec (4X EDR)"; the nearest InfiniBand speed not below the rate.
std::string text_of_rate(uint64_t rate_bps);

}  // namespace weft::host
