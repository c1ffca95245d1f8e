// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/show_traffic.h"

#include <cstdio>
#include <map>

#include "tools/weft/commands.h"
#include "tools/weft/text_output.h"

namespace weft::tools {
namespace {

std::string label_of(const control::Metric& metric, const std::string& key) {
  for (const control::Label& label : metric.labels()) {
    if (label.key() == key) return label.value();
  }
  return {};
}

/// Rows in the order in which they were first named.
class Rows {
 public:
  TrafficRow& at(const std::string& name) {
    const auto [it, is_new] = index_.try_emplace(name, rows_.size());
    if (is_new) rows_.emplace_back().name = name;
    return rows_[it->second];
  }
  std::vector<TrafficRow> take() { return std::move(rows_); }

 private:
  std::map<std::string, size_t> index_;
  std::vector<TrafficRow> rows_;
};

struct Column {
  const char* metric;
  uint64_t TrafficRow::*value;
};

constexpr Column kPortColumns[] = {{"switch_rx_packets", &TrafficRow::rx_packets},   {"switch_rx_bytes", &TrafficRow::rx_bytes},
                                   {"switch_tx_packets", &TrafficRow::tx_packets},   {"switch_tx_bytes", &TrafficRow::tx_bytes},
                                   {"switch_queue_bytes", &TrafficRow::queue_bytes}, {"switch_queue_max_bytes", &TrafficRow::queue_max_bytes},
                                   {"switch_paused", &TrafficRow::pauses},           {"switch_drops", &TrafficRow::drops},
                                   {"outside_drops", &TrafficRow::drops}};
constexpr Column kLinkColumns[] = {{"link_packets", &TrafficRow::tx_packets},
                                   {"link_bytes", &TrafficRow::tx_bytes},
                                   {"link_drops", &TrafficRow::drops}};

void print_json(const std::vector<TrafficRow>& rows, bool ports) {
  JsonWriter json;
  json.begin_array();
  for (const TrafficRow& row : rows) {
    json.begin_object();
    json.member("name", std::string_view(row.name));
    if (ports) {
      json.member("peer", std::string_view(row.peer));
      json.member("rx_packets", row.rx_packets);
      json.member("rx_bytes", row.rx_bytes);
      json.member("tx_packets", row.tx_packets);
      json.member("tx_bytes", row.tx_bytes);
      json.member("queue_bytes", row.queue_bytes);
      json.member("queue_max_bytes", row.queue_max_bytes);
      json.member("pauses", row.pauses);
    } else {
      json.member("packets", row.tx_packets);
      json.member("bytes", row.tx_bytes);
    }
    json.member("drops", row.drops);
    json.end_object();
  }
  json.end_array();
  std::fputs(json.text().c_str(), stdout);
}

}  // namespace

Outcome<control::MetricList> all_metrics(ControlClient& client) {
  control::MetricList all;
  for (;;) {
    control::Request request;
    request.mutable_show_metrics()->set_skip(static_cast<uint32_t>(all.metrics_size()));
    Outcome<control::Reply> reply = client.call(request);
    if (!reply) return Failure{reply.error()};
    all.MergeFrom(reply->metrics());
    if (!reply->metrics().more()) return all;
  }
}

std::vector<TrafficRow> ports_of(const control::MetricList& metrics, const control::HostList& hosts) {
  Rows rows;
  // Ports are numbered as the hosts' NICs are built: host by host, NIC by NIC.
  int number = 0;
  for (const control::Host& host : hosts.hosts()) {
    for (const control::Nic& nic : host.nics()) {
      rows.at(hosts.switch_name() + "/" + std::to_string(number++)).peer = host.name() + " " + nic.device();
    }
  }
  for (const control::Outside& outside : hosts.outside()) {
    rows.at(hosts.switch_name() + "/" + std::to_string(outside.port())).peer =
        outside.name() + " " + outside.kind() + " " + outside.device();
  }
  for (const control::Metric& metric : metrics.metrics()) {
    for (const Column& column : kPortColumns) {
      if (metric.name() == column.metric) rows.at(label_of(metric, "switch") + "/" + label_of(metric, "port")).*column.value += metric.value();
    }
  }
  return rows.take();
}

std::vector<TrafficRow> links_of(const control::MetricList& metrics) {
  Rows rows;
  for (const control::Metric& metric : metrics.metrics()) {
    for (const Column& column : kLinkColumns) {
      if (metric.name() == column.metric) rows.at(label_of(metric, "link")).*column.value += metric.value();
    }
  }
  return rows.take();
}

std::string ports_table(const std::vector<TrafficRow>& ports) {
  Table table({"PORT", "PEER", "RX PACKETS", "RX BYTES", "TX PACKETS", "TX BYTES", "QUEUED", "MAX QUEUED", "PAUSES", "DROPS"});
  for (const TrafficRow& p : ports) {
    table.row({p.name, p.peer, std::to_string(p.rx_packets), std::to_string(p.rx_bytes), std::to_string(p.tx_packets),
               std::to_string(p.tx_bytes), std::to_string(p.queue_bytes), std::to_string(p.queue_max_bytes),
               std::to_string(p.pauses), std::to_string(p.drops)});
  }
  return table.text();
}

std::string links_table(const std::vector<TrafficRow>& links) {
  Table table({"LINK", "PACKETS", "BYTES", "DROPS"});
  for (const TrafficRow& l : links) {
    table.row({l.name, std::to_string(l.tx_packets), std::to_string(l.tx_bytes), std::to_string(l.drops)});
  }
  return table.text();
}

int show_traffic(ControlClient& client, bool ports, bool json) {
  control::Request request;
  request.mutable_show_hosts();
  Outcome<control::Reply> hosts = client.call(request);
  if (!hosts) return complain(hosts.error());
  Outcome<control::MetricList> metrics = all_metrics(client);
  if (!metrics) return complain(metrics.error());
  const std::vector<TrafficRow> rows = ports ? ports_of(*metrics, hosts->hosts()) : links_of(*metrics);
  if (json) {
    print_json(rows, ports);
  } else {
    std::fputs((ports ? ports_table(rows) : links_table(rows)).c_str(), stdout);
  }
  return 0;
}

}  // namespace weft::tools
