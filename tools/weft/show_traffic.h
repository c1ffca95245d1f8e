// SPDX-License-Identifier: Apache-2.0
//
// Counters of ports and links, summed over priorities and reasons, from the metrics of a running fabric.
//
//   Outcome<control::MetricList> all = all_metrics(client);
//   std::vector<TrafficRow> ports = ports_of(*all, hosts);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/weft/control_client.h"

namespace weft::tools {

struct TrafficRow {
  std::string name;  ///< "s0/0", "h0->s0"
  std::string peer;  ///< what is at the other end of a port
  uint64_t rx_packets = 0;
  uint64_t rx_bytes = 0;
  uint64_t tx_packets = 0;  ///< of a link: what crossed it
  uint64_t tx_bytes = 0;
  uint64_t queue_bytes = 0;
  uint64_t queue_max_bytes = 0;
  uint64_t pauses = 0;
  uint64_t drops = 0;
};

/// A long list comes in parts; this is all of it.
Outcome<control::MetricList> all_metrics(ControlClient& client);

std::vector<TrafficRow> ports_of(const control::MetricList& metrics, const control::HostList& hosts);
std::vector<TrafficRow> links_of(const control::MetricList& metrics);

std::string ports_table(const std::vector<TrafficRow>& ports);
std::string links_table(const std::vector<TrafficRow>& links);

/// `weft show ports` and `weft show links`.
int show_traffic(ControlClient& client, bool ports, bool json);

}  // namespace weft::tools
