// SPDX-License-Identifier: Apache-2.0
#include "nic/host/qpn_ranges.h"

#include "protocols/base/assert.h"

namespace weft::host {

QpnRanges::QpnRanges(uint32_t first) : next_(1 + (first - 1) % (kQpnRanges - 1)) { WEFT_ASSERT(first >= 1); }

std::optional<uint32_t> QpnRanges::take(Instant now) {
  for (uint32_t tried = 1; tried < kQpnRanges; ++tried) {
    const uint32_t candidate = next_;
    next_ = next_ + 1 == kQpnRanges ? 1 : next_ + 1;
    Range& range = ranges_[candidate];
    if (range.used || range.free_from > now) continue;
    return use(candidate);
  }
  // Many short programs, a test loop: the range that rested longest is better than none.
  uint32_t oldest = 0;
  for (uint32_t r = 1; r < kQpnRanges; ++r) {
    if (!ranges_[r].used && (oldest == 0 || ranges_[r].free_from < ranges_[oldest].free_from)) oldest = r;
  }
  if (oldest == 0) return std::nullopt;
  return use(oldest);
}

uint32_t QpnRanges::use(uint32_t range) {
  ranges_[range].used = true;
  ++in_use_;
  return range;
}

void QpnRanges::give_back(uint32_t range, Instant now) {
  WEFT_ASSERT(range >= 1 && range < kQpnRanges && ranges_[range].used);
  ranges_[range].used = false;
  ranges_[range].free_from = now + kQuarantine;
  --in_use_;
}

}  // namespace weft::host
