// SPDX-License-Identifier: Apache-2.0
#include "nic/host/sysfs_tree.h"

#include <iterator>

#include "nic/host/tree_writer.h"

namespace weft::host {
namespace {

constexpr uint32_t kUverbsMajor = 231;
constexpr uint32_t kUverbsMinor = 192;

void write_device(TreeWriter& tree, const std::string& device_path, const std::string& host_name, const NicIdentity& nic) {
  tree.directory(device_path);
  tree.file(device_path + "/node_type", "1: CA");
  tree.file(device_path + "/node_guid", text_of_guid(nic.guid));
  tree.file(device_path + "/sys_image_guid", text_of_guid(nic.guid));
  tree.file(device_path + "/fw_ver", "0.0.0");
  tree.file(device_path + "/hca_type", "weft");
  tree.file(device_path + "/board_id", "weft");
  tree.file(device_path + "/node_desc", host_name + " " + nic.device());
  tree.directory(device_path + "/ports");
  tree.directory(device_path + "/ports/1");
}

/// Reading the type or the interface of an empty entry is EINVAL on a kernel, which files cannot be. libibverbs takes an
/// error for the first type and a missing interface for none.
void write_gid(TreeWriter& tree, const std::string& port, const NicIdentity& nic, uint32_t i) {
  const std::string index = std::to_string(i);
  const bool used = i >= nic.gid_holes && i - nic.gid_holes < kGidCount;
  tree.file(port + "/gids/" + index, text_of_gid(used ? nic.gids[i - nic.gid_holes] : Gid{}));
  tree.file(port + "/gid_attrs/types/" + index, used ? "RoCE v2" : "IB/RoCE v1");
  if (used) tree.file(port + "/gid_attrs/ndevs/" + index, nic.netdev());
}

void write_port_state(TreeWriter& tree, const std::string& port, bool up) {
  tree.file(port + "/state", up ? "4: ACTIVE" : "1: DOWN");
  tree.file(port + "/phys_state", up ? "5: LinkUp" : "3: Disabled");
}

void write_port(TreeWriter& tree, const std::string& port, const NicIdentity& nic) {
  write_port_state(tree, port, true);
  tree.file(port + "/rate", text_of_rate(nic.rate_bps));
  tree.file(port + "/lid", "0x0");
  tree.file(port + "/sm_lid", "0x0");
  tree.file(port + "/sm_sl", "0");
  tree.file(port + "/lid_mask_count", "0");
  tree.file(port + "/cap_mask", "0x00010000");  // CM supported, as the kernel's rxe says
  tree.file(port + "/link_layer", "Ethernet");
  for (const char* folder : {"/gids", "/gid_attrs", "/gid_attrs/types", "/gid_attrs/ndevs", "/pkeys"}) tree.directory(port + folder);
  for (uint32_t i = 0; i < nic.gid_table(); ++i) write_gid(tree, port, nic, i);
  tree.file(port + "/pkeys/0", "0xffff");
}

void write_counters(TreeWriter& tree, const std::string& port, const PortCounters& counters) {
  tree.directory(port + "/counters");
  tree.directory(port + "/hw_counters");
  for_each_port_counter(counters, [&](CounterFolder folder, const char* name, uint64_t value) {
    tree.file(port + (folder == CounterFolder::kHw ? "/hw_counters/" : "/counters/") + name, std::to_string(value));
  });
}

}  // namespace

std::string text_of_rate(uint64_t rate_bps) {
  struct Speed {
    uint64_t gigabits;
    const char* text;
  };
  static constexpr Speed kSpeeds[] = {{10, "10 Gb/sec (4X SDR)"},   {25, "25 Gb/sec (1X EDR)"},   {40, "40 Gb/sec (4X QDR)"},
                                      {50, "50 Gb/sec (1X HDR)"},   {56, "56 Gb/sec (4X FDR)"},   {100, "100 Gb/sec (4X EDR)"},
                                      {200, "200 Gb/sec (4X HDR)"}, {400, "400 Gb/sec (4X NDR)"}, {800, "800 Gb/sec (8X NDR)"}};
  for (const Speed& speed : kSpeeds) {
    if (rate_bps <= speed.gigabits * 1'000'000'000) return speed.text;
  }
  return kSpeeds[std::size(kSpeeds) - 1].text;
}

std::string write_sysfs_tree(const std::string& root, const std::string& host_name, std::span<const NicIdentity> nics) {
  TreeWriter tree(root);
  tree.directory("");
  tree.directory("/class");
  tree.directory("/class/infiniband_verbs");
  tree.directory("/class/infiniband");
  tree.file("/class/infiniband_verbs/abi_version", "6");
  for (const NicIdentity& nic : nics) {
    const std::string uverbs = "/class/infiniband_verbs/uverbs" + std::to_string(nic.nic);
    tree.directory(uverbs);
    tree.file(uverbs + "/ibdev", nic.device());
    tree.file(uverbs + "/dev", std::to_string(kUverbsMajor) + ":" + std::to_string(kUverbsMinor + nic.nic));
    tree.file(uverbs + "/abi_version", "2");
    const std::string device = "/class/infiniband/" + nic.device();
    write_device(tree, device, host_name, nic);
    write_port(tree, device + "/ports/1", nic);
    write_counters(tree, device + "/ports/1", PortCounters{});
  }
  return tree.error();
}

std::string update_port_state(const std::string& root, const NicIdentity& nic, bool up) {
  TreeWriter tree(root);
  write_port_state(tree, "/class/infiniband/" + nic.device() + "/ports/1", up);
  return tree.error();
}

std::string update_counters(const std::string& root, const NicIdentity& nic, const PortCounters& counters) {
  TreeWriter tree(root);
  write_counters(tree, "/class/infiniband/" + nic.device() + "/ports/1", counters);
  return tree.error();
}

}  // namespace weft::host
