// SPDX-License-Identifier: Apache-2.0
#include "nic/host/machine_tree.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace weft::host {
namespace {

struct Folder {
  Folder() { REQUIRE(mkdtemp(pattern) != nullptr); }
  ~Folder() { std::filesystem::remove_all(pattern); }
  std::string read(const std::string& path) const {
    std::ostringstream text;
    text << std::ifstream(pattern + path).rdbuf();
    return text.str();
  }
  std::string write(const MachineIdentity& machine) const {
    const AddressPlan plan(machine.hosts, machine.nics);
    const uint32_t nic_count = machine.nics;
    std::vector<NicIdentity> nics;
    for (uint32_t n = 0; n < nic_count; ++n) nics.push_back(plan.nic(machine.host, n));
    std::filesystem::create_directories(pattern + std::string("/sys/class"));
    return write_machine_tree(pattern, machine, nics);
  }
  char pattern[32] = "/tmp/weft-machine-test-XXXXXX";
};

}  // namespace

TEST_CASE("A machine's name, number and interfaces are files in its folder") {
  const Folder folder;
  MachineIdentity machine{"h1", 1, 3, 2, 18, {}};
  machine.entropy.fill(0xFF);
  REQUIRE(folder.write(machine) == "");
  CHECK(folder.read("/view") == "host 1\nhosts 3\nnics 2\nloopback 18\n");
  CHECK(folder.read("/etc/hostname") == "h1\n");
  CHECK(folder.read("/proc/sys/kernel/hostname") == "h1\n");
  CHECK(folder.read("/proc/sys/kernel/random/boot_id") == "ffffffff-ffff-4fff-bfff-ffffffffffff\n");
  CHECK(folder.read("/sys/class/net/weft1/address") == "02:57:01:00:00:01\n");
  CHECK(folder.read("/sys/class/net/weft1/ifindex") == "16777217\n");
  CHECK(folder.read("/sys/class/net/weft0/speed") == "100000\n");
  CHECK(folder.read("/sys/class/net/lo/flags") == "0x9\n");
  CHECK(std::filesystem::is_symlink(folder.pattern + std::string("/sys/class/net/weft1")));
  CHECK_FALSE(std::filesystem::exists(folder.pattern + std::string("/sys/class/net/weft2")));
}

TEST_CASE("With shared TCP the interfaces are the machine's, the names are not") {
  const Folder folder;
  REQUIRE(folder.write({"h0", 0, 2, 1, 0, {}}) == "");
  CHECK(folder.read("/view") == "host 0\nhosts 2\nnics 1\nloopback 0\n");
  CHECK(folder.read("/etc/hostname") == "h0\n");
  CHECK_FALSE(std::filesystem::exists(folder.pattern + std::string("/sys/class/net")));
}

TEST_CASE("Every host has its place on loopback") {
  CHECK(text_of_ipv4(loopback_address(18, 0)) == "127.18.0.1");
  CHECK(text_of_ipv4(loopback_address(18, 255)) == "127.18.1.0");
  CHECK(text_of_ipv4(loopback_address(254, kMaxHosts - 1)) == "127.254.15.254");
  CHECK(text_of_ipv4(loopback_address(0, 5)) == "127.0.0.1");
}

TEST_CASE("A folder that cannot be written is one line") {
  CHECK(write_machine_tree("/nonexistent/folder", {"h0", 0, 1, 1, 18, {}}, {}).find("/nonexistent/folder/view") !=
        std::string::npos);
}

}  // namespace weft::host
