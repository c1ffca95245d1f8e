// SPDX-License-Identifier: Apache-2.0
//
// The life of descriptors (nic_rules 4): closing the last one of an open device closes its context; libweft's own
// descriptors are not the program's to close or replace. State changes only in the process that owns it: the child of a
// vfork, where Python calls close_range(3, ...), has a descriptor table of its own but runs in our memory.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

#include "nic/preload/descriptors.h"
#include "nic/preload/next.h"
#include "nic/preload/syscalls.h"

namespace raw = weft::raw;
namespace descriptors = weft::preload::descriptors;

namespace {

constexpr unsigned kCloexecOnly = 4;  // CLOSE_RANGE_CLOEXEC

int failed(int error) {
  errno = error;
  return -1;
}

// Would the call hit a descriptor of libweft, in the process whose descriptors these are?
bool ours(int fd) { return descriptors::is_private(fd) && descriptors::owner_here(); }

// Gives [first, last] to `close_part` in pieces around our own descriptors.
template <typename ClosePart>
int close_around(unsigned first, unsigned last, ClosePart close_part) {
  unsigned from = first;
  while (from <= last) {
    const int stop = from <= INT32_MAX ? descriptors::next_private(static_cast<int>(from)) : -1;
    const bool inside = stop >= 0 && static_cast<unsigned>(stop) <= last;
    const unsigned to = inside ? static_cast<unsigned>(stop) : last;
    if (!inside) return close_part(from, to);
    if (to > from) {
      const int result = close_part(from, to - 1);
      if (result != 0) return result;
    }
    from = to + 1;
    if (from == 0) break;
  }
  return 0;
}

int close_range_raw(unsigned first, unsigned last, unsigned flags) {
  const long result = raw::call(SYS_close_range, first, last, flags);
  return result < 0 ? failed(static_cast<int>(-result)) : 0;
}

// dup2 and dup3: makes the number free of us, or says why not (0 = go on).
int make_room(int from, int to) {
  if (from == to || to < 0) return 0;
  if (ours(to) && !descriptors::move_private(to)) return EBUSY;
  // The kernel closes `to` as part of the call.
  if (raw::fcntl(from, F_GETFD) >= 0) descriptors::closed(to);
  return 0;
}

}  // namespace

WEFT_INTERPOSE int close(int fd) {
  if (ours(fd)) return failed(EBADF);
  descriptors::closed(fd);
  return WEFT_NEXT(close)(fd);
}

WEFT_INTERPOSE int close_range(unsigned first, unsigned last, int flags) {
  const auto bits = static_cast<unsigned>(flags);
  if (!descriptors::owner_here() || first > last) return close_range_raw(first, last, bits);
  // Our own are close-on-exec already.
  if ((bits & kCloexecOnly) != 0) return close_range_raw(first, last, bits);
  descriptors::closed_range(first, last);
  return close_around(first, last, [bits](unsigned from, unsigned to) { return close_range_raw(from, to, bits); });
}

extern "C" void closefrom(int first);

WEFT_INTERPOSE void closefrom(int first) {
  const unsigned from = first < 0 ? 0 : static_cast<unsigned>(first);
  auto* next = WEFT_NEXT_OR_NULL(closefrom);
  if (!descriptors::owner_here()) {
    if (next != nullptr)
      next(first);
    else
      close_range_raw(from, ~0u, 0);
    return;
  }
  descriptors::closed_range(from, ~0u);
  const int stop = descriptors::next_private(static_cast<int>(from));
  if (stop < 0 && next != nullptr) {
    next(first);
    return;
  }
  close_around(from, ~0u, [](unsigned a, unsigned b) {
    if (raw::call(SYS_close_range, a, b, 0) == 0) return 0;
    // Kernels before 5.9: one by one, up to the limit.
    rlimit limit{};
    raw::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit);
    for (unsigned fd = a; fd <= b && fd < limit.rlim_cur; ++fd) raw::close(static_cast<int>(fd));
    return 0;
  });
}

WEFT_INTERPOSE int dup(int fd) {
  const int copy = WEFT_NEXT(dup)(fd);
  if (copy >= 0) descriptors::copied(fd, copy);
  return copy;
}

WEFT_INTERPOSE int dup2(int from, int to) {
  if (const int error = make_room(from, to); error != 0) return failed(error);
  const int copy = WEFT_NEXT(dup2)(from, to);
  if (copy >= 0) descriptors::copied(from, copy);
  return copy;
}

WEFT_INTERPOSE int dup3(int from, int to, int flags) {
  if (const int error = make_room(from, to); error != 0) return failed(error);
  const int copy = WEFT_NEXT(dup3)(from, to, flags);
  if (copy >= 0) descriptors::copied(from, copy);
  return copy;
}

namespace {

int finish_fcntl(int fd, int command, int result) {
  if (result >= 0 && (command == F_DUPFD || command == F_DUPFD_CLOEXEC)) descriptors::copied(fd, result);
  return result;
}

}  // namespace

WEFT_INTERPOSE int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return finish_fcntl(fd, command, WEFT_NEXT(fcntl)(fd, command, argument));
}

WEFT_INTERPOSE int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  // glibc before 2.28 has only the one name.
  auto* next = WEFT_NEXT_OR_NULL(fcntl64);
  if (next == nullptr) next = WEFT_NEXT(fcntl);
  return finish_fcntl(fd, command, next(fd, command, argument));
}
