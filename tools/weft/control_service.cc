// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/control_service.h"

#include <unistd.h>

#include <cerrno>

namespace weft::tools {
namespace {

// ibv_qp_type and ibv_qp_state, as the attach messages carry them.
std::string qp_type_name(uint32_t type) {
  switch (type) {
    case 2: return "RC";
    case 3: return "UC";
    case 4: return "UD";
    default: return "type-" + std::to_string(type);
  }
}

std::string qp_state_name(uint32_t state) {
  static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state < std::size(kNames) ? kNames[state] : "state-" + std::to_string(state);
}

// ibv_wc_status, without its prefix.
std::string wc_status_name(uint32_t status) {
  static constexpr const char* kNames[] = {
      "SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR",
      "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR"};
  return status < std::size(kNames) ? kNames[status] : "status-" + std::to_string(status);
}

uint32_t mtu_bytes(uint32_t ibv_mtu) { return ibv_mtu >= 1 && ibv_mtu <= 5 ? 128u << ibv_mtu : 0; }

// A list of metrics is told in parts that fit a message.
constexpr int kMetricsPerPart = 4000;

}  // namespace

ControlService::ControlService(Fabric& fabric, Ends ends)
    : fabric_(fabric), ends_(std::move(ends)), started_(std::chrono::steady_clock::now()) {}

ControlService::~ControlService() {
  for (const auto& [session, capture] : captures_) {
    for (const int id : capture.ids) fabric_.plane().stop_capture(id);
  }
}

control::Reply ControlService::handle(const control::Request& request, ControlSession& session) {
  control::Reply reply = new_reply();
  switch (request.body_case()) {
    case control::Request::kVersion:
      fill_version(*reply.mutable_version());
      return reply;
    case control::Request::kShowHosts:
      fill_hosts(*reply.mutable_hosts());
      return reply;
    case control::Request::kShowMetrics:
      return metrics(request.show_metrics(), session);
    case control::Request::kShowQps:
      fill_qps(*reply.mutable_qps());
      return reply;
    case control::Request::kRunReport: {
      const host::RunRecord run = fabric_.attach().run_record(request.run_report().run_id());
      reply.mutable_run_report()->set_attachments(run.attachments);
      reply.mutable_run_report()->set_qps(run.qps);
      reply.mutable_run_report()->set_last_program(run.last_program);
      return reply;
    }
    case control::Request::kCaptureStart:
      return start_capture(request.capture_start(), session);
    case control::Request::kCaptureStop:
      return stop_capture(session);
    case control::Request::kSetPort:
      return set_port(request.set_port());
    case control::Request::kJoinHosts:
      return join_hosts(request.join_hosts());
    case control::Request::kDown:
      reply.mutable_down()->set_pid(getpid());
      ended_by_ = session.id();
      ends_.end_soon();
      return reply;
    case control::Request::BODY_NOT_SET:
      break;
  }
  return error_reply(EOPNOTSUPP, "this daemon does not know that request; it is another version of weft");
}

void ControlService::fill_version(control::VersionReply& reply) const {
  const auto up = std::chrono::steady_clock::now() - started_;
  reply.set_name(fabric_.plan().name);
  reply.set_pid(getpid());
  reply.set_uptime_ms(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(up).count()));
  reply.set_run_folder(fabric_.folder().path);
}

void ControlService::fill_hosts(control::HostList& list) const {
  const host::AddressPlan& addresses = fabric_.addresses();
  list.set_fabric(fabric_.plan().name);
  list.set_switch_name(fabric_.plan().switch_name);
  for (uint32_t h = 0; h < addresses.hosts(); ++h) {
    control::Host* host = list.add_hosts();
    host->set_name(host_name(h));
    host->set_loopback(host::text_of_ipv4(fabric_.loopback_of(h)));
    host->set_attach_socket(fabric_.folder().host_folder(host_name(h)) + "/attach");
    for (uint32_t n = 0; n < addresses.nics(); ++n) {
      const host::NicIdentity id = addresses.nic(h, n);
      control::Nic* nic = host->add_nics();
      nic->set_device(id.device());
      nic->set_netdev(id.netdev());
      nic->set_mac(host::text_of_mac(id.mac));
      nic->set_ipv4(host::text_of_ipv4(id.ipv4));
      nic->set_node_guid(host::text_of_guid(id.guid));
      for (const host::Gid& gid : id.gids) nic->add_gids(host::text_of_gid(gid));
      nic->set_rate_bps(id.rate_bps);
      nic->set_link(fabric_.link_name(h, n));
    }
  }
  uint32_t port = addresses.hosts() * addresses.nics();
  for (const OutsidePlan& plan : fabric_.plan().outside) {
    control::Outside* outside = list.add_outside();
    outside->set_name(plan.name);
    outside->set_kind(outside_kind_name(plan.kind));
    outside->set_device(plan.device);
    outside->set_rate_bps(plan.rate_bps);
    outside->set_port(port++);
  }
  for (const auto& [id, seat] : fabric_.attach().seats()) {
    control::Process* process = list.mutable_hosts(static_cast<int>(seat.host))->add_processes();
    process->set_seat(id);
    process->set_pid(seat.pid);
    process->set_program(seat.program);
    process->set_qpn_base(seat.range << host::kQpnRangeLog2);
    process->set_qps(static_cast<uint32_t>(seat.qps.size()));
  }
}

