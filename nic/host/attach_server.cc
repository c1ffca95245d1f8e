// SPDX-License-Identifier: Apache-2.0
//
// Sockets, connections and deaths; what the messages mean is in attach_messages.cc.
#include "nic/host/attach_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nic/host/port_memory.h"
#include "protocols/base/assert.h"

namespace weft::host {
namespace {

constexpr uint64_t kKindShift = 62;
constexpr uint64_t kKeyMask = (uint64_t{1} << kKindShift) - 1;
enum Kind : uint64_t { kListenerKey = 0, kSocketKey = 1, kPidfdKey = 2 };
constexpr uint64_t key_of(Kind kind, uint64_t id) { return (static_cast<uint64_t>(kind) << kKindShift) | id; }

constexpr int kEventsPerRound = 64;
constexpr int kMessagesPerRound = 32;  // then the next client has its turn; epoll reports the rest again
constexpr uint32_t kMaxSilent = 64;
constexpr size_t kMaxRuns = 4096;
constexpr uint32_t kEventDeviceFatal = 8;  // ibv_event_type
// An interface that comes up gets its link-local address anew, and the GID with it.
constexpr std::array<uint32_t, 2> kUpEvents = {9, 18};    // PORT_ACTIVE, GID_CHANGE
constexpr std::array<uint32_t, 2> kDownEvents = {10, 0};  // PORT_ERR

void close_if_open(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

/// Linux 6.5 tells the peer's pidfd without a race; before that its number must do, and a process that died in between
/// then shows as the end of its socket.
int pidfd_of_peer(int fd, pid_t pid) {
#ifndef SO_PEERPIDFD
  constexpr int kPeerPidfd = 77;
#else
  constexpr int kPeerPidfd = SO_PEERPIDFD;
#endif
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (getsockopt(fd, SOL_SOCKET, kPeerPidfd, &pidfd, &size) == 0 && pidfd >= 0) return pidfd;
  if (pid <= 0) return -1;
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

/// A Unix socket that is closed with messages unread makes the peer's next receive fail with ECONNRESET, before the last
/// word that it was sent.
void drain(int fd) {
  uint8_t byte;
  for (int i = 0; i < kMessagesPerRound && recv(fd, &byte, 1, MSG_DONTWAIT | MSG_TRUNC) > 0; ++i) {
  }
}

}  // namespace

AttachServer::AttachServer(const AddressPlan& plan, PortSink& sink, AttachSettings settings)
    : plan_(plan), sink_(sink), settings_(std::move(settings)) {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  status_fd_ = read_only_view(sink_.status_memfd());
  reserve_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

AttachServer::~AttachServer() {
  while (!channels_.empty()) end(channels_.begin()->second, false, Instant{});
  for (auto& listener : listeners_) {
    close_if_open(listener->fd);
    unlink(listener->path.c_str());
  }
  close_if_open(reserve_fd_);
  close_if_open(status_fd_);
  close_if_open(epoll_fd_);
}

std::string AttachServer::listen(uint32_t host, const std::string& name, const std::string& socket_path) {
  WEFT_ASSERT(host < plan_.hosts());
  if (epoll_fd_ < 0 || status_fd_ < 0 || reserve_fd_ < 0) return "cannot start the attach server: " + std::string(std::strerror(errno));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) return "the path of a host's socket is too long: " + socket_path;
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());

  auto listener = std::make_unique<Listener>();
  listener->host = host;
  listener->name = name;
  listener->path = socket_path;
  listener->ranges = QpnRanges(1 + (host * 64) % (kQpnRanges - 1));
  listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener->fd < 0 || bind(listener->fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener->fd, 128) != 0 || watch(listener->fd, key_of(kListenerKey, listeners_.size())) != 0) {
    const std::string error = "cannot listen on " + socket_path + ": " + std::strerror(errno);
    close_if_open(listener->fd);
    return error;
  }
  listeners_.push_back(std::move(listener));
  return {};
}

int AttachServer::watch(int fd, uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  return epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : errno;
}

void AttachServer::on_ready(Instant now) {
  epoll_event events[kEventsPerRound];
  const int count = epoll_wait(epoll_fd_, events, kEventsPerRound, 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64 & kKeyMask;
    switch (events[i].data.u64 >> kKindShift) {
      case kListenerKey:
        accept_all(*listeners_[id], now);
        break;
      case kSocketKey:
        read_channel(id, now);
        break;
      case kPidfdKey: {
        // What it sent before it died (a BYE, say) is read first.
        read_channel(id, now);
        const auto it = channels_.find(id);
        if (it != channels_.end()) end(it->second, true, now);
        break;
      }
    }
  }
}

Instant AttachServer::next_deadline() const {
  Instant first = kNever;
  for (const auto& [id, channel] : channels_) {
    if (!channel.attached) first = std::min(first, channel.hello_until);
  }
  return first;
}

void AttachServer::on_timer(Instant now) {
  std::vector<uint64_t> late;
  for (const auto& [id, channel] : channels_) {
    if (!channel.attached && channel.hello_until <= now) late.push_back(id);
  }
  for (const uint64_t id : late) drop(channels_.at(id), "connected and said nothing", now);
}

void AttachServer::accept_all(Listener& listener, Instant now) {
  for (int i = 0; i < kMessagesPerRound; ++i) {
    const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      admit(listener, fd, now);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE) refuse_for_descriptors(listener);
    if (errno != ECONNABORTED && errno != EINTR) return;
  }
}

