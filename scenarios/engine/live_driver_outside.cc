// SPDX-License-Identifier: Apache-2.0
//
// Ports to the outside in the driver's rounds. A device with a descriptor (tap) wakes the thread and costs nothing when it
// is quiet. The others have to be asked: every 20 us while they have traffic, every millisecond when they have not, which
// costs about one percent of a core (af_packet, pcap, memif, vhost).
#include <sys/epoll.h>

#include <algorithm>

#include "scenarios/engine/live_driver.h"

namespace weft::engine {
namespace {

constexpr uint64_t kOutsideTag = uint64_t{1} << 32;  // and the port's index; seats' tags are smaller
constexpr Duration kBusyPoll = microseconds(20);
constexpr Duration kIdlePoll = milliseconds(1);
constexpr Duration kBusyTime = milliseconds(5);      // after its last frame

}  // namespace

bool LiveDriver::poll_outside(Instant now) {
  bool work = false;
  auto& ends = fabric_.outside();
  for (uint32_t i = 0; i < ends.size(); ++i) {
    OutsideEnd& end = *ends[i];
    if (fabric_.poll_outside(now, i)) {
      work = true;
      end.last_work = now;
      flush(now);
    }
    end.poll_at = now + (now - end.last_work < kBusyTime ? kBusyPoll : kIdlePoll);
  }
  tell_resolved();
  return work;
}

void LiveDriver::tell_resolved() {
  nic::NeighbourAnswer answer;
  bool any = false;
  while (fabric_.take_resolved(answer)) {
    resolved_.push({answer.token, answer.error, answer.mac});
    any = true;
  }
  if (any) signal_control();
}

Instant LiveDriver::next_outside_poll() const {
  Instant next = kNever;
  for (const auto& end : fabric_.outside()) {
    if (!end->watched) next = std::min(next, end->poll_at);
  }
  return next;
}

/// Before the thread sleeps: descriptors are watched where they are of use. A port that is paused must not wake anybody:
/// what it has stays where it is. One that cannot be watched is polled like one without a descriptor.
void LiveDriver::rest_outside() {
  auto& ends = fabric_.outside();
  for (uint32_t i = 0; i < ends.size(); ++i) {
    const bool watch = ends[i]->port->wake_fd() >= 0 && !fabric_.outside_paused(i);
    if (watch != ends[i]->watched) watch_outside(i, watch);
  }
}

void LiveDriver::watch_outside(uint32_t index, bool watch) {
  OutsideEnd& end = *fabric_.outside()[index];
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kOutsideTag | index;
  if (epoll_ctl(epoll_fd_, watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, end.port->wake_fd(), &event) == 0) end.watched = watch;
}

}  // namespace weft::engine
