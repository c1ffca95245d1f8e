// SPDX-License-Identifier: Apache-2.0
//
// One direction of a link between a host's NIC and its switch: what may happen to a frame on it, and its counters.
// The drop stage draws from a stream of its own, so that the same seed and the same frames lose the same frames.
#pragma once

#include <cstdint>
#include <string>

#include "protocols/base/random.h"
#include "scenarios/clock/event_queue.h"

namespace weft::engine {

enum class Direction : uint8_t { kUp, kDown };  ///< from the NIC to the switch, and back

/// Identity of a link direction in the fabric: seeds its randomness, orders its events, names its place in notices.
constexpr uint32_t link_id(uint32_t endpoint, Direction direction) {
  return 1 + endpoint * 2 + static_cast<uint32_t>(direction);
}

struct LinkDirection {
  LinkDirection(uint64_t run_seed, uint32_t id, std::string name_, Probability drop_)
      : name(std::move(name_)), random(run_seed, id), drop(drop_), events{id}, lossless(drop_.never()) {}

  std::string name;  ///< "h0->s0"
  Random random;
  Probability drop;
  EventSource events;
  bool lossless = true;  ///< up, and without a drop stage
  bool down = false;
  bool tapped = false;   ///< a capture looks at it
  uint64_t packets = 0;
  uint64_t bytes = 0;
  uint64_t drops = 0;

  uint64_t down_drops = 0;

  void set_down(bool is_down) {
    down = is_down;
    lossless = !down && drop.never();
  }
  bool lose() {
    if (lossless) return false;
    if (down) {
      ++down_drops;
      return true;
    }
    const bool lost = random.happens(drop);
    drops += lost;
    return lost;
  }
};

}  // namespace weft::engine
