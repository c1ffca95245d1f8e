// SPDX-License-Identifier: Apache-2.0
//
// Words and amounts of scenario files.
#include <algorithm>
#include <limits>

#include "scenarios/schema/fabric_file.h"

namespace weft::schema {
namespace {

/// Damerau and Levenshtein's distance, adjacent transpositions counted as one.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest_word(const std::string& word, const std::vector<std::string>& known) {
  if (word.size() > 64) return {};
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t d = distance(word, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

std::optional<uint64_t> parse_rate(const std::string& text) {
  constexpr uint64_t kMaxDigits = 1'000'000'000;
  uint64_t digits = 0;
  uint64_t scale = 1;
  bool any = false;
  bool fraction = false;
  size_t i = 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !fraction) {
      fraction = true;
    } else if (c >= '0' && c <= '9') {
      if (digits >= kMaxDigits || scale >= kMaxDigits) return std::nullopt;
      digits = digits * 10 + static_cast<uint64_t>(c - '0');
      if (fraction) scale *= 10;
      any = true;
    } else {
      break;
    }
  }
  const std::string unit = text.substr(i);
  const uint64_t factor = unit == "K" ? 1'000 : unit == "M" ? 1'000'000 : unit == "G" ? 1'000'000'000 : unit == "T" ? 1'000'000'000'000 : 0;
  if (!any || factor == 0) return std::nullopt;
  const unsigned __int128 rate = static_cast<unsigned __int128>(digits) * factor / scale;
  if (rate == 0 || rate > 10'000'000'000'000u) return std::nullopt;
  return static_cast<uint64_t>(rate);
}

}  // namespace weft::schema
