// SPDX-License-Identifier: Apache-2.0
//
// The daemon's end of a port, for tests: trusts its process, does one thing per call.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "protocols/attach/port_layout.h"

namespace weft::attach {

class FakeDaemon {
 public:
  explicit FakeDaemon(uint32_t tx_slots = 64, uint32_t rx_slots = 64, uint32_t slot_payload = 1024, uint32_t start = 0)
      : layout_(port_layout(tx_slots, rx_slots, slot_payload)),
        memory_(static_cast<uint8_t*>(std::aligned_alloc(4096, layout_.total)), &std::free),
        status_(new StatusPage{}),
        notices_(new NoticeRing{}) {
    std::memset(memory_.get(), 0, layout_.total);
    status_->daemon_alive = 1;
    for (RingIndices& ring : control()->tx) set(ring, start);
    set(control()->tx_return, start);
    set(control()->rx, start);
    set(control()->rx_return, start);
    notices_->producer = start;
    index_ = start;
  }

  PortControl* control() { return reinterpret_cast<PortControl*>(memory_.get()); }
  uint8_t* memory() { return memory_.get(); }
  const PortLayout& layout() const { return layout_; }
  StatusPage* status() { return status_.get(); }
  NoticeRing* notices() { return notices_.get(); }
  uint8_t* tx_payload(uint32_t slot) {
    return memory() + layout_.tx_slot_offset + slot * layout_.slot_bytes + kHeadroom;
  }
  uint8_t* rx_payload(uint32_t slot) {
    return memory() + layout_.rx_slot_offset + slot * layout_.slot_bytes + kHeadroom;
  }

  bool take(uint32_t priority, SlotDescriptor& out) {
    RingIndices& ring = control()->tx[priority];
    const uint32_t at = ring.consumer.load();
    if (ring.producer.load(std::memory_order_acquire) == at) return false;
    const size_t entry = priority * layout_.tx_slots + (at & (layout_.tx_slots - 1));
    std::memcpy(&out, memory() + layout_.tx_ring_offset + entry * sizeof(out), sizeof(out));
    ring.consumer.store(at + 1);
    return true;
  }
  void give_back(uint32_t slot) {
    RingIndices& ring = control()->tx_return;
    const uint32_t at = ring.producer.load();
    std::memcpy(memory() + layout_.tx_return_offset + (at & (layout_.tx_slots - 1)) * 4, &slot, 4);
    ring.producer.store(at + 1, std::memory_order_release);
  }
  void deliver(const SlotDescriptor& d) {
    RingIndices& ring = control()->rx;
    const uint32_t at = ring.producer.load();
    std::memcpy(memory() + layout_.rx_ring_offset + (at & (layout_.rx_slots - 1)) * sizeof(d), &d, sizeof(d));
    ring.producer.store(at + 1, std::memory_order_release);
  }
  bool take_released(uint32_t& slot) {
    RingIndices& ring = control()->rx_return;
    const uint32_t at = ring.consumer.load();
    if (ring.producer.load(std::memory_order_acquire) == at) return false;
    std::memcpy(&slot, memory() + layout_.rx_return_offset + (at & (layout_.rx_slots - 1)) * 4, 4);
    ring.consumer.store(at + 1);
    return true;
  }
  void notify(uint32_t qpn) {
    Notice n{};
    n.qpn = qpn;
    n.reason = NoticeReason::kFaultDrop;
    notices_->entry[index_ % kNoticeEntries] = n;
    notices_->producer.store(++index_, std::memory_order_release);
  }

 private:
  static void set(RingIndices& ring, uint32_t start) { ring.producer = ring.consumer = start; }

  PortLayout layout_;
  std::unique_ptr<uint8_t, decltype(&std::free)> memory_;
  std::unique_ptr<StatusPage> status_;
  std::unique_ptr<NoticeRing> notices_;
  uint32_t index_ = 0;
};

}  // namespace weft::attach
