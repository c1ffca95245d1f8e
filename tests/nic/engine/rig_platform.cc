// SPDX-License-Identifier: Apache-2.0
//
// What the engine asks of its process, in the rig.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/nic/engine/rig.h"

namespace weft::test {

int TestPlatform::resolve(uint32_t, const nic::Gid& gid, nic::ResolvedPeer& out) {
  if (rig_.while_resolving) rig_.while_resolving();
  if (rig_.resolve_error != 0) return rig_.resolve_error;
  for (uint32_t i = 0; i < rig_.nodes(); ++i) {
    const attach::Welcome& w = rig_.node(i).welcome;
    if (memcmp(w.gids[0], gid, 16) != 0 && memcmp(w.gids[1], gid, 16) != 0) continue;
    memcpy(out.mac, w.mac, 6);
    return 0;
  }
  return ETIMEDOUT;
}

int TestPlatform::map_ring(int command_fd, uint64_t bytes, nic::RingMemory& out) {
  const uint64_t size = (bytes + 4095) / 4096 * 4096;
  struct stat info;
  if (fstat(command_fd, &info) != 0) return errno;
  const auto offset = static_cast<uint64_t>(info.st_size);
  if (ftruncate(command_fd, static_cast<off_t>(offset + size)) != 0) return errno;
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, command_fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return errno;
  out = {static_cast<uint8_t*>(at), offset, size};
  ++rings_mapped;
  const std::lock_guard guard(mutex_);
  mapped_.push_back({command_fd, out});
  return 0;
}

uint8_t* TestPlatform::ring_at(int command_fd, uint64_t offset) {
  const std::lock_guard guard(mutex_);
  for (const Mapped& m : mapped_) {
    if (m.fd == command_fd && m.ring.offset == offset) return m.ring.address;
  }
  return nullptr;
}

void TestPlatform::object_seen(char kind, uint64_t) {
  if (!rig_.one_mapping) seen += kind;
}

void TestPlatform::unmap_ring(const nic::RingMemory& ring) {
  {
    const std::lock_guard guard(mutex_);
    std::erase_if(mapped_, [&](const Mapped& m) { return m.ring.address == ring.address; });
  }
  munmap(ring.address, ring.bytes);
  --rings_mapped;
}

}  // namespace weft::test
