// SPDX-License-Identifier: Apache-2.0
//
// The egress scheduler of one port: strict priorities first, highest number first, then deficit round robin by bytes
// among the rest (Shreedhar and Varghese, SIGCOMM'95). Which priorities may send at all is the gate's business.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "protocols/base/packet.h"

namespace weft::fabric {

/// May a frame of this class go out now? One machine behind it for priority flow control; credits will be another.
class PauseGate {
 public:
  bool can_send(uint8_t priority, uint32_t /*bytes*/) const { return (paused_ >> priority & 1) == 0; }
  void set(uint8_t priority, bool paused) {
    paused_ = static_cast<uint8_t>(paused ? paused_ | 1u << priority : paused_ & ~(1u << priority));
  }
  uint8_t paused() const { return paused_; }

 private:
  uint8_t paused_ = 0;
};

class Scheduler {
 public:
  /// Priority to serve next out of `ready` (not 0). `head_bytes(priority)` is the size of that queue's first packet.
  template <typename HeadBytes>
  uint8_t choose(uint8_t ready, uint8_t strict, uint32_t quantum, HeadBytes head_bytes) {
    if ((ready & strict) != 0) return static_cast<uint8_t>(std::bit_width<unsigned>(ready & strict) - 1);
    if ((ready & (ready - 1)) == 0) return static_cast<uint8_t>(std::countr_zero(ready));  // alone: nothing to share
    for (;;) {
      if ((ready >> current_ & 1) != 0) {
        const uint32_t bytes = head_bytes(current_);
        if (deficit_[current_] >= bytes) {
          deficit_[current_] -= bytes;
          return current_;
        }
      }
      do current_ = static_cast<uint8_t>((current_ + 1) % kPriorityCount);
      while ((ready >> current_ & 1) == 0);
      deficit_[current_] += quantum;
    }
  }
  /// An emptied queue keeps no credit.
  void emptied(uint8_t priority) { deficit_[priority] = 0; }

 private:
  std::array<uint32_t, kPriorityCount> deficit_{};
  uint8_t current_ = 0;
};

}  // namespace weft::fabric
