// SPDX-License-Identifier: Apache-2.0
//
// What the device asks of the process it lives in. nic/preload implements it for programs, tests implement it for
// themselves. Called only from commands, never per packet, never with the engine's lock held unless said.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::nic {

using Gid = uint8_t[16];
struct ErrorReport;

struct RingMemory {
  uint8_t* address = nullptr;  ///< the engine's own shared mapping, zero-filled
  uint64_t offset = 0;         ///< what the program passes to mmap on its command fd
  uint64_t bytes = 0;          ///< page-aligned
};

struct ResolvedPeer {
  uint8_t mac[6] = {};
  bool outside = false;  ///< strict timers
  uint32_t ipv4 = 0;     ///< of the owner, host order: what notices name it by; 0 when unknown
};

class Platform {
 public:
  /// Asks the daemon who owns a GID; blocks (bounded: 3 s). 0, or an errno: ETIMEDOUT when nobody does.
  virtual int resolve(uint32_t nic, const Gid& gid, ResolvedPeer& out) = 0;
  /// Tells the daemon that a QP joins or leaves a multicast group; blocks as resolve() does. 0 or errno.
  virtual int multicast(uint32_t nic, uint32_t qpn, const Gid& gid, bool join) = 0;
  /// A page-aligned piece of the command fd's memfd, mapped shared in this process. 0 or errno.
  virtual int map_ring(int command_fd, uint64_t bytes, RingMemory& out) = 0;
  virtual void unmap_ring(const RingMemory& ring) = 0;
  /// A command that created or named a CQ or QP or SRQ succeeded; user_handle is the library's object (nic_rules 8).
  /// kind: 'c' CQ, 'q' QP, 's' SRQ. The library's object may still be under construction.
  virtual void object_seen(char kind, uint64_t user_handle) = 0;
  /// Something was armed, queued or given a deadline by a thread that will not poll: wake the background thread.
  virtual void wake_thread() = 0;
  /// QP changed state; for `weft show qps`, and for peers that wait for it. state: ibv_qp_state, 7 destroyed; mtu: ibv_mtu. With the engine's lock held:
  /// must not block. False: not now; it is told again later.
  virtual bool qp_state(uint32_t nic, uint32_t qpn, uint32_t state, uint32_t type, uint32_t peer_qpn, const Gid& peer,
                        uint32_t mtu) = 0;
  /// A completion is about to be written with an error, or a request of the peer was refused. With the engine's lock
  /// held: must not block; what cannot be said at once is lost.
  virtual void explain(uint32_t nic, const ErrorReport& report) = 0;
  /// Whether the program's polling of that CQ (its user_handle) steps over completions marked as withdrawn; without
  /// that none are. With the engine's lock held.
  virtual bool steps_over_withdrawn(uint64_t) const { return false; }
  /// A patient requester hears nothing from a QP: if nobody serves that one, the platform calls Device::peer_gone(), at
  /// any later time. With the engine's lock held, once per ACK timeout at most: must not block.
  virtual void peer_silent(uint32_t, const Gid&, uint32_t) {}

 protected:
  ~Platform() = default;
};

}  // namespace weft::nic
