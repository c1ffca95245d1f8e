// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/fabric.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "nic/host/sysfs_tree.h"
#include "tools/weft/process_setup.h"
#include "tools/weft/units.h"

namespace weft::tools {

/// The attach server's view of the data plane.
class Fabric::Sink : public host::PortSink {
 public:
  explicit Sink(DataPlane& plane) : plane_(plane) {}

  int attach(const host::SeatPort& port) override {
    PortSetup setup;
    setup.host = port.host;
    setup.nic = port.nic;
    setup.seat = port.seat;
    setup.qpn_base = port.qpn_base;
    setup.qpn_log2 = port.qpn_log2;
    setup.layout = port.layout;
    setup.memory = port.memory;
    setup.notices = port.notices;
    setup.kick_read = port.kick_read;
    setup.kick_write = port.kick_write;
    return plane_.attach_port(setup);
  }
  void detach(host::SeatId seat, uint32_t nic, bool died) override { plane_.detach_port(seat, nic, died); }
  int set_member(host::SeatId seat, uint32_t nic, const host::Gid& group, bool join) override {
    return plane_.set_member(seat, nic, group, join);
  }
  host::PortCounters counters(uint32_t host, uint32_t nic) override {
    const NicTotals totals = plane_.nic_totals(host, nic);
    host::PortCounters c;
    c.tx_bytes = totals.tx_bytes;
    c.rx_bytes = totals.rx_bytes;
    c.tx_packets = totals.tx_packets;
    c.rx_packets = totals.rx_packets;
    c.tx_multicast = totals.tx_multicast;
    c.rx_multicast = totals.rx_multicast;
    c.rx_errors = totals.bad_icrc;
    c.tx_discards = totals.refused;
    c.transport = totals.transport;
    if (const auto port = ports_.find({host, nic}); port != ports_.end()) c.link_downed = port->second.downs;
    return c;
  }
  /// False: it is so already.
  bool set_port(uint32_t host, uint32_t nic, bool up) {
    Port& port = ports_[{host, nic}];
    if (port.up == up) return false;
    port.up = up;
    if (!up) ++port.downs;
    return true;
  }
  int resolve(uint64_t token, uint32_t host, uint32_t nic, const host::Gid& gid) override {
    return plane_.resolve(token, host, nic, gid);
  }
  int status_memfd() const override { return plane_.status_memfd(); }

