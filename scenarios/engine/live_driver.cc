// SPDX-License-Identifier: Apache-2.0
#include "scenarios/engine/live_driver.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "switch/dpdk/eal.h"

namespace weft::engine {
namespace {

constexpr uint64_t kWakeTag = 0;                       // seats' tags are never 0
constexpr Duration kPolledTime = microseconds(50);     // poll_seq moved since then: somebody polls
constexpr Duration kYieldTime = microseconds(200);     // nothing at all for so long: sleep, whoever polls
constexpr Duration kStayTime = microseconds(30);       // right after work: one process that polls is enough to stay
constexpr Duration kActiveTime = milliseconds(1);      // polled in every round for so long after its last frame
constexpr Duration kLookTime = microseconds(20);       // how often a busy daemon looks for kicks of the others

int64_t clock_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

LiveDriver::~LiveDriver() {
  stop();
  for (const int fd : {epoll_fd_, wake_fd_, event_fd_}) {
    if (fd >= 0) close(fd);
  }
}

bool LiveDriver::open(std::string& error) {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  if (epoll_fd_ < 0 || wake_fd_ < 0 || event_fd_ < 0 || epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event) != 0) {
    error = std::string("the data plane gets no file descriptors: ") + strerror(errno);
    return false;
  }
  clock_base_ns_ = clock_ns(CLOCK_MONOTONIC);
  fabric_.set_unix_offset(clock_ns(CLOCK_REALTIME));
  return true;
}

void LiveDriver::start() {
  thread_ = std::thread([this] { run(); });
}

void LiveDriver::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  call([](Instant) {});
  thread_.join();
}

// --- control side ---------------------------------------------------------------------------------------------------

void LiveDriver::call(const std::function<void(Instant)>& work) {
  std::binary_semaphore done(0);
  const std::lock_guard<std::mutex> lock(control_);
  // Cannot be full: every caller waits for its own under the lock.
  WEFT_ASSERT(commands_.push({&work, &done}));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
  done.acquire();
}

void LiveDriver::clear_event() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(event_fd_, &count, sizeof count);
  signalled_.store(false, std::memory_order_seq_cst);
}

// --- within call() --------------------------------------------------------------------------------------------------

int LiveDriver::attach(const PortSetup& setup) {
  int error = 0;
  LiveSeat* const seat = fabric_.attach(setup, error);
  if (seat == nullptr) return error;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = seat->tag;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, setup.kick_read, &event) != 0) {
    error = errno;
    fabric_.start_draining(Instant{}, *seat);
    seat->disown();
    fabric_.destroy(*seat);
    return error;
  }
  // Nothing on the data path may allocate: every list has room for every seat.
  const size_t seats = fabric_.seats().size();
  active_.reserve(seats);
  publishing_.reserve(seats);
  dead_tags_.reserve(seats);
  fabric_.store().unpublished().reserve(seats);
  fabric_.resumed().reserve(4 * seats);
  activate(*seat);
  return 0;
}

void LiveDriver::detach(Instant now, SeatId id, uint32_t nic, bool died) {
  LiveSeat* const seat = fabric_.find(id, nic);
  if (seat == nullptr) return;  // shut as hostile before, or never there
  fabric_.start_draining(now, *seat);
  if (died) fabric_.announce_death(*seat);
  kicks_.forget(*seat);
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, seat->setup.kick_read, nullptr);
  activate(*seat);
  while (fabric_.poll(now, *seat)) {
  }
  flush(now);
}

int LiveDriver::set_member(SeatId id, uint32_t nic, const GidBytes& group, bool join) {
  LiveSeat* const seat = fabric_.find(id, nic);
  return seat != nullptr ? fabric_.set_member(*seat, group, join) : ENOENT;
}

uint64_t LiveDriver::cpu_ns() const { return static_cast<uint64_t>(clock_ns(CLOCK_THREAD_CPUTIME_ID)); }

// --- the thread -----------------------------------------------------------------------------------------------------

