// SPDX-License-Identifier: Apache-2.0
//
// The program's end of a port: pure ring arithmetic over mapped memory, no system calls.
//
//   begin_frame(priority, answer)  takes a transmit slot from the pool; kNoSlot when none is free. Requests leave
//                                  kAnswerReserve slots per priority for answers (1/16 of the pool if that is less).
//   publish(...)                   hands it to the daemon: header ends at payload(), see port_layout.h
//   abandon(slot)                  gives an unpublished slot back
//   receive(out)                   next delivered frame; the slot stays ours until release(slot)
//   next_notice(out)               next notice, or an entry with reason kOverflow when some were lost
//
// publish and release only store; the caller ends its batch with flush(), which publishes the indices (release), fences
// (seq_cst) and says whether the daemon sleeps, or does not watch this port, and must be kicked. A batch that only released receive slots asks for a
// kick only when at least half of them had been held: before that the daemon cannot be waiting for one.
// One thread at a time (the engine's lock), except receive_pending() and note_poll(), which any thread may call.
// The daemon is trusted; still, slot numbers are masked and lengths are clamped.
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
inline constexpr uint32_t kMaxPortSlots = 4096;  ///< port_layout's limit

class ProcessPort {
 public:
  /// memory: the mapped port memfd, fresh (zero-filled); status and notices: the read-only pages (either may be null:
  /// then the daemon counts as awake and alive, and there are no notices). All outlive this object.
  /// False, and nothing is opened, when the geometry is not one that port_layout() gives.
  bool open(uint8_t* memory, const PortLayout& layout, const StatusPage* status, const NoticeRing* notices);
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
  /// slot came back that `starved` waits for). After waking: awake(). When it returns false, and also when something
  /// waits for flush(), process_sleeping is 0 again.
  bool prepare_sleep(bool starved);
  void awake();

  bool next_notice(Notice& out);
  bool daemon_alive() const;
  CounterBlock& counters() { return control()->counters; }
  uint32_t free_slots() const;
  uint32_t slot_payload() const { return layout_.slot_payload; }

 private:
  /// Who has a transmit slot. Kept per slot so that a slot the daemon returns twice cannot enter the pool twice.
  enum class Holder : uint8_t { kPool, kCaller, kDaemon };
  struct SlotState {
    Holder holder;
    bool answer;
    uint8_t priority;
  };

  void collect_returned();
  void take_back(uint32_t slot);
  bool may_take(uint8_t priority, bool answer) const;
  void count_answer(uint8_t priority, int change);
  PortControl* control() const { return reinterpret_cast<PortControl*>(memory_); }

  uint8_t* memory_ = nullptr;
  PortLayout layout_{};
  const StatusPage* status_ = nullptr;
  const NoticeRing* notices_ = nullptr;

  uint32_t free_count_ = 0;
  uint32_t reserve_ = 0;   ///< per priority; kAnswerReserve unless the pool is too small for that
  uint32_t reserved_ = 0;  ///< sum over priorities of max(0, reserve_ - answers_out_)
  uint32_t answers_out_[kPriorities] = {};
  uint32_t tx_producer_[kPriorities] = {};  ///< written, maybe not yet published
  uint32_t tx_return_consumer_ = 0;
  uint32_t rx_consumer_ = 0;
  uint32_t rx_return_producer_ = 0;
  uint32_t rx_return_published_ = 0;
  uint32_t notice_consumer_ = 0;
  uint8_t dirty_ = 0;       ///< bit per priority with unpublished descriptors
  bool collected_ = false;  ///< the return ring was looked at since the last flush()

  // Only the first layout_.tx_slots entries are ever touched, so a small port costs a small part of these pages.
  uint16_t free_[kMaxPortSlots];
  SlotState state_[kMaxPortSlots];
};

}  // namespace weft::attach
