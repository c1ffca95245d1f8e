// SPDX-License-Identifier: Apache-2.0
//
// What tells machines apart besides addresses: the host's name, and the number that stands for it. The files that do so
// (/etc/hostname, the kernel's boot id) are rewritten paths (paths.h); middleware decides by all of these whether two
// processes may use shared memory instead of the NIC (nic_rules 10).
#include <errno.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "nic/preload/host_view.h"
#include "nic/preload/next.h"
#include "nic/preload/settings.h"
#include "nic/preload/text.h"

extern "C" int __gethostname_chk(char* name, size_t size, size_t capacity);

namespace {

// As glibc: what fits is copied, and too little room is an error.
int copy_host_name(char* name, size_t size) {
  const char* host = weft::preload::settings().name;
  const size_t needed = weft::preload::length(host) + 1;
  memcpy(name, host, needed < size ? needed : size);
  if (needed <= size) return 0;
  errno = ENAMETOOLONG;
  return -1;
}

}  // namespace

WEFT_INTERPOSE int gethostname(char* name, size_t size) {
  return weft::preload::settings().active ? copy_host_name(name, size) : WEFT_NEXT(gethostname)(name, size);
}

WEFT_INTERPOSE int __gethostname_chk(char* name, size_t size, size_t capacity) {
  const bool ours = weft::preload::settings().active && size <= capacity;
  return ours ? copy_host_name(name, size) : WEFT_NEXT(__gethostname_chk)(name, size, capacity);
}

WEFT_INTERPOSE int uname(struct utsname* name) {
  const int result = WEFT_NEXT(uname)(name);
  if (result == 0 && weft::preload::settings().active) {
    static_assert(sizeof name->nodename > weft::preload::kMaxHostName);
    strcpy(name->nodename, weft::preload::settings().name);
  }
  return result;
}

// glibc makes it of the address that the host's name resolves to, its halves exchanged.
WEFT_INTERPOSE long gethostid() {
  const weft::preload::AddressView view = weft::preload::address_view();
  if (!view.on()) return WEFT_NEXT(gethostid)();
  const uint32_t raw = __builtin_bswap32(view.own_address(0));
  return static_cast<int32_t>(raw << 16 | raw >> 16);
}
