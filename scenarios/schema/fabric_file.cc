// SPDX-License-Identifier: Apache-2.0
//
// An edge file: yaml-cpp reports by throwing; nothing leaves this file.
#include "scenarios/schema/fabric_file.h"

#include <arpa/inet.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace weft::schema {
namespace {

constexpr size_t kMaxFileBytes = 1u << 20;
constexpr size_t kMaxOutside = 16;
constexpr uint32_t kNetwork = 0xC6120000;  // 198.18.0.0/15, RFC 2544
constexpr uint32_t kNetworkMask = 0xFFFE0000;

/// A wrong place in the file. Thrown and caught in this file only.
struct Wrong {
  YAML::Mark mark;
  std::string text;
};

[[noreturn]] void wrong(const YAML::Node& at, const std::string& text) { throw Wrong{at.Mark(), text}; }

std::string quoted(const std::string& text) { return "'" + text.substr(0, 64) + "'"; }

std::string list_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// What YAML 1.1 tools turn into booleans, so that an editor and we would read different files.
bool is_yaml_trap(const std::string& text) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(c | 0x20); });
  return lower == "on" || lower == "off" || lower == "yes" || lower == "no";
}

std::string text_of(const YAML::Node& node, const std::string& expected) {
  if (!node.IsScalar()) wrong(node, "expected " + expected);
  // yaml-cpp tags quoted scalars "!" and plain ones "?".
  if (node.Tag() != "!" && is_yaml_trap(node.Scalar())) {
    wrong(node, quoted(node.Scalar()) + " means something else to YAML 1.1 tools; put it in quotes or choose another word");
  }
  return node.Scalar();
}

uint64_t count_of(const YAML::Node& node, uint64_t low, uint64_t high) {
  const std::string expected = "a number from " + std::to_string(low) + " to " + std::to_string(high);
  const std::string text = text_of(node, expected);
  const bool digits = !text.empty() && text.size() <= 19 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || (text.size() > 1 && text[0] == '0')) wrong(node, "expected " + expected + ", found " + quoted(text));
  const uint64_t value = std::stoull(text);
  if (value < low || value > high) wrong(node, "expected " + expected + ", found " + text);
  return value;
}

/// The keys of a map: each known, each once. `later`: words of the format that this version does not build.
void check_keys(const YAML::Node& map, const std::string& what, const std::vector<std::string>& known,
                const std::vector<std::string>& later = {}) {
  if (!map.IsMap()) wrong(map, "expected " + what + ": a map with the keys " + list_of(known));
  std::vector<std::string> seen;
  for (const auto& entry : map) {
    const std::string key = text_of(entry.first, "a key");
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) wrong(entry.first, "the key " + quoted(key) + " is there twice");
    seen.push_back(key);
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (std::find(later.begin(), later.end(), key) != later.end()) {
      wrong(entry.first, quoted(key) + " belongs to the format, but this version of weft does not build it");
    }
    const std::string near = nearest_word(key, known);
    wrong(entry.first, "unknown key " + quoted(key) + " in " + what + "; " +
                           (near.empty() ? "it has: " + list_of(known) : "did you mean '" + near + "'?"));
  }
}

bool is_name(const std::string& text) {
  const auto good = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  return !text.empty() && text.size() <= 20 && text[0] != '-' && std::all_of(text.begin(), text.end(), good);
}

/// Names that hosts and switches have.
bool is_taken_name(const std::string& name) {
  return (name[0] == 'h' || name[0] == 's') && name.size() > 1 && name.find_first_not_of("0123456789", 1) == std::string::npos;
}

/// A path or interface: one line, and short enough for sockaddr_un or IFNAMSIZ.
std::string device_of(const YAML::Node& node, OutsideKind kind) {
  const bool interface = kind == OutsideKind::kTap || kind == OutsideKind::kAfPacket;
  const std::string text = text_of(node, interface ? "the name of an interface" : "a path");
  const size_t longest = interface ? 15 : kind == OutsideKind::kPcap ? 4000 : 107;
  const bool clean = std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c != ',' && c != '=' && c < 127; });
  if (text.empty() || text.size() > longest || !clean || (interface && text.find('/') != std::string::npos)) {
    wrong(node, std::string("expected ") + (interface ? "the name of an interface" : "a path") + " of at most " +
                    std::to_string(longest) + " characters, without blanks, ',' and '=', found " + quoted(text));
  }
  return text;
}

void read_device(const YAML::Node& node, OutsidePlan& out) {
  if (out.kind != OutsideKind::kPcap || !node.IsMap()) {
    out.device = device_of(node, out.kind);
    return;
  }
  check_keys(node, "pcap", {"read", "write"});
  if (!node["read"]) wrong(node, "expected read: the capture to play");
  out.device = device_of(node["read"], out.kind);
  if (node["write"]) out.write_to = device_of(node["write"], out.kind);
}

