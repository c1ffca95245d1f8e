// SPDX-License-Identifier: Apache-2.0
//
// The daemon's end of a process's shared-memory port (protocols/attach/port_layout.h).
//
// The process is hostile: geometry, slot ownership and this side's indices are private; every shared word is read once,
// into a local, and checked. What breaks the rules shuts the port: it takes and delivers nothing more, and
// shut_reason() says why in words. Its memory may still be read until idle(), because frames by reference point there.
//
//   take, deliver, collect, notice   see FramePort
//   publish()        makes indices visible; the driver does it once per burst for the ports in store.unpublished()
//   close()          no more than what is published by now; the port drains
//   pending()        priorities with frames that are not taken yet: bit mask; reads eight shared words
//   return_slot()    a transmit slot goes back to the process
//
// One thread. The mapping belongs to the caller and must outlive the port and every packet that came from it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "protocols/attach/frame_port.h"
#include "switch/dpdk/frame_store.h"

namespace weft::dpdk {

class ProcessPort final : public attach::FramePort {
 public:
  /// seat_tag goes into every taken packet's descriptor.
  ProcessPort(FrameStore& store, const attach::PortLayout& layout, uint8_t* memory, attach::NoticeRing* notices,
              uint32_t seat_tag);
  ProcessPort(const ProcessPort&) = delete;
  ProcessPort& operator=(const ProcessPort&) = delete;

  uint32_t take(uint8_t priority, std::span<attach::TakenFrame> out) override;
  uint32_t deliver(std::span<const PacketRef> packets) override;
  bool collect() override;
  void notice(const attach::Notice& entry) override;

  void return_slot(uint32_t slot);
  /// True when frames are among it.
  bool publish();
  uint8_t pending() const;
  /// The process gave receive slots back, or moved its receive index, since the last collect().
  bool collectable() const;

  /// The process is gone or said goodbye: what it has published until now is all there is. Delivers nothing more.
  void close();
  bool closed() const { return closed_; }

  /// Tells the process that it must kick even an awake daemon. After unwatch() and a seq_cst fence the indices must be
  /// looked at once more.
  void watch() { control_->unwatched.store(0, std::memory_order_relaxed); }
  void unwatch() { control_->unwatched.store(1, std::memory_order_relaxed); }

  bool idle() const { return held_slots_ == 0; }
  uint32_t held_slots() const { return held_slots_; }
  const char* shut_reason() const { return shut_reason_; }
  void shut(const char* reason);

  // For who decides about kicks (nic_rules 3).
  uint32_t poll_seq() const { return control_->poll_seq.load(std::memory_order_relaxed); }
  bool process_sleeping() const { return control_->process_sleeping.load(std::memory_order_acquire) != 0; }
  /// Up to where frames are published for the process, and up to where it took them by its own word; only good for
  /// deciding about kicks.
  uint32_t delivered_index() const { return rx_published_; }
  uint32_t taken_index() const { return control_->rx.consumer.load(std::memory_order_relaxed); }
  /// Whether the last publish() gave slots to a process that had next to none: it may sleep for lack of them. Asked
  /// after a seq_cst fence and after process_sleeping() said yes.
  bool unblocked() const;
  uint32_t seat_tag() const { return seat_tag_; }
  /// What the process's engine counted, by its own word.
  const CounterBlock& counters() const { return control_->counters; }

 private:
  struct Tx {
    uint32_t consumer = 0;
    uint32_t ring_offset = 0;
  };

  uint8_t* tx_slot(uint32_t slot) const { return memory_ + layout_.tx_slot_offset + slot * layout_.slot_bytes; }
  uint8_t* rx_slot(uint32_t slot) const { return memory_ + layout_.rx_slot_offset + slot * layout_.slot_bytes; }
  /// Index up to which the process has published, read once.
  uint32_t producer(uint8_t priority) const {
    return closed_ ? last_producer_[priority] : control_->tx[priority].producer.load(std::memory_order_acquire);
  }
  bool accept(uint8_t priority, uint32_t index, attach::SlotDescriptor& out);
  void adopt(const attach::SlotDescriptor& descriptor, PacketRef packet, attach::TakenFrame& out);
  void copy_out(const LiveFrame& frame);
  void mark_unpublished();

  FrameStore& store_;
  const attach::PortLayout layout_;  ///< private copy
  uint8_t* const memory_;
  attach::PortControl* const control_;
  attach::NoticeRing* const notices_;
  const uint32_t seat_tag_;
  const char* shut_reason_ = nullptr;

  std::array<Tx, attach::kPriorities> tx_{};
  uint8_t tx_moved_ = 0;  ///< priorities whose consumer index is unpublished
  uint32_t tx_return_producer_ = 0;
  uint32_t tx_return_published_ = 0;
  uint32_t tx_return_before_ = 0;  ///< what was published before the last publish()
  uint32_t rx_producer_ = 0;
  uint32_t rx_published_ = 0;
  uint32_t rx_return_consumer_ = 0;
  uint32_t rx_taken_ = 0;
  uint32_t held_slots_ = 0;
  uint32_t notice_producer_ = 0;
  std::array<uint32_t, attach::kPriorities> last_producer_{};  ///< of a closed port
  bool closed_ = false;
  bool unpublished_ = false;
  std::vector<uint8_t> tx_held_;     ///< by slot: published and not yet returned
  std::vector<uint8_t> rx_out_;      ///< by slot: delivered and not yet returned
  std::vector<uint32_t> rx_free_;    ///< LIFO
};

}  // namespace weft::dpdk
