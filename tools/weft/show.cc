// SPDX-License-Identifier: Apache-2.0
//
// `weft show`: what the daemon knows, as tables or JSON.
#include <cstdio>

#include "tools/weft/commands.h"
#include "tools/weft/control_client.h"
#include "tools/weft/show_traffic.h"
#include "tools/weft/text_output.h"

namespace weft::tools {
namespace {

void put(const std::string& text) { std::fputs(text.c_str(), stdout); }

std::string processes_of(const control::Host& host) {
  std::string text;
  for (const control::Process& p : host.processes()) {
    text += (text.empty() ? "" : ", ") + p.program() + " (" + std::to_string(p.pid()) + ", " + std::to_string(p.qps()) +
            (p.qps() == 1 ? " QP)" : " QPs)");
  }
  return text.empty() ? "-" : text;
}

void print_hosts(const control::HostList& list) {
  Table table({"HOST", "DEVICE", "ADDRESS", "MAC", "LINK", "RATE", "TCP", "PROGRAMS"});
  for (const control::Host& host : list.hosts()) {
    bool first = true;
    for (const control::Nic& nic : host.nics()) {
      table.row({host.name(), nic.device(), nic.ipv4(), nic.mac(), nic.link(), text_of_bits(nic.rate_bps()), host.loopback(),
                 first ? processes_of(host) : ""});
      first = false;
    }
  }
  put(table.text());
}

void print_hosts_json(const control::HostList& list) {
  JsonWriter json;
  json.begin_object();
  json.member("fabric", std::string_view(list.fabric()));
  json.member("switch", std::string_view(list.switch_name()));
  json.key("hosts");
  json.begin_array();
  for (const control::Host& host : list.hosts()) {
    json.begin_object();
    json.member("name", std::string_view(host.name()));
    json.member("loopback", std::string_view(host.loopback()));
    json.member("attach_socket", std::string_view(host.attach_socket()));
    json.key("nics");
    json.begin_array();
    for (const control::Nic& nic : host.nics()) {
      json.begin_object();
      json.member("device", std::string_view(nic.device()));
      json.member("netdev", std::string_view(nic.netdev()));
      json.member("mac", std::string_view(nic.mac()));
      json.member("ipv4", std::string_view(nic.ipv4()));
      json.member("node_guid", std::string_view(nic.node_guid()));
      json.key("gids");
      json.begin_array();
      for (const std::string& gid : nic.gids()) json.value(std::string_view(gid));
      json.end_array();
      json.member("rate_bps", static_cast<uint64_t>(nic.rate_bps()));
      json.member("link", std::string_view(nic.link()));
      json.end_object();
    }
    json.end_array();
    json.key("processes");
    json.begin_array();
    for (const control::Process& p : host.processes()) {
      json.begin_object();
      json.member("seat", static_cast<uint64_t>(p.seat()));
      json.member("pid", static_cast<int64_t>(p.pid()));
      json.member("program", std::string_view(p.program()));
      json.member("qpn_base", static_cast<uint64_t>(p.qpn_base()));
      json.member("qps", static_cast<uint64_t>(p.qps()));
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.end_object();
  put(json.text());
}

void print_qps(const control::QpList& list) {
  Table table({"HOST", "DEVICE", "QPN", "TYPE", "STATE", "PEER", "PEER QPN", "MTU", "PROGRAM"});
  for (const control::Qp& qp : list.qps()) {
    table.row({qp.host(), qp.device(), std::to_string(qp.qpn()), qp.type(), qp.gone() ? "gone" : qp.state(), qp.peer().empty() ? "-" : qp.peer(),
               std::to_string(qp.peer_qpn()), qp.mtu() == 0 ? "-" : std::to_string(qp.mtu()), qp.program() + " (" + std::to_string(qp.pid()) + ")"});
  }
  put(table.text());
  for (const control::Qp& qp : list.qps()) {
    if (qp.errors() == 0) continue;
    put("QP " + std::to_string(qp.qpn()) + " of " + qp.host() + ": " + qp.last_error() +
        (qp.because().empty() ? "" : ": " + qp.because()) +
        (qp.errors() > 1 ? " (the last of " + std::to_string(qp.errors()) + " errors)" : "") + "\n");
  }
}

void print_qps_json(const control::QpList& list) {
  JsonWriter json;
  json.begin_array();
  for (const control::Qp& qp : list.qps()) {
    json.begin_object();
    json.member("host", std::string_view(qp.host()));
    json.member("device", std::string_view(qp.device()));
    json.member("qpn", static_cast<uint64_t>(qp.qpn()));
    json.member("type", std::string_view(qp.type()));
    json.member("state", std::string_view(qp.state()));
    json.member("peer", std::string_view(qp.peer()));
    json.member("peer_qpn", static_cast<uint64_t>(qp.peer_qpn()));
    json.member("mtu", static_cast<uint64_t>(qp.mtu()));
    json.member("pid", static_cast<int64_t>(qp.pid()));
    json.member("program", std::string_view(qp.program()));
    json.member("gone", qp.gone());
    json.member("errors", static_cast<uint64_t>(qp.errors()));
    json.member("last_error", std::string_view(qp.last_error()));
    json.member("because", std::string_view(qp.because()));
    json.end_object();
  }
  json.end_array();
  put(json.text());
}

std::string labels_of(const control::Metric& metric) {
  std::string text;
  for (const control::Label& label : metric.labels()) {
    text += (text.empty() ? "" : ",") + label.key() + "=" + json_quoted(label.value());
  }
  return text.empty() ? text : "{" + text + "}";
}

void print_metrics(const control::MetricList& list) {
  for (const control::Metric& metric : list.metrics()) {
    put(metric.name() + labels_of(metric) + " " + std::to_string(metric.value()) + "\n");
  }
}

void print_metrics_json(const control::MetricList& list) {
  JsonWriter json;
  json.begin_array();
  for (const control::Metric& metric : list.metrics()) {
    json.begin_object();
    json.member("name", std::string_view(metric.name()));
    json.key("labels");
    json.begin_object();
    for (const control::Label& label : metric.labels()) json.member(label.key(), std::string_view(label.value()));
    json.end_object();
    json.member("value", static_cast<uint64_t>(metric.value()));
    json.end_object();
  }
  json.end_array();
  put(json.text());
}

int show_metrics(ControlClient& client, bool json) {
  Outcome<control::MetricList> list = all_metrics(client);
  if (!list) return complain(list.error());
  json ? print_metrics_json(*list) : print_metrics(*list);
  return 0;
}

}  // namespace

int command_show(const ParsedLine& line) {
  Outcome<RunFolder> folder = find_run_folder(line.name);
  if (!folder) return complain(folder.error());
  auto client = ControlClient::connect(*folder);
  if (!client) return complain(client.error());
  if (line.what == "metrics") return show_metrics(**client, line.json);
  control::Request request;
  if (line.what == "hosts") {
    request.mutable_show_hosts();
  } else if (line.what == "qps") {
    request.mutable_show_qps();
  } else {
    return show_traffic(**client, line.what == "ports", line.json);
  }
  Outcome<control::Reply> reply = (*client)->call(request);
  if (!reply) return complain(reply.error());
  if (line.what == "hosts") {
    line.json ? print_hosts_json(reply->hosts()) : print_hosts(reply->hosts());
  } else {
    line.json ? print_qps_json(reply->qps()) : print_qps(reply->qps());
  }
  return 0;
}

}  // namespace weft::tools
