// SPDX-License-Identifier: Apache-2.0
//
// DataPlane over a live fabric: what the control plane asks becomes a call on the data-plane thread.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "scenarios/engine/data_plane.h"
#include "scenarios/engine/live_driver.h"
#include "scenarios/engine/live_fabric.h"
#include "switch/dpdk/eal.h"

namespace weft {
namespace {

using engine::Direction;
using engine::link_id;

constexpr size_t kTapBytes = 16u << 20;

class LiveDataPlane final : public DataPlane {
 public:
  explicit LiveDataPlane(const FabricPlan& plan) : plan_(plan), fabric_(plan) {}

  ~LiveDataPlane() override {
    if (driver_ != nullptr) driver_->stop();
    if (status_ != nullptr) {
      status_->daemon_alive.store(0, std::memory_order_release);
      munmap(status_, sizeof *status_);
    }
    if (status_fd_ >= 0) close(status_fd_);
  }

  bool open(std::string& error) {
    if (!open_status(error) || !fabric_.open(error)) return false;
    driver_ = std::make_unique<engine::LiveDriver>(fabric_, *status_);
    if (!driver_->open(error)) return false;
    status_->daemon_alive.store(1, std::memory_order_release);
    driver_->start();
    return true;
  }

  const attach::StatusPage* status() const override { return status_; }
  int status_memfd() const override { return status_fd_; }

  int attach_port(const PortSetup& setup) override {
    int result = 0;
    driver_->call([&](Instant) { result = driver_->attach(setup); });
    return result;
  }

  void detach_port(SeatId seat, uint32_t nic, bool died) override {
    driver_->call([&](Instant now) { driver_->detach(now, seat, nic, died); });
  }

  int set_member(SeatId seat, uint32_t nic, const std::array<uint8_t, 16>& group, bool join) override {
    int result = 0;
    driver_->call([&](Instant) { result = driver_->set_member(seat, nic, group, join); });
    return result;
  }

  bool set_link(HostIndex host, uint32_t nic, bool up) override {
    bool found = false;
    driver_->call([&](Instant) {
      const uint32_t endpoint = fabric_.endpoint_of(host, nic);
      found = endpoint != kNoEndpoint;
      if (!found) return;
      fabric_.endpoints()[endpoint].up.set_down(!up);
      fabric_.endpoints()[endpoint].down.set_down(!up);
    });
    return found;
  }

  int resolve(uint64_t token, HostIndex host, uint32_t nic, const std::array<uint8_t, 16>& gid) override {
    if (plan_.outside.empty()) return ETIMEDOUT;  // what an unanswered ARP ends in
    int result = 0;
    driver_->call([&](Instant now) { result = driver_->resolve(now, token, host, nic, gid); });
    return result;
  }

  std::vector<MetricSample> metrics() override {
    std::vector<MetricSample> samples;
    driver_->call([&](Instant) {
      samples = fabric_.metrics();
      const engine::DriverCounters& c = driver_->counters();
      samples.push_back({"driver_rounds", {}, c.rounds});
      samples.push_back({"driver_yields", {}, c.yields});
      samples.push_back({"driver_sleeps", {}, c.sleeps});
      samples.push_back({"driver_kicks", {}, driver_->kicks()});
      samples.push_back({"driver_cpu_ns", {}, driver_->cpu_ns()});
    });
    return samples;
  }

  NicTotals nic_totals(HostIndex host, uint32_t nic) override {
    NicTotals totals;
    driver_->call([&](Instant) {
      const uint32_t endpoint = fabric_.endpoint_of(host, nic);
      if (endpoint != kNoEndpoint) totals = fabric_.totals(endpoint);
    });
    return totals;
  }

  int start_capture(const std::string& place, std::function<void(CapturedFrame&&)> sink) override;
  void stop_capture(int id) override;

  int event_fd() const override { return driver_->event_fd(); }
  void pump() override;

 private:
  struct Capture {
    int id = 0;
    std::vector<uint32_t> links;  ///< sorted link_ids
    std::function<void(CapturedFrame&&)> sink;
  };

  bool open_status(std::string& error);
  std::vector<uint32_t> links_at(const std::string& place);
  void set_taps();

