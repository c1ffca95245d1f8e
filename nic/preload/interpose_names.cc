// SPDX-License-Identifier: Apache-2.0
//
// Names of the fabric's hosts, and of a NIC's network interface.
//
// `$WEFT_RUN/hosts.map` has a line per host: name, fabric address, loopback address. A name in it resolves to the
// loopback address, where that host's TCP lives (nic_rules 10); every other name goes to libc.
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <string.h>

#include "nic/preload/next.h"
#include "nic/preload/paths.h"
#include "nic/preload/settings.h"
#include "nic/preload/syscalls.h"
#include "nic/preload/text.h"

namespace {

using weft::preload::Text;

constexpr size_t kAddressText = 16;
// Far above what the kernel numbers its interfaces with on a machine that runs tests.
constexpr unsigned kFirstInterface = 1u << 24;
constexpr unsigned kMaxInterfaces = 32;

bool is_blank(char c) { return c == ' ' || c == '\t'; }

// Reads the file in pieces, a line at a time, with a small buffer: some callers are on small stacks.
class LineReader {
 public:
  explicit LineReader(const char* path) : fd_(static_cast<int>(weft::raw::open(path, O_RDONLY | O_CLOEXEC))) {}
  ~LineReader() {
    if (fd_ >= 0) weft::raw::close(fd_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool next(Text<160>& line) {
    line.clear();
    for (;;) {
      if (at_ == size_ && !refill()) return line.size() != 0;
      const char c = buffer_[at_++];
      if (c == '\n') return true;
      line.add(c);
    }
  }

 private:
  bool refill() {
    if (fd_ < 0) return false;
    const long got = weft::raw::read(fd_, buffer_, sizeof buffer_);
    at_ = 0;
    size_ = got > 0 ? static_cast<size_t>(got) : 0;
    return size_ != 0;
  }

  int fd_;
  size_t at_ = 0;
  size_t size_ = 0;
  char buffer_[512];
};

// Field `index` of a line, as a copy.
template <size_t kCapacity>
bool field(const char* line, int index, Text<kCapacity>& out) {
  for (int i = 0;; ++i) {
    while (is_blank(*line)) ++line;
    if (*line == '\0' || *line == '#') return false;
    const char* start = line;
    while (*line != '\0' && !is_blank(*line)) ++line;
    if (i != index) continue;
    out.add(start, static_cast<size_t>(line - start));
    return !out.overflowed();
  }
}

// Host names compare without case, as everywhere. True: `address` is where that host listens.
bool find_host(const char* name, Text<kAddressText>& address) {
  const auto& settings = weft::preload::settings();
  if (name == nullptr || !settings.active) return false;
  Text<weft::preload::kMaxRunFolder + 16> path;
  path.add(settings.run).add("/hosts.map");
  LineReader reader(path.c_str());
  Text<160> line;
  while (reader.next(line)) {
    Text<weft::preload::kMaxHostName> host;
    if (line.overflowed() || !field(line.c_str(), 0, host) || strcasecmp(host.c_str(), name) != 0) continue;
    return field(line.c_str(), 2, address);
  }
  return false;
}

// `node` itself, or the address of the host it names.
class Resolved {
 public:
  explicit Resolved(const char* node) : node_(node) {
    const int saved = errno;
    if (find_host(node, address_)) node_ = address_.c_str();
    errno = saved;
  }
  const char* get() const { return node_; }

 private:
  const char* node_;
  Text<kAddressText> address_;
};

// "weft3" is interface 3 of the host; -1: not one of ours.
long interface_index(const char* name) {
  if (name == nullptr || !weft::preload::settings().active) return -1;
  const char* number = weft::preload::after(name, "weft");
  if (number == nullptr) return -1;
  const char* end = nullptr;
  const long index = weft::preload::parse_number(number, kMaxInterfaces - 1, &end);
  return index >= 0 && *end == '\0' && weft::preload::have_uverbs(static_cast<int>(index)) ? index : -1;
}

}  // namespace

WEFT_INTERPOSE int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints,
                               struct addrinfo** out) {
  Resolved host(node);
  return WEFT_NEXT(getaddrinfo)(host.get(), service, hints, out);
}

WEFT_INTERPOSE struct hostent* gethostbyname(const char* name) {
  Resolved host(name);
  return WEFT_NEXT(gethostbyname)(host.get());
}

WEFT_INTERPOSE struct hostent* gethostbyname2(const char* name, int family) {
  Resolved host(name);
  return WEFT_NEXT(gethostbyname2)(host.get(), family);
}

WEFT_INTERPOSE int gethostbyname_r(const char* name, struct hostent* entry, char* buffer, size_t size,
                                   struct hostent** result, int* error) {
  Resolved host(name);
  return WEFT_NEXT(gethostbyname_r)(host.get(), entry, buffer, size, result, error);
}

WEFT_INTERPOSE int gethostbyname2_r(const char* name, int family, struct hostent* entry, char* buffer, size_t size,
                                    struct hostent** result, int* error) {
  Resolved host(name);
  return WEFT_NEXT(gethostbyname2_r)(host.get(), family, entry, buffer, size, result, error);
}

WEFT_INTERPOSE unsigned if_nametoindex(const char* name) {
  const long index = interface_index(name);
  return index >= 0 ? kFirstInterface + static_cast<unsigned>(index) : WEFT_NEXT(if_nametoindex)(name);
}

WEFT_INTERPOSE char* if_indextoname(unsigned index, char* name) {
  if (index >= kFirstInterface && index < kFirstInterface + kMaxInterfaces && weft::preload::settings().active) {
    Text<IF_NAMESIZE> text;
    text.add("weft").number(index - kFirstInterface);
    memcpy(name, text.c_str(), text.size() + 1);
    return name;
  }
  return WEFT_NEXT(if_indextoname)(index, name);
}