OutsidePlan read_outside(const std::string& name, const YAML::Node& at, const YAML::Node& node) {
  if (!is_name(name)) wrong(at, "expected a name of letters, digits, '_' and '-', at most 20, found " + quoted(name));
  if (is_taken_name(name)) wrong(at, quoted(name) + " is the name of a host or switch");
  check_keys(node, "an outside port", {"tap", "af_packet", "pcap", "memif", "vhost", "attach", "rate"});
  OutsidePlan plan;
  plan.name = name;
  int kinds = 0;
  for (size_t i = 0; i < std::size(kOutsideKindNames); ++i) {
    const YAML::Node device = node[kOutsideKindNames[i]];
    if (!device) continue;
    if (++kinds > 1) wrong(device, "an outside port is one of tap, af_packet, pcap, memif and vhost");
    plan.kind = static_cast<OutsideKind>(i);
    read_device(device, plan);
  }
  if (kinds == 0) wrong(node, "expected one of tap, af_packet, pcap, memif and vhost");
  if (const YAML::Node attach = node["attach"]; attach && text_of(attach, "a switch") != "s0") {
    wrong(attach, "there is no switch " + quoted(attach.Scalar()) + "; the switch is s0");
  }
  if (const YAML::Node rate = node["rate"]) {
    const auto bits = parse_rate(text_of(rate, "a rate such as 10G"));
    if (!bits) wrong(rate, "expected a rate such as 10G or 400G, found " + quoted(rate.Scalar()));
    plan.rate_bps = *bits;
  }
  return plan;
}

void read_first_address(const YAML::Node& node, FabricFile& out) {
  const std::string expected = "an address of 198.18.0.0/15, such as 198.18.0.1";
  const std::string text = text_of(node, expected);
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) != 1) wrong(node, "expected " + expected + ", found " + quoted(text));
  const uint32_t value = ntohl(address.s_addr);
  const uint32_t last = value + out.hosts.value_or(1);
  if ((value & kNetworkMask) != kNetwork || value == kNetwork || (last & kNetworkMask) != kNetwork) {
    wrong(node, "expected " + expected + " with room for the hosts, found " + quoted(text));
  }
  out.first_address = value;
}

void read_fabric(const YAML::Node& node, FabricFile& out) {
  check_keys(node, "fabric", {"topology", "hosts", "nics", "first_address", "outside"}, {"links", "switch", "nic", "pace"});
  if (const YAML::Node topology = node["topology"]) {
    if (text_of(topology, "single-switch") != "single-switch") {
      wrong(topology, "expected single-switch, found " + quoted(topology.Scalar()) + "; this version of weft builds no other");
    }
  }
  if (const YAML::Node hosts = node["hosts"]) out.hosts = static_cast<uint32_t>(count_of(hosts, 1, 4094));
  if (const YAML::Node nics = node["nics"]) out.nics = static_cast<uint32_t>(count_of(nics, 1, 32));
  if (const YAML::Node first = node["first_address"]) read_first_address(first, out);
  const YAML::Node outside = node["outside"];
  if (!outside) return;
  if (!outside.IsMap()) wrong(outside, "expected ports to the outside, such as vm0: {tap: tap0}");
  for (const auto& entry : outside) {
    const std::string name = text_of(entry.first, "a name");
    for (const OutsidePlan& other : out.outside) {
      if (other.name == name) wrong(entry.first, "the key " + quoted(name) + " is there twice");
    }
    if (out.outside.size() == kMaxOutside) wrong(entry.first, "a fabric has at most " + std::to_string(kMaxOutside) + " outside ports");
    out.outside.push_back(read_outside(name, entry.first, entry.second));
  }
}

void read_top(const YAML::Node& top, FabricFile& out) {
  check_keys(top, "the file", {"weft", "name", "about", "clock", "seed", "fabric"},
             {"time_limit", "matrix", "programs", "workload", "faults", "measure", "expect"});
  const YAML::Node version = top["weft"];
  if (!version) wrong(top, "expected weft: 1 as the first key");
  if (top.begin()->first.Scalar() != "weft") wrong(top.begin()->first, "expected weft: 1 as the first key");
  if (text_of(version, "1") != "1") wrong(version, "expected 1, the only version of the format, found " + quoted(version.Scalar()));
  if (const YAML::Node clock = top["clock"]; clock && text_of(clock, "real") != "real") {
    wrong(clock, "expected real: a fabric that is up runs on the real clock");
  }
  for (const char* key : {"name", "about"}) {
    if (top[key]) text_of(top[key], "a text");
  }
  if (const YAML::Node seed = top["seed"]) out.seed = count_of(seed, 0, INT64_MAX);
  if (const YAML::Node fabric = top["fabric"]) read_fabric(fabric, out);
}

std::string at(const std::string& name, const YAML::Mark& mark, const std::string& text) {
  if (mark.is_null()) return name + ": " + text;
  return name + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1) + ": " + text;
}

}  // namespace

std::string parse_fabric_file(const std::string& text, const std::string& name, FabricFile& out) {
  try {
    const YAML::Node top = YAML::Load(text);
    if (!top.IsMap()) return name + ":1:1: expected weft: 1 and fabric:";
    FabricFile file;
    read_top(top, file);
    out = std::move(file);
    return {};
  } catch (const Wrong& error) {
    return at(name, error.mark, error.text);
  } catch (const YAML::Exception& error) {
    return at(name, error.mark, "not YAML: " + error.msg);
  }
}

std::string read_fabric_file(const std::string& path, FabricFile& out) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return "cannot read " + path;
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || (text.empty() && !file.eof())) return "cannot read " + path;
  if (text.size() > kMaxFileBytes) return path + " is longer than a megabyte: no scenario";
  return parse_fabric_file(text, path, out);
}

}  // namespace weft::schema
