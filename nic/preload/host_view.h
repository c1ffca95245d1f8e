// SPDX-License-Identifier: Apache-2.0
//
// The host's own view of addresses and names, from what the daemon wrote (nic_rules 10).
//
//   address_view()           of hosts/<host>/view, read at the first use; off with WEFT_SHARED_TCP, without a fabric,
//   or
//                            where the fabric shares the machine's TCP
//   Destination to(fd, a, n) whom a connect or a datagram goes to: to.address() is what the kernel gets. A socket that
//   has
//                            no address yet takes the host's own first, so that the peer sees who calls
//   bind_address(fd, ...)    the same for bind
//   find_host(name, address) hosts.map: a host's name becomes the address that programs shall see
//   name_of_host(ip, name)   the other way
//
// Nothing here keeps state about a socket: what the kernel says is the truth, also after fork, exec and descriptor
// passing. Raw system calls; errno untouched; safe in signal handlers and in the child of a vfork.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "nic/preload/address_view.h"
#include "nic/preload/settings.h"
#include "nic/preload/text.h"

namespace weft::preload {

inline constexpr size_t kAddressText = 16;

AddressView address_view();

class Destination {
 public:
  Destination(int fd, const sockaddr* address, socklen_t length);
  const sockaddr* address() const { return address_; }
  socklen_t length() const { return length_; }

 private:
  const sockaddr* address_;
  socklen_t length_;
  SocketAddress copy_;
};

/// True: `out` is what to bind to. May ask the kernel for freedom to bind an address that no interface has.
bool bind_address(int fd, const sockaddr* address, socklen_t length, SocketAddress& out);

/// Does a socket listen (SOCK_STREAM), or is one bound (SOCK_DGRAM), at that IPv4 address and port?
bool somebody_at(uint32_t ip, uint16_t port, int type);

bool find_host(const char* name, Text<kAddressText>& address);
bool name_of_host(uint32_t ip, Text<kMaxHostName>& name);

}  // namespace weft::preload
