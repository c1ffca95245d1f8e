// SPDX-License-Identifier: Apache-2.0
#include "scenarios/clock/link_model.h"

#include "protocols/base/assert.h"

namespace weft {

LinkModel::Passage LinkModel::transmit(Instant start, uint32_t wire_bytes) {
  WEFT_ASSERT(settings_.rate_bps != 0);
  ++frames_;
  Passage p;
  p.departs = start + serialisation(wire_bytes, settings_.rate_bps);
  if (random_.happens(settings_.loss)) {
    ++lost_;
    return p;
  }
  p.copies = 1;
  if (random_.happens(settings_.duplicate)) {
    ++duplicated_;
    p.copies = 2;
  }
  for (uint32_t i = 0; i < p.copies; ++i) {
    p.arrivals[i] = p.departs + settings_.delay;
    if (!random_.happens(settings_.reorder)) continue;
    ++reordered_;
    const auto span = static_cast<uint64_t>(settings_.reorder_span.count());
    p.arrivals[i] += picoseconds(static_cast<int64_t>(random_.below(span + 1)));
  }
  return p;
}

}  // namespace weft
