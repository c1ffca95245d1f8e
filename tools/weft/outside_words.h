// SPDX-License-Identifier: Apache-2.0
//
// A scenario file as settings of a fabric, and ports to the outside as words on the daemon's command line.
//
//   if (std::string e = apply_file(line.file, line, settings); !e.empty()) …     one line, with file, line and column
//   words_of_outside(plan)  <->  outside_of_words(text)
#pragma once

#include <optional>
#include <string>

#include "tools/weft/options.h"

namespace weft::tools {

/// Reads line.file into `settings`; what was given on the line stays. Relative paths become absolute.
std::string apply_file(const ParsedLine& line, FabricSettings& settings);

std::string words_of_outside(const OutsidePlan& plan);
/// Nothing when the text is not what words_of_outside() makes.
std::optional<OutsidePlan> outside_of_words(const std::string& words);

}  // namespace weft::tools
