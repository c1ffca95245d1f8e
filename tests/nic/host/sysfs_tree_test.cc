// SPDX-License-Identifier: Apache-2.0
#include "nic/host/sysfs_tree.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <vector>

using namespace weft::host;

namespace {

struct Folder {
  Folder() {
    char pattern[] = "/tmp/weft-sysfs-test-XXXXXX";
    path = mkdtemp(pattern);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

/// As the readers do it: one read into a buffer of the size they use.
std::string read_once(const std::string& path, size_t buffer_size = 4096) {
  std::string buffer(buffer_size, '\0');
  const int fd = open(path.c_str(), O_RDONLY);
  if (fd < 0) return "missing";
  const ssize_t got = read(fd, buffer.data(), buffer.size());
  close(fd);
  buffer.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return buffer;
}

}  // namespace

TEST_CASE("A sparse GID table begins with holes") {
  Folder folder;
  const AddressPlan plan(2, 1, 3);
  const std::vector<NicIdentity> nics = {plan.nic(1, 0)};
  const std::string root = folder.path + "/sys";
  REQUIRE(write_sysfs_tree(root, "h1", nics) == "");
  const std::string port = root + "/class/infiniband/rxe0/ports/1";
  for (const char* hole : {"0", "1", "2", "5", "18"}) {
    CHECK(read_once(port + "/gids/" + hole, 41) == "0000:0000:0000:0000:0000:0000:0000:0000\n");
    CHECK(read_once(port + "/gid_attrs/ndevs/" + hole) == "missing");
  }
  CHECK(read_once(port + "/gids/3", 41) == "fe80:0000:0000:0000:0057:00ff:fe00:0001\n");
  CHECK(read_once(port + "/gids/4", 41) == "0000:0000:0000:0000:0000:ffff:c612:0002\n");
  CHECK(read_once(port + "/gid_attrs/ndevs/4", 16) == "weft0\n");
  CHECK(read_once(port + "/gids/19") == "missing");
}

TEST_CASE("The tree has what libibverbs reads, in the kernel's formats") {
  Folder folder;
  const AddressPlan plan(2, 2);
  const std::vector<NicIdentity> nics = {plan.nic(1, 0), plan.nic(1, 1)};
  const std::string root = folder.path + "/sys";
  REQUIRE(write_sysfs_tree(root, "h1", nics) == "");
  const std::string verbs = root + "/class/infiniband_verbs";
  CHECK(read_once(verbs + "/abi_version", 8) == "6\n");
  CHECK(read_once(verbs + "/uverbs0/ibdev") == "rxe0\n");
  CHECK(read_once(verbs + "/uverbs0/dev") == "231:192\n");
  CHECK(read_once(verbs + "/uverbs1/dev") == "231:193\n");
  CHECK(read_once(verbs + "/uverbs1/ibdev") == "rxe1\n");
  CHECK(read_once(verbs + "/uverbs1/abi_version") == "2\n");
  const std::string device = root + "/class/infiniband/rxe0";
  CHECK(read_once(device + "/node_type") == "1: CA\n");
  CHECK(read_once(device + "/node_guid", 24) == "0057:00ff:fe00:0001\n");
  const std::string port = device + "/ports/1";
  CHECK(read_once(port + "/state") == "4: ACTIVE\n");
  CHECK(read_once(port + "/phys_state") == "5: LinkUp\n");
  CHECK(read_once(port + "/rate") == "100 Gb/sec (4X EDR)\n");
  CHECK(read_once(port + "/link_layer") == "Ethernet\n");
  CHECK(read_once(port + "/cap_mask") == "0x00010000\n");
  CHECK(read_once(port + "/gids/0", 41) == "fe80:0000:0000:0000:0057:00ff:fe00:0001\n");
  CHECK(read_once(port + "/gids/1", 41) == "0000:0000:0000:0000:0000:ffff:c612:0002\n");
  CHECK(read_once(port + "/gid_attrs/types/1", 11) == "RoCE v2\n");
  CHECK(read_once(port + "/gid_attrs/ndevs/0", 16) == "weft0\n");
  CHECK(read_once(root + "/class/infiniband/rxe1/ports/1/gid_attrs/ndevs/0", 16) == "weft1\n");
  CHECK(read_once(port + "/pkeys/0", 8) == "0xffff\n");
  CHECK(read_once(port + "/gids/2", 41) == "0000:0000:0000:0000:0000:0000:0000:0000\n");
  CHECK(read_once(port + "/gid_attrs/types/2", 11) == "IB/RoCE v1\n");
  CHECK(read_once(port + "/gid_attrs/ndevs/2") == "missing");
  CHECK(read_once(port + "/gids/15") != "missing");
  CHECK(read_once(port + "/gids/16") == "missing");
  CHECK(read_once(port + "/pkeys/1") == "missing");
}

TEST_CASE("Counters are rewritten in place and leave the device's identity alone") {
  Folder folder;
  const AddressPlan plan(1, 1);
  const std::vector<NicIdentity> nics = {plan.nic(0, 0)};
  REQUIRE(write_sysfs_tree(folder.path + "/sys", "h0", nics) == "");
  const std::string device = folder.path + "/sys/class/infiniband/rxe0";
  struct stat before{};
  REQUIRE(stat(device.c_str(), &before) == 0);
  PortCounters counters;
  counters.tx_bytes = 400'000;
  counters.rx_packets = 123;
  REQUIRE(update_counters(folder.path + "/sys", nics[0], counters) == "");
  CHECK(read_once(device + "/ports/1/counters/port_xmit_data") == "100000\n");
  CHECK(read_once(device + "/ports/1/counters/port_rcv_packets") == "123\n");
  counters.tx_bytes = 4;
  REQUIRE(update_counters(folder.path + "/sys", nics[0], counters) == "");
  CHECK(read_once(device + "/ports/1/counters/port_xmit_data") == "1\n");
  struct stat after{};
  REQUIRE(stat(device.c_str(), &after) == 0);
  CHECK(before.st_mtim.tv_sec == after.st_mtim.tv_sec);
  CHECK(before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
}

TEST_CASE("An error names the file") {
  const AddressPlan plan(1, 1);
  const std::vector<NicIdentity> nics = {plan.nic(0, 0)};
  const std::string error = write_sysfs_tree("/nonexistent-weft/sys", "h0", nics);
  CHECK(error.find("/nonexistent-weft/sys") != std::string::npos);
}

TEST_CASE("Rates are told as the kernel tells them") {
  CHECK(text_of_rate(100'000'000'000) == "100 Gb/sec (4X EDR)");
  CHECK(text_of_rate(400'000'000'000) == "400 Gb/sec (4X NDR)");
  CHECK(text_of_rate(1'000'000'000) == "10 Gb/sec (4X SDR)");
}
