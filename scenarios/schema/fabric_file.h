// SPDX-License-Identifier: Apache-2.0
//
// The `fabric:` part of a scenario file (DECISIONS 26, 29), read and checked; nothing is built yet.
//
//   FabricFile file;
//   if (std::string error = read_fabric_file("lab.yaml", file); !error.empty()) …    "lab.yaml:4:5: …", one line
//
//   weft: 1
//   fabric:
//     topology: single-switch
//     hosts: 2
//     outside:
//       vm0: {tap: tap0, attach: s0, rate: 10G}
//
// Unknown and duplicate keys are refused with the nearest word; what the format has and this version does not build is
// refused by name. Plain values that YAML 1.1 tools read as something else (on, off, yes, no) are refused. Sizes are
// bounded; nothing here throws. yaml-cpp does, and is caught inside (an edge file).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scenarios/engine/outside_plan.h"

namespace weft::schema {

struct FabricFile {
  std::optional<uint64_t> seed;
  std::optional<uint32_t> hosts;
  std::optional<uint32_t> nics;
  std::optional<uint32_t> first_address;  ///< of h0, host order; its neighbours follow
  std::vector<OutsidePlan> outside;
};

/// name: of the file, for the error.
std::string parse_fabric_file(const std::string& text, const std::string& name, FabricFile& out);
std::string read_fabric_file(const std::string& path, FabricFile& out);

/// "10G", "400G", "2.5G", "100M" in bits per second; nothing for anything else, a bare number included.
std::optional<uint64_t> parse_rate(const std::string& text);
/// The word of `known` that is nearest to `word`, when it is near enough to be meant.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace weft::schema
