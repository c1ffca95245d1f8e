// SPDX-License-Identifier: Apache-2.0
//
// The program's end of a port: pure ring arithmetic over mapped memory, no system calls.
//
//   begin_frame(priority, answer)  takes a transmit slot from the pool; nullptr-slot when none is free. Requests leave
//                                  kAnswerReserve slots per priority for answers.
//   publish(...)                   hands it to the daemon: header ends at payload(), see port_layout.h
//   abandon(slot)                  gives an unpublished slot back
//   receive(out)                   next delivered frame; the slot stays ours until release(slot)
//   next_notice(out)               next notice, or an entry with reason kOverflow when some were lost
//
// publish and release only store; the caller ends its batch with flush(), which publishes the indices (release), fences
// (seq_cst) and says whether the daemon sleeps and must be kicked (nic_rules 3).
// One thread at a time (the engine's lock). The daemon is trusted; still, slot numbers are masked.
#pragma once

#include <cstdint>

#include "protocols/attach/port_layout.h"

namespace weft::attach {

struct ReceivedFrame {
  uint32_t slot;
  const uint8_t* header;  ///< start of the Ethernet header
  uint32_t header_bytes;
  const uint8_t* payload;  ///< at the slot's payload offset
  uint32_t payload_bytes;  ///< pad included
  uint16_t flags;
};

inline constexpr uint32_t kNoSlot = UINT32_MAX;

class ProcessPort {
 public:
  /// memory: the mapped port memfd; status and notices: the read-only pages. All outlive this object.
  void open(uint8_t* memory, const PortLayout& layout, const StatusPage* status, const NoticeRing* notices);
  bool is_open() const { return memory_ != nullptr; }

  uint32_t begin_frame(uint8_t priority, bool answer);
  uint8_t* payload(uint32_t slot) const;
  uint8_t* headroom_end(uint32_t slot) const { return payload(slot); }
  void publish(uint32_t slot, uint8_t priority, uint32_t header_bytes, uint32_t payload_bytes);
  void abandon(uint32_t slot);

  bool receive(ReceivedFrame& out);
  bool receive_pending() const;  ///< cheap test of the receive index (no side effects)
  void release(uint32_t slot);

  /// Publishes everything written since the last call. True: the daemon sleeps, write a byte to the kick pipe.
  bool flush();

  /// Says that somebody polls: +1 on poll_seq.
  void note_poll();
  /// Before sleeping: stores process_sleeping, fences, and returns true if it is safe to sleep (nothing to receive, no
  /// slot came back that `starved` waits for). After waking: awake().
  bool prepare_sleep(bool starved);
  void awake();

  bool next_notice(Notice& out);
  bool daemon_alive() const;
  uint32_t free_slots() const;
  uint32_t slot_payload() const { return layout_.slot_payload; }

 private:
  void collect_returned();
  PortControl* control() const { return reinterpret_cast<PortControl*>(memory_); }

  uint8_t* memory_ = nullptr;
  PortLayout layout_{};
  const StatusPage* status_ = nullptr;
  const NoticeRing* notices_ = nullptr;
  // Further members: owner of the .cc completes this (fixed arrays; capacities up to 4096 slots from the layout).
};

}  // namespace weft::attach
