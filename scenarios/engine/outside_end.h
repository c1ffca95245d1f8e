// SPDX-License-Identifier: Apache-2.0
//
// One port of the switch to the outside, as the live fabric keeps it: the device, the link between, and what waits for
// the device to take it. The far side sends no PFC and gets none: a device without room holds its egress queue for a while
// and then loses frames, one that is not listened to is the far side's business.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "protocols/base/drop_reason.h"
#include "protocols/base/packet.h"
#include "scenarios/engine/link.h"
#include "scenarios/engine/outside_plan.h"
#include "switch/dpdk/outside_port.h"

namespace weft::engine {

struct OutsideEnd {
  OutsideEnd(OutsidePlan plan_, LinkDirection up_, LinkDirection down_)
      : plan(std::move(plan_)), up(std::move(up_)), down(std::move(down_)) {}

  const OutsidePlan plan;
  std::unique_ptr<dpdk::OutsidePort> port;
  LinkDirection up;    ///< from the far side to the switch
  LinkDirection down;
  PacketList waiting;  ///< for room in the device
  bool held = false;   ///< the switch's egress is paused because of them
  bool stalled = false;
  bool retry_queued = false;
  Instant last_progress{};
  std::array<uint64_t, kDropReasons> drops{};

  // The driver's.
  Instant last_work{};
  Instant poll_at{};       ///< of a device without a descriptor to sleep on
  bool watched = false;    ///< its descriptor is in the epoll set
};

/// How DPDK opens it; what is first is tried first.
std::vector<dpdk::OutsideDevice> devices_of(const OutsidePlan& plan);

}  // namespace weft::engine
