// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/copy_system.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

#include "nic/engine/copy.h"

namespace weft::nic {

namespace {

std::atomic<bool> use_system_calls{false};

// process_vm_readv and writev on ourselves; the local side is the slot, which is always mapped. syscall(2) sets errno
// on failure and the caller may sit inside a program's poll loop, so errno is put back.
bool transfer(long number, void* local, const void* remote, size_t bytes) {
  const int saved = errno;
  auto* here = static_cast<char*>(local);
  auto* there = static_cast<const char*>(remote);
  bool complete = true;
  while (bytes > 0) {
    const iovec local_part{here, bytes};
    const iovec remote_part{const_cast<char*>(there), bytes};
    const long self = syscall(SYS_getpid);
    const long done = syscall(number, self, &local_part, 1UL, &remote_part, 1UL, 0UL);
    if (done <= 0) {
      complete = false;
      break;
    }
    here += done;
    there += done;
    bytes -= static_cast<size_t>(done);
  }
  errno = saved;
  return complete;
}

bool probe_word(void* user) {
  uint64_t value = 0;
  return (reinterpret_cast<uintptr_t>(user) & 7) == 0 && system_copy::from_user(&value, user, sizeof value);
}

}  // namespace

void copy_use_system_calls(bool on) { use_system_calls.store(on, std::memory_order_relaxed); }

namespace system_copy {

bool enabled() { return use_system_calls.load(std::memory_order_relaxed); }

bool from_user(void* slot, const void* user, size_t bytes) { return transfer(SYS_process_vm_readv, slot, user, bytes); }

bool to_user(void* user, const void* slot, size_t bytes) {
  if (bytes == 0) return true;
  const auto end = reinterpret_cast<uintptr_t>(user) + bytes;
  const auto last_word = (end - 1) & ~uintptr_t{7};
  const auto start = reinterpret_cast<uintptr_t>(user);
  const size_t body = last_word > start ? last_word - start : 0;
  auto* source = static_cast<const char*>(slot);
  if (!transfer(SYS_process_vm_writev, const_cast<char*>(source), user, body)) return false;
  return transfer(SYS_process_vm_writev, const_cast<char*>(source) + body, static_cast<char*>(user) + body,
                  bytes - body);
}

bool compare_swap(void* user, uint64_t compare, uint64_t swap, uint64_t& original) {
  if (!probe_word(user)) return false;
  __atomic_compare_exchange_n(static_cast<uint64_t*>(user), &compare, swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  original = compare;
  return true;
}

bool fetch_add(void* user, uint64_t add, uint64_t& original) {
  if (!probe_word(user)) return false;
  original = __atomic_fetch_add(static_cast<uint64_t*>(user), add, __ATOMIC_SEQ_CST);
  return true;
}

}  // namespace system_copy
}  // namespace weft::nic
