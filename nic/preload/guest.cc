// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/guest.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <new>

#include "nic/preload/clock.h"
#include "nic/preload/explain.h"
#include "nic/preload/inline_progress.h"
#include "nic/preload/next.h"
#include "nic/preload/run_notes.h"
#include "nic/preload/syscalls.h"

extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void* dso);

namespace weft::preload {

namespace {

constinit std::atomic<Guest*> current_guest{nullptr};
constinit nic::FutexLock attach_lock;
constinit std::atomic<bool> fork_hooked{false};

constexpr uint64_t kMinDescriptors = 4096;
constexpr int64_t kResolveLimitNs = 3'000'000'000;
constexpr int64_t kLastWaitNs = 100'000'000;
constexpr int64_t kRoomLimitNs = 100'000'000;

// A NIC takes three descriptors, an event channel two more; the usual soft limit of 1024 is for select() users, whom a
// higher limit does not hurt as long as they open few files.
void raise_descriptor_limit() {
  rlimit limit{};
  if (raw::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) != 0) return;
  if (limit.rlim_cur >= kMinDescriptors || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max < kMinDescriptors ? limit.rlim_max : kMinDescriptors;
  raw::call(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, nullptr);
}

void* start_of_thread(void* guest) {
  static_cast<Guest*>(guest)->run_background();
  return nullptr;
}

}  // namespace

Guest* Guest::current() { return current_guest.load(std::memory_order_acquire); }

Guest* Guest::attached(int& error) {
  Guest* guest = current();
  if (guest != nullptr && !guest->daemon_gone()) return guest;
  nic::LockGuard guard(attach_lock);
  guest = current();
  if (guest != nullptr && !guest->daemon_gone()) return guest;
  return attach_now(error);
}

Guest* Guest::attach_now(int& error) {
  void* memory = raw::map_private(sizeof(Guest));
  if (memory == nullptr) {
    error = ENOMEM;
    return nullptr;
  }
  auto* guest = new (memory) Guest;
  raise_descriptor_limit();
  descriptors::set_owner();
  Line why;
  error = attach_to_host(settings(), guest->attachment_, why);
  if (error == 0) {
    guest->keep_descriptors();
    if (!guest->make_devices()) {
      why.add("no memory for the emulated NIC");
      error = ENOMEM;
    } else if (!guest->start_thread()) {
      why.add("no thread for the emulated NIC; raise the limits of processes and descriptors (ulimit -u, -n)");
      error = EAGAIN;
    }
  }
  if (error != 0) {
    say(why.c_str());
    note_refusal(why.c_str());
    guest->drop_descriptors();
    undo_attach(guest->attachment_);
    raw::munmap(memory, sizeof(Guest));
    return nullptr;
  }
  if (!fork_hooked.exchange(true)) {
    __register_atfork(before_fork, after_fork_in_parent, after_fork_in_child, nullptr);
  }
  current_guest.store(guest, std::memory_order_release);
  return guest;
}

bool Guest::make_devices() {
  for (uint32_t i = 0; i < attachment_.nic_count; ++i) {
    void* memory = raw::map_private(sizeof(nic::Device));
    if (memory == nullptr) return false;
    AttachedNic& nic = attachment_.nics[i];
    devices_[i] = new (memory) nic::Device(*this, nic.welcome, nic.port, nic.kick_write.load());
    if (!devices_[i]->usable()) return false;
  }
  return true;
}

void Guest::keep_descriptors() {
  const auto keep = [](std::atomic<int>& fd) {
    if (fd.load() >= 0) descriptors::keep_private(fd.load(), &fd);
  };
  for (uint32_t i = 0; i < attachment_.channel_count; ++i) keep(attachment_.channels[i].socket);
  for (uint32_t i = 0; i < attachment_.nic_count; ++i) {
    AttachedNic& nic = attachment_.nics[i];
    keep(nic.kick_read);
    keep(nic.kick_guard);
    // The engine knows this one by number: it keeps the one it gets before the Device is made.
    const int moved = descriptors::keep_private(nic.kick_write.load(), nullptr);
    if (moved >= 0) nic.kick_write.store(moved);
  }
}

void Guest::drop_descriptors() {
  const auto drop = [](std::atomic<int>& fd) {
    const int number = fd.load();
    if (number < 0 || !descriptors::is_private(number)) return;
    descriptors::drop_private(number);
    fd.store(-1);
  };
  for (Channel& channel : attachment_.channels) drop(channel.socket);
  drop(wake_fd_);
  for (AttachedNic& nic : attachment_.nics) {
    drop(nic.kick_read);
    drop(nic.kick_write);
    drop(nic.kick_guard);
  }
}

bool Guest::start_thread() {
  const long wake = raw::call(SYS_eventfd2, 0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake < 0) return false;
  wake_fd_.store(static_cast<int>(wake));
  descriptors::keep_private(static_cast<int>(wake), &wake_fd_);
  // Looked up by name: these moved between libraries in glibc 2.34 (DECISIONS 5).
  const auto create = reinterpret_cast<decltype(&::pthread_create)>(find_anywhere("pthread_create"));
  const auto attr_init = reinterpret_cast<decltype(&::pthread_attr_init)>(find_anywhere("pthread_attr_init"));
  const auto attr_size =
      reinterpret_cast<decltype(&::pthread_attr_setstacksize)>(find_anywhere("pthread_attr_setstacksize"));
  const auto attr_detached =
      reinterpret_cast<decltype(&::pthread_attr_setdetachstate)>(find_anywhere("pthread_attr_setdetachstate"));
  if (create == nullptr || attr_init == nullptr || attr_size == nullptr || attr_detached == nullptr) return false;
  pthread_attr_t attributes;
  attr_init(&attributes);
  attr_size(&attributes, size_t{256} << 10);
  attr_detached(&attributes, PTHREAD_CREATE_DETACHED);
  // The thread inherits the mask: it takes none of the program's signals, but the faults our copies cause (nic_rules
  // 5), a debugger's, and the two that libc sends to every thread (cancellation and setuid).
  uint64_t mask = ~uint64_t{0};
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, 32, 33}) mask &= ~(uint64_t{1} << (number - 1));
  uint64_t old = 0;
  raw::call(SYS_rt_sigprocmask, SIG_SETMASK, &mask, &old, 8L);
  pthread_t thread;
  const int result = create(&thread, &attributes, start_of_thread, this);
  raw::call(SYS_rt_sigprocmask, SIG_SETMASK, &old, nullptr, 8L);
  return result == 0;
}

