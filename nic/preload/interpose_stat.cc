// SPDX-License-Identifier: Apache-2.0
//
// The stat family, in the names of glibc 2.33 and of before: libibverbs insists that the open device is a character
// device with the numbers of its sysfs entry, UCX that the path is one (kernel_abi A.1, G.3).
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include "nic/preload/descriptors.h"
#include "nic/preload/next.h"
#include "nic/preload/paths.h"

static_assert(sizeof(struct stat) == sizeof(struct stat64), "one layout for both names on 64-bit Linux");

extern "C" {
int __xstat(int version, const char* path, struct stat* out);
int __xstat64(int version, const char* path, struct stat64* out);
int __lxstat(int version, const char* path, struct stat* out);
int __lxstat64(int version, const char* path, struct stat64* out);
int __fxstat(int version, int fd, struct stat* out);
int __fxstat64(int version, int fd, struct stat64* out);
int __fxstatat(int version, int directory, const char* path, struct stat* out, int flags);
int __fxstatat64(int version, int directory, const char* path, struct stat64* out, int flags);
}

namespace {

using weft::preload::OpenDevice;
using weft::preload::RewrittenPath;
namespace descriptors = weft::preload::descriptors;

template <typename Stat>
int device_stat(int index, Stat* out) {
  struct stat plain;
  weft::preload::fill_device_stat(index, &plain);
  memcpy(static_cast<void*>(out), &plain, sizeof plain);
  return 0;
}

// The number of the device an open descriptor belongs to, or -1.
int device_of(int fd) {
  const OpenDevice* file = descriptors::command_file(fd);
  return file != nullptr && descriptors::verify(fd, *file) ? static_cast<int>(file->nic) : -1;
}

bool empty_path(const char* path, int flags) {
  return (flags & AT_EMPTY_PATH) != 0 && (path == nullptr || path[0] == '\0');
}

}  // namespace

#define WEFT_STAT_BY_PATH(function, Stat)                                                      \
  WEFT_INTERPOSE int function(const char* path, Stat* out) {                                   \
    RewrittenPath p(path);                                                                     \
    return p.uverbs() >= 0 ? device_stat(p.uverbs(), out) : WEFT_NEXT(function)(p.get(), out); \
  }

#define WEFT_XSTAT_BY_PATH(function, Stat)                                                              \
  WEFT_INTERPOSE int function(int version, const char* path, Stat* out) {                               \
    RewrittenPath p(path);                                                                              \
    return p.uverbs() >= 0 ? device_stat(p.uverbs(), out) : WEFT_NEXT(function)(version, p.get(), out); \
  }

#define WEFT_STAT_AT(function, Stat)                                                                     \
  WEFT_INTERPOSE int function(int directory, const char* path, Stat* out, int flags) {                   \
    RewrittenPath p(path);                                                                               \
    const int device = empty_path(path, flags) ? device_of(directory) : p.uverbs();                      \
    return device >= 0 ? device_stat(device, out) : WEFT_NEXT(function)(directory, p.get(), out, flags); \
  }

WEFT_STAT_BY_PATH(stat, struct stat)
WEFT_STAT_BY_PATH(stat64, struct stat64)
WEFT_STAT_BY_PATH(lstat, struct stat)
WEFT_STAT_BY_PATH(lstat64, struct stat64)
WEFT_STAT_AT(fstatat, struct stat)
WEFT_STAT_AT(fstatat64, struct stat64)
WEFT_XSTAT_BY_PATH(__xstat, struct stat)
WEFT_XSTAT_BY_PATH(__xstat64, struct stat64)
WEFT_XSTAT_BY_PATH(__lxstat, struct stat)
WEFT_XSTAT_BY_PATH(__lxstat64, struct stat64)

WEFT_INTERPOSE int fstat(int fd, struct stat* out) {
  const int device = device_of(fd);
  return device >= 0 ? device_stat(device, out) : WEFT_NEXT(fstat)(fd, out);
}

WEFT_INTERPOSE int fstat64(int fd, struct stat64* out) {
  const int device = device_of(fd);
  return device >= 0 ? device_stat(device, out) : WEFT_NEXT(fstat64)(fd, out);
}

WEFT_INTERPOSE int __fxstat(int version, int fd, struct stat* out) {
  const int device = device_of(fd);
  return device >= 0 ? device_stat(device, out) : WEFT_NEXT(__fxstat)(version, fd, out);
}

WEFT_INTERPOSE int __fxstat64(int version, int fd, struct stat64* out) {
  const int device = device_of(fd);
  return device >= 0 ? device_stat(device, out) : WEFT_NEXT(__fxstat64)(version, fd, out);
}

WEFT_INTERPOSE int __fxstatat(int version, int directory, const char* path, struct stat* out, int flags) {
  RewrittenPath p(path);
  const int device = empty_path(path, flags) ? device_of(directory) : p.uverbs();
  return device >= 0 ? device_stat(device, out) : WEFT_NEXT(__fxstatat)(version, directory, p.get(), out, flags);
}

WEFT_INTERPOSE int __fxstatat64(int version, int directory, const char* path, struct stat64* out, int flags) {
  RewrittenPath p(path);
  const int device = empty_path(path, flags) ? device_of(directory) : p.uverbs();
  return device >= 0 ? device_stat(device, out) : WEFT_NEXT(__fxstatat64)(version, directory, p.get(), out, flags);
}

namespace {

statx_timestamp extended_time(const timespec& t) {
  statx_timestamp out{};
  out.tv_sec = t.tv_sec;
  out.tv_nsec = static_cast<uint32_t>(t.tv_nsec);
  return out;
}

void device_statx(int index, struct statx* out) {
  struct stat plain;
  weft::preload::fill_device_stat(index, &plain);
  memset(out, 0, sizeof *out);
  out->stx_mask = STATX_BASIC_STATS;
  out->stx_mode = static_cast<uint16_t>(plain.st_mode);
  out->stx_nlink = 1;
  out->stx_uid = plain.st_uid;
  out->stx_gid = plain.st_gid;
  out->stx_ino = plain.st_ino;
  out->stx_blksize = static_cast<uint32_t>(plain.st_blksize);
  out->stx_atime = extended_time(plain.st_atim);
  out->stx_mtime = extended_time(plain.st_mtim);
  out->stx_ctime = extended_time(plain.st_ctim);
  out->stx_rdev_major = major(plain.st_rdev);
  out->stx_rdev_minor = minor(plain.st_rdev);
  out->stx_dev_major = major(plain.st_dev);
  out->stx_dev_minor = minor(plain.st_dev);
}

}  // namespace

WEFT_INTERPOSE int statx(int directory, const char* path, int flags, unsigned mask, struct statx* out) {
  RewrittenPath p(path);
  const int device = empty_path(path, flags) ? device_of(directory) : p.uverbs();
  if (device < 0) return WEFT_NEXT(statx)(directory, p.get(), flags, mask, out);
  device_statx(device, out);
  return 0;
}

WEFT_INTERPOSE int statfs(const char* path, struct statfs* out) {
  RewrittenPath p(path);
  return WEFT_NEXT(statfs)(p.get(), out);
}

WEFT_INTERPOSE int statfs64(const char* path, struct statfs64* out) {
  RewrittenPath p(path);
  return WEFT_NEXT(statfs64)(p.get(), out);
}
