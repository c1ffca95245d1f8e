// SPDX-License-Identifier: Apache-2.0
//
// Names of the fabric's hosts.
//
// A name in `$WEFT_RUN/hosts.map` resolves to that host's fabric address, and the address to the name; with shared TCP
// to the loopback address where that host's TCP lives (nic_rules 10). Everything else goes to libc.
#include <errno.h>
#include <netdb.h>
#include <string.h>

#include "nic/preload/host_view.h"
#include "nic/preload/next.h"
#include "nic/preload/settings.h"
#include "nic/preload/text.h"

namespace {

using weft::preload::SocketAddress;
using weft::preload::Text;
using HostName = Text<weft::preload::kMaxHostName>;

// `node` itself, or the address of the host it names.
class Resolved {
 public:
  explicit Resolved(const char* node) : node_(node) {
    const int saved = errno;
    if (weft::preload::find_host(node, address_)) node_ = address_.c_str();
    errno = saved;
  }
  const char* get() const { return node_; }
  bool is_host() const { return node_ == address_.c_str(); }

 private:
  const char* node_;
  Text<weft::preload::kAddressText> address_;
};

// libc calls an address by its digits; people and middleware compare names. In place: a longer name stays as it is.
void put_name(char* digits, const char* name) {
  if (digits != nullptr && strlen(name) <= strlen(digits)) strcpy(digits, name);
}

struct hostent* with_name(struct hostent* entry, const Resolved& host, const char* name) {
  if (entry != nullptr && host.is_host()) put_name(entry->h_name, name);
  return entry;
}

bool name_of_address(const void* bytes, socklen_t size, int family, HostName& name) {
  SocketAddress address;
  address.any.sa_family = static_cast<sa_family_t>(family);
  if (bytes == nullptr) return false;
  if (family == AF_INET && size == sizeof(in_addr)) {
    memcpy(&address.v4.sin_addr, bytes, size);
  } else if (family == AF_INET6 && size == sizeof(in6_addr)) {
    memcpy(&address.v6.sin6_addr, bytes, size);
  } else {
    return false;
  }
  uint32_t ip = 0;
  return weft::preload::ipv4_of(address, ip) && weft::preload::name_of_host(ip, name);
}

// What gethostbyaddr_r answers, in the caller's buffer.
struct HostEntry {
  char* aliases[1];
  char* addresses[2];
  char address[16];
  char name[weft::preload::kMaxHostName];

  void fill(const void* bytes, socklen_t size, int family, const HostName& host, struct hostent* out) {
    memcpy(address, bytes, size);
    memcpy(name, host.c_str(), host.size() + 1);
    aliases[0] = addresses[1] = nullptr;
    addresses[0] = address;
    *out = {name, aliases, family, static_cast<int>(size), addresses};
  }
};

}  // namespace

WEFT_INTERPOSE int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints,
                               struct addrinfo** out) {
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  Resolved host(numeric ? nullptr : node);
  const int result = WEFT_NEXT(getaddrinfo)(host.is_host() ? host.get() : node, service, hints, out);
  if (result == 0 && host.is_host()) put_name((*out)->ai_canonname, node);
  return result;
}

WEFT_INTERPOSE struct hostent* gethostbyname(const char* name) {
  Resolved host(name);
  return with_name(WEFT_NEXT(gethostbyname)(host.get()), host, name);
}

WEFT_INTERPOSE struct hostent* gethostbyname2(const char* name, int family) {
  Resolved host(name);
  return with_name(WEFT_NEXT(gethostbyname2)(host.get(), family), host, name);
}

WEFT_INTERPOSE int gethostbyname_r(const char* name, struct hostent* entry, char* buffer, size_t size,
                                   struct hostent** result, int* error) {
  Resolved host(name);
  const int code = WEFT_NEXT(gethostbyname_r)(host.get(), entry, buffer, size, result, error);
  if (code == 0) with_name(*result, host, name);
  return code;
}

WEFT_INTERPOSE int gethostbyname2_r(const char* name, int family, struct hostent* entry, char* buffer, size_t size,
                                    struct hostent** result, int* error) {
  Resolved host(name);
  const int code = WEFT_NEXT(gethostbyname2_r)(host.get(), family, entry, buffer, size, result, error);
  if (code == 0) with_name(*result, host, name);
  return code;
}

WEFT_INTERPOSE int gethostbyaddr_r(const void* address, socklen_t size, int family, struct hostent* entry, char* buffer,
                                   size_t buffer_size, struct hostent** result, int* error) {
  HostName name;
  if (!name_of_address(address, size, family, name)) {
    return WEFT_NEXT(gethostbyaddr_r)(address, size, family, entry, buffer, buffer_size, result, error);
  }
  const size_t gap = -reinterpret_cast<uintptr_t>(buffer) % alignof(HostEntry);
  *result = nullptr;
  if (buffer_size < gap + sizeof(HostEntry)) {
    *error = NETDB_INTERNAL;
    return errno = ERANGE;
  }
  reinterpret_cast<HostEntry*>(buffer + gap)->fill(address, size, family, name, entry);
  *result = entry;
  return 0;
}

// One result for the process, as POSIX has it.
WEFT_INTERPOSE struct hostent* gethostbyaddr(const void* address, socklen_t size, int family) {
  static constinit HostEntry memory{};
  static constinit struct hostent entry {};
  HostName name;
  if (!name_of_address(address, size, family, name)) return WEFT_NEXT(gethostbyaddr)(address, size, family);
  memory.fill(address, size, family, name, &entry);
  return &entry;
}

WEFT_INTERPOSE int getnameinfo(const struct sockaddr* address, socklen_t length, char* host, socklen_t host_size,
                               char* service, socklen_t service_size, int flags) {
  HostName name;
  uint32_t ip = 0;
  const bool wanted = host != nullptr && host_size != 0 && (flags & NI_NUMERICHOST) == 0;
  if (!wanted || !weft::preload::is_internet(address, length) ||
      !weft::preload::ipv4_of(SocketAddress(address, length), ip) || !weft::preload::name_of_host(ip, name)) {
    return WEFT_NEXT(getnameinfo)(address, length, host, host_size, service, service_size, flags);
  }
  if (name.size() >= host_size) return EAI_OVERFLOW;
  memcpy(host, name.c_str(), name.size() + 1);
  if (service == nullptr || service_size == 0) return 0;
  return WEFT_NEXT(getnameinfo)(address, length, nullptr, 0, service, service_size, flags);
}