void Guest::forget_context(const OpenDevice& file) { inline_progress::forget(file); }

int Guest::send(uint32_t channel, const void* message, bool wait) {
  const int flags = MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT);
  const int socket = attachment_.channels[channel].socket.load();
  const long sent = raw::call(SYS_sendto, socket, message, attach::kMessageBytes, flags, nullptr, 0);
  return sent == static_cast<long>(attach::kMessageBytes) ? 0 : EIO;
}

// Waits for the answer of a question that was sent with `error`, which is in answer_ then; with ask_lock_. 0, or an errno
// of the asking.
int Guest::await_answer(int error) {
  const Instant deadline = read_clock() + nanoseconds(kResolveLimitNs);
  bool last_wait = false;
  while (error == 0 && answered_.load(std::memory_order_acquire) == 0) {
    const Duration left = deadline - read_clock();
    if (daemon_gone())
      error = EIO;
    else if (left > Duration::zero())
      raw::futex_wait(&answered_, 0, left.count() / 1000);
    else if (!last_wait) {
      // The whole process may have been stopped: our thread gets its turn to read what has come meanwhile.
      last_wait = true;
      raw::futex_wait(&answered_, 0, kLastWaitNs);
    } else {
      error = ETIMEDOUT;
    }
  }
  awaited_tag_.store(0);
  if (error != 0) return error;
  if (answer_.error != 0) return answer_.error > 0 && answer_.error < 4096 ? answer_.error : EIO;
  return 0;
}

int Guest::resolve(uint32_t nic, const nic::Gid& gid, nic::ResolvedPeer& out) {
  nic::LockGuard guard(ask_lock_);
  attach::Resolve question{};
  question.head.type = attach::MessageType::kResolve;
  memcpy(question.gid, gid, sizeof question.gid);
  if (const int error = ask(nic, question); error != 0) return error;
  memcpy(out.mac, answer_.mac, sizeof out.mac);
  out.outside = answer_.outside != 0;
  out.ipv4 = answer_.ipv4;
  return 0;
}

int Guest::multicast(uint32_t nic, uint32_t qpn, const nic::Gid& gid, bool join) {
  nic::LockGuard guard(ask_lock_);
  attach::Multicast question{};
  question.head.type = attach::MessageType::kMulticast;
  question.qpn = qpn;
  question.join = join ? 1 : 0;
  memcpy(question.gid, gid, sizeof question.gid);
  return ask(nic, question);
}

