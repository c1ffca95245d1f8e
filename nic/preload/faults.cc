// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/faults.h"

#include <string.h>
#include <ucontext.h>

#include <atomic>

#include "nic/engine/copy.h"
#include "nic/engine/lock.h"
#include "nic/preload/descriptors.h"
#include "nic/preload/next.h"
#include "nic/preload/syscalls.h"

namespace weft::preload::faults {

namespace {

// The program's action for one signal. The handler may read while another thread writes: two copies and an index.
struct Chained {
  struct sigaction copy[2] = {};
  std::atomic<uint32_t> current{0};
};

constinit Chained chained_segv;
constinit Chained chained_bus;
constinit nic::FutexLock install_lock;
constinit std::atomic<bool> installed{false};

Chained& chain_of(int number) { return number == SIGSEGV ? chained_segv : chained_bus; }

void set_chained(Chained& chained, const struct sigaction& action) {
  const uint32_t other = 1 - chained.current.load();
  chained.copy[other] = action;
  chained.current.store(other, std::memory_order_release);
}

uintptr_t* program_counter(void* context) {
  auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<uintptr_t*>(&machine->gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<uintptr_t*>(&machine->pc);
#endif
}

// The default action: put it in place and let the instruction fault again. What was sent by kill() would not fault
// again, so it is sent again.
void die_by(int number, const siginfo_t* info) {
  struct {
    void* handler;
    unsigned long flags;
    void* restorer;
    uint64_t mask;
  } plain{};
  raw::call(SYS_rt_sigaction, number, &plain, nullptr, 8L);
  if (info->si_code <= 0) raw::call(SYS_tgkill, raw::getpid(), raw::gettid(), number);
}

void chain(int number, siginfo_t* info, void* context) {
  Chained& chained = chain_of(number);
  const struct sigaction action = chained.copy[chained.current.load(std::memory_order_acquire)];
  const bool kernel_fault = info->si_code > 0;
  if (action.sa_handler == SIG_DFL || (action.sa_handler == SIG_IGN && kernel_fault)) {
    die_by(number, info);
    return;
  }
  if (action.sa_handler == SIG_IGN) return;
  if ((action.sa_flags & SA_RESETHAND) != 0) {
    struct sigaction reset {};
    set_chained(chained, reset);
  }
  // The mask the kernel would have set; returning from our handler restores the old one.
  uint64_t mask = 0;
  memcpy(&mask, &action.sa_mask, sizeof mask);
  if ((action.sa_flags & SA_NODEFER) == 0) mask |= uint64_t{1} << (number - 1);
  raw::call(SYS_rt_sigprocmask, SIG_BLOCK, &mask, nullptr, 8L);
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(number, info, context);
  } else {
    action.sa_handler(number);
  }
}

void on_fault(int number, siginfo_t* info, void* context) {
  uintptr_t* pc = program_counter(context);
  if (const uintptr_t fixup = nic::copy_fixup(*pc); fixup != 0 && info->si_code > 0) {
    *pc = fixup;
    return;
  }
  chain(number, info, context);
}

bool ours_in_front(int number) {
  struct sigaction now {};
  return WEFT_NEXT(sigaction)(number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
         now.sa_sigaction == on_fault;
}

void take_over(int number) {
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  // On the program's alternate stack when it has one (stack overflow handlers rely on it); not deferred, because the
  // program's handler may itself end up in our copy routine.
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  struct sigaction old {};
  if (WEFT_NEXT(sigaction)(number, &ours, &old) == 0) set_chained(chain_of(number), old);
}

}  // namespace

void install() {
  if (installed.load(std::memory_order_acquire)) return;
  nic::LockGuard guard(install_lock);
  if (installed.load()) return;
  take_over(SIGSEGV);
  take_over(SIGBUS);
  // The mask may come from a parent that blocked everything before exec.
  const uint64_t both = (uint64_t{1} << (SIGSEGV - 1)) | (uint64_t{1} << (SIGBUS - 1));
  raw::call(SYS_rt_sigprocmask, SIG_UNBLOCK, &both, nullptr, 8L);
  installed.store(true, std::memory_order_release);
}

void check() {
  install();
  nic::copy_use_system_calls(!ours_in_front(SIGSEGV) || !ours_in_front(SIGBUS));
}

bool chain_action(int number, const struct sigaction* action, struct sigaction* old) {
  if (number != SIGSEGV && number != SIGBUS) return false;
  if (!installed.load(std::memory_order_acquire)) return false;
  // The child of a vfork changes its own signal table, but would write into our memory. No lock: sigaction may be
  // called from signal handlers; two threads that set the same signal at once get one of the two, as they would from
  // libc.
  if (!descriptors::owner_here()) return false;
  Chained& chained = chain_of(number);
  const struct sigaction previous = chained.copy[chained.current.load()];
  if (action != nullptr) set_chained(chained, *action);
  if (old != nullptr) *old = previous;
  return true;
}

void unblock(sigset_t& set) {
  sigdelset(&set, SIGSEGV);
  sigdelset(&set, SIGBUS);
}

}  // namespace weft::preload::faults
