// SPDX-License-Identifier: Apache-2.0
#include "nic/host/port_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace weft::host {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kPipeBytes = 4096;  // a kick is one byte; small pipes keep an ordinary user within pipe-user-pages-soft

void close_if_open(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

/// A sized memfd and our shared mapping of it; 0 or errno. Its pages are there, or an error says that they cannot be: a
/// page that is missing when it is touched would be a SIGBUS, in the middle of the data plane.
int make_mapped_memfd(const char* name, uint32_t bytes, int& fd, void*& mapping) {
  fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return errno;
  while (fallocate(fd, 0, 0, bytes) != 0) {
    if (errno != EINTR) return errno;
  }
  mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) {
    mapping = nullptr;
    return errno;
  }
  return 0;
}

int make_pipe(int& read_end, int& write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return errno;
  // Best effort: refused for a user above the soft limit, who then has small pipes anyway.
  (void)fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
  read_end = ends[0];
  write_end = ends[1];
  return 0;
}

}  // namespace

int read_only_view(int memfd) {
  // EPERM where the owner sealed it already or allowed no seals: the open mode alone must do then.
  (void)fcntl(memfd, F_ADD_SEALS, kSizeSeals | F_SEAL_FUTURE_WRITE);
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", memfd);
  return open(path, O_RDONLY | O_CLOEXEC);
}

uint64_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return limit.rlim_cur;
}

PortMemory::~PortMemory() {
  close_client_fds();
  close_if_open(ours_.kick_read);
  close_if_open(ours_.kick_write);
  if (ours_.memory != nullptr) munmap(ours_.memory, bytes_);
  if (ours_.notices != nullptr) munmap(ours_.notices, kNoticeBytes);
}

int PortMemory::create(const attach::PortLayout& layout, int status_fd) {
  status_fd_ = status_fd;
  bytes_ = layout.total;
  void* mapping = nullptr;
  int error = make_mapped_memfd("weft-port", bytes_, port_fd_, mapping);
  ours_.memory = static_cast<uint8_t*>(mapping);
  if (error != 0) return error;
  if (fcntl(port_fd_, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) return errno;

  int notice_rw = -1;
  error = make_mapped_memfd("weft-notices", kNoticeBytes, notice_rw, mapping);
  ours_.notices = static_cast<attach::NoticeRing*>(mapping);
  if (error == 0) {
    notice_fd_ = read_only_view(notice_rw);
    if (notice_fd_ < 0) error = errno;
  }
  close_if_open(notice_rw);
  if (error != 0) return error;

  if ((error = make_pipe(ours_.kick_read, client_kick_write_)) != 0) return error;
  return make_pipe(client_kick_read_, ours_.kick_write);
}

std::array<int, static_cast<size_t>(attach::WelcomeDescriptor::kCount)> PortMemory::client_fds() const {
  return {port_fd_, client_kick_read_, client_kick_write_, status_fd_, notice_fd_};
}

PortMemory::Ours PortMemory::release_ours() { return std::exchange(ours_, Ours{}); }

void PortMemory::close_client_fds() {
  close_if_open(port_fd_);
  close_if_open(notice_fd_);
  close_if_open(client_kick_read_);
  close_if_open(client_kick_write_);
}

}  // namespace weft::host
