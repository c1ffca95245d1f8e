// SPDX-License-Identifier: Apache-2.0
//
// The rings that program and engine share: pieces of the command descriptor's memfd, so that the program's mmap of that
// descriptor needs no interception (kernel_abi 0).
//
// A ring's offset says whose it is, because unmap_ring() gets nothing else. memfds are sparse, and the program only
// hands the number back to mmap. The first device starts at 0, so that a limit on file sizes (ulimit -f) rarely
// matters.
#include <errno.h>
#include <unistd.h>

#include "nic/preload/descriptors.h"
#include "nic/preload/syscalls.h"

namespace weft::preload::descriptors {

namespace {
constexpr unsigned kFileShift = 36;
}  // namespace

int map_ring(int command_fd, uint64_t wanted, nic::RingMemory& out) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t bytes = (wanted + page - 1) / page * page;
  if (bytes == 0 || bytes < wanted) return EINVAL;
  OpenDevice* file = file_of_number(command_fd);
  const int fd = file == nullptr ? -1 : file->live.load();
  if (fd < 0) return EBADF;
  const uint64_t owner = index_of(*file);
  const uint64_t offset = (owner << kFileShift) + file->file_end.fetch_add(bytes);
  if (bytes > uint64_t{1} << kFileShift || (offset + bytes - 1) >> kFileShift != owner) return ENOSPC;
  // Grows the file without ever shrinking it, whoever else maps a ring now; pages come when they are touched.
  const long grown = raw::call(SYS_fallocate, fd, 0, offset + bytes - 1, 1);
  if (grown != 0) return static_cast<int>(-grown);
  void* address = raw::mmap(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<long>(offset));
  if (address == nullptr) return ENOMEM;
  out.address = static_cast<uint8_t*>(address);
  out.offset = offset;
  out.bytes = bytes;
  return 0;
}

void unmap_ring(const nic::RingMemory& ring) {
  raw::munmap(ring.address, ring.bytes);
  const OpenDevice* file = file_at(ring.offset >> kFileShift);
  if (file == nullptr) return;
  // The program unmaps its side after the destroy command; until then it reads zeros.
  const int fd = file->live.load();
  constexpr int kPunchHole = 0x02 | 0x01;  // FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
  if (fd >= 0 && verify(fd, *file)) raw::call(SYS_fallocate, fd, kPunchHole, ring.offset, ring.bytes);
}

}  // namespace weft::preload::descriptors
