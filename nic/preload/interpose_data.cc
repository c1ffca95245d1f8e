// SPDX-License-Identifier: Apache-2.0
//
// What programs do with an open device: write() carries the verbs commands; ioctl() answers ENOTTY, which makes
// libibverbs use write() for good; the RDMA netlink family does not exist, which makes it read sysfs (kernel_abi 0).
#include <errno.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "nic/abi/context.h"
#include "nic/preload/clock.h"
#include "nic/preload/descriptors.h"
#include "nic/preload/faults.h"
#include "nic/preload/guest.h"
#include "nic/preload/interfaces.h"
#include "nic/preload/next.h"
#include "nic/preload/settings.h"

namespace {

using weft::preload::OpenDevice;
namespace descriptors = weft::preload::descriptors;

// Of rdma/ib_user_verbs.h, which belongs to nic/abi.
constexpr uint32_t kCommandRegisterMr = 9;
constexpr uint32_t kCommandPostSend = 28;

constexpr int kNetlinkRdma = 20;

long run_command(OpenDevice& file, const void* data, size_t bytes, uint32_t command) {
  if (file.guest == nullptr) return -EIO;
  if (command == kCommandRegisterMr) weft::preload::faults::check();
  return file.context->command(data, bytes, weft::preload::read_clock());
}

// The result of write(2). Not a device after all (closed behind our back): `passed` stays false.
ssize_t write_command(OpenDevice& file, int fd, const void* data, size_t bytes, bool& passed) {
  uint32_t command = 0;
  if (bytes >= sizeof command) __builtin_memcpy(&command, data, sizeof command);
  // The doorbell trusts the table; every other command can afford to look.
  if (command != kCommandPostSend && !descriptors::verify(fd, file)) {
    descriptors::closed(fd);
    return -1;
  }
  passed = true;
  const int saved = errno;
  const long result = run_command(file, data, bytes, command);
  errno = result < 0 ? static_cast<int>(-result) : saved;
  return result < 0 ? -1 : result;
}

}  // namespace

WEFT_INTERPOSE ssize_t write(int fd, const void* data, size_t bytes) {
  if (OpenDevice* file = descriptors::command_file(fd); __builtin_expect(file != nullptr, 0)) {
    bool passed = false;
    const ssize_t result = write_command(*file, fd, data, bytes, passed);
    if (passed) return result;
  }
  return WEFT_NEXT(write)(fd, data, bytes);
}

// The kernel hands the parts of a writev to the device one by one; nothing sends commands that way.
WEFT_INTERPOSE ssize_t writev(int fd, const struct iovec* parts, int count) {
  if (OpenDevice* file = descriptors::command_file(fd); __builtin_expect(file != nullptr, 0)) {
    bool passed = false;
    ssize_t total = 0;
    for (int i = 0; i < count; ++i) {
      const ssize_t done = write_command(*file, fd, parts[i].iov_base, parts[i].iov_len, passed);
      if (!passed) break;
      if (done < 0) return total > 0 ? total : -1;
      total += done;
    }
    if (passed || count == 0) return total;
  }
  return WEFT_NEXT(writev)(fd, parts, count);
}

WEFT_INTERPOSE ssize_t read(int fd, void* data, size_t bytes) {
  if (const OpenDevice* file = descriptors::command_file(fd); __builtin_expect(file != nullptr, 0)) {
    if (descriptors::verify(fd, *file)) {
      errno = EINVAL;  // a uverbs device cannot be read
      return -1;
    }
  }
  return WEFT_NEXT(read)(fd, data, bytes);
}

WEFT_INTERPOSE int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  if (const OpenDevice* file = descriptors::command_file(fd); __builtin_expect(file != nullptr, 0)) {
    if (descriptors::verify(fd, *file)) {
      errno = ENOTTY;
      return -1;
    }
  }
  int result = 0;
  if (weft::preload::interface_ioctl(fd, request, argument, result)) return result;
  return WEFT_NEXT(ioctl)(fd, request, argument);
}

WEFT_INTERPOSE int socket(int domain, int type, int protocol) {
  if (domain == AF_NETLINK && protocol == kNetlinkRdma && weft::preload::settings().active) {
    errno = EPROTONOSUPPORT;
    return -1;
  }
  return WEFT_NEXT(socket)(domain, type, protocol);
}
