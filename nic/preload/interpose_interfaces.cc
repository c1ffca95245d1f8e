// SPDX-License-Identifier: Apache-2.0
//
// A host's interfaces by name, by number and as a list (interfaces.h).
//
// With ports of its own (address_view() on) a host has the machine's lo and its NICs; where it shares the machine's,
// the NICs come behind all of the machine's interfaces. A NIC whose tree cannot be read is left out.
#include <errno.h>
#include <ifaddrs.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netpacket/packet.h>
#include <stdlib.h>
#include <string.h>

#include "nic/preload/host_view.h"
#include "nic/preload/interfaces.h"
#include "nic/preload/next.h"
#include "nic/preload/settings.h"
#include "nic/preload/text.h"

namespace {

using weft::preload::kFirstInterface;
using weft::preload::kMaxInterfaces;
using weft::preload::NicAddress;
using weft::preload::Text;

union AnyAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_ll packet;
  sockaddr_storage room;
};

// One entry of the list with everything it points to. The list is one allocation, because freeifaddrs() frees its head.
struct Entry {
  ifaddrs head;
  char name[IFNAMSIZ];
  AnyAddress address;
  AnyAddress mask;
  AnyAddress broadcast;
  uint32_t statistics[23];  // struct rtnl_link_stats of linux/if_link.h, as old kernels have it
};

size_t address_bytes(const sockaddr& address) {
  switch (address.sa_family) {
    case AF_INET:
      return sizeof(sockaddr_in);
    case AF_INET6:
      return sizeof(sockaddr_in6);
    case AF_PACKET:
      return sizeof(sockaddr_ll);
    default:
      return sizeof(sockaddr);
  }
}

sockaddr* copy_address(const sockaddr* from, AnyAddress& to) {
  if (from == nullptr) return nullptr;
  memcpy(&to, from, address_bytes(*from));
  return &to.any;
}

bool is_loopback(const ifaddrs& entry) { return (entry.ifa_flags & IFF_LOOPBACK) != 0; }

void copy_entry(const ifaddrs& from, Entry& to) {
  to.head = from;
  strncpy(to.name, from.ifa_name, sizeof to.name - 1);
  to.head.ifa_addr = copy_address(from.ifa_addr, to.address);
  to.head.ifa_netmask = copy_address(from.ifa_netmask, to.mask);
  to.head.ifa_broadaddr = copy_address(from.ifa_broadaddr, to.broadcast);
  to.head.ifa_data = nullptr;
  if (from.ifa_data == nullptr || from.ifa_addr == nullptr || from.ifa_addr->sa_family != AF_PACKET) return;
  memcpy(to.statistics, from.ifa_data, sizeof to.statistics);
  to.head.ifa_data = to.statistics;
}

void begin_nic(Entry& out, unsigned nic) {
  Text<IFNAMSIZ> name;
  name.add("weft").number(nic);
  memcpy(out.name, name.c_str(), name.size() + 1);
  out.head.ifa_flags = weft::preload::kInterfaceFlags;
  out.head.ifa_addr = &out.address.any;
  out.head.ifa_broadaddr = &out.broadcast.any;
}

void fill_packet(unsigned nic, const NicAddress& own, Entry& out) {
  begin_nic(out, nic);
  sockaddr_ll& address = out.address.packet;
  address.sll_family = AF_PACKET;
  address.sll_ifindex = static_cast<int>(kFirstInterface + nic);
  address.sll_hatype = ARPHRD_ETHER;
  address.sll_halen = ETH_ALEN;
  out.broadcast.packet = address;
  memcpy(address.sll_addr, own.mac, sizeof own.mac);
  memset(out.broadcast.packet.sll_addr, 0xFF, ETH_ALEN);
}

void fill_internet(unsigned nic, const NicAddress& own, Entry& out) {
  begin_nic(out, nic);
  out.head.ifa_netmask = &out.mask.any;
  const auto put = [](AnyAddress& to, uint32_t ip) {
    to.v4.sin_family = AF_INET;
    to.v4.sin_addr.s_addr = htonl(ip);
  };
  put(out.address, own.ipv4);
  put(out.mask, weft::preload::kFabricMask);
  put(out.broadcast, weft::preload::kFabricNet | ~weft::preload::kFabricMask);
}

// The kernel's order: every interface's link first, then the addresses.
int own_list(const ifaddrs* machine, bool only_loopback, ifaddrs** out) {
  const uint32_t nics = weft::preload::nic_count();
  size_t count = 2 * nics;
  for (const ifaddrs* entry = machine; entry != nullptr; entry = entry->ifa_next) ++count;
  auto* entries = static_cast<Entry*>(calloc(count == 0 ? 1 : count, sizeof(Entry)));
  if (entries == nullptr) return ENOMEM;
  Entry* to = entries;
  NicAddress own;
  for (const ifaddrs* entry = machine; entry != nullptr; entry = entry->ifa_next) {
    if (!only_loopback || is_loopback(*entry)) copy_entry(*entry, *to++);
  }
  for (unsigned nic = 0; nic < nics; ++nic) {
    if (weft::preload::nic_address(nic, own)) fill_packet(nic, own, *to++);
  }
  for (unsigned nic = 0; nic < nics; ++nic) {
    if (weft::preload::nic_address(nic, own)) fill_internet(nic, own, *to++);
  }
  for (Entry* entry = entries; entry != to; ++entry) {
    entry->head.ifa_name = entry->name;
    entry->head.ifa_next = entry + 1 != to ? &entry[1].head : nullptr;
  }
  if (to == entries) free(entries);
  *out = to == entries ? nullptr : &entries->head;
  return 0;
}

}  // namespace

WEFT_INTERPOSE int getifaddrs(struct ifaddrs** out) {
  if (!weft::preload::settings().active) return WEFT_NEXT(getifaddrs)(out);
  ifaddrs* machine = nullptr;
  if (WEFT_NEXT(getifaddrs)(&machine) != 0) return -1;
  const int error = own_list(machine, weft::preload::address_view().on(), out);
  freeifaddrs(machine);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

WEFT_INTERPOSE unsigned if_nametoindex(const char* name) {
  const long nic = weft::preload::interface_of(name);
  return nic >= 0 ? kFirstInterface + static_cast<unsigned>(nic) : WEFT_NEXT(if_nametoindex)(name);
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

// if_freenameindex() frees the names one by one, then the array.
WEFT_INTERPOSE struct if_nameindex* if_nameindex() {
  if (!weft::preload::address_view().on()) return WEFT_NEXT(if_nameindex)();
  const uint32_t nics = weft::preload::nic_count();
  auto* list = static_cast<struct if_nameindex*>(calloc(nics + 2, sizeof(struct if_nameindex)));
  for (unsigned i = 0; list != nullptr && i <= nics; ++i) {
    Text<IF_NAMESIZE> name;
    if (i == 0) {
      name.add("lo");
    } else {
      name.add("weft").number(i - 1);
    }
    list[i].if_index = i == 0 ? if_nametoindex("lo") : kFirstInterface + i - 1;
    list[i].if_name = strdup(name.c_str());
    if (list[i].if_name == nullptr) {
      list[i].if_index = 0;
      if_freenameindex(list);
      list = nullptr;
    }
  }
  if (list == nullptr) errno = ENOMEM;
  return list;
}
