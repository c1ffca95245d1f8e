// SPDX-License-Identifier: Apache-2.0
//
// A rig whose daemon and NIC threads are real threads, for programs that run under a thread or address sanitizer: what
// `weft up` and libweft do, in one process.
//
//   StormFabric fabric(200);      loses one frame in 200 (0: none)
//   Client a(fabric.rig, 0);      any thread may use the rig's clients as programs use verbs: posting with a lock per
//   QP,
//                                 polling with a lock per CQ, commands without any
//   fabric.progress(0);           what polling does inline: one pass of NIC 0 when there is something to do
//
// The daemon sleeps on its kick pipes when nothing moves, as the real one does; so do the NICs' threads.
#pragma once

#include <thread>

#include "tests/nic/engine/rig.h"

namespace weft::test {

class StormFabric {
 public:
  explicit StormFabric(uint32_t loss_one_in);
  ~StormFabric() { stop(); }
  /// Ends its threads; afterwards the rig is the caller's.
  void stop();

  void progress(uint32_t node) {
    nic::Device& device = rig.device(node);
    if (!device.quiet()) device.try_progress(rig.now);
  }

  Rig rig;

 private:
  void run_daemon();
  void run_nic(uint32_t node);
  bool move();

  std::atomic<bool> stop_{false};
  std::thread daemon_, nics_[2];
};

}  // namespace weft::test
