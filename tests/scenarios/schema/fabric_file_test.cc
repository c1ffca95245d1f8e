// SPDX-License-Identifier: Apache-2.0
#include "scenarios/schema/fabric_file.h"

#include <catch2/catch.hpp>

using namespace weft;
using namespace weft::schema;

namespace {

std::string error_of(const std::string& text) {
  FabricFile file;
  return parse_fabric_file(text, "f.yaml", file);
}

std::string outside_error(const std::string& entry) {
  return error_of("weft: 1\nfabric:\n  outside:\n    " + entry + "\n");
}

}  // namespace

TEST_CASE("A topology with ports to the outside") {
  FabricFile file;
  REQUIRE(parse_fabric_file("# comment\n"
                            "weft: 1\n"
                            "name: lab\n"
                            "about: two hosts and a machine\n"
                            "clock: real\n"
                            "seed: 7\n"
                            "fabric:\n"
                            "  topology: single-switch\n"
                            "  hosts: 3\n"
                            "  nics: 2\n"
                            "  first_address: 198.18.0.17\n"
                            "  outside:\n"
                            "    vm0: {tap: tap0, attach: s0, rate: 10G}\n"
                            "    lab-net: {af_packet: eth0}\n"
                            "    play: {pcap: {read: in.pcap, write: out.pcap}, rate: 2.5G}\n"
                            "    twin: {memif: /tmp/x/memif.sock}\n"
                            "    qemu: {vhost: vhost.sock, rate: 400G}\n",
                            "f.yaml", file) == "");
  CHECK(file.seed == 7);
  CHECK(file.hosts == 3);
  CHECK(file.nics == 2);
  CHECK(file.first_address == 0xC6120011);
  REQUIRE(file.outside.size() == 5);
  CHECK(file.outside[0].name == "vm0");
  CHECK(file.outside[0].kind == OutsideKind::kTap);
  CHECK(file.outside[0].device == "tap0");
  CHECK(file.outside[0].rate_bps == 10'000'000'000);
  CHECK(file.outside[1].kind == OutsideKind::kAfPacket);
  CHECK(file.outside[1].rate_bps == 100'000'000'000);
  CHECK(file.outside[2].device == "in.pcap");
  CHECK(file.outside[2].write_to == "out.pcap");
  CHECK(file.outside[2].rate_bps == 2'500'000'000);
  CHECK(file.outside[3].kind == OutsideKind::kMemif);
  CHECK(file.outside[4].device == "vhost.sock");
}

TEST_CASE("The shortest file says nothing") {
  FabricFile file;
  REQUIRE(parse_fabric_file("weft: 1\n", "f.yaml", file) == "");
  CHECK_FALSE(file.hosts);
  CHECK(file.outside.empty());
}

TEST_CASE("An error names the place, what was expected, and the nearest word") {
  CHECK(error_of("weft: 1\nfabric:\n  host: 2\n") == "f.yaml:3:3: unknown key 'host' in fabric; did you mean 'hosts'?");
  CHECK(error_of("weft: 1\nfabric:\n  hosts: two\n") == "f.yaml:3:10: expected a number from 1 to 4094, found 'two'");
  CHECK(error_of("weft: 1\nfabric: {hosts: 4095}\n") == "f.yaml:2:17: expected a number from 1 to 4094, found 4095");
  CHECK(error_of("weft: 1\nfabric: {hosts: 010}\n").find("f.yaml:2:17: expected a number") == 0);
  CHECK(error_of("weft: 1\nfabric: {hosts: 1, hosts: 2}\n") == "f.yaml:2:20: the key 'hosts' is there twice");
  CHECK(error_of("weft: 1\nfabrik: {}\n") == "f.yaml:2:1: unknown key 'fabrik' in the file; did you mean 'fabric'?");
  CHECK(error_of("fabric: {}\nweft: 1\n") == "f.yaml:1:1: expected weft: 1 as the first key");
  CHECK(error_of("weft: 2\n") == "f.yaml:1:7: expected 1, the only version of the format, found '2'");
  CHECK(error_of("weft: 1\nclock: virtual\n").find("f.yaml:2:8: expected real") == 0);
  CHECK(error_of("weft: 1\nfabric: [1, 2]\n").find("f.yaml:2:9: expected fabric: a map") == 0);
  CHECK(error_of("weft: 1\nfabric: {first_address: 10.0.0.1}\n").find("f.yaml:2:25: expected an address of 198.18.0.0/15") == 0);
  CHECK(error_of("weft: 1\nfabric: {hosts: 100, first_address: 198.19.255.250}\n").find("f.yaml:2:37: expected") == 0);
}

TEST_CASE("What the format has and this version does not build is refused by name") {
  CHECK(error_of("weft: 1\nfaults: []\n") ==
        "f.yaml:2:1: 'faults' belongs to the format, but this version of weft does not build it");
  CHECK(error_of("weft: 1\nfabric: {links: {}}\n").find("f.yaml:2:10: 'links' belongs to the format") == 0);
  CHECK(error_of("weft: 1\nfabric: {topology: leaf-spine}\n").find("f.yaml:2:20: expected single-switch") == 0);
}

TEST_CASE("Ports to the outside are checked") {
  CHECK(outside_error("vm0: {tap: tap0, atach: s0}") ==
        "f.yaml:4:22: unknown key 'atach' in an outside port; did you mean 'attach'?");
  CHECK(outside_error("vm0: {attach: s0}").find("f.yaml:4:10: expected one of tap") == 0);
  CHECK(outside_error("vm0: {tap: t, memif: m}").find("an outside port is one of") != std::string::npos);
  CHECK(outside_error("vm0: {tap: t, attach: s1}") == "f.yaml:4:27: there is no switch 's1'; the switch is s0");
  CHECK(outside_error("vm0: {tap: t, rate: 10}") == "f.yaml:4:25: expected a rate such as 10G or 400G, found '10'");
  CHECK(outside_error("h3: {tap: t}").find("'h3' is the name of a host or switch") != std::string::npos);
  CHECK(outside_error("'a b': {tap: t}").find("expected a name of letters") != std::string::npos);
  CHECK(outside_error("vm0: {tap: sixteen-letters-}").find("expected the name of an interface") != std::string::npos);
  CHECK(outside_error("vm0: {tap: 'a,b'}").find("expected the name of an interface") != std::string::npos);
  CHECK(outside_error("vm0: {memif: " + std::string(108, 'x') + "}").find("expected a path of at most 107") != std::string::npos);
  CHECK(outside_error("vm0: {pcap: {write: x}}").find("expected read") != std::string::npos);
  CHECK(outside_error("vm0: {tap: t}\n    vm0: {tap: u}").find("f.yaml:5:5: the key 'vm0' is there twice") == 0);
  std::string many;
  for (int i = 0; i < 17; ++i) many += "    p" + std::to_string(i) + ": {tap: t}\n";
  CHECK(error_of("weft: 1\nfabric:\n  outside:\n" + many).find("f.yaml:20:5: a fabric has at most 16") == 0);
}

TEST_CASE("Words that YAML 1.1 tools read as booleans are refused") {
  CHECK(error_of("weft: 1\nname: off\n").find("f.yaml:2:7: 'off' means something else") == 0);
  CHECK(error_of("weft: 1\nname: 'off'\n") == "");
  CHECK(outside_error("yes: {tap: t}").find("'yes' means something else") != std::string::npos);
}

TEST_CASE("What is no YAML, or no map, is an error and nothing worse") {
  CHECK(error_of("weft: [1").find("f.yaml:") == 0);
  CHECK(error_of("") == "f.yaml:1:1: expected weft: 1 and fabric:");
  CHECK(error_of("- 1\n") == "f.yaml:1:1: expected weft: 1 and fabric:");
  CHECK(error_of("weft: 1\nfabric: *nowhere\n").find("not YAML") != std::string::npos);
  CHECK(error_of("weft: 1\nfabric: &f {hosts: 1, outside: *f}\n") != "");
  CHECK(error_of(std::string(100'000, '[')) != "");
  CHECK(error_of("weft: 1\n? [a, b]\n: 1\n").find("expected a key") != std::string::npos);
  FabricFile file;
  CHECK(read_fabric_file("/nonexistent/file", file) == "cannot read /nonexistent/file");
  CHECK(read_fabric_file("/", file) != "");
  CHECK(read_fabric_file("/dev/zero", file) == "/dev/zero is longer than a megabyte: no scenario");
}

TEST_CASE("Rates have units and are exact") {
  CHECK(parse_rate("10G") == 10'000'000'000);
  CHECK(parse_rate("2.5G") == 2'500'000'000);
  CHECK(parse_rate("800G") == 800'000'000'000);
  CHECK(parse_rate("100M") == 100'000'000);
  for (const char* bad : {"", "G", "10", "10g", "-1G", "0G", "1.2.3G", "10 G", "10GB", "99999999999999999999G", "100T"}) {
    CHECK_FALSE(parse_rate(bad));
  }
}

TEST_CASE("The nearest word is near") {
  CHECK(nearest_word("hots", {"hosts", "nics"}) == "hosts");
  CHECK(nearest_word("ohsts", {"hosts", "nics"}) == "hosts");
  CHECK(nearest_word("zebra", {"hosts", "nics"}).empty());
  CHECK(nearest_word(std::string(100'000, 'x'), {"hosts"}).empty());
}
