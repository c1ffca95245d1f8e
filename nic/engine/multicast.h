// SPDX-License-Identifier: Apache-2.0
//
// Which UD QPs of this process are attached to which multicast groups (IBTA Vol 1, 10.5).
//
//   open(groups, qps)       limits: groups, and QPs of one group (at most kMaxQpsOfGroup)
//   attach(gid, qp, fresh)  0 or ENOMEM (a limit); attaching twice is nothing new: fresh is false
//   detach(gid, qp)         false: it was not attached
//   find(gid)               the group's QP indices, or nullptr
//
// With the engine's lock. Memory is mapped when groups are used.
#pragma once

#include <cstdint>

#include "nic/engine/arena.h"
#include "protocols/wire/gid.h"

namespace weft::nic {

inline constexpr uint32_t kMaxQpsOfGroup = 56;

struct MulticastGroup {
  GidBytes gid{};
  uint32_t index = 0;
  uint32_t next = 0;  ///< of the same bucket: index + 1
  uint32_t count = 0;
  uint16_t qps[kMaxQpsOfGroup] = {};
};

class MulticastTable {
 public:
  bool open(uint32_t groups, uint32_t qps_of_group);
  int attach(const GidBytes& gid, uint32_t qp, bool& fresh);
  bool detach(const GidBytes& gid, uint32_t qp);
  const MulticastGroup* find(const GidBytes& gid) const;
  /// Some group of the QP; for those that end with everything still attached.
  const MulticastGroup* any_of(uint32_t qp) const;

 private:
  static constexpr uint32_t kBuckets = 256;
  static uint32_t bucket_of(const GidBytes& gid);
  MulticastGroup* find_group(const GidBytes& gid) const;

  Pool<MulticastGroup> groups_;
  uint32_t qps_of_group_ = 0;
  uint32_t buckets_[kBuckets] = {};
};

}  // namespace weft::nic
