// SPDX-License-Identifier: Apache-2.0
//
// The program's side of the attach handshake (protocols/attach/messages.h).
//
//   attach(settings, out, why)   connects to <run>/hosts/<host>/attach, says HELLO, takes every WELCOME, maps the port,
//                                status and notice memory, opens each ProcessPort; for each host of a list in turn
// Returns 0, or an errno for open(2) with one line in `why`: what was tried, and what to type. On failure nothing stays
// open or mapped. Blocks for at most three seconds. No allocation beyond the mappings.
#pragma once

#include <stdint.h>

#include <atomic>

#include "nic/preload/settings.h"
#include "nic/preload/text.h"
#include "protocols/attach/messages.h"
#include "protocols/attach/process_port.h"

namespace weft::preload {

using Line = Text<448>;

inline constexpr uint32_t kMaxChannels = 16;

/// The connection to one host's socket.
struct Channel {
  std::atomic<int> socket{-1};
  uint32_t first_nic = 0;
  uint32_t nic_count = 0;
};

/// One NIC as the daemon described it, mapped. welcome.nic is the process's number for it.
struct AttachedNic {
  uint32_t channel = 0;
  uint32_t number = 0;  ///< the host's number for it
  attach::Welcome welcome{};
  attach::ProcessPort port;
  uint8_t* memory = nullptr;
  uint64_t memory_bytes = 0;
  void* status = nullptr;
  void* notices = nullptr;
  std::atomic<int> kick_read{-1};
  std::atomic<int> kick_write{-1};
  std::atomic<int> kick_guard{-1};  ///< a read end of the same pipe, never read
};

struct Attachment {
  uint32_t channel_count = 0;
  Channel channels[kMaxChannels];
  uint32_t nic_count = 0;
  AttachedNic nics[attach::kMaxNicsPerHost];
};

int attach_to_host(const Settings& settings, Attachment& out, Line& why);
/// Closes and unmaps what attach_to_host made; also of a half-made one.
void undo_attach(Attachment& attachment);

}  // namespace weft::preload
