// SPDX-License-Identifier: Apache-2.0
#include "nic/host/machine_tree.h"

#include <cstdio>

#include "nic/host/tree_writer.h"

namespace weft::host {
namespace {

constexpr uint32_t kFirstInterface = 1u << 24;  // as libweft numbers them (nic/preload/interfaces.h)

struct Interface {
  std::string name;
  uint32_t index;
  std::string address;
  uint32_t mtu;
  uint32_t type;      // ARPHRD_…
  const char* flags;  // IFF_…
  std::string state;
};

constexpr const char* kDevices = "/sys/devices/virtual/net/";

// The class has links only (sysfs(5)), and UCX takes an entry that is none for something else. What nobody was seen to
// read is left out: a fabric has thousands of these folders, in memory.
void write_interface(TreeWriter& tree, const Interface& net) {
  const std::string folder = kDevices + net.name;
  tree.directory(folder);
  tree.link("/sys/class/net/" + net.name, "../../devices/virtual/net/" + net.name);
  tree.file(folder + "/ifindex", std::to_string(net.index));
  tree.file(folder + "/address", net.address);
  tree.file(folder + "/mtu", std::to_string(net.mtu));
  tree.file(folder + "/type", std::to_string(net.type));
  tree.file(folder + "/flags", net.flags);
  tree.file(folder + "/operstate", net.state);
}

void write_interfaces(TreeWriter& tree, std::span<const NicIdentity> nics) {
  for (const char* path : {"/sys/class/net", "/sys/devices", "/sys/devices/virtual", "/sys/devices/virtual/net"})
    tree.directory(path);
  write_interface(tree, {"lo", 1, "00:00:00:00:00:00", 65536, 772, "0x9", "unknown"});
  for (const NicIdentity& nic : nics) {
    write_interface(tree, {nic.netdev(), kFirstInterface + nic.nic, text_of_mac(nic.mac), 9000, 1, "0x1003", "up"});
    tree.file(kDevices + nic.netdev() + "/speed", std::to_string(nic.rate_bps / 1'000'000));  // Mbit/s
  }
}

}  // namespace

uint32_t loopback_address(uint32_t loopback, uint32_t host) {
  return loopback == 0 ? 0x7F000001 : 0x7F000000 | loopback << 16 | (host + 1);
}

std::string text_of_uuid(std::array<uint8_t, 16> bytes) {
  bytes[6] = static_cast<uint8_t>((bytes[6] & 0x0F) | 0x40);
  bytes[8] = static_cast<uint8_t>((bytes[8] & 0x3F) | 0x80);
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
    text += digits;
  }
  return text;
}

std::string write_machine_tree(const std::string& folder, const MachineIdentity& machine,
                               std::span<const NicIdentity> nics) {
  TreeWriter tree(folder);
  tree.file("/view", "host " + std::to_string(machine.host) + "\nhosts " + std::to_string(machine.hosts) + "\nnics " +
                         std::to_string(machine.nics) + "\nloopback " + std::to_string(machine.loopback));
  for (const char* path : {"/etc", "/proc", "/proc/sys", "/proc/sys/kernel", "/proc/sys/kernel/random"})
    tree.directory(path);
  tree.file("/etc/hostname", machine.name);
  tree.file("/proc/sys/kernel/hostname", machine.name);
  tree.file("/proc/sys/kernel/random/boot_id", text_of_uuid(machine.entropy));
  if (machine.loopback != 0) write_interfaces(tree, nics);
  return tree.error();
}

}  // namespace weft::host
