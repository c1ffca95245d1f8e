// SPDX-License-Identifier: Apache-2.0
//
// What the bare benchmarks share: memory that forked processes have in common, children that end with their parent, and
// the way everything here waits: a few pauses, then sched_yield, as on machines with fewer cores than processes.
//
//   auto* shared = share<MyLayout>();
//   pid_t child = start_stage([&] { ...; });   // runs in a child process, never returns
//   Waiter waiter;
//   while (!ready()) waiter.idle();            // then waiter.progress()
//   end_stage(child);
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace weft::bench {

inline double seconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Zero-filled memory that children share.
inline void* share_bytes(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  return memory;
}

template <typename T>
T* share() {
  return new (share_bytes(sizeof(T))) T;
}

template <typename Body>
pid_t start_stage(Body body) {
  pid_t child = fork();
  if (child < 0) {
    perror("fork");
    exit(1);
  }
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  _exit(0);
}

inline void end_stage(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Waiter {
 public:
  explicit Waiter(int spins = 32) : spins_(spins) {}
  void idle() {
    if (++idle_ < spins_) {
      pause_cpu();
      return;
    }
    idle_ = 0;
    sched_yield();
  }
  void progress() { idle_ = 0; }

 private:
  int spins_;
  int idle_ = 0;
};

}  // namespace weft::bench
