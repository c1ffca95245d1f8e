// SPDX-License-Identifier: Apache-2.0
//
// The data plane as the attach server sees it, for tests: keeps the ports it was given, unmaps them at detach.
#pragma once

#include <cerrno>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "nic/host/attach_server.h"

namespace weft::host {

class FakePortSink : public PortSink {
 public:
  FakePortSink();
  ~FakePortSink() override;

  int attach(const SeatPort& port) override;
  void detach(SeatId seat, uint32_t nic, bool died) override;
  int set_member(SeatId seat, uint32_t nic, const Gid& group, bool join) override {
    if (member_error != 0) return member_error;
    join ? (void)members.insert({seat, nic, group}) : (void)members.erase({seat, nic, group});
    return 0;
  }
  PortCounters counters(uint32_t host, uint32_t nic) override {
    PortCounters c;
    c.tx_packets = 100 * host + nic;
    c.transport[static_cast<uint32_t>(NicCounter::kDuplicateRequest)] = 7;
    return c;
  }
  int resolve(uint64_t token, uint32_t, uint32_t, const Gid& gid) override {
    if (resolve_error == 0) asked.emplace_back(token, gid);
    return resolve_error;
  }
  int status_memfd() const override { return status_fd_; }

  struct Detached {
    SeatId seat;
    uint32_t nic;
    bool died;
  };
  std::map<std::pair<SeatId, uint32_t>, SeatPort> ports;
  std::vector<Detached> detached;
  std::set<std::tuple<SeatId, uint32_t, Gid>> members;
  std::vector<std::pair<uint64_t, Gid>> asked;  ///< questions to the outside
  int resolve_error = ETIMEDOUT;                ///< there is none
  int member_error = 0;    ///< what joining and leaving answer
  int next_error = 0;      ///< what the next attach answers
  uint32_t fail_at_nic = 0;  ///< … for this NIC

 private:
  static void release(const SeatPort& port);
  int status_fd_ = -1;
};

}  // namespace weft::host