void LiveDriver::prepare_thread() {
  pthread_setname_np(pthread_self(), "weft-dataplane");
  prctl(PR_SET_TIMERSLACK, 1);
  // SIGPIPE of a process that closed its pipe, and everything meant for the control thread. Faults stay deadly.
  sigset_t set;
  sigfillset(&set);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&set, fault);
  pthread_sigmask(SIG_SETMASK, &set, nullptr);
}

Instant LiveDriver::read_clock() const { return Instant{nanoseconds(clock_ns(CLOCK_MONOTONIC) - clock_base_ns_)}; }

void LiveDriver::run() {
  prepare_thread();
  const dpdk::ThreadRegistration registration;
  for (;;) {
    const Instant now = read_clock();
    ++counters_.rounds;
    bool work = run_commands(now);
    if (stopping_.load(std::memory_order_acquire) && commands_.empty()) return;
    fabric_.run_due(now);
    flush(now);
    if (!fabric_.outside().empty()) work = poll_outside(now) || work;
    work = poll_active(now) || work;
    work = look_for_kicks(now) || work;
    kicks_.recheck(now);
    if (work) {
      last_work_ = now;
    } else if (may_yield(now)) {
      ++counters_.yields;
      sched_yield();
    } else {
      sleep(now);
    }
  }
}

bool LiveDriver::run_commands(Instant now) {
  bool any = false;
  Command command;
  while (commands_.pop(command)) {
    (*command.work)(now);
    flush(now);
    command.done->release();
    any = true;
  }
  return any;
}

