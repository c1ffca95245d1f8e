// SPDX-License-Identifier: Apache-2.0
//
// Works that never leave the NIC (BIND_MW, LOCAL_INV) and when their turn comes. They are executed when they are taken
// from the send queue, so a local work stays there until what stands before it has come far enough, and with it
// whatever follows: later requests see the new binding, earlier ones never do (IBTA Vol 1, 10.8.3.3).
//
// A bind waits for earlier works to have left, and with the fence flag for READs and atomics to be answered. A local
// invalidate waits for all of them to complete, fence or not: a retransmission would read through the key again.
#pragma once

#include <cstdint>

#include "protocols/transport/work.h"

namespace weft::nic {

/// Why the oldest work in the send queue is not taken yet.
enum class LocalWait : uint8_t {
  kNone,
  kSent,       ///< for what was posted before it to have left
  kFenced,     ///< and for READs and atomics to be answered
  kCompleted,  ///< for what was posted before it to complete
};

constexpr LocalWait local_wait_of(const SendWork& work) {
  if (work.opcode == WorkOpcode::kBindWindow) return work.fence ? LocalWait::kFenced : LocalWait::kSent;
  return work.opcode == WorkOpcode::kLocalInvalidate ? LocalWait::kCompleted : LocalWait::kNone;
}

/// Machines: all_sent(), fence_open(), idle().
template <typename Machines>
bool local_turn(LocalWait wait, const Machines& machines) {
  switch (wait) {
    case LocalWait::kNone:
      break;
    case LocalWait::kSent:
      return machines.all_sent();
    case LocalWait::kFenced:
      return machines.all_sent() && machines.fence_open();
    case LocalWait::kCompleted:
      return machines.idle();
  }
  return true;
}

}  // namespace weft::nic
