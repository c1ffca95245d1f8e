// SPDX-License-Identifier: Apache-2.0
//
// Where a host's TCP and UDP really are (nic_rules 10, DECISIONS 22 and 23): the arithmetic, without a system call.
//
//   AddressView view;  parse_address_view(text, view)      what the daemon wrote in hosts/<host>/view
//   view.to_loopback(198.18.0.2)  ->  127.18.0.2           exact addresses of the fabric's NICs only
//   view.to_fabric(127.18.0.2)    ->  198.18.0.2           a host's first NIC, whichever was named
//
//   SocketAddress to(address, length);   a copy of what the program passed
//   target_of(view, to)      whom a connect or a datagram is for: a host, localhost, or somebody else
//   translate_bind(view, to) the wildcard and the own addresses become the own loopback address; true: changed
//   set_ipv4(to, ip)         replaces the address, in the form the family has (IPv4, or IPv6 with an IPv4 inside)
//   translate_back(view, address, length)   in place, what the kernel reports: a loopback address of the fabric becomes
//                            the fabric address it stands for, a wildcard's stand-in the wildcard
//
// IPv4 addresses are in host order. Pure values; any thread.
#pragma once

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

namespace weft::preload {

inline constexpr uint32_t kFabricNet = 0xC6120000;  ///< 198.18.0.0/15, RFC 2544
inline constexpr uint32_t kFabricMask = 0xFFFE0000;
inline constexpr uint32_t kLocalAddress = 0x7F000001;

struct AddressView {
  uint32_t hosts = 0;         ///< 0: nothing is translated
  uint32_t nics = 0;          ///< of every host
  uint32_t self = 0;          ///< this host's index
  uint32_t loopback_net = 0;  ///< 127.B.0.0

  bool on() const { return hosts != 0; }
  uint32_t own_loopback() const { return loopback_net + self + 1; }
  uint32_t own_address(uint32_t nic) const { return kFabricNet + nic * stride() + self + 1; }
  uint32_t stride() const;
  bool to_loopback(uint32_t fabric, uint32_t& out) const;
  bool to_fabric(uint32_t loopback, uint32_t& out) const;
};

/// Lines of a word and a number: host, hosts, nics, loopback (B; 0: shared TCP, the view stays off). False: not such a
/// text.
bool parse_address_view(const char* text, AddressView& out);

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;

  SocketAddress() : v6{} {}
  /// Longer than these families need is cut; shorter stays what it is, for the kernel to refuse.
  SocketAddress(const sockaddr* address, socklen_t length);
};

enum class Target { kOther, kHost, kLocalhost };

/// Is it an IPv4 or IPv6 address of full length?
bool is_internet(const sockaddr* address, socklen_t length);
/// The IPv4 address in it: of AF_INET, or mapped into IPv6; `::` and `::1` count as IPv4's wildcard and localhost.
bool ipv4_of(const SocketAddress& address, uint32_t& ip);
/// kHost: `loopback` is where that host's servers are. kLocalhost: the same of the own host.
Target target_of(const AddressView& view, const SocketAddress& to, uint32_t& loopback);
/// v6_only: of the socket. Such a wildcard becomes an address of its own that nobody else has, for IPV6_FREEBIND.
bool translate_bind(const AddressView& view, SocketAddress& to, bool v6_only);
void set_ipv4(SocketAddress& to, uint32_t ip);
void translate_back(const AddressView& view, sockaddr* address, socklen_t length);
/// Neither an address nor a port was chosen yet.
bool is_unbound(const SocketAddress& own);
/// IPv4, or IPv6 with an IPv4 inside, or the wildcard of either.
bool is_ipv4_or_any(const SocketAddress& own);
uint16_t port_of(const SocketAddress& address);

}  // namespace weft::preload
