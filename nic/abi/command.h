// SPDX-License-Identifier: Apache-2.0
//
// One uverbs write() command, taken apart and checked as the kernel's verify_hdr does (kernel_abi B.2).
//
//   Command c; long error = c.parse(data, bytes);      0 or -errno
//   const auto* in = c.request<ib_uverbs_alloc_pd>();  the core request; parse has checked that it is there
//   return c.respond(&out, sizeof out);                core response and, behind it, the driver's; 0 or -EFAULT/-EINVAL
//
// The request is copied here first: it lies in memory that the program may change or unmap meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::abi {

class Command {
 public:
  /// Longest request kept; every known one is shorter. What is longer must be zero (extended) or is driver data that
  /// nobody asked for.
  static constexpr size_t kMaxBytes = 512;

  long parse(const void* data, size_t bytes);

  uint32_t number() const { return number_; }
  bool extended() const { return extended_; }

  template <typename Request>
  const Request* request() const {
    static_assert(sizeof(Request) <= kMaxBytes);
    return reinterpret_cast<const Request*>(body_);
  }
  /// Driver data behind a plain core request of `core_bytes`: its bytes, and where they are.
  size_t driver_bytes(size_t core_bytes) const { return body_bytes_ > core_bytes ? body_bytes_ - core_bytes : 0; }
  const uint8_t* driver_data(size_t core_bytes) const { return body_ + core_bytes; }

  size_t response_bytes() const { return response_bytes_; }
  long respond(const void* core, size_t core_bytes, const void* driver = nullptr, size_t driver_bytes = 0) const;

 private:
  uint32_t number_ = 0;
  bool extended_ = false;
  uint64_t response_ = 0;
  size_t response_bytes_ = 0;  ///< room for core and driver parts together
  size_t core_room_ = 0;       ///< extended: room for the core part
  size_t body_bytes_ = 0;
  alignas(8) uint8_t body_[kMaxBytes];
};

}  // namespace weft::abi
