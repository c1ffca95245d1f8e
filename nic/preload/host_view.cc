// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/host_view.h"

#include <string.h>

#include <atomic>

#include "nic/preload/line_reader.h"
#include "nic/preload/settings.h"
#include "nic/preload/syscalls.h"

namespace weft::preload {

namespace {

// The whole view in one word, so that nobody waits for a thread that reads the file while the program forks: 13 bits of
// hosts, 13 of the own index, 6 of NICs, 8 of B. Bit 63: known.
constinit std::atomic<uint64_t> known_view{0};
constexpr uint64_t kKnown = 1ull << 63;

constexpr int kBindAddressNoPort = 24;  // IP_BIND_ADDRESS_NO_PORT, linux/in.h since 4.2
constexpr int kIpv6Freebind = 78;       // IPV6_FREEBIND, linux/in6.h since 4.15

uint64_t packed(const AddressView& view) {
  return kKnown | view.hosts | static_cast<uint64_t>(view.self) << 13 | static_cast<uint64_t>(view.nics) << 26 |
         static_cast<uint64_t>(view.loopback_net >> 16 & 0xFF) << 32;
}

AddressView unpacked(uint64_t word) {
  AddressView view;
  view.hosts = word & 0x1FFF;
  view.self = word >> 13 & 0x1FFF;
  view.nics = word >> 26 & 0x3F;
  view.loopback_net = 0x7F000000u | static_cast<uint32_t>(word >> 32 & 0xFF) << 16;
  return view;
}

bool read_view(AddressView& view) {
  Text<kMaxRunFolder + kMaxHostName + 16> path;
  path.add(settings().run).add("/hosts/").add(settings().host).add("/view");
  LineReader reader(path.c_str());
  Text<32> line;
  Text<160> text;
  while (reader.next(line)) text.add(line.c_str()).add('\n');
  return !text.overflowed() && parse_address_view(text.c_str(), view);
}

int socket_option(int fd, int level, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  const long result = raw::call(SYS_getsockopt, fd, level, option, &value, &size);
  return result == 0 ? value : -1;
}

bool own_name(int fd, SocketAddress& out) {
  socklen_t size = sizeof out;
  return raw::call(SYS_getsockname, fd, &out, &size) == 0 && is_internet(&out.any, size);
}

int type_of(int fd) { return socket_option(fd, SOL_SOCKET, SO_TYPE); }
bool is_v6_only(int fd) { return socket_option(fd, IPPROTO_IPV6, IPV6_V6ONLY) == 1; }

// The kernel would call from 127.0.0.1. Without a port yet: the connect chooses it, knowing the destination.
void take_own_address(int fd, const SocketAddress& unbound, const AddressView& view) {
  const int one = 1;
  raw::call(SYS_setsockopt, fd, IPPROTO_IP, kBindAddressNoPort, &one, sizeof one);
  SocketAddress own = unbound;
  set_ipv4(own, view.own_loopback());
  raw::call(SYS_bind, fd, &own, own.any.sa_family == AF_INET ? sizeof own.v4 : sizeof own.v6);
}

// As /proc/net/tcp and its like print an address: words in the machine's byte order, in hexadecimal.
void add_hex(Text<48>& out, uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out.add("0123456789ABCDEF"[value >> shift & 15]);
}

bool table_has(const char* path, const char* key, bool listening) {
  LineReader reader(path);
  Text<112> line;
  Text<48> word;
  reader.next(line);  // the heading
  while (reader.next(line)) {
    // Listening sockets come first; among ten thousand connections nobody wants to look.
    if (listening && (!field(line.c_str(), 3, word) || !same(word.c_str(), "0A"))) return false;
    if (field(line.c_str(), 1, word) && same(word.c_str(), key)) return true;
  }
  return false;
}

// `$WEFT_RUN/hosts.map` has a line per host: name, fabric address, loopback address.
class HostsMap {
 public:
  HostsMap() : reader_(path().c_str()) {}
  bool next() { return reader_.next(line_); }
  template <size_t kCapacity>
  bool word(int index, Text<kCapacity>& out) const {
    return !line_.overflowed() && field(line_.c_str(), index, out);
  }

