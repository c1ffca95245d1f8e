// SPDX-License-Identifier: Apache-2.0
#include "tests/nic/host/fake_port_sink.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "nic/host/port_memory.h"
#include "protocols/base/assert.h"

namespace weft::host {

FakePortSink::FakePortSink() {
  status_fd_ = memfd_create("fake-status", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  WEFT_ASSERT(status_fd_ >= 0 && ftruncate(status_fd_, 4096) == 0);
}

FakePortSink::~FakePortSink() {
  for (const auto& [key, port] : ports) release(port);
  close(status_fd_);
}

void FakePortSink::release(const SeatPort& port) {
  munmap(port.memory, port.layout.total);
  munmap(port.notices, kNoticeBytes);
  close(port.kick_read);
  close(port.kick_write);
}

int FakePortSink::attach(const SeatPort& port) {
  if (next_error != 0 && port.nic == fail_at_nic) return std::exchange(next_error, 0);
  return ports.emplace(std::make_pair(port.seat, port.nic), port).second ? 0 : EEXIST;
}

void FakePortSink::detach(SeatId seat, uint32_t nic, bool died) {
  detached.push_back({seat, nic, died});
  const auto it = ports.find({seat, nic});
  WEFT_ASSERT(it != ports.end());
  release(it->second);
  ports.erase(it);
}

}  // namespace weft::host
