// SPDX-License-Identifier: Apache-2.0
//
// Copies to and from a program's memory that survive unmapped pages (nic_rules 5).
//
//   copy_from_user(slot, user, n)   user memory → port slot
//   copy_to_user(user, slot, n)     port slot → user memory: ascending, the last aligned word stored last with release,
//                                   aligned words of 8 bytes or less in one store (programs poll on the last byte)
//   compare_swap_user / fetch_add_user   8-byte atomics on user memory
// Each returns false when the memory faulted; what had been copied up to there stays copied.
//
// The fix-up: nic/preload's SIGSEGV/SIGBUS handler asks copy_fixup(pc) and, when it is not 0, continues there. Without
// a handler (copy_use_system_calls(true)) pread/pwrite-like system calls do the work. One file per architecture.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::nic {

[[nodiscard]] bool copy_from_user(void* slot, const void* user, size_t bytes);
[[nodiscard]] bool copy_to_user(void* user, const void* slot, size_t bytes);
[[nodiscard]] bool compare_swap_user(void* user, uint64_t compare, uint64_t swap, uint64_t& original);
[[nodiscard]] bool fetch_add_user(void* user, uint64_t add, uint64_t& original);

/// Address to continue at when `pc` lies in the routines above, else 0. Async-signal-safe.
uintptr_t copy_fixup(uintptr_t pc);
/// Take the slow path: process_vm_readv/writev on ourselves. Set where our signal handler was displaced.
void copy_use_system_calls(bool on);

}  // namespace weft::nic
