// SPDX-License-Identifier: Apache-2.0
//
// Admission: what each (ingress port, priority) has in the switch, and when its sender must pause.
//
// A packet is charged to where it came in when it is queued and credited when it leaves. Crossing xoff_bytes turns the
// pause state on, falling to xon_bytes turns it off; in between it stays as it is (802.1Qbb, priority flow control).
// Thresholds are static; the shared buffer with dynamic thresholds replaces charge() and credit(), nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "protocols/base/packet.h"
#include "switch/core/settings.h"

namespace weft::fabric {

struct IngressClass {
  uint64_t packets = 0;     ///< received so far
  uint64_t bytes = 0;
  uint64_t xoffs = 0;       ///< times the sender was paused
  uint32_t held_bytes = 0;  ///< in the switch now, in whole cells
  uint32_t held_packets = 0;
};

class Admission {
 public:
  explicit Admission(const SwitchSettings& settings)
      : xoff_bytes_(settings.xoff_bytes), xon_bytes_(settings.xon_bytes), cell_bytes_(settings.cell_bytes),
        classes_(settings.ports * kPriorityCount), paused_(settings.ports, 0) {}

  /// Returns true when the port's pause mask changed.
  bool charge(SwitchPort port, uint8_t priority, uint32_t bytes) {
    IngressClass& c = classes_[port * kPriorityCount + priority];
    ++c.packets;
    c.bytes += bytes;
    c.held_bytes += charged(bytes);
    ++c.held_packets;
    if (c.held_bytes <= xoff_bytes_ || (paused_[port] >> priority & 1) != 0) return false;
    paused_[port] = static_cast<uint8_t>(paused_[port] | 1u << priority);
    ++c.xoffs;
    return true;
  }
  bool credit(SwitchPort port, uint8_t priority, uint32_t bytes) {
    IngressClass& c = classes_[port * kPriorityCount + priority];
    const uint32_t charge = charged(bytes);
    WEFT_ASSERT(c.held_bytes >= charge && c.held_packets > 0);
    c.held_bytes -= charge;
    --c.held_packets;
    if ((paused_[port] >> priority & 1) == 0 || c.held_bytes > xon_bytes_) return false;
    paused_[port] = static_cast<uint8_t>(paused_[port] & ~(1u << priority));
    return true;
  }

  uint8_t paused(SwitchPort port) const { return paused_[port]; }
  const IngressClass& at(SwitchPort port, uint8_t priority) const { return classes_[port * kPriorityCount + priority]; }

 private:
  uint32_t charged(uint32_t bytes) const {
    return cell_bytes_ == 1 ? bytes : (bytes + cell_bytes_ - 1) / cell_bytes_ * cell_bytes_;
  }

  uint32_t xoff_bytes_;
  uint32_t xon_bytes_;
  uint32_t cell_bytes_;
  std::vector<IngressClass> classes_;
  std::vector<uint8_t> paused_;
};

}  // namespace weft::fabric
