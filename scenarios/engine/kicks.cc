// SPDX-License-Identifier: Apache-2.0
#include "scenarios/engine/kicks.h"

#include <unistd.h>

#include <algorithm>

namespace weft::engine {

void Kicks::kick(LiveSeat& seat) {
  const uint8_t byte = 1;
  // EAGAIN: a kick is already waiting there. EPIPE: the process is going away; its death is seen elsewhere.
  [[maybe_unused]] const ssize_t written = write(seat.setup.kick_write, &byte, 1);
  ++sent_;
}

void Kicks::watch(Instant now, LiveSeat& seat) {
  seat.recheck_taken = seat.port.taken_index();
  seat.recheck_poll_seq = seat.port.poll_seq();
  if (seat.recheck_at == kNever) watched_.push_back(&seat);
  seat.recheck_at = now + kTakeTime;
  next_ = std::min(next_, seat.recheck_at);
}

void Kicks::published(Instant now, LiveSeat& seat, bool delivered) {
  if (!seat.port.process_sleeping()) {
    seat.kicked = false;
    return;
  }
  const bool unblocked = seat.port.unblocked();
  if (!delivered && !unblocked) return;
  const uint32_t poll_seq = seat.port.poll_seq();
  const bool polled = poll_seq != seat.delivery_poll_seq;
  seat.delivery_poll_seq = poll_seq;
  if (unblocked && !polled) {
    kick(seat);
    return;
  }
  seat.recheck_slots = seat.recheck_slots || unblocked;
  if (seat.recheck_at != kNever) return;
  if (polled) {
    watch(now, seat);
    return;
  }
  // It may have seen the frames by itself and gone back to sleep: a kick for nothing would count as one under way.
  const uint32_t taken = seat.port.taken_index();
  if (taken == seat.port.delivered_index()) return;
  // A kick that nobody acted on yet is still under way: the process looks at its indices before it sleeps again.
  if (seat.kicked && seat.kicked_taken == taken) return;
  seat.kicked = true;
  seat.kicked_taken = taken;
  kick(seat);
}

/// Watched long enough. True: watch on, it is taking its frames.
bool Kicks::look_again(Instant now, LiveSeat& seat) {
  const bool slots = seat.recheck_slots && seat.port.poll_seq() == seat.recheck_poll_seq;
  seat.recheck_slots = false;
  if (!seat.port.process_sleeping()) return false;
  const uint32_t taken = seat.port.taken_index();
  const bool untaken = taken != seat.port.delivered_index();
  if (untaken && taken != seat.recheck_taken) {
    seat.recheck_taken = taken;
    seat.recheck_at = now + kTakeTime;
    return true;
  }
  if (untaken || slots) {
    seat.kicked = untaken;
    seat.kicked_taken = taken;
    kick(seat);
  }
  return false;
}

void Kicks::recheck(Instant now) {
  if (now < next_) return;
  next_ = kNever;
  for (size_t i = 0; i < watched_.size();) {
    LiveSeat& seat = *watched_[i];
    if (seat.recheck_at <= now && !look_again(now, seat)) {
      seat.recheck_at = kNever;
      watched_[i] = watched_.back();
      watched_.pop_back();
      continue;
    }
    next_ = std::min(next_, seat.recheck_at);
    ++i;
  }
}

void Kicks::forget(LiveSeat& seat) {
  std::erase(watched_, &seat);
  seat.recheck_at = kNever;
}

}  // namespace weft::engine
