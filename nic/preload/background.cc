// SPDX-License-Identifier: Apache-2.0
//
// The background thread: sleeps until the daemon kicks, the attach socket has something, a deadline comes, or a command
// asks; then runs the engine once (nic_rules 3). It is what drives the NIC of a program that computes, sleeps or spins
// on memory. The daemon decides when that is needed, so a pass here does not count as polling.
//
// A program that posts and polls asks for the thread again and again, because a deadline comes nearer whenever
// something stays to be done, and then does that itself. So a wake is not yet a pass: the thread looks whether a
// deadline has come. And after a wake it *lingers*: it sleeps in short pieces and needs no further wakes, which cost
// the program a system call and a context switch each, until a while went by without one.
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

#include "nic/preload/clock.h"
#include "nic/preload/guest.h"
#include "nic/preload/syscalls.h"

namespace weft::preload {

namespace {
// As long as the engine lets a program's own polling go on before the thread takes over.
constexpr int64_t kLingerNs = 500'000;
constexpr uint32_t kQuietPieces = 4;
constexpr int64_t kNotNow = -2;
}  // namespace

void Guest::pass() {
  const Instant now = read_clock();
  for (uint32_t i = 0; i < attachment_.nic_count; ++i) devices_[i]->try_progress(now);
}

bool Guest::deadline_passed() {
  const Instant now = read_clock();
  for (uint32_t i = 0; i < attachment_.nic_count; ++i) {
    if (devices_[i]->next_deadline() <= now) return true;
  }
  return false;
}

// Nanoseconds to sleep, -1 for ever, or kNotNow: there is something to do.
int64_t Guest::prepare_sleep() {
  thread_sleeps_.store(linger_ == 0 ? 1 : 0, std::memory_order_seq_cst);
  bool safe = true;
  Instant deadline = kNever;
  for (uint32_t i = 0; i < attachment_.nic_count; ++i) {
    safe = devices_[i]->prepare_sleep() && safe;
    const Instant due = devices_[i]->next_deadline();
    if (due < deadline) deadline = due;
  }
  if (!safe) return kNotNow;
  int64_t sleep_ns = -1;
  if (deadline != kNever) {
    const Duration left = deadline - read_clock();
    if (left <= Duration::zero()) return kNotNow;
    // Rounded up: waking a fraction of a nanosecond early would spin until the deadline.
    sleep_ns = left.count() / 1000 + 1;
  }
  return linger_ != 0 && (sleep_ns < 0 || sleep_ns > kLingerNs) ? kLingerNs : sleep_ns;
}

// True: the daemon kicked. Wakes by our own commands only count for lingering.
bool Guest::drain_kicks() {
  bool kicked = false;
  char bytes[64];
  for (uint32_t i = 0; i < attachment_.nic_count; ++i) {
    const int fd = attachment_.nics[i].kick_read.load();
    for (long got = sizeof bytes; got == static_cast<long>(sizeof bytes);) {
      got = raw::read(fd, bytes, sizeof bytes);
      kicked = kicked || got > 0;
    }
  }
  uint64_t count = 0;
  const bool woken = raw::read(wake_fd_.load(), &count, sizeof count) > 0;
  if (wake_missed_.exchange(0, std::memory_order_relaxed) != 0 || woken) {
    linger_ = kQuietPieces;
  } else if (linger_ != 0) {
    --linger_;
  }
  return kicked;
}

void Guest::receive_messages() {
  for (uint32_t i = 0; i < attachment_.channel_count; ++i) receive_from(attachment_.channels[i]);
}

void Guest::receive_from(const Channel& channel) {
  union {
    attach::MessageHead head;
    attach::Resolved resolved;
    attach::Event event;
    attach::PeerGone gone;
    uint8_t bytes[attach::kMessageBytes];
  } message;
  for (;;) {
    const long size = raw::call(SYS_recvfrom, channel.socket.load(), message.bytes, sizeof message.bytes,
                                MSG_DONTWAIT, nullptr, nullptr);
    if (size == -EAGAIN || size == -EINTR) return;
    if (size != attach::kMessageBytes) {
      daemon_died();
      return;
    }
    if (message.head.type == attach::MessageType::kResolved && message.head.tag == awaited_tag_.load()) {
      answer_ = message.resolved;
      answered_.store(1, std::memory_order_release);
      raw::futex_wake(&answered_, 1);
    } else if (message.head.type == attach::MessageType::kEvent && message.event.nic < channel.nic_count) {
      devices_[channel.first_nic + message.event.nic]->dispatch_event(message.event.event, message.event.port);
    } else if (message.head.type == attach::MessageType::kPeerGone && message.gone.nic < channel.nic_count) {
      GidBytes gid;
      memcpy(gid.data(), message.gone.gid, gid.size());
      devices_[channel.first_nic + message.gone.nic]->peer_gone(gid, message.gone.qpn, read_clock());
    }
  }
}

// Every QP goes to ERR and its work is flushed; the programs hear DEVICE_FATAL. Who waits for an answer gives up.
void Guest::daemon_died() {
  daemon_gone_.store(true, std::memory_order_release);
  answered_.store(answered_.load());
  raw::futex_wake(&answered_, 1);
  for (uint32_t i = 0; i < attachment_.nic_count; ++i) devices_[i]->fatal(read_clock());
}

void Guest::sleep(int64_t sleep_ns) {
  pollfd entries[attach::kMaxNicsPerHost + kMaxChannels + 1];
  size_t count = 0;
  entries[count++] = {wake_fd_.load(), POLLIN, 0};
  for (uint32_t i = 0; i < attachment_.channel_count; ++i) {
    entries[count++] = {daemon_gone() ? -1 : attachment_.channels[i].socket.load(), POLLIN, 0};
  }
  for (uint32_t i = 0; i < attachment_.nic_count; ++i) {
    entries[count++] = {daemon_gone() ? -1 : attachment_.nics[i].kick_read.load(), POLLIN, 0};
  }
  raw::poll(entries, count, sleep_ns);
}

void Guest::run_background() {
  raw::call(SYS_prctl, PR_SET_NAME, "weft-nic");
  bool must_pass = true;
  for (;;) {
    if (must_pass) pass();
    const int64_t sleep_ns = prepare_sleep();
    if (sleep_ns != kNotNow) {
      sleep(sleep_ns);
    } else {
      // Somebody polls inline and holds the engine, or came in between: let it.
      raw::sched_yield();
    }
    thread_sleeps_.store(0, std::memory_order_seq_cst);
    for (uint32_t i = 0; i < attachment_.nic_count; ++i) devices_[i]->woke();
    must_pass = drain_kicks() || sleep_ns == kNotNow || deadline_passed();
    if (!daemon_gone()) receive_messages();
  }
}

}  // namespace weft::preload