// A level-triggered listener that nobody can accept from would spin: one descriptor is kept for saying why.
void AttachServer::refuse_for_descriptors(Listener& listener) {
  close_if_open(reserve_fd_);
  int fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    Channel channel;
    channel.fd = fd;
    channel.host = listener.host;
    refuse(channel, EMFILE, "the daemon has no file descriptors left; raise its limit (ulimit -n) and start it again", Instant{});
    close_if_open(fd);
  }
  reserve_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  errno = EAGAIN;
}

void AttachServer::admit(Listener& listener, int fd, Instant now) {
  Channel channel;
  channel.id = next_channel_++;
  channel.fd = fd;
  channel.host = listener.host;
  channel.hello_until = now + settings_.hello_time;
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    close(fd);
    return;
  }
  channel.pid = credentials.pid;
  channel.uid = credentials.uid;
  const uint64_t id = channel.id;
  Channel& admitted = channels_.emplace(id, channel).first->second;
  ++silent_[listener.host];
  if (credentials.uid != settings_.owner_uid && credentials.uid != 0) {
    refuse(admitted, EACCES, "this fabric belongs to user " + std::to_string(settings_.owner_uid) + "; start your own with: weft up", now);
    return;
  }
  if (silent_[listener.host] > kMaxSilent) {
    refuse(admitted, EBUSY, "too many programs are attaching at once; try again", now);
    return;
  }
  admitted.pidfd = pidfd_of_peer(fd, credentials.pid);
  if (admitted.pidfd < 0 && (errno == EMFILE || errno == ENFILE)) {
    refuse(admitted, EMFILE, "the daemon has no file descriptors left; raise its limit (ulimit -n) and start it again", now);
    return;
  }
  int error = watch(fd, key_of(kSocketKey, id));
  if (error == 0 && admitted.pidfd >= 0) error = watch(admitted.pidfd, key_of(kPidfdKey, id));
  if (error != 0) refuse(admitted, error, "the daemon cannot watch this process: " + std::string(std::strerror(error)), now);
}

void AttachServer::read_channel(uint64_t id, Instant now) {
  for (int i = 0; i < kMessagesPerRound; ++i) {
    const auto it = channels_.find(id);
    if (it == channels_.end()) return;
    Channel& channel = it->second;
    // One byte more than a message, to tell a longer one. No control buffer: descriptors sent to us are closed by the kernel.
    uint8_t buffer[attach::kMessageBytes + 1];
    const ssize_t got = recv(channel.fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      end(channel, true, now);
      return;
    }
    if (got != static_cast<ssize_t>(attach::kMessageBytes)) {
      drop(channel, "sent a message of " + std::to_string(got) + " bytes instead of 256", now);
      return;
    }
    Message message;
    std::memcpy(message.data(), buffer, message.size());
    if (!handle(channel, message, now)) return;
  }
}