  const FabricPlan plan_;
  engine::LiveFabric fabric_;
  std::unique_ptr<engine::LiveDriver> driver_;
  attach::StatusPage* status_ = nullptr;
  int status_fd_ = -1;
  std::vector<Capture> captures_;
  int next_capture_ = 1;
};

bool LiveDataPlane::open_status(std::string& error) {
  const long page = sysconf(_SC_PAGESIZE);
  status_fd_ = memfd_create("weft-status", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  void* mapped = MAP_FAILED;
  if (status_fd_ >= 0 && ftruncate(status_fd_, page) == 0 &&
      fcntl(status_fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
    mapped = mmap(nullptr, sizeof *status_, PROT_READ | PROT_WRITE, MAP_SHARED, status_fd_, 0);
  }
  if (mapped == MAP_FAILED) {
    error = std::string("no status page: ") + strerror(errno);
    return false;
  }
  status_ = static_cast<attach::StatusPage*>(mapped);
  return true;
}

/// A host's name: both directions of its links. A direction's name, "h0->s0": that one. A switch's: everything.
std::vector<uint32_t> LiveDataPlane::links_at(const std::string& place) {
  std::vector<uint32_t> links;
  for (uint32_t i = 0; i < fabric_.ports(); ++i) {
    const bool both = place == fabric_.owner_name(i) || place == plan_.switch_name;
    for (const Direction direction : {Direction::kUp, Direction::kDown}) {
      if (both || place == fabric_.link(i, direction).name) links.push_back(link_id(i, direction));
    }
  }
  return links;
}

/// What is tapped is the union of all captures.
void LiveDataPlane::set_taps() {
  driver_->call([&](Instant) {
    const auto wanted = [&](uint32_t id) {
      return std::any_of(captures_.begin(), captures_.end(), [&](const Capture& c) {
        return std::binary_search(c.links.begin(), c.links.end(), id);
      });
    };
    for (uint32_t i = 0; i < fabric_.ports(); ++i) {
      for (const Direction direction : {Direction::kUp, Direction::kDown}) {
        engine::LinkDirection& link = fabric_.link(i, direction);
        link.tapped = wanted(link.events.id);
      }
    }
  });
}

int LiveDataPlane::start_capture(const std::string& place, std::function<void(CapturedFrame&&)> sink) {
  std::vector<uint32_t> links = links_at(place);
  if (links.empty()) return -ENOENT;
  fabric_.tap().open(kTapBytes);  // before any link is tapped, so the data plane does not look yet
  std::sort(links.begin(), links.end());
  captures_.push_back({next_capture_, std::move(links), std::move(sink)});
  set_taps();
  return next_capture_++;
}

void LiveDataPlane::stop_capture(int id) {
  std::erase_if(captures_, [id](const Capture& c) { return c.id == id; });
  set_taps();
}

void LiveDataPlane::pump() {
  driver_->clear_event();
  engine::HostilePort hostile;
  while (driver_->next_hostile(hostile)) {
    if (on_hostile_port) on_hostile_port(hostile.seat, hostile.nic, hostile.reason);
  }
  engine::ResolvedAddress resolved;
  while (driver_->next_resolved(resolved)) {
    if (on_resolved) on_resolved(resolved.token, resolved.error, resolved.mac);
  }
  engine::TappedFrame tapped;
  while (fabric_.tap().take(tapped)) {
    const Direction direction = static_cast<Direction>((tapped.link - 1) % 2);
    const engine::LinkDirection& link = fabric_.link((tapped.link - 1) / 2, direction);
    // By index: a sink may stop its own capture.
    for (size_t i = 0; i < captures_.size(); ++i) {
      Capture& c = captures_[i];
      if (!std::binary_search(c.links.begin(), c.links.end(), tapped.link)) continue;
      c.sink({tapped.unix_ns, link.name, direction == Direction::kDown, tapped.bytes, {}});
    }
  }
}

}  // namespace

std::unique_ptr<DataPlane> start_data_plane(const FabricPlan& plan, std::string& error) {
  size_t endpoints = 0;
  for (const HostPlan& host : plan.hosts) endpoints += host.nics.size();
  dpdk::EalSettings eal;
  eal.runtime_folder = plan.run_folder;
  eal.megabytes = engine::LiveFabric::megabytes_for(endpoints) +
                  static_cast<uint32_t>(plan.outside.size()) * dpdk::OutsidePort::kMegabytes;
  if (!dpdk::start_eal(eal, error)) return nullptr;
  auto plane = std::make_unique<LiveDataPlane>(plan);
  if (!plane->open(error)) return nullptr;
  return plane;
}

}  // namespace weft
