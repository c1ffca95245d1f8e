// SPDX-License-Identifier: Apache-2.0
//
// The one data-plane thread of a live fabric: polls ports while there is traffic, sleeps when there is none, wakes
// processes that must be woken. The only reader of the clock in the daemon's data path.
//
//   driver.open(error); driver.start();
//   driver.call([&](Instant now) { ... });   // from a control thread: runs on the data-plane thread, returns when done
//   driver.stop();
//
// Only ports with recent traffic are looked at in every round. The others are told to kick even an awake daemon, so that
// hundreds of idle ports cost the busy ones nothing.
//
// While every busy process polls inline, the thread yields between rounds; otherwise it blocks soon after its rings are
// empty (some tens of microseconds while anybody polls, else at once), in epoll on the kick pipes (nic_rules 3). Asleep
// it has no periodic wake-ups: only due events limit the wait.
#pragma once

#include <time.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "scenarios/engine/kicks.h"
#include "scenarios/engine/live_fabric.h"
#include "scenarios/engine/spsc_ring.h"

namespace weft::engine {

struct HostilePort {
  SeatId seat = 0;
  uint32_t nic = 0;
  const char* reason = nullptr;
};

struct ResolvedAddress {
  uint64_t token = 0;
  int error = 0;
  std::array<uint8_t, 6> mac{};
};

struct DriverCounters {
  uint64_t rounds = 0;
  uint64_t yields = 0;
  uint64_t sleeps = 0;
};

class LiveDriver {
 public:
  LiveDriver(LiveFabric& fabric, attach::StatusPage& status) : fabric_(fabric), status_(status) {}
  ~LiveDriver();

  bool open(std::string& error);
  void start();
  void stop();

  void call(const std::function<void(Instant)>& work);

  // Within call() only.
  int attach(const PortSetup& setup);
  void detach(Instant now, SeatId seat, uint32_t nic, bool died);
  int set_member(SeatId seat, uint32_t nic, const GidBytes& group, bool join);
  int resolve(Instant now, uint64_t token, HostIndex host, uint32_t nic, const GidBytes& gid) {
    const int error = fabric_.resolve(now, token, host, nic, gid);
    tell_resolved();
    return error;
  }
  const DriverCounters& counters() const { return counters_; }
  uint64_t kicks() const { return kicks_.sent(); }
  uint64_t cpu_ns() const;  ///< what the data-plane thread has used

  // Control thread.
  int event_fd() const { return event_fd_; }
  void clear_event();
  bool next_hostile(HostilePort& out) { return hostile_.pop(out); }
  bool next_resolved(ResolvedAddress& out) { return resolved_.pop(out); }

 private:
  struct Command {
    const std::function<void(Instant)>* work = nullptr;
    std::binary_semaphore* done = nullptr;
  };

  void run();
  void prepare_thread();
  Instant read_clock() const;
  bool run_commands(Instant now);
  bool poll_active(Instant now);
  bool poll_seat(Instant now, LiveSeat& seat);
  bool leave(LiveSeat& seat);
  bool look_for_kicks(Instant now);
  void flush(Instant now);
  void settle(Instant now, LiveSeat& seat);
  bool may_yield(Instant now) const;
  bool nothing_to_do();
  void sleep(Instant now);
  int wait(const timespec* timeout);
  void take_kick(uint32_t tag);
  void activate(LiveSeat& seat);
  void signal_control();

  // Ports to the outside (live_driver_outside.cc).
  void tell_resolved();
  bool poll_outside(Instant now);
  Instant next_outside_poll() const;
  void rest_outside();
  void watch_outside(uint32_t index, bool watch);

  LiveFabric& fabric_;
  attach::StatusPage& status_;
  Kicks kicks_;
  std::vector<LiveSeat*> active_;
  std::vector<dpdk::ProcessPort*> publishing_;
  std::vector<uint32_t> dead_tags_;
  Instant looked_at_{};  ///< when kicks of unwatched ports were last looked for
  Instant last_work_{};
  DriverCounters counters_;
  uint64_t tap_seen_ = 0;

  int epoll_fd_ = -1;
  int wake_fd_ = -1;   ///< control to data plane
  int event_fd_ = -1;  ///< data plane to control
  int64_t clock_base_ns_ = 0;
  std::atomic<bool> signalled_{false};
  std::atomic<bool> stopping_{false};
  SpscRing<Command, 64> commands_;
  std::mutex control_;  ///< one control thread at a time in call()
  SpscRing<HostilePort, 1024> hostile_;
  SpscRing<ResolvedAddress, 1024> resolved_;
  std::thread thread_;
};

}  // namespace weft::engine
