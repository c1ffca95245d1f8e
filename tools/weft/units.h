// SPDX-License-Identifier: Apache-2.0
//
// Amounts as people write them on a command line: probabilities "1%", "0.25%", "1/1000", "0.01"; times "500ms", "10s",
// "2min". Exact: a probability becomes a ratio, a time picoseconds. Nothing when the text is something else.
#pragma once

#include <optional>
#include <string>

#include "protocols/base/random.h"
#include "protocols/base/time.h"

namespace weft::tools {

std::optional<Probability> parse_probability(const std::string& text);
std::optional<Duration> parse_duration(const std::string& text);

}  // namespace weft::tools
