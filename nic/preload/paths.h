// SPDX-License-Identifier: Apache-2.0
//
// Where a path of the emulated devices really lies (kernel_abi A.5).
//
//   RewrittenPath p(path);
//   p.get()      the path to use: the host's own tree in the run folder instead of /sys/class/infiniband*,
//                /sys/class/infiniband_verbs*, /sys/class/misc/rdma_cm*, /sys/class/net, and what names the machine:
//                /etc/hostname, the kernel's hostname and boot_id; every other path is itself
//   p.uverbs()   N for /dev/infiniband/uverbsN when the host has it, else -1
//
// Other names below /dev/infiniband are rewritten into the host's tree too, so that the machine's real devices do not
// show. Inert without settings().active. No allocation; a rewritten path that would not fit ends in ENAMETOOLONG.
#pragma once

#include <sys/stat.h>

#include "nic/preload/text.h"

namespace weft::preload {

class RewrittenPath {
 public:
  explicit RewrittenPath(const char* path) : path_(path) {
    // libc's declarations promise that a path is never null, and the compiler would drop the check; programs pass null
    // and expect EFAULT.
    __asm__("" : "+r"(path));
    if (path != nullptr && path[0] == '/') rewrite();
  }
  const char* get() const { return path_; }
  int uverbs() const { return uverbs_; }

 private:
  void rewrite();
  bool rewrite_identity();

  const char* path_;
  int uverbs_ = -1;
  Text<512> buffer_;
};

/// Does the host have a uverbsN? Asks the tree in the run folder, without attaching.
bool have_uverbs(int index);
/// What stat(2) says of /dev/infiniband/uverbsN: a character device 231:192+N whose times stay.
void fill_device_stat(int index, struct stat* out);

inline constexpr unsigned kUverbsMajor = 231;
inline constexpr unsigned kUverbsFirstMinor = 192;

}  // namespace weft::preload
