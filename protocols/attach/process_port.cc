// SPDX-License-Identifier: Apache-2.0
#include "protocols/attach/process_port.h"

#include <bit>
#include <cstring>

#include "protocols/base/assert.h"

namespace weft::attach {
namespace {

bool valid_count(uint32_t slots) { return slots >= 32 && slots <= kMaxPortSlots && std::has_single_bit(slots); }

bool valid_layout(const PortLayout& l) {
  if (!valid_count(l.tx_slots) || !valid_count(l.rx_slots)) return false;
  if (l.slot_payload < 256 || l.slot_payload > 16384 || l.slot_payload % 64 != 0) return false;
  if (l.slot_bytes != kHeadroom + l.slot_payload) return false;
  const uint64_t tx = l.tx_slots;  // 64 bits: no sum of the below can wrap
  const uint64_t rx = l.rx_slots;
  return l.tx_ring_offset >= sizeof(PortControl) &&
         l.tx_return_offset >= l.tx_ring_offset + kPriorities * tx * sizeof(SlotDescriptor) &&
         l.rx_ring_offset >= l.tx_return_offset + tx * sizeof(uint32_t) &&
         l.rx_return_offset >= l.rx_ring_offset + rx * sizeof(SlotDescriptor) &&
         l.tx_slot_offset >= l.rx_return_offset + rx * sizeof(uint32_t) &&
         l.rx_slot_offset >= l.tx_slot_offset + tx * l.slot_bytes && l.total >= l.rx_slot_offset + rx * l.slot_bytes;
}

/// Entries between two free-running indices; a distance no ring can have counts as none.
uint32_t distance(uint32_t producer, uint32_t consumer, uint32_t entries) {
  const uint32_t n = producer - consumer;
  return n <= entries ? n : 0;
}

}  // namespace

bool ProcessPort::open(uint8_t* memory, const PortLayout& layout, const StatusPage* status, const NoticeRing* notices) {
  if (memory == nullptr || !valid_layout(layout)) return false;
  memory_ = memory;
  layout_ = layout;
  status_ = status;
  notices_ = notices;
  free_count_ = layout.tx_slots;
  for (uint32_t i = 0; i < layout.tx_slots; ++i) {
    free_[i] = static_cast<uint16_t>(layout.tx_slots - 1 - i);
    state_[i] = {Holder::kPool, false, 0};
  }
  // With 32 slots a reserve of 4 for each of 8 priorities would leave nothing for requests.
  reserve_ = kAnswerReserve < layout.tx_slots / 16 ? kAnswerReserve : layout.tx_slots / 16;
  reserved_ = reserve_ * kPriorities;
  for (uint32_t p = 0; p < kPriorities; ++p) {
    answers_out_[p] = 0;
    tx_producer_[p] = control()->tx[p].producer.load(std::memory_order_relaxed);
  }
  tx_return_consumer_ = control()->tx_return.consumer.load(std::memory_order_relaxed);
  rx_consumer_ = control()->rx.consumer.load(std::memory_order_relaxed);
  rx_return_producer_ = control()->rx_return.producer.load(std::memory_order_relaxed);
  rx_return_published_ = rx_return_producer_;
  notice_consumer_ = notices != nullptr ? notices->producer.load(std::memory_order_acquire) : 0;
  dirty_ = 0;
  collected_ = false;
  return true;
}

// --- transmit ---------------------------------------------------------------------------------------------------

bool ProcessPort::may_take(uint8_t priority, bool answer) const {
  // Invariant: free_count_ >= reserved_. An answer within its priority's reserve lowers both by one, so it always finds
  // a slot; anything else may only take what no priority has reserved.
  return (answer && answers_out_[priority] < reserve_) || free_count_ > reserved_;
}

void ProcessPort::count_answer(uint8_t priority, int change) {
  uint32_t& out = answers_out_[priority];
  reserved_ -= out < reserve_ ? reserve_ - out : 0;
  out += static_cast<uint32_t>(change);
  reserved_ += out < reserve_ ? reserve_ - out : 0;
}

uint32_t ProcessPort::begin_frame(uint8_t priority, bool answer) {
  priority &= kPriorities - 1;
  // Once per batch, so that the slots used next are the ones that came back last: a pool that cycles through all of
  // its slots leaves the cache.
  if (!collected_) collect_returned();
  if (!may_take(priority, answer)) {
    collect_returned();
    if (!may_take(priority, answer)) return kNoSlot;
  }
  const uint32_t slot = free_[--free_count_];
  state_[slot] = {Holder::kCaller, answer, priority};
  if (answer) count_answer(priority, 1);
  return slot;
}

uint8_t* ProcessPort::payload(uint32_t slot) const {
  return memory_ + layout_.tx_slot_offset + static_cast<size_t>(slot) * layout_.slot_bytes + kHeadroom;
}

void ProcessPort::publish(uint32_t slot, uint8_t priority, uint32_t header_bytes, uint32_t payload_bytes) {
  WEFT_ASSERT(slot < layout_.tx_slots && state_[slot].holder == Holder::kCaller);
  WEFT_ASSERT(header_bytes >= 1 && header_bytes <= kHeadroom && payload_bytes <= layout_.slot_payload);
  priority &= kPriorities - 1;
  const uint32_t at = tx_producer_[priority]++ & (layout_.tx_slots - 1);
  const SlotDescriptor descriptor{slot, static_cast<uint16_t>(header_bytes), 0, payload_bytes, 0};
  const size_t entry = static_cast<size_t>(priority) * layout_.tx_slots + at;
  std::memcpy(memory_ + layout_.tx_ring_offset + entry * sizeof(descriptor), &descriptor, sizeof(descriptor));
  state_[slot].holder = Holder::kDaemon;
  dirty_ = static_cast<uint8_t>(dirty_ | (1u << priority));
}

void ProcessPort::abandon(uint32_t slot) {
  WEFT_ASSERT(slot < layout_.tx_slots && state_[slot].holder == Holder::kCaller);
  take_back(slot);
}

void ProcessPort::take_back(uint32_t slot) {
  SlotState& state = state_[slot];
  if (state.answer) count_answer(state.priority, -1);
  state = {Holder::kPool, false, 0};
  free_[free_count_++] = static_cast<uint16_t>(slot);
}

void ProcessPort::collect_returned() {
  collected_ = true;
  RingIndices& ring = control()->tx_return;
  uint32_t left = distance(ring.producer.load(std::memory_order_acquire), tx_return_consumer_, layout_.tx_slots);
  if (left == 0) return;
  const uint8_t* entries = memory_ + layout_.tx_return_offset;
  for (; left > 0; --left) {
    uint32_t slot = 0;
    std::memcpy(&slot, entries + (tx_return_consumer_++ & (layout_.tx_slots - 1)) * sizeof(slot), sizeof(slot));
    slot &= layout_.tx_slots - 1;
    if (state_[slot].holder == Holder::kDaemon) take_back(slot);
  }
  ring.consumer.store(tx_return_consumer_, std::memory_order_release);
}

// --- receive ----------------------------------------------------------------------------------------------------

bool ProcessPort::receive(ReceivedFrame& out) {
  RingIndices& ring = control()->rx;
  if (distance(ring.producer.load(std::memory_order_acquire), rx_consumer_, layout_.rx_slots) == 0) return false;
  SlotDescriptor d;
  std::memcpy(&d, memory_ + layout_.rx_ring_offset + (rx_consumer_ & (layout_.rx_slots - 1)) * sizeof(d), sizeof(d));
  ++rx_consumer_;
  // Stored at once: the daemon judges by this word whether the process takes its frames.
  ring.consumer.store(rx_consumer_, std::memory_order_release);
  out.slot = d.slot & (layout_.rx_slots - 1);
  out.header_bytes = d.header_bytes < kHeadroom ? d.header_bytes : kHeadroom;
  out.payload_bytes = d.payload_bytes < layout_.slot_payload ? d.payload_bytes : layout_.slot_payload;
  out.payload = memory_ + layout_.rx_slot_offset + static_cast<size_t>(out.slot) * layout_.slot_bytes + kHeadroom;
  out.header = out.payload - out.header_bytes;
  out.flags = d.flags;
  return true;
}

bool ProcessPort::receive_pending() const {
  // Both words from shared memory, atomically: other threads call this while the engine's owner receives.
  const RingIndices& ring = control()->rx;
  const uint32_t consumer = ring.consumer.load(std::memory_order_relaxed);
  return distance(ring.producer.load(std::memory_order_acquire), consumer, layout_.rx_slots) != 0;
}

void ProcessPort::release(uint32_t slot) {
  const uint32_t at = rx_return_producer_++ & (layout_.rx_slots - 1);
  std::memcpy(memory_ + layout_.rx_return_offset + at * sizeof(slot), &slot, sizeof(slot));
}

// --- publication and sleep ---------------------------------------------------------------------------------------

bool ProcessPort::flush() {
  collected_ = false;
  const bool released = rx_return_producer_ != rx_return_published_;
  if (dirty_ == 0 && !released) return false;
  const bool transmitted = dirty_ != 0;
  for (uint32_t p = 0; dirty_ != 0; ++p, dirty_ = static_cast<uint8_t>(dirty_ >> 1)) {
    if ((dirty_ & 1) != 0) control()->tx[p].producer.store(tx_producer_[p], std::memory_order_release);
  }
  const uint32_t published_before = rx_return_published_;
  if (released) {
    control()->rx_return.producer.store(rx_return_producer_, std::memory_order_release);
    rx_return_published_ = rx_return_producer_;
  }
  // Index, fence, sleeping word here; sleeping word, fence, indices over there: one of the two sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool asleep = status_ != nullptr && status_->daemon_sleeping.load(std::memory_order_relaxed) != 0;
  if (!asleep && control()->unwatched.load(std::memory_order_relaxed) == 0) return false;
  if (transmitted) return true;
  const uint32_t held = control()->rx.producer.load(std::memory_order_relaxed) - published_before;
  return held >= layout_.rx_slots / 2;
}

void ProcessPort::note_poll() {
  // Not a read-modify-write: the word only has to move, and an inline poll must not pay for a locked instruction.
  std::atomic<uint32_t>& word = control()->poll_seq;
  word.store(word.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

bool ProcessPort::prepare_sleep(bool starved) {
  // What was not published would wait for as long as we sleep.
  if (dirty_ != 0 || rx_return_producer_ != rx_return_published_) return false;
  PortControl* c = control();
  c->process_sleeping.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool frames = receive_pending();
  const bool slots = starved && distance(c->tx_return.producer.load(std::memory_order_acquire), tx_return_consumer_,
                                         layout_.tx_slots) != 0;
  if (!frames && !slots) return true;
  awake();
  return false;
}

void ProcessPort::awake() { control()->process_sleeping.store(0, std::memory_order_relaxed); }

// --- what the daemon says ----------------------------------------------------------------------------------------

bool ProcessPort::next_notice(Notice& out) {
  if (notices_ == nullptr) return false;
  const uint32_t producer = notices_->producer.load(std::memory_order_acquire);
  if (producer == notice_consumer_) return false;
  // Entry by entry with atomic loads: the daemon may be overwriting it, which the second look at the index tells.
  const Notice& entry = notices_->entry[notice_consumer_ % kNoticeEntries];
  uint32_t word[sizeof(Notice) / 4];
  const uint32_t* source = reinterpret_cast<const uint32_t*>(&entry);
  for (size_t i = 0; i < sizeof(Notice) / 4; ++i) word[i] = __atomic_load_n(source + i, __ATOMIC_RELAXED);
  std::atomic_thread_fence(std::memory_order_acquire);
  const uint32_t later = notices_->producer.load(std::memory_order_relaxed);
  // The writer fills entry `later` before it publishes it, in the place of `later - kNoticeEntries`.
  if (later - notice_consumer_ >= kNoticeEntries) {
    out = Notice{};
    out.reason = NoticeReason::kOverflow;
    notice_consumer_ = later - kNoticeEntries / 2;
    return true;
  }
  ++notice_consumer_;
  out = std::bit_cast<Notice>(word);
  return true;
}

bool ProcessPort::daemon_alive() const {
  return status_ == nullptr || status_->daemon_alive.load(std::memory_order_acquire) != 0;
}

uint32_t ProcessPort::free_slots() const { return free_count_; }

}  // namespace weft::attach
