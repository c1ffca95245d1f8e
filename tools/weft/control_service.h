// SPDX-License-Identifier: Apache-2.0
//
// What the daemon answers: control requests in, replies out, with a Fabric to look at.
//
//   ControlService service(fabric, {.end_soon = …, .end_now = …});
//   ControlServer server(io, service, log);
//
// Control thread only.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <vector>

#include "tools/weft/control_server.h"
#include "tools/weft/fabric.h"

namespace weft::tools {

class ControlService : public ControlHandler {
 public:
  struct Ends {
    std::function<void()> end_soon;  ///< somebody asked for it; his answer still has to go out
    std::function<void()> end_now;   ///< he has it
  };

  ControlService(Fabric& fabric, Ends ends);
  ~ControlService() override;

  control::Reply handle(const control::Request& request, ControlSession& session) override;
  void closed(ControlSession& session) override;

 private:
  struct Capture {
    std::vector<int> ids;
    uint64_t frames = 0;
    uint64_t lost = 0;
    uint64_t lost_before = 0;  ///< by the data plane, when this began
  };

  void fill_version(control::VersionReply& reply) const;
  void fill_hosts(control::HostList& list) const;
  void fill_qp(control::Qp& qp, uint32_t host, uint32_t qpn, const host::QpRecord& record) const;
  void fill_qps(control::QpList& list) const;
  control::Reply metrics(const control::ShowMetrics& request, ControlSession& session);
  control::Reply start_capture(const control::CaptureStart& request, ControlSession& session);
  control::Reply stop_capture(ControlSession& session);
  control::Reply join_hosts(const control::JoinHosts& request);
  control::Reply set_port(const control::SetPort& request);
  uint64_t frames_lost_by_plane();
  void on_frame(ControlSession& session, CapturedFrame&& frame);

  Fabric& fabric_;
  Ends ends_;
  uint64_t ended_by_ = 0;  ///< the session that said down
  std::chrono::steady_clock::time_point started_;
  std::map<uint64_t, Capture> captures_;  ///< by session
  std::map<uint64_t, std::vector<MetricSample>> looks_;  ///< lists not told to their end, by session
};

}  // namespace weft::tools
