// SPDX-License-Identifier: Apache-2.0
//
// System calls without libc: no errno, no cancellation point, no interposed wrapper (ours or another preload's), safe
// in signal handlers and in the child of a vfork. Each returns the kernel's value: >= 0, or -errno.
//
//   raw::call(number, a...)   any system call
//   raw::read(fd, p, n) ...   the few that libweft lives on, by name
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

namespace weft::raw {

#if defined(__x86_64__)
inline long call6(long number, long a, long b, long c, long d, long e, long f) {
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
inline long call6(long number, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
#else
#error "no raw system calls for this architecture"
#endif

inline long word(long value) { return value; }
inline long word(unsigned long value) { return static_cast<long>(value); }
inline long word(int value) { return value; }
inline long word(unsigned value) { return static_cast<long>(value); }
inline long word(const volatile void* pointer) { return reinterpret_cast<long>(pointer); }

template <typename A = long, typename B = long, typename C = long, typename D = long, typename E = long,
          typename F = long>
inline long call(long number, A a = 0, B b = 0, C c = 0, D d = 0, E e = 0, F f = 0) {
  return call6(number, word(a), word(b), word(c), word(d), word(e), word(f));
}

inline long read(int fd, void* data, size_t bytes) { return call(SYS_read, fd, data, bytes); }
inline long write(int fd, const void* data, size_t bytes) { return call(SYS_write, fd, data, bytes); }
inline long close(int fd) { return call(SYS_close, fd); }
inline long open(const char* path, int flags, unsigned mode = 0) {
  return call(SYS_openat, AT_FDCWD, path, flags, mode);
}
inline long fcntl(int fd, int command, long argument = 0) { return call(SYS_fcntl, fd, command, argument); }
inline long getpid() { return call(SYS_getpid); }
inline long gettid() { return call(SYS_gettid); }
inline long fstat(int fd, struct stat* out) { return call(SYS_fstat, fd, out); }
inline long stat(const char* path, struct stat* out) { return call(SYS_newfstatat, AT_FDCWD, path, out, 0); }
inline long sched_yield() { return call(SYS_sched_yield); }
inline long munmap(void* address, size_t bytes) { return call(SYS_munmap, address, bytes); }

/// nullptr on failure.
inline void* mmap(size_t bytes, int protection, int flags, int fd = -1, long offset = 0) {
  const long result = call(SYS_mmap, 0L, bytes, protection, flags, fd, offset);
  return result < 0 && result > -4096 ? nullptr : reinterpret_cast<void*>(result);
}
inline void* map_private(size_t bytes) { return mmap(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS); }

/// timeout_ns < 0: for ever. signals: mask during the sleep, nullptr: unchanged.
inline long poll(pollfd* entries, size_t count, int64_t timeout_ns) {
  timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  return call(SYS_ppoll, entries, count, timeout_ns < 0 ? nullptr : &timeout, nullptr, 8L);
}

/// Sleeps while *address == expected; bounded by timeout_ns unless it is negative.
inline long futex_wait(const void* address, uint32_t expected, int64_t timeout_ns) {
  timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  return call(SYS_futex, address, FUTEX_WAIT_PRIVATE, expected, timeout_ns < 0 ? nullptr : &timeout);
}
inline long futex_wake(const void* address, int count) { return call(SYS_futex, address, FUTEX_WAKE_PRIVATE, count); }

}  // namespace weft::raw
