// SPDX-License-Identifier: Apache-2.0
#include "tests/nic/storm/storm_fabric.h"

#include <poll.h>

#include <chrono>

#include "protocols/base/random.h"

namespace weft::test {
namespace {

constexpr int kNapMs = 1;
constexpr auto kNicNap = std::chrono::microseconds(100);

RigOptions options() {
  RigOptions o;
  o.one_mapping = true;
  o.tx_slots = 64;  // few, so that the threads meet the reserve and the waiting list
  o.rx_slots = 64;
  return o;
}

Instant clock_now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return Instant{} + nanoseconds(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

}  // namespace

StormFabric::StormFabric(uint32_t loss_one_in) : rig(2, options()) {
  rig.now = clock_now();
  if (loss_one_in != 0) {
    // Called by the daemon's thread only.
    rig.filter = [loss_one_in, random = Random(7, 0)](const RoceFrame&, uint32_t) mutable {
      return random.below(loss_one_in) != 0;
    };
  }
  daemon_ = std::thread([this] { run_daemon(); });
  for (uint32_t i = 0; i < 2; ++i) nics_[i] = std::thread([this, i] { run_nic(i); });
}

void StormFabric::stop() {
  if (stop_.exchange(true)) return;
  daemon_.join();
  for (std::thread& thread : nics_) thread.join();
}

bool StormFabric::move() {
  const uint64_t before = rig.frames + rig.dropped;
  rig.now = clock_now();
  for (uint32_t i = 0; i < 2; ++i) rig.move_only(i);
  return rig.frames + rig.dropped != before;
}

void StormFabric::run_daemon() {
  while (!stop_) {
    if (move()) continue;
    for (uint32_t i = 0; i < 2; ++i) rig.node(i).status->daemon_sleeping.store(1, std::memory_order_seq_cst);
    if (!move()) {
      pollfd kicks[2] = {{rig.node(0).kick[0], POLLIN, 0}, {rig.node(1).kick[0], POLLIN, 0}};
      poll(kicks, 2, kNapMs);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      rig.node(i).status->daemon_sleeping.store(0, std::memory_order_seq_cst);
      char bytes[64];
      while (read(rig.node(i).kick[0], bytes, sizeof bytes) == static_cast<ssize_t>(sizeof bytes)) {
      }
    }
  }
}

void StormFabric::run_nic(uint32_t node) {
  nic::Device& device = rig.device(node);
  while (!stop_) {
    device.try_progress(rig.now);
    // The daemon's kick would end the nap; here it ends by itself, soon.
    if (device.prepare_sleep()) std::this_thread::sleep_for(kNicNap);
    device.woke();
  }
}

}  // namespace weft::test
