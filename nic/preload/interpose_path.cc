// SPDX-License-Identifier: Apache-2.0
//
// Everything else that takes a path: each public function needs its own wrapper, because libc calls itself by internal
// names (kernel_abi A.5).
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "nic/preload/next.h"
#include "nic/preload/paths.h"

using weft::preload::RewrittenPath;

extern "C" {
char* __realpath_chk(const char* path, char* resolved, size_t size);
ssize_t __readlink_chk(const char* path, char* out, size_t size, size_t capacity);
ssize_t __readlinkat_chk(int directory, const char* path, char* out, size_t size, size_t capacity);
}

WEFT_INTERPOSE DIR* opendir(const char* path) {
  RewrittenPath p(path);
  return WEFT_NEXT(opendir)(p.get());
}

WEFT_INTERPOSE int scandir(const char* path, struct dirent*** names, int (*filter)(const struct dirent*),
                           int (*compare)(const struct dirent**, const struct dirent**)) {
  RewrittenPath p(path);
  return WEFT_NEXT(scandir)(p.get(), names, filter, compare);
}

WEFT_INTERPOSE int scandir64(const char* path, struct dirent64*** names, int (*filter)(const struct dirent64*),
                             int (*compare)(const struct dirent64**, const struct dirent64**)) {
  RewrittenPath p(path);
  return WEFT_NEXT(scandir64)(p.get(), names, filter, compare);
}

WEFT_INTERPOSE int scandirat(int directory, const char* path, struct dirent*** names,
                             int (*filter)(const struct dirent*),
                             int (*compare)(const struct dirent**, const struct dirent**)) {
  RewrittenPath p(path);
  return WEFT_NEXT(scandirat)(directory, p.get(), names, filter, compare);
}

WEFT_INTERPOSE ssize_t readlink(const char* path, char* out, size_t size) {
  RewrittenPath p(path);
  return WEFT_NEXT(readlink)(p.get(), out, size);
}

WEFT_INTERPOSE ssize_t readlinkat(int directory, const char* path, char* out, size_t size) {
  RewrittenPath p(path);
  return WEFT_NEXT(readlinkat)(directory, p.get(), out, size);
}

WEFT_INTERPOSE ssize_t __readlink_chk(const char* path, char* out, size_t size, size_t capacity) {
  RewrittenPath p(path);
  return WEFT_NEXT(__readlink_chk)(p.get(), out, size, capacity);
}

WEFT_INTERPOSE ssize_t __readlinkat_chk(int directory, const char* path, char* out, size_t size, size_t capacity) {
  RewrittenPath p(path);
  return WEFT_NEXT(__readlinkat_chk)(directory, p.get(), out, size, capacity);
}

WEFT_INTERPOSE char* realpath(const char* path, char* resolved) {
  RewrittenPath p(path);
  return WEFT_NEXT(realpath)(p.get(), resolved);
}

WEFT_INTERPOSE char* __realpath_chk(const char* path, char* resolved, size_t size) {
  RewrittenPath p(path);
  return WEFT_NEXT(__realpath_chk)(p.get(), resolved, size);
}

WEFT_INTERPOSE char* canonicalize_file_name(const char* path) {
  RewrittenPath p(path);
  return WEFT_NEXT(canonicalize_file_name)(p.get());
}

// The device may be read and written, not executed, by everybody.
static int device_access(int mode) {
  if ((mode & X_OK) == 0) return 0;
  errno = EACCES;
  return -1;
}

WEFT_INTERPOSE int access(const char* path, int mode) {
  RewrittenPath p(path);
  return p.uverbs() >= 0 ? device_access(mode) : WEFT_NEXT(access)(p.get(), mode);
}

WEFT_INTERPOSE int faccessat(int directory, const char* path, int mode, int flags) {
  RewrittenPath p(path);
  return p.uverbs() >= 0 ? device_access(mode) : WEFT_NEXT(faccessat)(directory, p.get(), mode, flags);
}

WEFT_INTERPOSE int euidaccess(const char* path, int mode) {
  RewrittenPath p(path);
  return p.uverbs() >= 0 ? device_access(mode) : WEFT_NEXT(euidaccess)(p.get(), mode);
}

WEFT_INTERPOSE int eaccess(const char* path, int mode) {
  RewrittenPath p(path);
  return p.uverbs() >= 0 ? device_access(mode) : WEFT_NEXT(eaccess)(p.get(), mode);
}

WEFT_INTERPOSE int glob(const char* pattern, int flags, int (*on_error)(const char*, int), glob_t* out) {
  RewrittenPath p(pattern);
  return WEFT_NEXT(glob)(p.get(), flags, on_error, out);
}

WEFT_INTERPOSE int glob64(const char* pattern, int flags, int (*on_error)(const char*, int), glob64_t* out) {
  RewrittenPath p(pattern);
  return WEFT_NEXT(glob64)(p.get(), flags, on_error, out);
}

WEFT_INTERPOSE int nftw(const char* path, __nftw_func_t visit, int depth, int flags) {
  RewrittenPath p(path);
  return WEFT_NEXT(nftw)(p.get(), visit, depth, flags);
}

WEFT_INTERPOSE int nftw64(const char* path, __nftw64_func_t visit, int depth, int flags) {
  RewrittenPath p(path);
  return WEFT_NEXT(nftw64)(p.get(), visit, depth, flags);
}

WEFT_INTERPOSE int chdir(const char* path) {
  RewrittenPath p(path);
  return WEFT_NEXT(chdir)(p.get());
}

WEFT_INTERPOSE int inotify_add_watch(int fd, const char* path, uint32_t mask) {
  RewrittenPath p(path);
  return WEFT_NEXT(inotify_add_watch)(fd, p.get(), mask);
}