control::Reply ControlService::set_port(const control::SetPort& request) {
  for (uint32_t h = 0; h < fabric_.addresses().hosts(); ++h) {
    for (uint32_t n = 0; n < fabric_.addresses().nics(); ++n) {
      const bool first = n == 0 && request.place() == host_name(h);
      if (!first && request.place() != host_name(h) + "/" + std::to_string(n)) continue;
      fabric_.set_port(h, n, request.up());
      control::Reply reply = new_reply();
      reply.mutable_set_port();
      return reply;
    }
  }
  return error_reply(ENOENT, "there is no NIC '" + request.place().substr(0, 64) + "'; write h0 or h0/0 for a host's first NIC, h0/1 for its second");
}

control::Reply ControlService::join_hosts(const control::JoinHosts& request) {
  std::vector<uint32_t> hosts;
  for (const std::string& name : request.names()) {
    uint32_t h = 0;
    while (h < fabric_.addresses().hosts() && host_name(h) != name) ++h;
    if (h == fabric_.addresses().hosts()) return error_reply(ENOENT, "there is no host '" + name.substr(0, 64) + "'");
    if (std::find(hosts.begin(), hosts.end(), h) != hosts.end()) return error_reply(EINVAL, "'" + name + "' is named twice");
    hosts.push_back(h);
  }
  if (std::string error = fabric_.join_hosts(hosts); !error.empty()) return error_reply(EINVAL, error);
  control::Reply reply = new_reply();
  reply.mutable_join_hosts();
  return reply;
}

void ControlService::fill_qp(control::Qp& qp, uint32_t host, uint32_t qpn, const host::QpRecord& record) const {
  qp.set_host(host_name(host));
  qp.set_device("rxe" + std::to_string(record.nic));
  qp.set_qpn(qpn);
  qp.set_type(qp_type_name(record.type));
  qp.set_state(qp_state_name(record.state));
  qp.set_peer_qpn(record.peer_qpn);
  qp.set_mtu(mtu_bytes(record.mtu));
  qp.set_errors(record.error.count);
  if (record.error.count != 0) {
    // What the responder refuses has no completion of its own: the peer's has.
    qp.set_last_error(record.error.side == 2 ? "QP_ACCESS_ERR" : wc_status_name(record.error.status));
    qp.set_because(record.error.because);
  }
  if (record.peer_gid == host::Gid{}) return;
  const auto peer = fabric_.addresses().find(record.peer_gid);
  qp.set_peer(peer ? host_name(peer->host) : host::text_of_gid(record.peer_gid));
}

void ControlService::fill_qps(control::QpList& list) const {
  for (const auto& [id, seat] : fabric_.attach().seats()) {
    for (const auto& [qpn, record] : seat.qps) {
      control::Qp* qp = list.add_qps();
      fill_qp(*qp, seat.host, qpn, record);
      qp->set_pid(seat.pid);
      qp->set_program(seat.program);
    }
  }
  for (const host::PastQp& past : fabric_.attach().past_qps()) {
    control::Qp* qp = list.add_qps();
    fill_qp(*qp, past.host, past.qpn, past.qp);
    qp->set_pid(past.pid);
    qp->set_program(past.program);
    qp->set_gone(true);
  }
}

