// SPDX-License-Identifier: Apache-2.0
//
// A data plane without a switch, for tests of the control side: it keeps what it was given and says what it was told to.
// start_data_plane() of fake_data_plane.cc makes one, so that the whole `weft` program runs without DPDK.
#pragma once

#include <cerrno>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scenarios/engine/data_plane.h"

namespace weft {

class FakeDataPlane : public DataPlane {
 public:
  explicit FakeDataPlane(const FabricPlan& plan);
  ~FakeDataPlane() override;

  const attach::StatusPage* status() const override { return status_; }
  int status_memfd() const override { return status_fd_; }
  int attach_port(const PortSetup& setup) override;
  void detach_port(SeatId seat, uint32_t nic, bool died) override;
  int set_member(SeatId, uint32_t, const std::array<uint8_t, 16>&, bool) override { return 0; }
  bool set_link(HostIndex host, uint32_t nic, bool up) override {
    links[{host, nic}] = up;
    return true;
  }
  int resolve(uint64_t, HostIndex, uint32_t, const std::array<uint8_t, 16>&) override { return ETIMEDOUT; }
  std::vector<MetricSample> metrics() override;
  NicTotals nic_totals(HostIndex, uint32_t) override { return totals; }
  int start_capture(const std::string& place, std::function<void(CapturedFrame&&)> sink) override;
  void stop_capture(int id) override;
  int event_fd() const override { return event_fd_; }
  void pump() override;

  /// Makes event_fd() readable; the next pump() gives each capture one frame.
  void wake();

  struct Detached {
    SeatId seat;
    uint32_t nic;
    bool died;
  };
  FabricPlan plan;
  std::map<std::pair<SeatId, uint32_t>, PortSetup> ports;
  std::map<std::pair<HostIndex, uint32_t>, bool> links;  ///< as set_link() was told
  std::vector<Detached> detached;
  std::vector<MetricSample> extra;  ///< told by metrics() too
  NicTotals totals;                 ///< of every NIC
  int attach_error = 0;  ///< what attach_port answers

 private:
  void release(const PortSetup& port);

  attach::StatusPage* status_ = nullptr;
  int status_fd_ = -1;
  int event_fd_ = -1;
  int next_capture_ = 0;
  std::map<int, std::function<void(CapturedFrame&&)>> captures_;
};

}  // namespace weft
