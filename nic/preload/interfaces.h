// SPDX-License-Identifier: Apache-2.0
//
// The network interfaces that a host has in its own view: the machine's lo, and weftN for each of its NICs
// (DECISIONS 24). The machine's others would have one address on all hosts, and middleware would try to connect by it.
//
//   interface_of("weft1")      1, or -1 for a name that is not a NIC of this host
//   interface_ioctl(...)       true: `result` is the answer of ioctl(2) to one of the SIOCGIF… requests, errno set
//
// The names and their numbers exist always; the rest is seen with address_view() on.
#pragma once

#include <net/if.h>
#include <stdint.h>

namespace weft::preload {

/// Far above what the kernel numbers its interfaces with on a machine that runs tests.
inline constexpr unsigned kFirstInterface = 1u << 24;
inline constexpr unsigned kMaxInterfaces = 32;
inline constexpr unsigned kInterfaceFlags = IFF_UP | IFF_BROADCAST | IFF_RUNNING | IFF_MULTICAST;

struct NicAddress {
  uint32_t ipv4 = 0;  ///< host order
  uint8_t mac[6] = {};
};
/// How many NICs the host has; none without a fabric.
uint32_t nic_count();
/// From the NIC's GID table: the MAC is in the link-local GID's EUI-64, the address in the v4-mapped one.
bool nic_address(uint32_t nic, NicAddress& out);
long interface_of(const char* name);
bool interface_ioctl(int fd, unsigned long request, void* argument, int& result);

}  // namespace weft::preload
