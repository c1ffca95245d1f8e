// SPDX-License-Identifier: Apache-2.0
//
// QPN ranges of one host: 1022 of 2^14 numbers each, handed out round robin; range 0 is the host's own (QP 0, QP 1), and
// the last one holds the QPN of multicast packets.
//
//   take(now)       the next free range whose quarantine is over; when every free one rests, the one that rested longest
//   give_back(r, now)  its program ended
//
// RC frames carry no source QPN, so a late retransmission could hit a new QP of the same number; a range that was
// returned therefore rests for kQuarantine. No clock, no allocation after construction. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "protocols/base/time.h"

namespace weft::host {

inline constexpr uint32_t kQpnRangeLog2 = 14;
inline constexpr uint32_t kQpnRanges = (1u << (24 - kQpnRangeLog2)) - 1;  ///< 0 to the last that is given
inline constexpr Duration kQuarantine = seconds(60);

class QpnRanges {
 public:
  /// first: where the round robin starts. Hosts start at different places, so that equal QPNs on two hosts are rare
  /// and captures are easy to read.
  explicit QpnRanges(uint32_t first = 1);

  std::optional<uint32_t> take(Instant now);
  void give_back(uint32_t range, Instant now);
  uint32_t in_use() const { return in_use_; }

 private:
  uint32_t use(uint32_t range);

  struct Range {
    bool used = false;
    Instant free_from{Duration::min()};
  };
  std::array<Range, kQpnRanges> ranges_{};
  uint32_t next_;
  uint32_t in_use_ = 0;
};

}  // namespace weft::host
