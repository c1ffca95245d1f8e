// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/loopback_claim.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "tools/weft/process_setup.h"

namespace weft::tools {
namespace {

struct flock range_of(short type, uint32_t first, uint32_t count) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = first;
  range.l_len = count;
  return range;
}

/// Without O_CREAT where it exists: in a sticky folder the kernel refuses that for another user's file
/// (fs.protected_regular). A thing planted there that is no file is not waited on and not used.
int open_lock_file(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  int fd = open(path.c_str(), kFlags);
  if (fd < 0 && errno == ENOENT) {
    fd = open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0666);
    if (fd >= 0) {
      fchmod(fd, 0666);  // whatever the umask
    } else if (errno == EEXIST) {
      fd = open(path.c_str(), kFlags);
    }
  }
  struct stat info {};
  if (fd < 0 || (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))) return fd;
  close(fd);
  errno = EINVAL;
  return -1;
}

}  // namespace

std::string LoopbackClaim::take() {
  release();
  struct stat own_net {};
  if (stat("/proc/self/ns/net", &own_net) != 0) own_net.st_ino = 0;
  path_ = folder_ + "/weft-net-" + std::to_string(own_net.st_ino);
  // Whoever leaves may remove the file between our open and our lock; then the next is a new one.
  for (int tries = 0; tries < 100; ++tries) {
    fd_ = open_lock_file(path_);
    if (fd_ < 0 && errno == ENOENT) continue;
    if (fd_ < 0) break;
    if (!lock_one_of_all()) {
      release();
      return "all of 127.18 to 127.254 belong to running fabrics; end one, or share the machine's TCP: weft up "
             "--shared-tcp";
    }
    if (is_still_there()) return {};
    close(fd_);
    fd_ = -1;
    number_ = 0;
  }
  return "cannot claim loopback addresses for the hosts' TCP by " + path_ + ": " + error_text(errno) +
         "; share the machine's TCP instead: weft up --shared-tcp";
}

bool LoopbackClaim::lock_one_of_all() {
  for (uint32_t b = kFirst; b <= kLast; ++b) {
    struct flock byte = range_of(F_WRLCK, b, 1);
    if (fcntl(fd_, F_OFD_SETLK, &byte) != 0) continue;
    number_ = b;
    return true;
  }
  return false;
}

bool LoopbackClaim::is_still_there() const {
  struct stat mine {};
  struct stat now_there {};
  return fstat(fd_, &mine) == 0 && lstat(path_.c_str(), &now_there) == 0 && mine.st_ino == now_there.st_ino &&
         mine.st_dev == now_there.st_dev;
}

void LoopbackClaim::release() {
  if (fd_ < 0) return;
  // Only who holds all of it may remove it: somebody who locks a byte of it later finds that it is gone, and tries
  // again.
  struct flock all = range_of(F_WRLCK, 0, 0);
  if (fcntl(fd_, F_OFD_SETLK, &all) == 0 && is_still_there()) unlink(path_.c_str());
  close(fd_);
  fd_ = -1;
  number_ = 0;
}

}  // namespace weft::tools
