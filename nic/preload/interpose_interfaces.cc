// SPDX-License-Identifier: Apache-2.0
//
// getifaddrs: the network interfaces of the host's NICs (weft0, weft1, …) behind those of the machine (DECISIONS 24).
//
// Each has a packet address (its MAC and index) and an IPv4 address, the one that its first v4-mapped GID carries. What
// libc made stays as it is; ours is one block at the end of the list, taken off again before libc frees the rest.
// A NIC whose tree cannot be read is left out; where memory is short the list ends with libc's.
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <string.h>

#include "nic/preload/next.h"
#include "nic/preload/paths.h"
#include "nic/preload/settings.h"
#include "nic/preload/syscalls.h"
#include "nic/preload/text.h"

namespace {

using weft::preload::Text;

constexpr unsigned kFirstInterface = 1u << 24;  // as if_nametoindex says
constexpr int kMaxNics = 32;
constexpr int kMaxGids = 64;
constexpr uint32_t kNetMask = 0xFFFE0000;  // 198.18.0.0/15: DECISIONS 22
constexpr unsigned kFlags = IFF_UP | IFF_BROADCAST | IFF_RUNNING | IFF_MULTICAST;

struct Interface {
  ifaddrs packet;
  ifaddrs inet;
  sockaddr_ll hardware;
  sockaddr_in address;
  sockaddr_in mask;
  sockaddr_in broadcast;
  char name[IF_NAMESIZE];
};

constexpr uint64_t kMagic = 0x776566742d696661;  // "weft-ifa"

struct Block {
  uint64_t magic;
  ifaddrs* last_of_libc;  // nullptr: libc had none
  uint32_t count;
  Interface interface[kMaxNics];
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/// "0000:0000:0000:0000:0000:ffff:c612:0001"
bool parse_gid(const char* text, uint8_t (&gid)[16]) {
  for (int i = 0; i < 16; ++i) {
    if (i > 0 && i % 2 == 0 && *text++ != ':') return false;
    const int high = hex_digit(*text);
    const int low = high < 0 ? -1 : hex_digit(text[1]);
    if (low < 0) return false;
    gid[i] = static_cast<uint8_t>(high << 4 | low);
    text += 2;
  }
  return true;
}

bool read_gid(int nic, int index, uint8_t (&gid)[16]) {
  const auto& settings = weft::preload::settings();
  Text<weft::preload::kMaxRunFolder + weft::preload::kMaxHostName + 96> path;
  path.add(settings.run).add("/hosts/").add(settings.host).add("/sys/class/infiniband/rxe").number(static_cast<uint64_t>(nic));
  path.add("/ports/1/gids/").number(static_cast<uint64_t>(index));
  const long fd = weft::raw::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[48] = {};
  const long size = weft::raw::read(static_cast<int>(fd), text, sizeof text - 1);
  weft::raw::close(static_cast<int>(fd));
  return size >= 39 && parse_gid(text, gid);
}

/// The MAC is in the link-local GID's EUI-64, the address in the v4-mapped one; empty entries may lie before both.
bool read_addresses(int nic, Interface& out) {
  bool have_mac = false;
  uint8_t gid[16];
  for (int i = 0; i < kMaxGids && read_gid(nic, i, gid); ++i) {
    if (gid[0] == 0xfe && gid[1] == 0x80 && gid[11] == 0xff && gid[12] == 0xfe) {
      const uint8_t mac[6] = {static_cast<uint8_t>(gid[8] ^ 2), gid[9], gid[10], gid[13], gid[14], gid[15]};
      memcpy(out.hardware.sll_addr, mac, sizeof mac);
      have_mac = true;
    } else if (gid[0] == 0 && gid[10] == 0xff && gid[11] == 0xff) {
      memcpy(&out.address.sin_addr, gid + 12, 4);
      return have_mac;
    }
  }
  return false;
}

sockaddr_in inet_address(uint32_t network_order) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = network_order;
  return address;
}

void fill(int nic, Interface& out) {
  Text<IF_NAMESIZE> name;
  name.add("weft").number(static_cast<uint64_t>(nic));
  memcpy(out.name, name.c_str(), name.size() + 1);
  out.hardware.sll_family = AF_PACKET;
  out.hardware.sll_hatype = ARPHRD_ETHER;
  out.hardware.sll_ifindex = static_cast<int>(kFirstInterface) + nic;
  out.hardware.sll_halen = 6;
  const uint32_t own = out.address.sin_addr.s_addr;
  out.address = inet_address(own);
  out.mask = inet_address(htonl(kNetMask));
  out.broadcast = inet_address(own | htonl(~kNetMask));
  out.packet.ifa_name = out.inet.ifa_name = out.name;
  out.packet.ifa_flags = out.inet.ifa_flags = kFlags;
  out.packet.ifa_addr = reinterpret_cast<sockaddr*>(&out.hardware);
  out.inet.ifa_addr = reinterpret_cast<sockaddr*>(&out.address);
  out.inet.ifa_netmask = reinterpret_cast<sockaddr*>(&out.mask);
  out.inet.ifa_broadaddr = reinterpret_cast<sockaddr*>(&out.broadcast);
  out.packet.ifa_next = &out.inet;
}

/// The host's interfaces behind `list`; returns the new head.
ifaddrs* append_ours(ifaddrs* list) {
  void* memory = weft::raw::map_private(sizeof(Block));
  if (memory == nullptr) return list;
  auto* block = static_cast<Block*>(memory);
  for (int nic = 0; nic < kMaxNics && weft::preload::have_uverbs(nic); ++nic) {
    Interface& next = block->interface[block->count];
    if (!read_addresses(nic, next)) continue;
    fill(nic, next);
    if (block->count > 0) block->interface[block->count - 1].inet.ifa_next = &next.packet;
    ++block->count;
  }
  if (block->count == 0) {
    weft::raw::munmap(memory, sizeof(Block));
    return list;
  }
  block->magic = kMagic;
  for (ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) block->last_of_libc = entry;
  if (block->last_of_libc == nullptr) return &block->interface[0].packet;
  block->last_of_libc->ifa_next = &block->interface[0].packet;
  return list;
}

bool has_our_index(const ifaddrs* entry) {
  if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_PACKET) return false;
  sockaddr_ll hardware;
  memcpy(&hardware, entry->ifa_addr, sizeof hardware);
  return hardware.sll_ifindex >= static_cast<int>(kFirstInterface) &&
         hardware.sll_ifindex < static_cast<int>(kFirstInterface) + kMaxNics;
}

/// Takes our part off a list and frees it; returns what is left for libc.
ifaddrs* remove_ours(ifaddrs* list) {
  for (ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!has_our_index(entry)) continue;
    auto* block = reinterpret_cast<Block*>(reinterpret_cast<char*>(entry) - offsetof(Block, interface));
    if (block->magic != kMagic) return list;
    ifaddrs* last = block->last_of_libc;
    if (last != nullptr) last->ifa_next = nullptr;
    weft::raw::munmap(block, sizeof(Block));
    return last == nullptr ? nullptr : list;
  }
  return list;
}

}  // namespace

WEFT_INTERPOSE int getifaddrs(struct ifaddrs** out) {
  const int result = WEFT_NEXT(getifaddrs)(out);
  if (result == 0 && weft::preload::settings().active) *out = append_ours(*out);
  return result;
}

WEFT_INTERPOSE void freeifaddrs(struct ifaddrs* list) {
  if (weft::preload::settings().active) list = remove_ours(list);
  if (list != nullptr) WEFT_NEXT(freeifaddrs)(list);
}
