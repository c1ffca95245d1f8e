// SPDX-License-Identifier: Apache-2.0
//
// The SIGSEGV and SIGBUS handler in front of the program's own (nic_rules 5): a fault inside the copy routine continues
// at its fix-up, every other goes where it would have gone without us.
//
//   install()       puts the handler in place; cheap when it is. Called before the engine first touches program memory.
//   chain_action()  what the wrappers of sigaction() and signal() do for these two signals: the program's action is
//   kept
//                   and chained, ours stays in front. False: not one of the two, or not installed: ask libc.
//   check()         notices that somebody displaced the handler by a raw system call; copies then go by system calls
//   unblock(set)    takes the two signals out of a mask: a blocked one kills despite the handler
#pragma once

#include <signal.h>

namespace weft::preload::faults {

void install();
void check();
bool chain_action(int number, const struct sigaction* action, struct sigaction* old);
void unblock(sigset_t& set);

}  // namespace weft::preload::faults
