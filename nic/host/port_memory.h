// SPDX-License-Identifier: Apache-2.0
//
// Memory and pipes of one process port, as the daemon makes them (nic_rules 3, 5; DESIGN D4).
//
//   PortMemory m;  int error = m.create(layout);
//   m.client_fds()      what rides on the WELCOME, in the order of attach::WelcomeDescriptor
//   m.release_ours()    hands mappings and our pipe ends to their next owner
//
// The port memfd is sealed against changing size, so that our mapping can never fault; notices are sealed against
// future writing as well, so that the client maps them read-only. All four pipe ends are O_NONBLOCK: a pipe that is
// never read must not stop anybody. What was not released is closed and unmapped by the destructor.
#pragma once

#include <array>
#include <cstdint>

#include "protocols/attach/messages.h"
#include "protocols/attach/port_layout.h"

namespace weft::host {

class PortMemory {
 public:
  struct Ours {
    uint8_t* memory = nullptr;
    attach::NoticeRing* notices = nullptr;
    int kick_read = -1;
    int kick_write = -1;
  };

  PortMemory() = default;
  PortMemory(const PortMemory&) = delete;
  PortMemory& operator=(const PortMemory&) = delete;
  ~PortMemory();

  /// 0 or errno (EMFILE, ENFILE, ENOMEM, …).
  int create(const attach::PortLayout& layout, int status_fd);
  std::array<int, static_cast<size_t>(attach::WelcomeDescriptor::kCount)> client_fds() const;
  const Ours& ours() const { return ours_; }
  Ours release_ours();
  /// Closes what belongs to the client; call it once the message has been sent.
  void close_client_fds();

 private:
  Ours ours_;
  uint32_t bytes_ = 0;
  int port_fd_ = -1;
  int notice_fd_ = -1;
  int client_kick_read_ = -1;
  int client_kick_write_ = -1;
  int status_fd_ = -1;  ///< borrowed
};

inline constexpr uint32_t kNoticeBytes = attach::align_up(sizeof(attach::NoticeRing), 4096);

/// A descriptor on the same memfd that can be neither written through nor, where the kernel allows the seal, mapped
/// writable by anybody who does not have such a mapping yet. −1 with errno on failure.
int read_only_view(int memfd);

/// Raises RLIMIT_NOFILE to its hard limit and returns the limit in force.
uint64_t raise_descriptor_limit();

}  // namespace weft::host
