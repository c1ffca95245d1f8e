// SPDX-License-Identifier: Apache-2.0
//
// The copy routine of architectures without one in assembler: the kernel does the work. Correct, slow.
#include "nic/engine/copy.h"
#include "nic/engine/copy_system.h"

#if !defined(__x86_64__)
namespace weft::nic {

bool copy_from_user(void* slot, const void* user, size_t bytes) { return system_copy::from_user(slot, user, bytes); }
bool copy_to_user(void* user, const void* slot, size_t bytes) { return system_copy::to_user(user, slot, bytes); }
bool compare_swap_user(void* user, uint64_t compare, uint64_t swap, uint64_t& original) {
  return system_copy::compare_swap(user, compare, swap, original);
}
bool fetch_add_user(void* user, uint64_t add, uint64_t& original) {
  return system_copy::fetch_add(user, add, original);
}
uintptr_t copy_fixup(uintptr_t) { return 0; }

}  // namespace weft::nic
#endif
