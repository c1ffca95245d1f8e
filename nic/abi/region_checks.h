// SPDX-License-Identifier: Apache-2.0
//
// What REG_MR and REREG_MR refuse before they look at any object; 0 or -errno.
//
//   check_range(start, length, iova)   ib_umem_get(): in-page bits, wrap-around, size, and that every page is mapped
//   check_access(flags)                ib_check_mr_access() and what the device offers
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "nic/engine/mr_table.h"

namespace weft::abi {

inline constexpr uint64_t kPage = 4096;  // of the check on in-page bits; larger pages agree in these bits too
inline constexpr uint32_t kAccessOnDemand = 0x40;
inline constexpr uint32_t kAccessKnown = 0xbf;           // local write .. zero based, huge pages
inline constexpr uint32_t kAccessOptional = 0x3ff00000;  // hints that a device may ignore
inline constexpr uint32_t kAccessRemoteChange = nic::kAccessRemoteWrite | nic::kAccessRemoteAtomic;
/// Advertised as max_mr_size. A limit that a program can reach, so that it can be seen to hold.
inline constexpr uint64_t kMaxMrBytes = 1ull << 40;

/// Whether every page of [start, start + length) is mapped; the kernel finds out by pinning them.
inline bool mapped(uint64_t start, uint64_t length) {
  const int saved = errno;
  const long page = sysconf(_SC_PAGESIZE);
  const uint64_t mask = static_cast<uint64_t>(page) - 1;
  const uint64_t first = start & ~mask;
  const uint64_t bytes = ((start + length + mask) & ~mask) - first;
  // MS_ASYNC does nothing since Linux 2.6.19 but walk the mappings.
  const bool ok = syscall(SYS_msync, first, bytes, MS_ASYNC) == 0;
  errno = saved;
  return ok;
}

inline long check_range(uint64_t start, uint64_t length, uint64_t iova) {
  if (((start ^ iova) & (kPage - 1)) != 0) return -EINVAL;
  if (length > kMaxMrBytes || (length == 0 && start % kPage == 0)) return -EINVAL;
  const uint64_t end = start + length;
  if (end < start || end > UINT64_MAX - kPage || iova + length < iova) return -EINVAL;
  return length == 0 || mapped(start, length) ? 0 : -EFAULT;
}

inline long check_access(uint32_t access) {
  if ((access & kAccessOnDemand) != 0) return -EINVAL;
  if ((access & ~(kAccessKnown | kAccessOptional)) != 0) return -EOPNOTSUPP;
  const bool changes = (access & kAccessRemoteChange) != 0;
  return changes && (access & nic::kAccessLocalWrite) == 0 ? -EINVAL : 0;
}

}  // namespace weft::abi
