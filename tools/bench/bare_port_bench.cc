// SPDX-License-Identifier: Apache-2.0
//
// bare_port_bench PAYLOAD_BYTES FRAMES: what a port could carry if there were no NIC and no switch behind it.
//
// Three processes as in the fabric: a sender copies its payload into a transmit slot; a middle one reads the headers and
// copies the frame into a receive slot; a receiver copies the payload into its own memory. Slots are LIFO pools of 256
// that go back on a ring of their own, descriptors are 16 bytes, indices are published per batch: the port's shape
// (protocols/attach/port_layout.h) without protocol, checks or lookups. Prints one line of JSON.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "protocols/attach/port_layout.h"
#include "tools/bench/stages.h"

namespace weft::bench {
namespace {

constexpr uint32_t kSlots = attach::kDefaultTxSlots;
constexpr uint32_t kSlotBytes = attach::kHeadroom + attach::kDefaultSlotPayload;
constexpr uint32_t kHeaderBytes = 64;
constexpr uint32_t kBatch = 32;
constexpr uint32_t kMemoryBytes = 64 << 10;  // the program's buffer, as perftest's 64 KiB

/// One direction of a port: descriptors forth, slot numbers back.
struct Lane {
  attach::RingIndices forth;
  attach::RingIndices back;
  attach::SlotDescriptor descriptor[kSlots];
  uint32_t returned[kSlots];
  alignas(4096) uint8_t slot[kSlots][kSlotBytes];
};

/// The side that owns the slots. Take, fill, push; flush() publishes.
class Producer {
 public:
  explicit Producer(Lane* lane) : lane_(lane) {
    for (uint32_t i = 0; i < kSlots; i++) pool_[free_++] = i;
  }
  bool empty() {
    if (free_ == 0) collect();
    return free_ == 0;
  }
  uint32_t take() { return pool_[--free_]; }
  uint8_t* payload(uint32_t slot) { return lane_->slot[slot] + attach::kHeadroom; }
  void push(uint32_t slot, uint32_t payload_bytes) {
    lane_->descriptor[next_++ & (kSlots - 1)] = {slot, kHeaderBytes, 0, payload_bytes, 0};
  }
  void flush() { lane_->forth.producer.store(next_, std::memory_order_release); }

 private:
  void collect() {
    uint32_t end = lane_->back.producer.load(std::memory_order_acquire);
    while (taken_back_ != end) pool_[free_++] = lane_->returned[taken_back_++ & (kSlots - 1)];
  }
  Lane* lane_;
  uint32_t pool_[kSlots];
  uint32_t free_ = 0, next_ = 0, taken_back_ = 0;
};

/// The other side. pop() until false, release() each slot; flush() publishes the returns.
class Consumer {
 public:
  explicit Consumer(Lane* lane) : lane_(lane) {}
  bool pop(attach::SlotDescriptor& out) {
    if (next_ == end_) end_ = lane_->forth.producer.load(std::memory_order_acquire);
    if (next_ == end_) return false;
    out = lane_->descriptor[next_++ & (kSlots - 1)];
    return true;
  }
  uint8_t* payload(uint32_t slot) { return lane_->slot[slot] + attach::kHeadroom; }
  void release(uint32_t slot) { lane_->returned[released_++ & (kSlots - 1)] = slot; }
  void flush() { lane_->back.producer.store(released_, std::memory_order_release); }

 private:
  Lane* lane_;
  uint32_t next_ = 0, end_ = 0, released_ = 0;
};

void forward(Lane* from, Lane* to) {
  Consumer in(from);
  Producer out(to);
  Waiter waiter;
  for (;;) {
    uint32_t count = 0;
    attach::SlotDescriptor frame{};
    while (count < kBatch && !out.empty() && in.pop(frame)) {
      uint32_t slot = out.take();
      const uint8_t* source = in.payload(frame.slot);
      memcpy(out.payload(slot) - kHeaderBytes, source - kHeaderBytes, kHeaderBytes + frame.payload_bytes);
      out.push(slot, frame.payload_bytes);
      in.release(frame.slot);
      count++;
    }
    if (count == 0) {
      waiter.idle();
      continue;
    }
    out.flush();
    in.flush();
    waiter.progress();
  }
}

void receive(Lane* lane, uint64_t frames, uint8_t* memory) {
  Consumer in(lane);
  Waiter waiter;
  uint64_t received = 0;
  while (received < frames) {
    uint32_t count = 0;
    attach::SlotDescriptor frame{};
    while (count < kBatch && in.pop(frame)) {
      memcpy(memory + received % (kMemoryBytes / 4096) * 4096, in.payload(frame.slot), frame.payload_bytes);
      in.release(frame.slot);
      received++;
      count++;
    }
    if (count == 0) {
      waiter.idle();
      continue;
    }
    in.flush();
    waiter.progress();
  }
}

void send(Lane* lane, uint64_t frames, uint32_t payload_bytes, const uint8_t* memory) {
  Producer out(lane);
  Waiter waiter;
  uint64_t sent = 0;
  while (sent < frames) {
    uint32_t count = 0;
    while (count < kBatch && sent < frames && !out.empty()) {
      uint32_t slot = out.take();
      memset(out.payload(slot) - kHeaderBytes, 0, kHeaderBytes);
      memcpy(out.payload(slot), memory + sent % (kMemoryBytes / 4096) * 4096, payload_bytes);
      out.push(slot, payload_bytes);
      sent++;
      count++;
    }
    if (count == 0) {
      waiter.idle();
      continue;
    }
    out.flush();
    waiter.progress();
  }
}

int run(uint32_t payload_bytes, uint64_t frames) {
  Lane* transmit = share<Lane>();
  Lane* delivered = share<Lane>();
  auto* source = static_cast<uint8_t*>(share_bytes(kMemoryBytes));
  auto* target = static_cast<uint8_t*>(share_bytes(kMemoryBytes));
  memset(source, 0x5a, kMemoryBytes);
  memset(target, 0, kMemoryBytes);
  pid_t middle = start_stage([&] { forward(transmit, delivered); });
  double begin = seconds_now();
  pid_t receiver = start_stage([&] { receive(delivered, frames, target); });
  send(transmit, frames, payload_bytes, source);
  int status = 0;
  waitpid(receiver, &status, 0);
  double seconds = seconds_now() - begin;
  end_stage(middle);
  if (status != 0 || memcmp(source, target, payload_bytes) != 0) {
    fprintf(stderr, "bare_port_bench: the payload did not arrive\n");
    return 1;
  }
  double per_second = static_cast<double>(frames) / seconds;
  printf("{\"payload_bytes\": %u, \"frames\": %lu, \"seconds\": %.4f, \"frames_per_s\": %.0f, \"bytes_per_s\": %.0f}\n",
         payload_bytes, static_cast<unsigned long>(frames), seconds, per_second, per_second * payload_bytes);
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: bare_port_bench PAYLOAD_BYTES FRAMES\n");
    return 2;
  }
  long payload = atol(argv[1]), frames = atol(argv[2]);
  if (payload < 1 || payload > static_cast<long>(weft::attach::kDefaultSlotPayload) || frames < 1) {
    fprintf(stderr, "bare_port_bench: 1 to %u bytes, at least one frame\n", weft::attach::kDefaultSlotPayload);
    return 2;
  }
  return weft::bench::run(static_cast<uint32_t>(payload), static_cast<uint64_t>(frames));
}
