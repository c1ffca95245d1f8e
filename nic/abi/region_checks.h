// SPDX-License-Identifier: Apache-2.0
//
// What REG_MR and REREG_MR refuse before they look at any object; 0 or -errno.
//
//   check_range(start, length, iova)   ib_umem_get(): in-page bits, wrap-around, size, and that every page is mapped
//   check_rights(start, length, flags) that memory is readable, and writable where the region is: its first and last page
//   check_access(flags)                ib_check_mr_access() and what the device offers
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
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

/// Whether every page of [start, start + length) is mapped; the kernel finds out by pinning them. Whatever they hold:
/// valgrind takes the range of an msync for data to be written, and complains of what the program has not filled yet.
inline bool mapped(uint64_t start, uint64_t length) {
  constexpr uint64_t kPagesAtOnce = 4096;
  constexpr uint64_t kLookAtPages = 1ull << 32;
  const int saved = errno;
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t at = start & ~(page - 1);
  const uint64_t end = (start + length + page - 1) & ~(page - 1);
  bool ok = true;
  if (end - at > kLookAtPages) {
    // MS_ASYNC does nothing since Linux 2.6.19 but walk the mappings, which takes the same time for every size.
    ok = syscall(SYS_msync, at, end - at, MS_ASYNC) == 0;
    at = end;
  }
  uint8_t resident[kPagesAtOnce];
  for (; ok && at != end; at += std::min(end - at, kPagesAtOnce * page)) {
    ok = syscall(SYS_mincore, at, std::min(end - at, kPagesAtOnce * page), resident) == 0;
  }
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

/// Whether the page of `address` can be read or written, which brings it in as pinning would. Kernels before 5.14 cannot
/// be asked: then as with pages in between, whoever uses it finds out.
inline bool usable_page(uint64_t address, bool write) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, MADV_POPULATE_WRITE; not in every libc
  constexpr int kPopulateWrite = 23;
  const int saved = errno;
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto populate = [&](uint64_t at) {
    return syscall(SYS_madvise, at & ~(page - 1), page, write ? kPopulateWrite : kPopulateRead) == 0;
  };
  const bool refused = !populate(address) && (errno == EINVAL || errno == EFAULT);
  // EINVAL is the answer to an unknown advice, too. The stack can always be had.
  const bool ok = !refused || !populate(reinterpret_cast<uint64_t>(&saved));
  errno = saved;
  return ok;
}

/// ib_umem_get() pins pages for writing where any right needs it.
inline long check_rights(uint64_t start, uint64_t length, uint32_t access) {
  constexpr uint32_t kWrites = nic::kAccessLocalWrite | kAccessRemoteChange | nic::kAccessWindowBind;
  const bool write = (access & kWrites) != 0;
  const uint64_t last = length == 0 ? start : start + length - 1;
  return usable_page(start, write) && usable_page(last, write) ? 0 : -EFAULT;
}

inline long check_access(uint32_t access) {
  if ((access & kAccessOnDemand) != 0) return -EINVAL;
  if ((access & ~(kAccessKnown | kAccessOptional)) != 0) return -EOPNOTSUPP;
  const bool changes = (access & kAccessRemoteChange) != 0;
  return changes && (access & nic::kAccessLocalWrite) == 0 ? -EINVAL : 0;
}

}  // namespace weft::abi
