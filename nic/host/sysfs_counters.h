// SPDX-License-Identifier: Apache-2.0
//
// The files of ports/1/counters and ports/1/hw_counters, and what they say.
//
//   port_counter(CounterFolder::kHw, "sent_pkts", counters)    nothing: there is no such file
//   for_each_port_counter(counters, [](CounterFolder, const char* name, uint64_t value) {…})
//
// Names: Linux, Documentation/ABI/stable/sysfs-class-infiniband; of hw_counters those of soft-RoCE and of mlx5.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "protocols/base/metrics.h"

namespace weft::host {

struct PortCounters {
  uint64_t tx_bytes = 0;
  uint64_t rx_bytes = 0;
  uint64_t tx_packets = 0;
  uint64_t rx_packets = 0;
  uint64_t tx_multicast = 0;  ///< packets; part of tx_packets
  uint64_t rx_multicast = 0;
  uint64_t rx_errors = 0;     ///< failed their ICRC
  uint64_t tx_discards = 0;
  uint64_t link_downed = 0;
  std::array<uint64_t, kNicCounters> transport{};  ///< by NicCounter
};

enum class CounterFolder : uint32_t { kPort = 0, kHw = 1 };

template <typename Visit>
void for_each_port_counter(const PortCounters& c, Visit visit) {
  // Data counters count words of 4 octets: IBTA Vol 1, 16.1.3.5, PortXmitData.
  visit(CounterFolder::kPort, "port_xmit_data", c.tx_bytes / 4);
  visit(CounterFolder::kPort, "port_rcv_data", c.rx_bytes / 4);
  visit(CounterFolder::kPort, "port_xmit_packets", c.tx_packets);
  visit(CounterFolder::kPort, "port_rcv_packets", c.rx_packets);
  visit(CounterFolder::kPort, "unicast_xmit_packets", c.tx_packets - c.tx_multicast);
  visit(CounterFolder::kPort, "unicast_rcv_packets", c.rx_packets - c.rx_multicast);
  visit(CounterFolder::kPort, "multicast_xmit_packets", c.tx_multicast);
  visit(CounterFolder::kPort, "multicast_rcv_packets", c.rx_multicast);
  visit(CounterFolder::kPort, "port_rcv_errors", c.rx_errors);
  visit(CounterFolder::kPort, "port_xmit_discards", c.tx_discards);
  visit(CounterFolder::kPort, "link_downed", c.link_downed);
  for (const char* never : {"symbol_error", "link_error_recovery", "port_rcv_remote_physical_errors",
                            "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_rcv_constraint_errors",
                            "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped",
                            "port_xmit_wait"}) {
    visit(CounterFolder::kPort, never, uint64_t{0});
  }
  for (uint32_t i = 0; i < kNicCounters; ++i) {
    for (const char* file : nic_counter_info(static_cast<NicCounter>(i)).files) {
      if (file != nullptr) visit(CounterFolder::kHw, file, c.transport[i]);
    }
  }
  visit(CounterFolder::kHw, "rx_icrc_encapsulated", c.rx_errors);
  visit(CounterFolder::kHw, "link_downed", c.link_downed);
  // What soft-RoCE counts of its own workings and we have nothing like.
  visit(CounterFolder::kHw, "ack_deferred", uint64_t{0});
  visit(CounterFolder::kHw, "send_err", uint64_t{0});
}

inline std::optional<uint64_t> port_counter(CounterFolder folder, std::string_view name, const PortCounters& counters) {
  std::optional<uint64_t> found;
  for_each_port_counter(counters, [&](CounterFolder f, const char* n, uint64_t value) {
    if (f == folder && name == n) found = value;
  });
  return found;
}

}  // namespace weft::host
