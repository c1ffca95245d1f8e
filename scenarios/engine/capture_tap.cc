// SPDX-License-Identifier: Apache-2.0
#include "scenarios/engine/capture_tap.h"

#include <string.h>

#include <algorithm>

#include "protocols/base/assert.h"

namespace weft::engine {

void CaptureTap::open(size_t bytes) {
  WEFT_ASSERT(bytes != 0 && (bytes & (bytes - 1)) == 0);
  if (ring_.empty()) ring_.resize(bytes);
}

void CaptureTap::write(uint64_t at, std::span<const uint8_t> from) {
  const size_t start = at & (ring_.size() - 1);
  const size_t first = std::min(from.size(), ring_.size() - start);
  memcpy(ring_.data() + start, from.data(), first);
  memcpy(ring_.data(), from.data() + first, from.size() - first);
}

void CaptureTap::read(uint64_t at, std::span<uint8_t> to) const {
  const size_t start = at & (ring_.size() - 1);
  const size_t first = std::min(to.size(), ring_.size() - start);
  memcpy(to.data(), ring_.data() + start, first);
  memcpy(to.data() + first, ring_.data(), to.size() - first);
}

void CaptureTap::put(uint64_t unix_ns, uint32_t link, std::span<const uint8_t> headers,
                     std::span<const uint8_t> payload, std::span<const uint8_t> icrc) {
  const size_t bytes = headers.size() + payload.size() + icrc.size();
  const Record record{unix_ns, link, static_cast<uint32_t>(bytes)};
  uint64_t at = producer_.load(std::memory_order_relaxed);
  const uint64_t used = at - consumer_.load(std::memory_order_acquire);
  if (used + sizeof record + bytes > ring_.size()) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const auto append = [&](std::span<const uint8_t> part) {
    write(at, part);
    at += part.size();
  };
  append({reinterpret_cast<const uint8_t*>(&record), sizeof record});
  append(headers);
  append(payload);
  append(icrc);
  producer_.store(at, std::memory_order_release);
  ++put_count_;
}

bool CaptureTap::take(TappedFrame& out) {
  const uint64_t at = consumer_.load(std::memory_order_relaxed);
  if (ring_.empty() || producer_.load(std::memory_order_acquire) == at) return false;
  Record record;
  read(at, {reinterpret_cast<uint8_t*>(&record), sizeof record});
  out.unix_ns = record.unix_ns;
  out.link = record.link;
  out.bytes.resize(record.bytes);
  read(at + sizeof record, out.bytes);
  consumer_.store(at + sizeof record + record.bytes, std::memory_order_release);
  return true;
}

}  // namespace weft::engine
