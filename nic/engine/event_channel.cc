// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/event_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "nic/engine/arena.h"

namespace weft::nic {
namespace {

constexpr size_t kMaxRecord = 16;
constexpr uint32_t kFirstKept = 1024;
constexpr uint32_t kMostKept = 1u << 20;
constexpr int kDescriptorsSearched = 4096;
constexpr uint32_t kMaxQueued = 4096;  // more than any socket buffer holds: bounds the walk in purge()

// Raw system calls: the C library's wrappers are cancellation points, and some of them are our own interposed ones.
class KeepErrno {
 public:
  KeepErrno() : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }

 private:
  int saved_;
};

// Programs use small numbers by name (dup2, select): our end stays clear of them where the limit allows.
constexpr int kPrivateFloor = 512;

int move_up(int fd) {
  const long moved = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kPrivateFloor);
  if (moved < 0) return fd;
  syscall(SYS_close, fd);
  return static_cast<int>(moved);
}

int stat_of(int fd, struct stat& out) { return static_cast<int>(syscall(SYS_newfstatat, fd, "", &out, AT_EMPTY_PATH)); }

}  // namespace

int EventChannel::open(int& program_fd) {
  KeepErrno keep;
  int pair[2];
  if (syscall(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return errno;
  struct stat info;
  if (stat_of(pair[0], info) != 0) {
    const int error = errno;
    syscall(SYS_close, pair[0]);
    syscall(SYS_close, pair[1]);
    return error;
  }
  program_fd = program_fd_ = pair[0];
  own_fd_ = move_up(pair[1]);
  device_ = info.st_dev;
  inode_ = info.st_ino;
  return 0;
}

void EventChannel::close() {
  KeepErrno keep;
  if (own_fd_ >= 0) syscall(SYS_close, own_fd_);
  own_fd_ = -1;
  unmap_memory(kept_, kept_room_ * sizeof(Kept));
  kept_ = nullptr;
  kept_room_ = kept_count_ = 0;
}

bool EventChannel::send(const void* record, size_t bytes) {
  KeepErrno keep;
  if (own_fd_ < 0) return false;
  return syscall(SYS_sendto, own_fd_, record, bytes, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0) ==
         static_cast<long>(bytes);
}

bool EventChannel::post(const void* record, size_t bytes) {
  if (bytes > kMaxRecord || own_fd_ < 0) return false;
  if (kept_count_ == 0 && send(record, bytes)) return true;
  if (abandoned() || (kept_count_ == kept_room_ && !grow_kept())) return false;
  Kept& last = kept_[kept_count_++];
  memcpy(last.record, record, bytes);
  last.bytes = static_cast<uint32_t>(bytes);
  return true;
}

bool EventChannel::grow_kept() {
  const uint32_t room = kept_room_ == 0 ? kFirstKept : kept_room_ * 2;
  if (room > kMostKept) return false;
  auto* more = static_cast<Kept*>(map_memory(room * sizeof(Kept)));
  if (more == nullptr) return false;
  if (kept_count_ != 0) memcpy(more, kept_, kept_count_ * sizeof(Kept));
  unmap_memory(kept_, kept_room_ * sizeof(Kept));
  kept_ = more;
  kept_room_ = room;
  return true;
}

bool EventChannel::flush_kept() {
  uint32_t sent = 0;
  while (sent < kept_count_ && send(kept_[sent].record, kept_[sent].bytes)) ++sent;
  if (sent < kept_count_ && abandoned()) sent = kept_count_;
  kept_count_ -= sent;
  if (sent != 0 && kept_count_ != 0) memmove(kept_, kept_ + sent, kept_count_ * sizeof(Kept));
  return sent != 0;
}

bool EventChannel::is_program_fd(int fd) const {
  KeepErrno keep;
  struct stat info;
  return own_fd_ >= 0 && stat_of(fd, info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

bool EventChannel::abandoned() const {
  KeepErrno keep;
  struct pollfd look = {own_fd_, 0, 0};
  struct timespec now = {0, 0};
  return own_fd_ < 0 || (syscall(SYS_ppoll, &look, 1, &now, nullptr, 0) == 1 && (look.revents & POLLHUP) != 0);
}

/// Where the program has its end now: programs move descriptors about. -1: nowhere.
int EventChannel::find_program_fd() {
  if (is_program_fd(program_fd_)) return program_fd_;
  if (abandoned()) return -1;
  for (int fd = 0; fd < kDescriptorsSearched; ++fd) {
    if (is_program_fd(fd)) return program_fd_ = fd;
  }
  return -1;
}

uint32_t EventChannel::purge_kept(uint64_t element) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < kept_count_; ++i) {
    uint64_t first = 0;
    memcpy(&first, kept_[i].record, sizeof first);
    if (first != element) kept_[left++] = kept_[i];
  }
  const uint32_t dropped = kept_count_ - left;
  kept_count_ = left;
  return dropped;
}

uint32_t EventChannel::purge(uint64_t element, size_t record_bytes) {
  KeepErrno keep;
  uint32_t dropped = purge_kept(element);
  // No private duplicate of the program's end exists: it would hide the program's close from us. A number is used only
  // while it names the same socket.
  if (record_bytes > kMaxRecord || find_program_fd() < 0) return dropped;
  // Everything is taken out before anything goes back, so that the order of the others stays. A socket buffer holds a
  // few hundred records.
  constexpr size_t kBytes = kMaxQueued * kMaxRecord;
  auto* kept = static_cast<uint8_t*>(map_memory(kBytes));
  if (kept == nullptr) return dropped;
  uint32_t count = 0;
  while (count < kMaxQueued) {
    uint8_t* record = kept + count * kMaxRecord;
    const long got = syscall(SYS_recvfrom, program_fd_, record, record_bytes, MSG_DONTWAIT, nullptr, nullptr);
    if (got != static_cast<long>(record_bytes)) break;
    uint64_t first = 0;
    memcpy(&first, record, sizeof first);
    if (first == element) {
      ++dropped;
    } else {
      ++count;
    }
  }
  for (uint32_t i = 0; i < count; ++i) send(kept + i * kMaxRecord, record_bytes);
  unmap_memory(kept, kBytes);
  return dropped;
}

}  // namespace weft::nic
