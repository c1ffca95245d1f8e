// SPDX-License-Identifier: Apache-2.0
//
// Who must be woken, and when (nic_rules 3). The daemon owns liveness: programs stop polling without saying so.
//
// After frames were published for a process whose thread sleeps:
//   nobody polled since the last delivery  ->  kick at once
//   somebody polls                         ->  kick when nothing was taken for kTakeTime
// A process that waited for transmit slots is kicked when some came back. A kick is a byte in the process's pipe; a pipe
// that nobody reads fills up and costs nobody anything.
#pragma once

#include <cstdint>
#include <vector>

#include "protocols/base/time.h"
#include "scenarios/engine/live_seat.h"

namespace weft::engine {

class Kicks {
 public:
  static constexpr Duration kTakeTime = microseconds(20);

  /// Indices of `seat` were published and a seq_cst fence follows them. delivered: frames were among them.
  void published(Instant now, LiveSeat& seat, bool delivered);
  /// Looks again at those that had time to take their frames.
  void recheck(Instant now);
  /// kNever: nobody is waited for.
  Instant next_recheck() const { return next_; }
  void forget(LiveSeat& seat);

  uint64_t sent() const { return sent_; }

 private:
  void kick(LiveSeat& seat);
  bool look_again(Instant now, LiveSeat& seat);
  void watch(Instant now, LiveSeat& seat);

  std::vector<LiveSeat*> watched_;
  Instant next_ = kNever;
  uint64_t sent_ = 0;
};

}  // namespace weft::engine
