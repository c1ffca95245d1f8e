// SPDX-License-Identifier: Apache-2.0
//
// One program of the storm: three RC QPs, one of them with a shared receive queue, a UC
// and a UD one, a CQ that all of them share, and jobs that go round and
// round, handled by however many threads call work().
//
//   write and read   WRITE a pattern, READ it back, compare               (RC, sizes around the MTU)
//   atomic           FETCH_ADD of one on the peer's counter, which is counted at the end
//   send             SEND of equal bytes; the receiver compares them with each other; on RC it counts them
//
//   StormSide a(fabric, 0, jobs), b(fabric, 1, jobs);  StormSide::connect(a, b);
//   threads: while (!a.finished()) a.work();            a.wait_events(): the thread that sleeps on the channel
//   a.check(b)                                          what must hold at the end; exits with a message otherwise
#pragma once

#include <deque>
#include <mutex>

#include "protocols/base/random.h"
#include "tests/nic/storm/storm_fabric.h"

namespace weft::test {

class StormSide {
 public:
  StormSide(StormFabric& fabric, uint32_t node, uint64_t jobs_to_do);
  static void connect(StormSide& a, StormSide& b);

  /// One poll, what it brought, and one post. False: nothing to do just now.
  bool work();
  /// Arms the CQ, sleeps on the channel, reads the event; returns when finished() or stop.
  void wait_events(const std::atomic<bool>& stop);
  bool finished() const { return done_ >= target_ && flying_ == 0; }
  uint64_t received() const { return received_; }
  uint64_t reliable_sends() const { return reliable_sends_; }
  uint64_t events() const { return events_; }
  void check(const StormSide& peer) const;

 private:
  static constexpr uint32_t kQps = 5, kShared = 2, kUc = 3, kUd = 4;
  static constexpr uint32_t kJobs = 20;
  static constexpr uint32_t kBytes = 9000;
  static constexpr uint32_t kReceives = 16;
  static constexpr uint32_t kReceiveBytes = 4096 + 40;

  enum class Kind : uint8_t { kWriteRead, kCount, kMessage };
  struct Job {
    Kind kind = Kind::kMessage;
    uint32_t qp = 0;
    bool reading = false;
    uint32_t length = 0;
    uint8_t fill = 0;
    std::vector<uint8_t> source, back;
  };

  bool post(uint32_t index);
  void handle(const ib_uverbs_wc& wc);
  void finish(Job& job, uint32_t index);
  void received(const ib_uverbs_wc& wc);
  void post_receive(uint32_t qp, uint32_t slot);
  void ready(uint32_t index);

  StormFabric& fabric_;
  Client client_;
  const uint64_t target_;
  int channel_ = -1;
  Cq cq_;
  Srq srq_;
  Qp qps_[kQps];
  std::mutex send_lock_[kQps], receive_lock_[kQps], cq_lock_, ready_lock_;
  std::deque<uint32_t> ready_;
  std::vector<Job> jobs_;
  std::vector<uint8_t> landing_, receives_;
  alignas(8) uint64_t counter_ = 0;
  Mr landing_mr_, receives_mr_, counter_mr_;
  std::vector<Mr> source_mr_, back_mr_;
  StormSide* peer_ = nullptr;
  uint32_t ah_ = 0;
  std::atomic<uint64_t> done_{0}, flying_{0}, received_{0}, reliable_sends_{0}, atomics_{0}, events_{0};
};

[[noreturn]] void storm_failed(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace weft::test
