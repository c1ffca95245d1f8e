// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/interfaces.h"

#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/ioctl.h>

#include "nic/preload/host_view.h"
#include "nic/preload/paths.h"
#include "nic/preload/settings.h"
#include "nic/preload/syscalls.h"

namespace weft::preload {

namespace {

constexpr int kMtu = 9000;
constexpr int kMaxGids = 80;                // the holes that `weft up --gid-holes` can make, and the table
constexpr unsigned long kEthtool = 0x8946;  // SIOCETHTOOL, linux/sockios.h

void put_ipv4(sockaddr& out, uint32_t ip) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(ip);
  memcpy(&out, &address, sizeof out);
}

void put_name(char* out, unsigned nic) {
  Text<IFNAMSIZ> text;
  text.add("weft").number(nic);
  memset(out, 0, IFNAMSIZ);
  memcpy(out, text.c_str(), text.size());
}

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

bool read_gid(uint32_t nic, int index, uint8_t (&gid)[16]) {
  Text<kMaxRunFolder + kMaxHostName + 96> path;
  path.add(settings().run).add("/hosts/").add(settings().host).add("/sys/class/infiniband/rxe").number(nic);
  path.add("/ports/1/gids/").number(static_cast<uint64_t>(index));
  const long fd = raw::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[48] = {};
  const long size = raw::read(static_cast<int>(fd), text, sizeof text - 1);
  raw::close(static_cast<int>(fd));
  return size >= 39 && parse_gid(text, gid);
}

int answer(unsigned long request, unsigned nic, const NicAddress& own, ifreq& out) {
  switch (request) {
    case SIOCGIFFLAGS:
      out.ifr_flags = static_cast<short>(kInterfaceFlags);
      return 0;
    case SIOCGIFADDR:
    case SIOCGIFDSTADDR:
      put_ipv4(out.ifr_addr, own.ipv4);
      return 0;
    case SIOCGIFNETMASK:
      put_ipv4(out.ifr_netmask, kFabricMask);
      return 0;
    case SIOCGIFBRDADDR:
      put_ipv4(out.ifr_broadaddr, kFabricNet | ~kFabricMask);
      return 0;
    case SIOCGIFMTU:
      out.ifr_mtu = kMtu;
      return 0;
    case SIOCGIFMETRIC:
      out.ifr_metric = 0;
      return 0;
    case SIOCGIFINDEX:
      out.ifr_ifindex = static_cast<int>(kFirstInterface + nic);
      return 0;
    case SIOCGIFHWADDR:
      memset(&out.ifr_hwaddr, 0, sizeof out.ifr_hwaddr);
      out.ifr_hwaddr.sa_family = ARPHRD_ETHER;
      memcpy(out.ifr_hwaddr.sa_data, own.mac, sizeof own.mac);
      return 0;
    case SIOCGIFTXQLEN:
      out.ifr_qlen = 1000;
      return 0;
    default:
      return EOPNOTSUPP;
  }
}

// A null buffer asks how much there would be; a short one gets what fits (netdevice(7)).
int list_interfaces(ifconf& out) {
  const int count = static_cast<int>(nic_count()) + 1;
  const int entry_bytes = static_cast<int>(sizeof(ifreq));
  if (out.ifc_buf == nullptr) {
    out.ifc_len = count * entry_bytes;
    return 0;
  }
  int written = 0;
  for (; written < count && (written + 1) * entry_bytes <= out.ifc_len; ++written) {
    ifreq entry{};
    if (written == 0) {
      memcpy(entry.ifr_name, "lo", 3);
      put_ipv4(entry.ifr_addr, kLocalAddress);
    } else {
      put_name(entry.ifr_name, static_cast<unsigned>(written - 1));
      NicAddress own;
      nic_address(static_cast<uint32_t>(written - 1), own);
      put_ipv4(entry.ifr_addr, own.ipv4);
    }
    memcpy(out.ifc_buf + written * entry_bytes, &entry, sizeof entry);
  }
  out.ifc_len = written * entry_bytes;
  return 0;
}

bool is_interface_request(unsigned long request) {
  switch (request) {
    case SIOCGIFCONF:
    case SIOCGIFNAME:
    case SIOCGIFFLAGS:
    case SIOCGIFADDR:
    case SIOCGIFDSTADDR:
    case SIOCGIFNETMASK:
    case SIOCGIFBRDADDR:
    case SIOCGIFMTU:
    case SIOCGIFMETRIC:
    case SIOCGIFINDEX:
    case SIOCGIFHWADDR:
    case SIOCGIFTXQLEN:
    case kEthtool:
      return true;
    default:
      return false;
  }
}

int find_name(ifreq& out) {
  const auto number = static_cast<unsigned>(out.ifr_ifindex);
  if (number < kFirstInterface || number - kFirstInterface >= nic_count()) return ENODEV;
  put_name(out.ifr_name, number - kFirstInterface);
  return 0;
}

}  // namespace

