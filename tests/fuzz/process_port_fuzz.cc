// SPDX-License-Identifier: Apache-2.0
//
// A program's end of a port over memory in which anything may stand: the program must stay inside its mapping and keep
// count of its slots. The input is a list of steps, six bytes each: what to do, a priority, four bytes of value.
#include <cstring>
#include <memory>

#include "protocols/attach/process_port.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/protocols/attach/fake_daemon.h"

using namespace weft::attach;

namespace {

constexpr uint32_t kSlots = 32;

class Steps {
 public:
  Steps() : port_(new ProcessPort) {
    FUZZ_CHECK(port_->open(daemon_.memory(), daemon_.layout(), daemon_.status(), daemon_.notices()));
  }

  void step(uint8_t what, uint8_t priority, uint32_t value) {
    switch (what % 10) {
      case 0:
        begin(priority, (value & 1) != 0);
        break;
      case 1:
        finish(value, true);
        break;
      case 2:
        finish(value, false);
        break;
      case 3:
        receive();
        break;
      case 4:
        port_->flush();
        break;
      case 5:
        daemon_.give_back(value);
        break;
      case 6:
        daemon_.deliver({value, static_cast<uint16_t>(value >> 8), 0, value * 7, 0});
        break;
      case 7:
        scribble(value, priority);
        break;
      case 8:
        (void)port_->prepare_sleep((value & 1) != 0);
        break;
      default:
        notices(value);
        break;
    }
    FUZZ_CHECK(port_->free_slots() <= kSlots);
  }

 private:
  void begin(uint8_t priority, bool answer) {
    const uint32_t slot = port_->begin_frame(priority, answer);
    if (slot == kNoSlot) return;
    FUZZ_CHECK(slot < kSlots && !held_[slot]);
    held_[slot] = true;
    std::memset(port_->payload(slot) - kHeadroom, 0x55, kHeadroom + port_->slot_payload());
  }
  void finish(uint32_t value, bool publish) {
    const uint32_t slot = value % kSlots;
    if (!held_[slot]) return;
    held_[slot] = false;
    if (publish) {
      port_->publish(slot, static_cast<uint8_t>(value >> 8), 1 + (value >> 16) % kHeadroom, value % 257);
    } else {
      port_->abandon(slot);
    }
  }
  void receive() {
    ReceivedFrame f;
    if (!port_->receive(f)) return;
    const uint8_t* end = daemon_.memory() + daemon_.layout().total;
    FUZZ_CHECK(f.header >= daemon_.memory() && f.payload + f.payload_bytes <= end);
    FUZZ_CHECK(f.slot < kSlots && f.header + f.header_bytes == f.payload);
    port_->release(f.slot);
  }
  /// Any word before the slots, rings and indices alike.
  void scribble(uint32_t value, uint8_t where) {
    const uint32_t at = (value % (daemon_.layout().tx_slot_offset / 4)) * 4;
    const uint32_t word = where < 128 ? value : where;
    std::memcpy(daemon_.memory() + at, &word, sizeof(word));
  }
  void notices(uint32_t value) {
    daemon_.notices()->producer.store(daemon_.notices()->producer.load() + value % 600);
    Notice n;
    for (int i = 0; i < 700 && port_->next_notice(n); ++i) {
    }
    FUZZ_CHECK(!port_->next_notice(n));
  }

  FakeDaemon daemon_{kSlots, kSlots, 256};
  std::unique_ptr<ProcessPort> port_;
  bool held_[kSlots] = {};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  Steps steps;
  for (size_t at = 0; at + 6 <= bytes; at += 6) {
    uint32_t value;
    std::memcpy(&value, data + at + 2, sizeof(value));
    steps.step(data[at], data[at + 1], value);
  }
  return 0;
}
