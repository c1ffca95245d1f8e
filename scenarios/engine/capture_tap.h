// SPDX-License-Identifier: Apache-2.0
//
// Frames on their way to a capture: the data plane copies them into a bounded ring of bytes, the control thread takes
// them out. A full ring loses frames and counts them; traffic never waits for a capture.
//
//   data plane:  tap.put(unix_ns, link, headers, payload, icrc)
//   control:     while (tap.take(frame)) ...
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::engine {

struct TappedFrame {
  uint64_t unix_ns = 0;
  uint32_t link = 0;  ///< link_id
  std::vector<uint8_t> bytes;
};

class CaptureTap {
 public:
  /// Room in bytes, a power of two. Allocated at the first open(), from the control thread before any put().
  void open(size_t bytes);
  bool is_open() const { return !ring_.empty(); }

  /// icrc: in the byte order of the wire.
  void put(uint64_t unix_ns, uint32_t link, std::span<const uint8_t> headers, std::span<const uint8_t> payload,
           std::span<const uint8_t> icrc);
  bool take(TappedFrame& out);

  /// Frames put so far; the data plane's own count.
  uint64_t put_count() const { return put_count_; }
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  struct Record {
    uint64_t unix_ns;
    uint32_t link;
    uint32_t bytes;
  };
  void write(uint64_t at, std::span<const uint8_t> from);
  void read(uint64_t at, std::span<uint8_t> to) const;

  std::vector<uint8_t> ring_;
  uint64_t put_count_ = 0;
  alignas(64) std::atomic<uint64_t> producer_{0};
  alignas(64) std::atomic<uint64_t> consumer_{0};
  std::atomic<uint64_t> lost_{0};
};

}  // namespace weft::engine
