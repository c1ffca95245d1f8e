// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/paths.h"

#include <string.h>
#include <sys/sysmacros.h>

#include <atomic>

#include "nic/preload/settings.h"
#include "nic/preload/syscalls.h"

namespace weft::preload {

namespace {

// `text` behind `prefix`, where a run of slashes counts as one.
const char* after_path(const char* text, const char* prefix) {
  while (*prefix != '\0') {
    if (*text != *prefix) return nullptr;
    if (*text == '/') {
      while (text[1] == '/') ++text;
    }
    ++text;
    ++prefix;
  }
  return text;
}

void host_folder(Text<512>& out) { out.add(settings().run).add("/hosts/").add(settings().host); }

constinit std::atomic<bool> missing_tree_reported{false};

// A program that looks for devices where no fabric is gets a hint once; it would only see "no devices" otherwise.
void report_missing_tree() {
  Text<512> tree;
  host_folder(tree);
  tree.add("/sys");
  struct stat ignored;
  if (raw::stat(tree.c_str(), &ignored) == 0 || missing_tree_reported.exchange(true)) return;
  Text<512> line;
  line.add("no host ").add(settings().host).add(" in ").add(settings().run);
  line.add("; is the fabric up? Type: weft up");
  if (settings().fabric[0] != '\0') line.add(" --name ").add(settings().fabric);
  say(line.c_str());
}

}  // namespace

// What tells machines apart (nic_rules 10), and the interfaces. The daemon writes them; where it did not, the machine's.
bool RewrittenPath::rewrite_identity() {
  for (const char* own : {"/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname", "/etc/hostname", "/sys/class/net"}) {
    const char* rest = after_path(path_, own);
    if (rest == nullptr || (*rest != '\0' && *rest != '/')) continue;
    if (settings().shared_tcp && same(own, "/sys/class/net")) return true;
    host_folder(buffer_);
    buffer_.add(own);
    struct stat ignored;
    const bool is_there = raw::stat(buffer_.c_str(), &ignored) == 0;
    buffer_.add(rest);
    if (is_there && !buffer_.overflowed()) path_ = buffer_.c_str();
    return true;
  }
  return false;
}

void RewrittenPath::rewrite() {
  if (!settings().active || rewrite_identity()) return;
  const char* sys = after_path(path_, "/sys/class/");
  const char* dev = sys == nullptr ? after_path(path_, "/dev/infiniband") : nullptr;
  if (sys != nullptr) {
    if (after(sys, "infiniband") == nullptr && after_path(sys, "misc/rdma_cm") == nullptr) return;
    host_folder(buffer_);
    buffer_.add("/sys/class/").add(sys);
    if (after(sys, "infiniband_verbs") != nullptr) report_missing_tree();
  } else if (dev != nullptr && (*dev == '\0' || *dev == '/')) {
    if (const char* number = after_path(dev, "/uverbs")) {
      const char* end = nullptr;
      const long index = parse_number(number, 1023, &end);
      if (index >= 0 && *end == '\0' && have_uverbs(static_cast<int>(index))) {
        uverbs_ = static_cast<int>(index);
        return;
      }
    }
    host_folder(buffer_);
    buffer_.add("/dev/infiniband").add(dev);
  } else {
    return;
  }
  // Cut text names nothing, and the kernel would say ENOENT about another file than the one asked for: a path over
  // NAME_MAX says what is wrong.
  if (buffer_.overflowed()) {
    buffer_.clear();
    for (int i = 0; i < 300; ++i) buffer_.add('x');
  }
  path_ = buffer_.c_str();
}

bool have_uverbs(int index) {
  struct stat found;
  Text<512> path;
  host_folder(path);
  path.add("/sys/class/infiniband_verbs/uverbs").number(static_cast<uint64_t>(index));
  return raw::stat(path.c_str(), &found) == 0;
}

void fill_device_stat(int index, struct stat* out) {
  Text<512> path;
  host_folder(path);
  path.add("/sys/class/infiniband_verbs/uverbs").number(static_cast<uint64_t>(index));
  if (raw::stat(path.c_str(), out) != 0) memset(out, 0, sizeof *out);
  out->st_mode = S_IFCHR | 0666;
  out->st_nlink = 1;
  out->st_size = 0;
  out->st_blocks = 0;
  out->st_rdev = makedev(kUverbsMajor, kUverbsFirstMinor + static_cast<unsigned>(index));
}

}  // namespace weft::preload
