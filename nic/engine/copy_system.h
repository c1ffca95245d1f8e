// SPDX-License-Identifier: Apache-2.0
//
// The slow half of copy.h: the kernel copies for us and reports a bad address instead of raising a signal. Used where
// no fix-up handler is in place, and as the whole routine on architectures without one of their own. Shared by
// copy_x86_64.cc and copy_portable.cc; nobody else includes it.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace weft::nic::system_copy {

/// True while copy_use_system_calls(true) holds.
bool enabled();
bool from_user(void* slot, const void* user, size_t bytes);
/// The last aligned word goes in a second call, so that it is stored last.
bool to_user(void* user, const void* slot, size_t bytes);
/// Probes the word, then works on it directly: a program that unmaps it in between faults.
bool compare_swap(void* user, uint64_t compare, uint64_t swap, uint64_t& original);
bool fetch_add(void* user, uint64_t add, uint64_t& original);

}  // namespace weft::nic::system_copy
