// SPDX-License-Identifier: Apache-2.0
//
// Writes Ethernet captures as pcapng (draft-ietf-opsawg-pcapng): one section, an interface per link direction or port,
// timestamps in nanoseconds, frames with direction and comment.
//
//   PcapngWriter out(fd, "weft 0.1.0");
//   const uint32_t h0 = out.add_interface("h0->s0");
//   out.add_frame(h0, unix_ns, bytes, PcapngDirection::kInbound, "dropped by fault 3");
//   if (const int error = out.flush(); error != 0) ...
//
// The fd is borrowed and must block (a non-blocking one gives EAGAIN). Output is collected and written in large pieces;
// whoever is read live calls flush() after each batch, the destructor flushes without reporting. Interfaces may be
// added between frames. After an error (an errno, EPIPE included) everything else is a no-op that returns it again.
// One thread at a time.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "protocols/base/bytes.h"

namespace weft {

enum class PcapngDirection : uint8_t { kUnknown = 0, kInbound = 1, kOutbound = 2 };

class PcapngWriter {
 public:
  PcapngWriter(int fd, std::string_view application);
  ~PcapngWriter();
  PcapngWriter(const PcapngWriter&) = delete;
  PcapngWriter& operator=(const PcapngWriter&) = delete;

  /// The number that add_frame wants: 0, 1, …
  uint32_t add_interface(std::string_view name);
  /// frame: from the Ethernet header on, without FCS. Returns 0 or errno; EINVAL for an interface that was not added.
  int add_frame(uint32_t interface, uint64_t unix_ns, Bytes frame,
                PcapngDirection direction = PcapngDirection::kUnknown, std::string_view comment = {});
  int flush();

 private:
  void put16(uint32_t value);
  void put32(uint32_t value);
  void put_bytes(const void* data, size_t bytes);  ///< padded to four
  void put_option(uint16_t code, std::string_view value);
  void end_options();
  size_t begin_block(uint32_t type);
  void end_block(size_t start);

  int fd_;
  int error_ = 0;
  uint32_t interfaces_ = 0;
  std::vector<uint8_t> buffer_;
};

}  // namespace weft