int Guest::map_ring(int command_fd, uint64_t bytes, nic::RingMemory& out) {
  return descriptors::map_ring(command_fd, bytes, out);
}

void Guest::unmap_ring(const nic::RingMemory& ring) { descriptors::unmap_ring(ring); }

void Guest::object_seen(char kind, uint64_t user_handle) {
  if (kind == 'c') inline_progress::completion_queue_seen(user_handle);
}

void Guest::wake_thread() {
  if (thread_sleeps_.load(std::memory_order_seq_cst) == 0 || thread_sleeps_.exchange(0) == 0) {
    if (wake_missed_.load(std::memory_order_relaxed) == 0) wake_missed_.store(1, std::memory_order_relaxed);
    return;
  }
  const uint64_t one = 1;
  raw::write(wake_fd_.load(), &one, sizeof one);
}

bool Guest::qp_state(uint32_t nic, uint32_t qpn, uint32_t state, uint32_t type, uint32_t peer_qpn, const nic::Gid& peer,
                     uint32_t mtu) {
  attach::QpState message{};
  message.head.type = attach::MessageType::kQpState;
  message.qpn = qpn;
  message.state = state;
  message.type = type;
  message.peer_qpn = peer_qpn;
  message.mtu = mtu;
  memcpy(message.peer_gid, peer, sizeof message.peer_gid);
  if (send_about(nic, message, false) == 0 || daemon_gone()) return true;
  if (state != nic::kQpDestroyed) return false;
  // The channel is full: hundreds of QPs at once. Peers ask the daemon for this, and nobody tells it again, so it is worth
  // a moment; a daemon that does not read must not stop a program, though.
  pollfd room = {attachment_.channels[attachment_.nics[nic].channel].socket.load(), POLLOUT, 0};
  raw::poll(&room, 1, kRoomLimitNs);
  send_about(nic, message, false);
  return true;
}

void Guest::explain(uint32_t nic, const nic::ErrorReport& report) {
  Because reason;
  because(report, reason);
  attach::QpError message{};
  message.head.type = attach::MessageType::kQpError;
  message.qpn = report.qpn;
  message.status = static_cast<uint32_t>(report.status);
  message.side = static_cast<uint32_t>(report.side);
  memcpy(message.because, reason.c_str(), reason.size());
  send_about(nic, message, false);
  if (!settings().explain) return;
  // A program whose standard error nobody reads is not stopped for this.
  pollfd output{STDERR_FILENO, POLLOUT, 0};
  if (raw::poll(&output, 1, 0) != 1 || (output.revents & POLLOUT) == 0) return;
  Because head;
  headline(report, head);
  Text<480> line;
  line.add(head.c_str());
  if (reason.size() != 0) line.add(": ").add(reason.c_str());
  say(line.c_str());
}

bool Guest::steps_over_withdrawn(uint64_t cq) const { return inline_progress::polled_here(cq); }

void Guest::peer_silent(uint32_t nic, const nic::Gid& gid, uint32_t qpn) {
  attach::PeerQuery question{};
  question.head.type = attach::MessageType::kPeerQuery;
  question.qpn = qpn;
  memcpy(question.gid, gid, sizeof question.gid);
  send_about(nic, question, false);  // lost: the next timeout asks again
}

// The lock is held across the fork, so that the child's copy of it is in a known state.
void Guest::before_fork() { attach_lock.lock(); }

void Guest::after_fork_in_parent() { attach_lock.unlock(); }

void Guest::after_fork_in_child() {
  attach_lock.unlock();
  Guest* guest = current_guest.exchange(nullptr);
  descriptors::after_fork_in_child();
  inline_progress::forget_all();
  if (guest == nullptr) return;
  for (uint32_t i = 0; i < guest->attachment_.nic_count; ++i) guest->devices_[i]->detach();
}

void Guest::at_exit() {
  Guest* guest = current();
  if (guest == nullptr || guest->daemon_gone() || !descriptors::owner_here()) return;
  for (uint32_t i = 0; i < guest->attachment_.nic_count; ++i) guest->devices_[i]->drain(read_clock());
  attach::Bye bye{};
  bye.head.type = attach::MessageType::kBye;
  for (uint32_t i = 0; i < guest->attachment_.channel_count; ++i) guest->send(i, &bye, false);
}

namespace {
// A function, not an object: nothing of ours is destroyed while the program's own exit handlers still use the device.
__attribute__((destructor)) void flush_at_exit() { Guest::at_exit(); }
}  // namespace

}  // namespace weft::preload