// A list that comes in parts is one look at the counters, kept for its session between them.
control::Reply ControlService::metrics(const control::ShowMetrics& request, ControlSession& session) {
  control::Reply reply = new_reply();
  control::MetricList& list = *reply.mutable_metrics();
  const auto kept = request.skip() == 0 ? looks_.end() : looks_.find(session.id());
  std::vector<MetricSample> samples;
  if (kept != looks_.end()) {
    samples = std::move(kept->second);
  } else {
    samples = fabric_.plane().metrics();
    const host::AttachStatistics& attach = fabric_.attach().statistics();
    samples.push_back({"attach_accepted_total", {}, attach.attached});
    samples.push_back({"attach_refused_total", {}, attach.refused});
    samples.push_back({"attach_dropped_total", {}, attach.dropped});
    samples.push_back({"attach_died_total", {}, attach.died});
  }
  uint32_t position = 0;
  for (const MetricSample& sample : samples) {
    if (sample.name.compare(0, request.prefix().size(), request.prefix()) != 0) continue;
    if (position++ < request.skip()) continue;
    if (list.metrics_size() == kMetricsPerPart) {
      list.set_more(true);
      break;
    }
    control::Metric* metric = list.add_metrics();
    metric->set_name(sample.name);
    metric->set_value(sample.value);
    for (const auto& [key, value] : sample.labels) {
      control::Label* label = metric->add_labels();
      label->set_key(key);
      label->set_value(value);
    }
  }
  looks_.erase(session.id());
  if (list.more()) looks_.emplace(session.id(), std::move(samples));
  return reply;
}

control::Reply ControlService::start_capture(const control::CaptureStart& request, ControlSession& session) {
  if (captures_.count(session.id()) != 0) return error_reply(EBUSY, "this client captures already");
  if (request.places().empty()) return error_reply(EINVAL, "name a host or a link to capture");
  Capture capture;
  std::vector<std::string> places;
  for (const std::string& name : request.places()) {
    for (std::string& place : fabric_.capture_places(name)) places.push_back(std::move(place));
  }
  for (const std::string& place : places) {
    const int id = fabric_.plane().start_capture(place, [this, &session](CapturedFrame&& frame) { on_frame(session, std::move(frame)); });
    if (id >= 0) {
      capture.ids.push_back(id);
      continue;
    }
    for (const int started : capture.ids) fabric_.plane().stop_capture(started);
    return error_reply(ENOENT, "there is no host or link '" + place.substr(0, 64) + "'; weft show links lists them");
  }
  capture.lost_before = frames_lost_by_plane();
  captures_.emplace(session.id(), std::move(capture));
  control::Reply reply = new_reply();
  reply.mutable_capture_started();
  return reply;
}

void ControlService::on_frame(ControlSession& session, CapturedFrame&& frame) {
  const auto it = captures_.find(session.id());
  if (it == captures_.end()) return;
  if (!session.has_room()) {
    ++it->second.lost;
    return;
  }
  control::Reply reply = new_reply();
  control::Frame& message = *reply.mutable_frame();
  message.set_unix_ns(frame.unix_ns);
  message.set_interface(frame.interface);
  message.set_inbound(frame.inbound);
  message.set_data(frame.bytes.data(), frame.bytes.size());
  message.set_comment(frame.comment);
  session.send(reply);
  ++it->second.frames;
}

// Of all captures together: with several at once each is told more than its own.
uint64_t ControlService::frames_lost_by_plane() {
  for (const MetricSample& sample : fabric_.plane().metrics()) {
    if (sample.name == "capture_lost_frames") return sample.value;
  }
  return 0;
}

control::Reply ControlService::stop_capture(ControlSession& session) {
  const auto it = captures_.find(session.id());
  if (it == captures_.end()) return error_reply(ENOENT, "this client captures nothing");
  fabric_.plane().pump();  // what was seen before the stop still belongs to the capture
  for (const int id : it->second.ids) fabric_.plane().stop_capture(id);
  control::Reply reply = new_reply();
  reply.mutable_capture_stopped()->set_frames(it->second.frames);
  reply.mutable_capture_stopped()->set_lost(it->second.lost + frames_lost_by_plane() - it->second.lost_before);
  captures_.erase(it);
  return reply;
}

void ControlService::closed(ControlSession& session) {
  if (session.id() == ended_by_) ends_.end_now();
  looks_.erase(session.id());
  const auto it = captures_.find(session.id());
  if (it == captures_.end()) return;
  for (const int id : it->second.ids) fabric_.plane().stop_capture(id);
  captures_.erase(it);
}

}  // namespace weft::tools
