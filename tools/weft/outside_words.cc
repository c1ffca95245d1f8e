// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/outside_words.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <vector>

#include "nic/host/identity.h"
#include "scenarios/schema/fabric_file.h"

namespace weft::tools {
namespace {

constexpr char kSeparator = '\n';  // in no path of a scenario file

std::string absolute(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  char folder[PATH_MAX];
  return getcwd(folder, sizeof folder) != nullptr ? std::string(folder) + "/" + path : path;
}

/// One line when DPDK cannot be told of the path, or nobody can listen at it.
std::string check_path(const OutsidePlan& plan, const std::string& path) {
  if (path.find_first_of(",= \n\t[]") != std::string::npos) {
    return "outside port " + plan.name + ": DPDK takes no path with blanks, ',', '=' or brackets: " + path;
  }
  const bool socket = plan.kind == OutsideKind::kMemif || plan.kind == OutsideKind::kVhost;
  if (socket && path.size() > 107) return "outside port " + plan.name + ": the path of its socket is too long: " + path;
  return {};
}

}  // namespace

std::string apply_file(const ParsedLine& line, FabricSettings& settings) {
  schema::FabricFile file;
  if (std::string error = schema::read_fabric_file(line.file, file); !error.empty()) return error;
  if (file.hosts && !line.hosts_given) settings.hosts = *file.hosts;
  if (file.nics && !line.nics_given) settings.nics = *file.nics;
  if (file.seed && !line.seed_given) settings.seed = *file.seed;
  settings.first_host = file.first_address ? *file.first_address - host::kFabricNet - 1 : 0;
  if (!host::AddressPlan::fits(settings.hosts, settings.nics, settings.first_host)) {
    return line.file + ": from that first_address there is no room in 198.18.0.0/15 for so many hosts";
  }
  settings.outside = std::move(file.outside);
  for (OutsidePlan& plan : settings.outside) {
    if (plan.kind == OutsideKind::kTap || plan.kind == OutsideKind::kAfPacket) continue;
    plan.device = absolute(plan.device);
    plan.write_to = absolute(plan.write_to);
    for (const std::string* path : {&plan.device, &plan.write_to}) {
      if (std::string error = check_path(plan, *path); !error.empty()) return error;
    }
  }
  return {};
}

std::string words_of_outside(const OutsidePlan& plan) {
  return plan.name + kSeparator + outside_kind_name(plan.kind) + kSeparator + std::to_string(plan.rate_bps) + kSeparator +
         plan.device + kSeparator + plan.write_to;
}

std::optional<OutsidePlan> outside_of_words(const std::string& words) {
  std::vector<std::string> parts(1);
  for (const char c : words) {
    if (c == kSeparator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (parts.size() != 5 || parts[0].empty() || parts[3].empty()) return std::nullopt;
  OutsidePlan plan;
  plan.name = parts[0];
  bool known = false;
  for (size_t i = 0; i < std::size(kOutsideKindNames); ++i) {
    if (parts[1] != kOutsideKindNames[i]) continue;
    plan.kind = static_cast<OutsideKind>(i);
    known = true;
  }
  plan.rate_bps = std::strtoull(parts[2].c_str(), nullptr, 10);
  plan.device = parts[3];
  plan.write_to = parts[4];
  if (!known || plan.rate_bps == 0) return std::nullopt;
  return plan;
}

}  // namespace weft::tools
