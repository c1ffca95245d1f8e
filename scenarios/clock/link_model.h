// SPDX-License-Identifier: Apache-2.0
//
// A direction of a link in virtual time: serialisation at a rate, a delay, and a seeded fault stage that loses,
// duplicates and reorders. Says when copies of a frame arrive; moves nothing itself. Integers only.
//
//   LinkModel link(settings, run_seed, component_id);
//   link.transmit(start, wire_bytes)  ->  {departs, up to two arrivals}
//
// Reordering: a chosen frame is held back by up to `reorder_span`, so that later ones overtake it.
#pragma once

#include <array>
#include <cstdint>

#include "protocols/base/random.h"
#include "protocols/base/time.h"

namespace weft {

struct LinkSettings {
  uint64_t rate_bps = 100'000'000'000;
  Duration delay = microseconds(1);
  Probability loss;
  Probability duplicate;
  Probability reorder;
  Duration reorder_span = microseconds(5);
};

class LinkModel {
 public:
  struct Passage {
    Instant departs;                    ///< the last bit has left; the next frame may start
    uint32_t copies = 0;                ///< 0: lost
    std::array<Instant, 2> arrivals{};  ///< of the last bit
  };

  LinkModel(const LinkSettings& settings, uint64_t seed, uint64_t component)
      : settings_(settings), random_(seed, component) {}

  /// `start` must not lie before the previous frame's `departs`.
  Passage transmit(Instant start, uint32_t wire_bytes);

  void set_loss(Probability loss) { settings_.loss = loss; }
  uint64_t frames() const { return frames_; }
  uint64_t lost() const { return lost_; }
  uint64_t duplicated() const { return duplicated_; }
  uint64_t reordered() const { return reordered_; }

 private:
  LinkSettings settings_;
  Random random_;
  uint64_t frames_ = 0;
  uint64_t lost_ = 0;
  uint64_t duplicated_ = 0;
  uint64_t reordered_ = 0;
};

}  // namespace weft
