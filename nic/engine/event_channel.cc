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
}

bool EventChannel::send(const void* record, size_t bytes) {
  KeepErrno keep;
  if (own_fd_ < 0) return false;
  return syscall(SYS_sendto, own_fd_, record, bytes, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0) ==
         static_cast<long>(bytes);
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

uint32_t EventChannel::purge(uint64_t element, size_t record_bytes) {
  KeepErrno keep;
  // No private duplicate of the program's end exists: it would hide the program's close from us. The number we gave
  // away is used only while it still names the same socket.
  if (!is_program_fd(program_fd_) || record_bytes > kMaxRecord) return 0;
  // Everything is taken out before anything goes back, so that the order of the others stays. A socket buffer holds a
  // few hundred records.
  constexpr size_t kBytes = kMaxQueued * kMaxRecord;
  auto* kept = static_cast<uint8_t*>(map_memory(kBytes));
  if (kept == nullptr) return 0;
  uint32_t dropped = 0;
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
