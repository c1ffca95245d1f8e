// SPDX-License-Identifier: Apache-2.0
//
// Keeps the fault handler in front (nic_rules 5): a program's own SIGSEGV and SIGBUS actions are chained behind it, and
// masks never block the two, because a blocked fault kills despite a handler. Both only once the engine runs; a program
// that looks gets back what it set.
#include <errno.h>
#include <signal.h>

#include "nic/preload/faults.h"
#include "nic/preload/next.h"
#include "nic/preload/settings.h"

namespace faults = weft::preload::faults;

extern "C" {
sighandler_t __sysv_signal(int number, sighandler_t handler);
sighandler_t bsd_signal(int number, sighandler_t handler);
}

namespace {

bool for_faults(int number) { return number == SIGSEGV || number == SIGBUS; }

// signal() and its dialects differ in the flags only. True: done, `old` holds the previous handler.
bool chain_handler(int number, sighandler_t handler, int flags, sighandler_t& old) {
  if (!for_faults(number)) return false;
  struct sigaction action {};
  struct sigaction previous {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  if (!faults::chain_action(number, &action, &previous)) return false;
  old = previous.sa_handler;
  return true;
}

constexpr int kBsdFlags = SA_RESTART;
constexpr int kSystemVFlags = static_cast<int>(SA_RESETHAND | SA_NODEFER);

template <typename Change>
int change_mask(int how, const sigset_t* set, Change change) {
  if (set == nullptr || how == SIG_UNBLOCK || !weft::preload::settings().active) return change(set);
  sigset_t without = *set;
  faults::unblock(without);
  return change(&without);
}

}  // namespace

WEFT_INTERPOSE int sigaction(int number, const struct sigaction* action, struct sigaction* old) {
  if (for_faults(number) && faults::chain_action(number, action, old)) return 0;
  return WEFT_NEXT(sigaction)(number, action, old);
}

WEFT_INTERPOSE sighandler_t signal(int number, sighandler_t handler) {
  sighandler_t old;
  return chain_handler(number, handler, kBsdFlags, old) ? old : WEFT_NEXT(signal)(number, handler);
}

WEFT_INTERPOSE sighandler_t bsd_signal(int number, sighandler_t handler) {
  sighandler_t old;
  if (chain_handler(number, handler, kBsdFlags, old)) return old;
  // Gone from newer C libraries, where programs built for older ones still find the compatible symbol.
  auto* next = WEFT_NEXT_OR_NULL(bsd_signal);
  return next != nullptr ? next(number, handler) : WEFT_NEXT(signal)(number, handler);
}

WEFT_INTERPOSE sighandler_t sysv_signal(int number, sighandler_t handler) {
  sighandler_t old;
  return chain_handler(number, handler, kSystemVFlags, old) ? old : WEFT_NEXT(sysv_signal)(number, handler);
}

WEFT_INTERPOSE sighandler_t __sysv_signal(int number, sighandler_t handler) {
  sighandler_t old;
  return chain_handler(number, handler, kSystemVFlags, old) ? old : WEFT_NEXT(__sysv_signal)(number, handler);
}

WEFT_INTERPOSE int sigprocmask(int how, const sigset_t* set, sigset_t* old) {
  auto* next = WEFT_NEXT(sigprocmask);
  return change_mask(how, set, [=](const sigset_t* changed) { return next(how, changed, old); });
}

WEFT_INTERPOSE int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) {
  auto* next = WEFT_NEXT(pthread_sigmask);
  return change_mask(how, set, [=](const sigset_t* changed) { return next(how, changed, old); });
}
