// SPDX-License-Identifier: Apache-2.0
//
// A fabric's own 127.B/16 for the TCP and UDP of its hosts (DECISIONS 23): B from 18 up, the first that no other fabric
// in this network namespace holds, so that fabrics of all users coexist.
//
//   LoopbackClaim claim;
//   if (std::string error = claim.take(); !error.empty()) …    one line
//   claim.number()                                             B; 0: nothing is claimed
//
// One lock file per network namespace, /tmp/weft-net-<inode of the namespace>, whose byte B is locked while a daemon
// lives. The file is everybody's, because every user's fabrics must see each other's locks, and holds nothing. The last
// to leave removes it.
#pragma once

#include <cstdint>
#include <string>

namespace weft::tools {

class LoopbackClaim {
 public:
  static constexpr uint32_t kFirst = 18;
  static constexpr uint32_t kLast = 254;

  /// folder: where the lock file is; tests have their own.
  explicit LoopbackClaim(std::string folder = "/tmp") : folder_(std::move(folder)) {}
  LoopbackClaim(const LoopbackClaim&) = delete;
  LoopbackClaim& operator=(const LoopbackClaim&) = delete;
  ~LoopbackClaim() { release(); }

  /// Empty on success, else one line.
  std::string take();
  void release();
  uint32_t number() const { return number_; }

 private:
  bool lock_one_of_all();
  bool is_still_there() const;

  std::string folder_;
  std::string path_;
  int fd_ = -1;
  uint32_t number_ = 0;
};

}  // namespace weft::tools