 private:
  static Text<kMaxRunFolder + 16> path() {
    Text<kMaxRunFolder + 16> text;
    text.add(settings().run).add("/hosts.map");
    return text;
  }
  LineReader reader_;
  Text<160> line_;
};

}  // namespace

AddressView address_view() {
  const Settings& now = settings();
  if (!now.active || now.shared_tcp) return {};
  const uint64_t word = known_view.load(std::memory_order_relaxed);
  if (__builtin_expect(word != 0, 1)) return unpacked(word);
  AddressView view;
  if (read_view(view)) known_view.store(packed(view), std::memory_order_relaxed);
  return view;
}

Destination::Destination(int fd, const sockaddr* address, socklen_t length) : address_(address), length_(length) {
  if (!is_internet(address, length)) return;
  const AddressView view = address_view();
  if (!view.on()) return;
  copy_ = SocketAddress(address, length);
  uint32_t loopback = 0;
  const Target target = target_of(view, copy_, loopback);
  SocketAddress own;
  if (target == Target::kOther || !own_name(fd, own)) return;
  // An IPv6 datagram socket takes IPv4 addresses too: its own family decides, not that of the address.
  const bool ipv4_possible = own.any.sa_family == AF_INET || !is_v6_only(fd);
  if (target == Target::kHost) {
    if (ipv4_possible && is_unbound(own)) take_own_address(fd, own, view);
  } else if (!ipv4_possible || !is_ipv4_or_any(own) || !somebody_at(loopback, port_of(copy_), type_of(fd))) {
    return;  // the machine's own localhost
  }
  set_ipv4(copy_, loopback);
  address_ = &copy_.any;
  if (length_ > sizeof copy_) length_ = sizeof copy_;
}

bool bind_address(int fd, const sockaddr* address, socklen_t length, SocketAddress& out) {
  // The kernel takes a wildcard without a family for an IPv4 one.
  const bool unnamed = length >= sizeof(sockaddr_in) && address != nullptr && address->sa_family == AF_UNSPEC;
  if (!unnamed && !is_internet(address, length)) return false;
  const AddressView view = address_view();
  if (!view.on()) return false;
  out = SocketAddress(address, length);
  SocketAddress own;
  const int type = type_of(fd);
  if (!own_name(fd, own) || (type != SOCK_STREAM && type != SOCK_DGRAM)) return false;
  if (unnamed) {
    if (own.any.sa_family != AF_INET || out.v4.sin_addr.s_addr != INADDR_ANY) return false;
    out.any.sa_family = AF_INET;
  }
  if (out.any.sa_family != own.any.sa_family) return false;
  const bool v6_only = own.any.sa_family == AF_INET6 && is_v6_only(fd);
  if (!translate_bind(view, out, v6_only)) return false;
  const int one = 1;
  if (v6_only) raw::call(SYS_setsockopt, fd, IPPROTO_IPV6, kIpv6Freebind, &one, sizeof one);
  return true;
}

bool somebody_at(uint32_t ip, uint16_t port, int type) {
  if (type != SOCK_STREAM && type != SOCK_DGRAM) return false;
  const bool stream = type == SOCK_STREAM;
  Text<48> key;
  add_hex(key, htonl(ip), 8);
  add_hex(key.add(':'), port, 4);
  if (table_has(stream ? "/proc/net/tcp" : "/proc/net/udp", key.c_str(), stream)) return true;
  Text<48> mapped;
  add_hex(mapped.add("0000000000000000"), htonl(0xFFFF), 8);
  mapped.add(key.c_str());
  return table_has(stream ? "/proc/net/tcp6" : "/proc/net/udp6", mapped.c_str(), stream);
}

bool find_host(const char* name, Text<kAddressText>& address) {
  if (name == nullptr || !settings().active) return false;
  const int column = address_view().on() ? 1 : 2;
  HostsMap map;
  Text<kMaxHostName> host;
  while (map.next()) {
    if (map.word(0, host) && strcasecmp(host.c_str(), name) == 0) return map.word(column, address);
  }
  return false;
}

bool name_of_host(uint32_t ip, Text<kMaxHostName>& name) {
  const AddressView view = address_view();
  uint32_t loopback = 0;
  uint32_t first = 0;
  if (!view.on() || !(view.to_loopback(ip, loopback) || view.to_fabric(ip, first))) return false;
  if (first == 0) view.to_fabric(loopback, first);
  Text<kAddressText> wanted;
  for (int shift = 24; shift >= 0; shift -= 8) {
    wanted.number(first >> shift & 0xFF);
    if (shift != 0) wanted.add('.');
  }
  HostsMap map;
  Text<kAddressText> address;
  while (map.next()) {
    if (map.word(1, address) && same(address.c_str(), wanted.c_str())) return map.word(0, name);
  }
  return false;
}

}  // namespace weft::preload