bool AttachServer::answer(Channel& channel, const void* message, Instant now) {
  ssize_t sent;
  do {
    sent = send(channel.fd, message, attach::kMessageBytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(attach::kMessageBytes)) return true;
  if (errno == EPIPE || errno == ECONNRESET) {
    end(channel, true, now);
    return false;
  }
  return drop(channel, "does not fetch its answers", now);
}

bool AttachServer::refuse(Channel& channel, int error, const std::string& text, Instant now) {
  attach::Refused refused{};
  refused.head.type = attach::MessageType::kRefused;
  refused.error = error;
  refused.version = attach::kAttachVersion;
  std::memcpy(refused.text, text.data(), std::min(text.size(), sizeof refused.text - 1));
  (void)send(channel.fd, &refused, sizeof refused, MSG_DONTWAIT | MSG_NOSIGNAL);
  drain(channel.fd);
  ++statistics_.refused;
  log("refused process " + std::to_string(channel.pid) + " on " + host_name(channel.host) + ": " + text);
  if (channel.id != 0) end(channel, false, now);
  return false;
}

bool AttachServer::drop(Channel& channel, const std::string& reason, Instant now) {
  ++statistics_.dropped;
  log("dropped process " + std::to_string(channel.pid) + " on " + host_name(channel.host) + ": " + reason);
  attach::Event event{};
  event.head.type = attach::MessageType::kEvent;
  event.event = kEventDeviceFatal;
  event.port = 1;
  if (channel.attached) (void)send(channel.fd, &event, sizeof event, MSG_DONTWAIT | MSG_NOSIGNAL);
  drain(channel.fd);
  end(channel, true, now);
  return false;
}

void AttachServer::end(Channel& channel, bool died, Instant now) {
  if (channel.attached) {
    if (died) ++statistics_.died;
    leave_seat(channel, died, now);
  } else {
    --silent_[channel.host];
  }
  const uint64_t id = channel.id;
  close_if_open(channel.fd);
  close_if_open(channel.pidfd);
  channels_.erase(id);
}

void AttachServer::leave_seat(Channel& channel, bool died, Instant now) {
  const auto it = seats_.find(channel.seat);
  WEFT_ASSERT(it != seats_.end());
  for (uint32_t nic = 0; nic < it->second.nics; ++nic) sink_.detach(channel.seat, nic, died);
  for (auto& listener : listeners_) {
    if (listener->host == channel.host) listener->ranges.give_back(it->second.range, now);
  }
  for (const auto& [qpn, qp] : it->second.qps) remember(it->second, qpn, qp);
  seats_.erase(it);
  free_seats_.push_back(channel.seat);
  if (settings_.left) settings_.left(channel.host);
}

void AttachServer::set_port(uint32_t host, uint32_t nic, bool up) {
  up ? (void)ports_down_.erase({host, nic}) : (void)ports_down_.insert({host, nic});
  attach::Event event{};
  event.head.type = attach::MessageType::kEvent;
  event.nic = nic;
  event.port = 1;
  for (const auto& [id, channel] : channels_) {
    if (!channel.attached || channel.host != host || nic >= seats_.at(channel.seat).nics) continue;
    // A program that does not read them misses them; it has other troubles.
    for (const uint32_t type : up ? kUpEvents : kDownEvents) {
      event.event = type;
      if (type != 0) (void)send(channel.fd, &event, sizeof event, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }
}

void AttachServer::drop_seat(SeatId seat, const std::string& reason, Instant now) {
  for (auto& [id, channel] : channels_) {
    if (!channel.attached || channel.seat != seat) continue;
    drop(channel, reason, now);
    return;
  }
}

// The oldest first: a late word of the data plane about a seat must not hit its next owner.
SeatId AttachServer::take_seat_id() {
  constexpr size_t kRest = 16;
  if (free_seats_.size() <= kRest) return next_seat_++;
  const SeatId seat = free_seats_.front();
  free_seats_.erase(free_seats_.begin());
  return seat;
}

RunRecord& AttachServer::run_of(uint64_t run_id) {
  const auto [it, is_new] = runs_.try_emplace(run_id);
  if (is_new) {
    run_order_.push_back(run_id);
    if (run_order_.size() > kMaxRuns) {
      runs_.erase(run_order_.front());
      run_order_.erase(run_order_.begin());
    }
  }
  return it->second;
}

RunRecord AttachServer::run_record(uint64_t run_id) const {
  const auto it = runs_.find(run_id);
  return it == runs_.end() ? RunRecord{} : it->second;
}

std::string AttachServer::host_name(uint32_t host) const {
  for (const auto& listener : listeners_) {
    if (listener->host == host) return listener->name;
  }
  return "host " + std::to_string(host);
}

void AttachServer::log(const std::string& line) const {
  if (settings_.log) settings_.log(line);
}

}  // namespace weft::host
