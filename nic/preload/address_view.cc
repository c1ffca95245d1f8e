// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/address_view.h"

#include <bit>

#include <string.h>

#include "nic/preload/text.h"

namespace weft::preload {

namespace {

constexpr uint32_t kMaxHosts = 4094;
constexpr uint32_t kMaxNics = 32;
constexpr uint32_t kNetMask = 0xFFFF0000;
constexpr uint32_t kLoopbackNet = 0x7F000000;

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
// A unique local prefix (RFC 4193) of our own; bytes 6 and 7 are B, the last two the host.
constexpr uint8_t kStandInPrefix[6] = {0xFD, 'W', 'e', 'f', 't', 0};
constexpr uint8_t kZeros[16] = {};
constexpr uint8_t kLocalhost6[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

bool same_bytes(const uint8_t* a, const uint8_t* b, size_t size) { return memcmp(a, b, size) == 0; }

uint32_t read_ipv4(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) << 24 | static_cast<uint32_t>(bytes[1]) << 16 |
         static_cast<uint32_t>(bytes[2]) << 8 | bytes[3];
}

void write_ipv4(uint8_t* bytes, uint32_t ip) {
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<uint8_t>(ip >> (24 - 8 * i));
}

void make_stand_in(const AddressView& view, uint8_t (&out)[16]) {
  memset(out, 0, sizeof out);
  memcpy(out, kStandInPrefix, sizeof kStandInPrefix);
  out[6] = static_cast<uint8_t>(view.loopback_net >> 24);
  out[7] = static_cast<uint8_t>(view.loopback_net >> 16);
  out[14] = static_cast<uint8_t>((view.self + 1) >> 8);
  out[15] = static_cast<uint8_t>(view.self + 1);
}

}  // namespace

uint32_t AddressView::stride() const { return std::bit_floor(hosts) * 2; }

bool AddressView::to_loopback(uint32_t fabric, uint32_t& out) const {
  if (fabric <= kFabricNet || (fabric & kFabricMask) != kFabricNet) return false;
  const uint32_t offset = fabric - kFabricNet - 1;
  if (offset % stride() >= hosts || offset / stride() >= nics) return false;
  out = loopback_net + offset % stride() + 1;
  return true;
}

bool AddressView::to_fabric(uint32_t loopback, uint32_t& out) const {
  const uint32_t host = loopback & ~kNetMask;
  if ((loopback & kNetMask) != loopback_net || host == 0 || host > hosts) return false;
  out = kFabricNet + host;
  return true;
}

bool parse_address_view(const char* text, AddressView& out) {
  struct Entry {
    const char* word;
    long limit;
    long value;
  };
  Entry entries[] = {
      {"host ", kMaxHosts - 1, -1}, {"hosts ", kMaxHosts, -1}, {"nics ", kMaxNics, -1}, {"loopback ", 254, -1}};
  while (*text != '\0') {
    for (Entry& entry : entries) {
      const char* end = nullptr;
      if (const char* number = after(text, entry.word)) {
        entry.value = parse_number(number, entry.limit, &end);
        if (entry.value < 0 || *end != '\n') return false;
      }
    }
    while (*text != '\0' && *text++ != '\n') {
    }
  }
  const auto [host, hosts, nics, loopback] = entries;
  if (host.value < 0 || hosts.value < 1 || nics.value < 1 || loopback.value < 0 || host.value >= hosts.value)
    return false;
  out = AddressView{};
  if (loopback.value == 0) return true;
  out.hosts = static_cast<uint32_t>(hosts.value);
  out.nics = static_cast<uint32_t>(nics.value);
  out.self = static_cast<uint32_t>(host.value);
  out.loopback_net = kLoopbackNet | static_cast<uint32_t>(loopback.value) << 16;
  return true;
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length) : v6{} {
  memcpy(this, address, length < sizeof *this ? length : sizeof *this);
}

bool is_internet(const sockaddr* address, socklen_t length) {
  // libc's declarations promise that it is never null; programs pass null and expect EFAULT.
  __asm__("" : "+r"(address));
  if (address == nullptr || length < sizeof(sockaddr_in)) return false;
  if (address->sa_family == AF_INET) return true;
  return address->sa_family == AF_INET6 && length >= offsetof(sockaddr_in6, sin6_scope_id);
}

bool ipv4_of(const SocketAddress& address, uint32_t& ip) {
  if (address.any.sa_family == AF_INET) {
    ip = ntohl(address.v4.sin_addr.s_addr);
    return true;
  }
  if (address.any.sa_family != AF_INET6) return false;
  const uint8_t* bytes = address.v6.sin6_addr.s6_addr;
  if (same_bytes(bytes, kMappedPrefix, sizeof kMappedPrefix)) {
    ip = read_ipv4(bytes + 12);
    return true;
  }
  if (same_bytes(bytes, kZeros, 16)) {
    ip = INADDR_ANY;
    return true;
  }
  ip = kLocalAddress;
  return same_bytes(bytes, kLocalhost6, 16);
}

Target target_of(const AddressView& view, const SocketAddress& to, uint32_t& loopback) {
  uint32_t ip = 0;
  if (!ipv4_of(to, ip)) return Target::kOther;
  if (view.to_loopback(ip, loopback)) return Target::kHost;
  if (ip != kLocalAddress && ip != INADDR_ANY) return Target::kOther;
  loopback = view.own_loopback();
  return Target::kLocalhost;
}

bool translate_bind(const AddressView& view, SocketAddress& to, bool v6_only) {
  if (v6_only) {
    if (to.any.sa_family != AF_INET6 || !same_bytes(to.v6.sin6_addr.s6_addr, kZeros, 16)) return false;
    make_stand_in(view, to.v6.sin6_addr.s6_addr);
    return true;
  }
  uint32_t ip = 0;
  uint32_t loopback = 0;
  if (!ipv4_of(to, ip)) return false;
  // Another host's address stays: the kernel answers EADDRNOTAVAIL, as it does on a machine that does not have it.
  const bool own = ip == INADDR_ANY || (view.to_loopback(ip, loopback) && loopback == view.own_loopback());
  if (own) set_ipv4(to, view.own_loopback());
  return own;
}

void set_ipv4(SocketAddress& to, uint32_t ip) {
  if (to.any.sa_family == AF_INET) {
    to.v4.sin_addr.s_addr = htonl(ip);
    return;
  }
  memcpy(to.v6.sin6_addr.s6_addr, kMappedPrefix, sizeof kMappedPrefix);
  write_ipv4(to.v6.sin6_addr.s6_addr + 12, ip);
}

void translate_back(const AddressView& view, sockaddr* address, socklen_t length) {
  uint32_t fabric = 0;
  if (length >= offsetof(sockaddr_in, sin_zero) && address->sa_family == AF_INET) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(address);
    if (view.to_fabric(ntohl(v4->sin_addr.s_addr), fabric)) v4->sin_addr.s_addr = htonl(fabric);
  } else if (length >= offsetof(sockaddr_in6, sin6_scope_id) && address->sa_family == AF_INET6) {
    uint8_t* bytes = reinterpret_cast<sockaddr_in6*>(address)->sin6_addr.s6_addr;
    uint8_t stand_in[16];
    make_stand_in(view, stand_in);
    if (same_bytes(bytes, stand_in, sizeof stand_in)) {
      memset(bytes, 0, sizeof stand_in);
    } else if (same_bytes(bytes, kMappedPrefix, sizeof kMappedPrefix) &&
               view.to_fabric(read_ipv4(bytes + 12), fabric)) {
      write_ipv4(bytes + 12, fabric);
    }
  }
}

bool is_unbound(const SocketAddress& own) {
  if (own.any.sa_family == AF_INET) return own.v4.sin_port == 0 && own.v4.sin_addr.s_addr == INADDR_ANY;
  return own.any.sa_family == AF_INET6 && own.v6.sin6_port == 0 && same_bytes(own.v6.sin6_addr.s6_addr, kZeros, 16);
}

bool is_ipv4_or_any(const SocketAddress& own) {
  uint32_t ip = 0;
  if (!ipv4_of(own, ip)) return false;
  return own.any.sa_family == AF_INET || !same_bytes(own.v6.sin6_addr.s6_addr, kLocalhost6, 16);
}

uint16_t port_of(const SocketAddress& address) {
  return ntohs(address.any.sa_family == AF_INET ? address.v4.sin_port : address.v6.sin6_port);
}

}  // namespace weft::preload