uint32_t nic_count() {
  uint32_t count = 0;
  while (settings().active && count < kMaxInterfaces && have_uverbs(static_cast<int>(count))) ++count;
  return count;
}

bool nic_address(uint32_t nic, NicAddress& out) {
  bool have_mac = false;
  uint8_t gid[16];
  for (int i = 0; i < kMaxGids && read_gid(nic, i, gid); ++i) {
    if (gid[0] == 0xfe && gid[1] == 0x80 && gid[11] == 0xff && gid[12] == 0xfe) {
      const uint8_t mac[6] = {static_cast<uint8_t>(gid[8] ^ 2), gid[9], gid[10], gid[13], gid[14], gid[15]};
      memcpy(out.mac, mac, sizeof mac);
      have_mac = true;
    } else if (gid[0] == 0 && gid[10] == 0xff && gid[11] == 0xff) {
      out.ipv4 = static_cast<uint32_t>(gid[12]) << 24 | static_cast<uint32_t>(gid[13]) << 16 |
                 static_cast<uint32_t>(gid[14]) << 8 | gid[15];
      return have_mac;
    }
  }
  return false;
}

long interface_of(const char* name) {
  __asm__("" : "+r"(name));
  if (name == nullptr || !settings().active) return -1;
  const char* number = after(name, "weft");
  if (number == nullptr) return -1;
  const char* end = nullptr;
  const long index = parse_number(number, kMaxInterfaces - 1, &end);
  return index >= 0 && *end == '\0' && have_uverbs(static_cast<int>(index)) ? index : -1;
}

bool interface_ioctl(int fd, unsigned long request, void* argument, int& result) {
  if (!is_interface_request(request) || argument == nullptr) return false;
  if (!address_view().on()) return false;
  // Whether it is a socket at all, the kernel says best.
  ifreq lo{};
  memcpy(lo.ifr_name, "lo", 3);
  if (raw::call(SYS_ioctl, fd, SIOCGIFINDEX, &lo) < 0) return false;

  int error = 0;
  if (request == SIOCGIFCONF) {
    error = list_interfaces(*static_cast<ifconf*>(argument));
  } else {
    ifreq& entry = *static_cast<ifreq*>(argument);
    entry.ifr_name[IFNAMSIZ - 1] = '\0';
    if (request == SIOCGIFNAME && entry.ifr_ifindex == lo.ifr_ifindex) return false;
    if (request != SIOCGIFNAME && same(entry.ifr_name, "lo")) return false;
    const long nic = request == SIOCGIFNAME ? -1 : interface_of(entry.ifr_name);
    if (request == SIOCGIFNAME) {
      error = find_name(entry);
    } else {
      NicAddress own;
      const bool known = nic >= 0 && nic_address(static_cast<uint32_t>(nic), own);
      error = known ? answer(request, static_cast<unsigned>(nic), own, entry) : ENODEV;
    }
  }
  if (error != 0) errno = error;
  result = error == 0 ? 0 : -1;
  return true;
}

}  // namespace weft::preload
