// SPDX-License-Identifier: Apache-2.0
#include "switch/dpdk/process_port.h"

#include <string.h>

#include <algorithm>
#include <bit>

namespace weft::dpdk {

using attach::SlotDescriptor;
using attach::TakenFrame;

namespace {

// A descriptor crosses as two words, each read or written exactly once: the compiler must not read a hostile field a
// second time after it was checked.
struct DescriptorWords {
  uint64_t low;
  uint64_t high;
};
static_assert(sizeof(DescriptorWords) == sizeof(SlotDescriptor));

SlotDescriptor read_descriptor(const uint8_t* at) {
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(at);
  return std::bit_cast<SlotDescriptor>(
      DescriptorWords{__atomic_load_n(words, __ATOMIC_RELAXED), __atomic_load_n(words + 1, __ATOMIC_RELAXED)});
}

void write_descriptor(uint8_t* at, const SlotDescriptor& descriptor) {
  const DescriptorWords value = std::bit_cast<DescriptorWords>(descriptor);
  uint64_t* const words = reinterpret_cast<uint64_t*>(at);
  __atomic_store_n(words, value.low, __ATOMIC_RELAXED);
  __atomic_store_n(words + 1, value.high, __ATOMIC_RELAXED);
}

/// So few slots left that the process may be waiting for one: what answers may use of the reserve included.
constexpr uint32_t kStarvedSlots = attach::kAnswerReserve * attach::kPriorities;

}  // namespace

ProcessPort::ProcessPort(FrameStore& store, const attach::PortLayout& layout, uint8_t* memory,
                         attach::NoticeRing* notices, uint32_t seat_tag)
    : store_(store),
      layout_(layout),
      memory_(memory),
      control_(reinterpret_cast<attach::PortControl*>(memory)),
      notices_(notices),
      seat_tag_(seat_tag),
      tx_held_(layout.tx_slots, 0),
      rx_out_(layout.rx_slots, 0) {
  for (uint32_t priority = 0; priority < attach::kPriorities; ++priority) {
    tx_[priority].ring_offset =
        layout.tx_ring_offset + priority * layout.tx_slots * static_cast<uint32_t>(sizeof(SlotDescriptor));
  }
  rx_free_.reserve(layout.rx_slots);
  for (uint32_t slot = layout.rx_slots; slot-- > 0;) rx_free_.push_back(slot);
}

void ProcessPort::shut(const char* reason) {
  if (shut_reason_ != nullptr) return;
  shut_reason_ = reason;
  mark_unpublished();  // the driver looks at shut ports when it publishes
}

void ProcessPort::close() {
  for (uint8_t priority = 0; priority < attach::kPriorities; ++priority) last_producer_[priority] = producer(priority);
  closed_ = true;
  mark_unpublished();  // the driver reaps drained ports when it publishes
}

/// Reads and checks the descriptor at `index` of a transmit ring. False: the port is shut.
bool ProcessPort::accept(uint8_t priority, uint32_t index, SlotDescriptor& out) {
  const uint32_t position = index & (layout_.tx_slots - 1);
  out = read_descriptor(memory_ + tx_[priority].ring_offset + position * sizeof(SlotDescriptor));
  if (out.slot >= layout_.tx_slots) {
    shut("published a transmit slot that does not exist");
  } else if (tx_held_[out.slot] != 0) {
    shut("published a transmit slot twice");
  } else if (out.header_bytes == 0 || out.header_bytes > attach::kHeadroom) {
    shut("published a frame with an impossible header size");
  } else if (out.payload_bytes > layout_.slot_payload) {
    shut("published a frame that is longer than its slot");
  } else {
    return true;
  }
  return false;
}

/// Fills the packet's entries from a checked descriptor.
void ProcessPort::adopt(const SlotDescriptor& descriptor, PacketRef packet, TakenFrame& out) {
  const uint8_t* const payload = tx_slot(descriptor.slot) + attach::kHeadroom;
  LiveFrame& frame = store_.at(packet);
  const uint32_t header_bytes = std::min<uint32_t>(descriptor.header_bytes, attach::kMaxFrameHeaderBytes);
  const uint32_t payload_bytes = descriptor.payload_bytes;
  frame.header_bytes = static_cast<uint16_t>(header_bytes);
  frame.payload_bytes = payload_bytes;
  const uint8_t* const start = payload - descriptor.header_bytes;
  if (header_bytes + payload_bytes <= FrameStore::kInlineBytes) {
    memcpy(frame.bytes, start, header_bytes + payload_bytes);
    frame.payload = frame.bytes + header_bytes;
    frame.where = Where::kInline;
    return_slot(descriptor.slot);
  } else {
    memcpy(frame.bytes, start, header_bytes);
    frame.payload = payload;
    frame.port = this;
    frame.slot = descriptor.slot;
    frame.where = Where::kSlot;
  }
  out = {packet, descriptor.header_bytes, payload_bytes, frame.bytes};
}

uint32_t ProcessPort::take(uint8_t priority, std::span<TakenFrame> out) {
  if (shut_reason_ != nullptr) return 0;
  Tx& tx = tx_[priority];
  const uint32_t published = producer(priority) - tx.consumer;
  if (published == 0) return 0;
  if (published > layout_.tx_slots) {
    shut("moved a transmit index beyond its ring");
    return 0;
  }
  PacketArena& arena = store_.arena();
  const uint32_t wanted =
      std::min({published, static_cast<uint32_t>(out.size()), attach::kBurst, arena.available()});
  std::array<SlotDescriptor, attach::kBurst> descriptors;
  uint32_t count = 0;
  while (count < wanted && accept(priority, tx.consumer + count, descriptors[count])) {
    const SlotDescriptor& d = descriptors[count++];
    tx_held_[d.slot] = 1;
    const uint8_t* const payload = tx_slot(d.slot) + attach::kHeadroom;
    __builtin_prefetch(payload - d.header_bytes);
    __builtin_prefetch(payload - 1);
  }
  if (count == 0) return 0;
  held_slots_ += count;
  for (uint32_t i = 0; i < count; ++i) {
    const PacketRef packet = arena.allocate();
    arena[packet] = PacketDescriptor{};
    arena[packet].priority = priority;
    arena[packet].seat = seat_tag_;
    adopt(descriptors[i], packet, out[i]);
  }
  tx.consumer += count;
  tx_moved_ = static_cast<uint8_t>(tx_moved_ | 1u << priority);
  mark_unpublished();
  return count;
}

void ProcessPort::return_slot(uint32_t slot) {
  tx_held_[slot] = 0;
  --held_slots_;
  uint8_t* const entry = memory_ + layout_.tx_return_offset + (tx_return_producer_++ & (layout_.tx_slots - 1)) * 4;
  __atomic_store_n(reinterpret_cast<uint32_t*>(entry), slot, __ATOMIC_RELAXED);
  mark_unpublished();
}

bool ProcessPort::unblocked() const {
  if (tx_return_published_ == tx_return_before_ || closed_) return false;
  // What it has published less what it knew to be back is what it lacked when it went to sleep. Its indices are read
  // now, not when its frames were taken: it may have published its last slots in between.
  uint32_t lacking = 0 - tx_return_before_;
  for (uint8_t priority = 0; priority < attach::kPriorities; ++priority) lacking += producer(priority);
  return lacking + kStarvedSlots >= layout_.tx_slots;
}

void ProcessPort::copy_out(const LiveFrame& frame) {
  const uint32_t slot = rx_free_.back();
  rx_free_.pop_back();
  rx_out_[slot] = 1;
  uint8_t* const payload = rx_slot(slot) + attach::kHeadroom;
  uint8_t* const start = payload - frame.header_bytes;
  if (frame.where == Where::kInline) {
    memcpy(start, frame.bytes, frame.header_bytes + frame.payload_bytes);
  } else {
    memcpy(start, frame.bytes, frame.header_bytes);
    memcpy(payload, frame.payload, frame.payload_bytes);
  }
  uint8_t* const entry =
      memory_ + layout_.rx_ring_offset + (rx_producer_++ & (layout_.rx_slots - 1)) * sizeof(SlotDescriptor);
  write_descriptor(entry, {slot, frame.header_bytes, 0, frame.payload_bytes, 0});
}

uint32_t ProcessPort::deliver(std::span<const PacketRef> packets) {
  if (shut_reason_ != nullptr || closed_) return 0;
  uint32_t count = 0;
  for (const PacketRef packet : packets) {
    const LiveFrame& frame = store_.at(packet);
    if (rx_free_.empty() && (!collect() || rx_free_.empty())) break;
    // Ports of one fabric share a slot size; a port that was made smaller gets what a NIC with a smaller MTU would.
    if (frame.payload_bytes <= layout_.slot_payload) copy_out(frame);
    store_.release(packet);
    ++count;
  }
  if (count > 0) mark_unpublished();
  return count;
}

bool ProcessPort::collectable() const {
  return control_->rx_return.producer.load(std::memory_order_relaxed) != rx_return_consumer_ ||
         control_->rx.consumer.load(std::memory_order_relaxed) != rx_taken_;
}

bool ProcessPort::collect() {
  if (shut_reason_ != nullptr) return false;
  const uint32_t taken = control_->rx.consumer.load(std::memory_order_relaxed);
  bool moved = taken != rx_taken_;
  rx_taken_ = taken;
  const uint32_t count = control_->rx_return.producer.load(std::memory_order_acquire) - rx_return_consumer_;
  if (count == 0) return moved;
  if (count > layout_.rx_slots) {
    shut("moved the receive return index beyond its ring");
    return false;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = rx_return_consumer_++ & (layout_.rx_slots - 1);
    const uint32_t slot = __atomic_load_n(
        reinterpret_cast<const uint32_t*>(memory_ + layout_.rx_return_offset + position * 4), __ATOMIC_RELAXED);
    if (slot >= layout_.rx_slots || rx_out_[slot] == 0) {
      shut("gave back a receive slot that it does not have");
      return false;
    }
    rx_out_[slot] = 0;
    rx_free_.push_back(slot);
  }
  mark_unpublished();
  return true;
}

void ProcessPort::notice(const attach::Notice& entry) {
  if (notices_ == nullptr) return;
  notices_->entry[notice_producer_ & (attach::kNoticeEntries - 1)] = entry;
  notices_->producer.store(++notice_producer_, std::memory_order_release);
}

uint8_t ProcessPort::pending() const {
  if (shut_reason_ != nullptr) return 0;
  uint32_t mask = 0;
  for (uint8_t priority = 0; priority < attach::kPriorities; ++priority) {
    mask |= static_cast<uint32_t>(producer(priority) != tx_[priority].consumer) << priority;
  }
  return static_cast<uint8_t>(mask);
}

bool ProcessPort::publish() {
  unpublished_ = false;
  for (uint8_t moved = tx_moved_; moved != 0; moved = static_cast<uint8_t>(moved & (moved - 1))) {
    const int priority = std::countr_zero(moved);
    control_->tx[priority].consumer.store(tx_[priority].consumer, std::memory_order_release);
  }
  tx_moved_ = 0;
  control_->rx_return.consumer.store(rx_return_consumer_, std::memory_order_release);
  tx_return_before_ = tx_return_published_;
  tx_return_published_ = tx_return_producer_;
  control_->tx_return.producer.store(tx_return_producer_, std::memory_order_release);
  if (rx_published_ == rx_producer_) return false;
  rx_published_ = rx_producer_;
  control_->rx.producer.store(rx_producer_, std::memory_order_release);
  return true;
}

void ProcessPort::mark_unpublished() {
  if (unpublished_) return;
  unpublished_ = true;
  store_.unpublished().push_back(this);
}

}  // namespace weft::dpdk
