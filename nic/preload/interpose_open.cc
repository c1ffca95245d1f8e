// SPDX-License-Identifier: Apache-2.0
//
// open and its relatives: /dev/infiniband/uverbsN becomes a memfd with a context of the engine behind it, the RDMA
// folders of /sys become the host's own. Every other path passes through.
//
// Variadic arguments: the mode is only there with O_CREAT or O_TMPFILE; reading it otherwise is harmless on the
// architectures we run on, and libc does the same.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#include "nic/preload/descriptors.h"
#include "nic/preload/guest.h"
#include "nic/preload/live_counters.h"
#include "nic/preload/next.h"
#include "nic/preload/paths.h"
#include "nic/preload/settings.h"
#include "nic/preload/syscalls.h"
#include "nic/preload/text.h"

extern "C" {
int __open_2(const char* path, int flags);
int __open64_2(const char* path, int flags);
int __openat_2(int directory, const char* path, int flags);
int __openat64_2(int directory, const char* path, int flags);
}

namespace {

using weft::preload::Guest;
using weft::preload::RewrittenPath;

// The device numbers of a host are those of its NICs, from 0.
int open_device(int index, int flags) {
  int error = 0;
  const int saved = errno;
  Guest* guest = Guest::attached(error);
  if (guest != nullptr && static_cast<uint32_t>(index) >= guest->nic_count()) error = ENXIO;
  if (error == 0) {
    const int fd = weft::preload::descriptors::open_command_file(*guest, static_cast<uint32_t>(index), flags);
    if (fd >= 0) {
      errno = saved;
      return fd;
    }
    error = -fd;
    weft::preload::say(error == EMFILE ? "no descriptor left for an RDMA device; raise the limit (ulimit -n)"
                                       : "no memory left for an RDMA device");
  }
  errno = error;
  return -1;
}

constexpr int kOrdinary = -2;

/// The paths behind which there is no file: a device, or a counter of this moment. kOrdinary: neither.
int special(const RewrittenPath& path, int flags) {
  if (path.uverbs() >= 0) return open_device(path.uverbs(), flags);
  const int fd = weft::preload::open_live_counter(path.get(), flags);
  return fd >= 0 ? fd : kOrdinary;
}

/// For streams, which only read counters.
FILE* special_stream(const RewrittenPath& path, const char* mode) {
  if (mode == nullptr || mode[0] != 'r' || mode[1] == '+') return nullptr;
  const int fd = weft::preload::open_live_counter(path.get(), O_RDONLY);
  if (fd < 0) return nullptr;
  FILE* const stream = fdopen(fd, mode);
  if (stream == nullptr) weft::raw::close(fd);
  return stream;
}

mode_t mode_argument(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

#define WEFT_MODE(flags)                               \
  va_list arguments;                                   \
  va_start(arguments, flags);                          \
  const mode_t mode = mode_argument(flags, arguments); \
  va_end(arguments)

WEFT_INTERPOSE int open(const char* path, int flags, ...) {
  WEFT_MODE(flags);
  RewrittenPath p(path);
  if (const int fd = special(p, flags); fd != kOrdinary) return fd;
  return WEFT_NEXT(open)(p.get(), flags, mode);
}

WEFT_INTERPOSE int open64(const char* path, int flags, ...) {
  WEFT_MODE(flags);
  RewrittenPath p(path);
  if (const int fd = special(p, flags); fd != kOrdinary) return fd;
  return WEFT_NEXT(open64)(p.get(), flags, mode);
}

WEFT_INTERPOSE int openat(int directory, const char* path, int flags, ...) {
  WEFT_MODE(flags);
  RewrittenPath p(path);
  if (const int fd = special(p, flags); fd != kOrdinary) return fd;
  return WEFT_NEXT(openat)(directory, p.get(), flags, mode);
}

WEFT_INTERPOSE int openat64(int directory, const char* path, int flags, ...) {
  WEFT_MODE(flags);
  RewrittenPath p(path);
  if (const int fd = special(p, flags); fd != kOrdinary) return fd;
  return WEFT_NEXT(openat64)(directory, p.get(), flags, mode);
}

// What _FORTIFY_SOURCE makes of open() without a mode.
WEFT_INTERPOSE int __open_2(const char* path, int flags) {
  RewrittenPath p(path);
  if (const int fd = special(p, flags); fd != kOrdinary) return fd;
  return WEFT_NEXT(__open_2)(p.get(), flags);
}

WEFT_INTERPOSE int __open64_2(const char* path, int flags) {
  RewrittenPath p(path);
  if (const int fd = special(p, flags); fd != kOrdinary) return fd;
  return WEFT_NEXT(__open64_2)(p.get(), flags);
}

WEFT_INTERPOSE int __openat_2(int directory, const char* path, int flags) {
  RewrittenPath p(path);
  if (const int fd = special(p, flags); fd != kOrdinary) return fd;
  return WEFT_NEXT(__openat_2)(directory, p.get(), flags);
}

WEFT_INTERPOSE int __openat64_2(int directory, const char* path, int flags) {
  RewrittenPath p(path);
  if (const int fd = special(p, flags); fd != kOrdinary) return fd;
  return WEFT_NEXT(__openat64_2)(directory, p.get(), flags);
}

WEFT_INTERPOSE FILE* fopen(const char* path, const char* mode) {
  RewrittenPath p(path);
  if (FILE* const stream = special_stream(p, mode)) return stream;
  return WEFT_NEXT(fopen)(p.get(), mode);
}

WEFT_INTERPOSE FILE* fopen64(const char* path, const char* mode) {
  RewrittenPath p(path);
  if (FILE* const stream = special_stream(p, mode)) return stream;
  return WEFT_NEXT(fopen64)(p.get(), mode);
}

WEFT_INTERPOSE FILE* freopen(const char* path, const char* mode, FILE* stream) {
  RewrittenPath p(path);
  return WEFT_NEXT(freopen)(p.get(), mode, stream);
}

WEFT_INTERPOSE FILE* freopen64(const char* path, const char* mode, FILE* stream) {
  RewrittenPath p(path);
  return WEFT_NEXT(freopen64)(p.get(), mode, stream);
}