bool LiveDriver::poll_active(Instant now) {
  bool work = false;
  for (LiveSeat* seat : fabric_.resumed()) activate(*seat);
  fabric_.resumed().clear();
  for (size_t i = 0; i < active_.size();) {
    LiveSeat& seat = *active_[i];
    if (poll_seat(now, seat)) {
      work = true;
      seat.last_work = now;
      flush(now);
      if (i >= active_.size() || active_[i] != &seat) continue;  // it was shut or reaped
    }
    const uint32_t poll_seq = seat.port.poll_seq();
    if (poll_seq != seat.seen_poll_seq) {
      seat.seen_poll_seq = poll_seq;
      seat.polled_at = now;
    }
    if (now - seat.last_work > kActiveTime && !seat.nic_seat.blocked && leave(seat)) {
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
  return work;
}

bool LiveDriver::poll_seat(Instant now, LiveSeat& seat) {
  bool work = fabric_.poll(now, seat);
  if (seat.nic_seat.blocked && seat.port.collectable()) {
    fabric_.serve(now, seat);
    work = true;
  }
  return work;
}

/// Stops watching a quiet port. False: it has published something meanwhile.
bool LiveDriver::leave(LiveSeat& seat) {
  seat.port.unwatch();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (seat.port.pending() != 0) {
    seat.port.watch();
    return false;
  }
  seat.active = false;
  return true;
}

/// A busy daemon does not sleep, so it asks now and then whether a port that it does not watch has something.
bool LiveDriver::look_for_kicks(Instant now) {
  if (now - looked_at_ < kLookTime || active_.size() >= fabric_.attached()) return false;
  looked_at_ = now;
  const timespec at_once{};
  return wait(&at_once) > 0;
}

void LiveDriver::activate(LiveSeat& seat) {
  if (seat.active) return;
  seat.active = true;
  seat.last_work = read_clock();
  seat.port.watch();
  active_.push_back(&seat);
}

/// Makes everything visible that was done since the last flush, and wakes whom it concerns.
void LiveDriver::flush(Instant now) {
  auto& list = fabric_.store().unpublished();
  while (!list.empty()) {
    publishing_.swap(list);
    for (dpdk::ProcessPort* port : publishing_) fabric_.seat_of(*port).delivered = port->publish();
    // Indices first, then the process's sleeping word; the process does it the other way round (nic_rules 3).
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (dpdk::ProcessPort* port : publishing_) settle(now, fabric_.seat_of(*port));
    publishing_.clear();
    for (const uint32_t tag : dead_tags_) {
      LiveSeat* const seat = fabric_.seat_of_tag(tag);
      if (seat == nullptr) continue;
      if (seat->active) std::erase(active_, seat);
      kicks_.forget(*seat);
      fabric_.destroy(*seat);
    }
    dead_tags_.clear();
  }
  if (fabric_.tap().put_count() != tap_seen_) {
    tap_seen_ = fabric_.tap().put_count();
    signal_control();
  }
}

/// After its indices were published: shut ports leave, drained ones are reaped, sleeping processes are woken.
void LiveDriver::settle(Instant now, LiveSeat& seat) {
  if (seat.port.shut_reason() != nullptr && !seat.reported) {
    seat.reported = true;
    if (seat.state == SeatState::kAttached) {
      fabric_.start_draining(now, seat);
      fabric_.announce_death(seat);
      kicks_.forget(seat);
      epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, seat.setup.kick_read, nullptr);
    }
    hostile_.push({seat.setup.seat, seat.setup.nic, seat.port.shut_reason()});
    signal_control();
  }
  if (seat.state == SeatState::kAttached) {
    kicks_.published(now, seat, seat.delivered);
  } else if (fabric_.drained(seat)) {
    dead_tags_.push_back(seat.tag);
  }
}

void LiveDriver::signal_control() {
  if (signalled_.exchange(true, std::memory_order_seq_cst)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof one);
}

// --- resting --------------------------------------------------------------------------------------------------------

bool LiveDriver::may_yield(Instant now) const {
  const Duration idle = now - last_work_;
  if (active_.empty() || idle > kYieldTime) return false;
  const auto polled = [&](const LiveSeat* seat) { return now - seat->polled_at < kPolledTime; };
  // A sender that polls is about to post more, though its receiver sleeps: a sleep per few frames costs more than they do.
  if (idle < kStayTime && std::any_of(active_.begin(), active_.end(), polled)) return true;
  return std::all_of(active_.begin(), active_.end(), [&](const LiveSeat* seat) {
    return polled(seat) || now - seat->last_work > kActiveTime;
  });
}

/// After daemon_sleeping was stored: looks at everything that may have been published before a process could see it.
/// Ports that are not watched kick anyway.
bool LiveDriver::nothing_to_do() {
  bool nothing = commands_.empty();
  for (LiveSeat* seat : active_) {
    if (fabric_.takeable(*seat) != 0 || (seat->nic_seat.blocked && seat->port.collectable())) nothing = false;
  }
  rest_outside();
  return nothing;
}

void LiveDriver::sleep(Instant now) {
  status_.daemon_sleeping.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!nothing_to_do()) {
    status_.daemon_sleeping.store(0, std::memory_order_relaxed);
    return;
  }
  const Instant due = std::min({fabric_.next_due(), kicks_.next_recheck(), next_outside_poll()});
  timespec timeout{};
  if (due != kNever) {
    const int64_t ns = std::max<int64_t>((due - now).count() / 1000, 1000);
    timeout = {ns / 1'000'000'000, ns % 1'000'000'000};
  }
  ++counters_.sleeps;
  wait(due != kNever ? &timeout : nullptr);
}

/// nullptr: until something happens. Returns how many descriptors had something.
int LiveDriver::wait(const timespec* timeout) {
  std::array<epoll_event, 64> events;
  const int count = epoll_pwait2(epoll_fd_, events.data(), static_cast<int>(events.size()), timeout, nullptr);
  status_.daemon_sleeping.store(0, std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
    if (tag == kWakeTag) {
      uint64_t value;
      [[maybe_unused]] const ssize_t got = read(wake_fd_, &value, sizeof value);
      continue;
    }
    // Others than seats', which have 32 bits, are polled anyway.
    if (tag <= UINT32_MAX) take_kick(static_cast<uint32_t>(tag));
  }
  return count;
}

void LiveDriver::take_kick(uint32_t tag) {
  LiveSeat* const seat = fabric_.seat_of_tag(tag);
  if (seat == nullptr) return;
  std::array<uint8_t, 512> bytes;
  const ssize_t got = read(seat->setup.kick_read, bytes.data(), bytes.size());
  // Closed by the process: it would report readiness for ever. Who closes its pipe is no longer heard when it was quiet.
  if (got == 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, seat->setup.kick_read, nullptr);
  activate(*seat);
}

}  // namespace weft::engine