 private:
  struct Port {
    bool up = true;
    uint64_t downs = 0;
  };
  DataPlane& plane_;
  std::map<std::pair<uint32_t, uint32_t>, Port> ports_;  ///< those that were ever set
};

std::string host_name(uint32_t host) { return "h" + std::to_string(host); }

FabricPlan plan_of(const std::string& name, const FabricSettings& settings, const std::string& run_folder) {
  FabricPlan plan;
  plan.name = name;
  plan.seed = settings.seed;
  plan.drop = parse_probability(settings.drop).value_or(Probability{});
  plan.force_icrc = settings.force_icrc;
  plan.run_folder = run_folder;
  plan.outside = settings.outside;
  const host::AddressPlan addresses(settings.hosts, settings.nics, settings.gid_holes, settings.first_host);
  for (uint32_t h = 0; h < settings.hosts; ++h) {
    HostPlan host_plan;
    host_plan.name = host_name(h);
    for (uint32_t n = 0; n < settings.nics; ++n) {
      const host::NicIdentity id = addresses.nic(h, n);
      host_plan.nics.push_back(NicPlan{id.mac, id.ipv4, id.rate_bps});
    }
    plan.hosts.push_back(std::move(host_plan));
  }
  return plan;
}

Fabric::Fabric(const FabricSettings& settings, const RunFolder& folder, FabricPlan plan)
    : folder_(folder), plan_(std::move(plan)), addresses_(settings.hosts, settings.nics, settings.gid_holes, settings.first_host) {}

// Channels end before the data plane that they feed.
Fabric::~Fabric() {
  attach_.reset();
  sink_.reset();
  plane_.reset();
}

Outcome<std::unique_ptr<Fabric>> Fabric::start(const std::string& name, const FabricSettings& settings,
                                               const RunFolder& folder, LogLine log) {
  std::unique_ptr<Fabric> fabric(new Fabric(settings, folder, plan_of(name, settings, folder.path)));
  std::string error = settings.shared_tcp ? std::string() : fabric->loopback_.take();
  if (!error.empty()) return Failure{error};
  error = fabric->write_folder();
  if (!error.empty()) return Failure{error};
  fabric->plane_ = start_data_plane(fabric->plan_, error);
  if (fabric->plane_ == nullptr) return Failure{error.empty() ? std::string("the data plane did not start") : error};
  fabric->sink_ = std::make_unique<Sink>(*fabric->plane_);
  error = fabric->open_sockets(settings, log);
  if (!error.empty()) return Failure{error};
  return fabric;
}

std::string Fabric::write_folder() const {
  std::string map;
  if (mkdir(folder_.file("hosts").c_str(), 0700) != 0) return "cannot make " + folder_.file("hosts") + ": " + error_text(errno);
  for (uint32_t h = 0; h < addresses_.hosts(); ++h) {
    std::vector<host::NicIdentity> nics;
    for (uint32_t n = 0; n < addresses_.nics(); ++n) nics.push_back(addresses_.nic(h, n));
    const std::string path = folder_.host_folder(host_name(h));
    if (mkdir(path.c_str(), 0700) != 0) return "cannot make " + path + ": " + error_text(errno);
    std::string error = host::write_sysfs_tree(path + "/sys", host_name(h), nics);
    if (!error.empty()) return error;
    host::MachineIdentity machine{host_name(h), h, addresses_.hosts(), addresses_.nics(), loopback_.number(), {}};
    if (getrandom(machine.entropy.data(), machine.entropy.size(), 0) < 0) return "no random numbers: " + error_text(errno);
    error = host::write_machine_tree(path, machine, nics);
    if (!error.empty()) return error;
    map += host_name(h) + " " + host::text_of_ipv4(nics[0].ipv4) + " " + host::text_of_ipv4(loopback_of(h)) + "\n";
  }
  return write_file(folder_.file("hosts.map"), map);
}

// As the first of them the program knows itself; the NICs are those of all, numbered through.
std::string Fabric::join_hosts(const std::vector<uint32_t>& hosts) const {
  if (hosts.empty() || hosts.size() * addresses_.nics() > host::kMaxNics) {
    return "one program drives at most " + std::to_string(host::kMaxNics) + " NICs";
  }
  std::string name;
  std::string lines;
  std::vector<host::NicIdentity> nics;
  for (const uint32_t h : hosts) {
    name += (name.empty() ? "" : ",") + host_name(h);
    for (uint32_t n = 0; n < addresses_.nics(); ++n) {
      host::NicIdentity nic = addresses_.nic(h, n);
      nic.nic = static_cast<uint32_t>(nics.size());
      nics.push_back(nic);
      lines += host_name(h) + " " + std::to_string(n) + "\n";
    }
  }
  const std::string path = folder_.host_folder(name);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return "cannot make " + path + ": " + error_text(errno);
  std::string error = host::write_sysfs_tree(path + "/sys", host_name(hosts[0]), nics);
  host::MachineIdentity machine{host_name(hosts[0]), hosts[0], addresses_.hosts(), addresses_.nics(), loopback_.number(), {}};
  if (error.empty()) error = host::write_machine_tree(path, machine, nics);
  constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";
  if (error.empty()) error = write_file(path + kBootId, read_file(folder_.host_folder(host_name(hosts[0])) + kBootId));
  return error.empty() ? write_file(path + "/nics", lines) : error;
}

std::string Fabric::open_sockets(const FabricSettings& settings, const LogLine& log) {
  host::AttachSettings attach_settings;
  attach_settings.owner_uid = geteuid();
  attach_settings.strict_timers = settings.strict_timers;
  attach_settings.log = log;
  attach_settings.left = [this](uint32_t host) { stale_hosts_.insert(host); };
  attach_ = std::make_unique<host::AttachServer>(addresses_, *sink_, attach_settings);
  for (uint32_t h = 0; h < addresses_.hosts(); ++h) {
    std::string error = attach_->listen(h, host_name(h), folder_.host_folder(host_name(h)) + "/attach");
    if (!error.empty()) return error;
  }
  return {};
}

void Fabric::set_port(uint32_t host, uint32_t nic, bool up) {
  if (!sink_->set_port(host, nic, up)) return;
  plane_->set_link(host, nic, up);
  // First the files: who is told looks there.
  (void)host::update_port_state(folder_.host_folder(host_name(host)) + "/sys", addresses_.nic(host, nic), up);
  attach_->set_port(host, nic, up);
}

void Fabric::refresh_counters() {
  for (const uint32_t host : stale_hosts_) {
    for (uint32_t n = 0; n < addresses_.nics(); ++n) {
      (void)host::update_counters(folder_.host_folder(host_name(host)) + "/sys", addresses_.nic(host, n), sink_->counters(host, n));
    }
  }
  stale_hosts_.clear();
}

std::string Fabric::link_name(uint32_t host, uint32_t nic) const {
  const std::string end = nic == 0 ? host_name(host) : host_name(host) + "/" + std::to_string(nic);
  return end + "-" + plan_.switch_name;
}

std::vector<std::string> Fabric::capture_places(const std::string& name) const {
  const std::string far_end = "-" + plan_.switch_name;
  if (name.size() <= far_end.size() || name.find("->") != std::string::npos) return {name};
  const size_t split = name.size() - far_end.size();
  if (name.compare(split, far_end.size(), far_end) != 0) return {name};
  const std::string end = name.substr(0, split);
  return {end + "->" + plan_.switch_name, plan_.switch_name + "->" + end};
}

}  // namespace weft::tools
