// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/units.h"

#include <cstdint>
#include <limits>

namespace weft::tools {
namespace {

struct Decimal {
  uint64_t digits = 0;
  uint64_t scale = 1;  ///< value = digits / scale
  std::string unit;    ///< what follows the number
};

constexpr uint64_t kMaxDigits = 1'000'000'000'000;

std::optional<Decimal> parse_decimal(const std::string& text) {
  Decimal d;
  size_t i = 0;
  bool any = false;
  bool fraction = false;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !fraction) {
      fraction = true;
    } else if (c >= '0' && c <= '9') {
      if (d.digits >= kMaxDigits || d.scale >= kMaxDigits) return std::nullopt;
      d.digits = d.digits * 10 + static_cast<uint64_t>(c - '0');
      if (fraction) d.scale *= 10;
      any = true;
    } else {
      break;
    }
  }
  if (!any) return std::nullopt;
  d.unit = text.substr(i);
  return d;
}

}  // namespace

std::optional<Probability> parse_probability(const std::string& text) {
  const auto d = parse_decimal(text);
  if (!d) return std::nullopt;
  Probability p{d->digits, d->scale};
  if (d->unit == "%") {
    p.denominator *= 100;
  } else if (!d->unit.empty()) {
    if (d->unit[0] != '/' || d->scale != 1) return std::nullopt;
    const auto below = parse_decimal(d->unit.substr(1));
    if (!below || !below->unit.empty() || below->scale != 1 || below->digits == 0) return std::nullopt;
    p.denominator = below->digits;
  }
  if (p.numerator > p.denominator) return std::nullopt;
  return p;
}

std::optional<Duration> parse_duration(const std::string& text) {
  const auto d = parse_decimal(text);
  if (!d) return std::nullopt;
  struct Unit {
    const char* name;
    int64_t picoseconds;
  };
  static constexpr Unit kUnits[] = {{"ns", 1'000},         {"us", 1'000'000},         {"ms", 1'000'000'000},
                                    {"s", 1'000'000'000'000}, {"min", 60'000'000'000'000}};
  for (const Unit& unit : kUnits) {
    if (d->unit != unit.name) continue;
    using Wide = unsigned __int128;
    const Wide amount = static_cast<Wide>(d->digits) * static_cast<uint64_t>(unit.picoseconds) / d->scale;
    if (amount > static_cast<Wide>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return Duration{static_cast<int64_t>(amount)};
  }
  return std::nullopt;
}

}  // namespace weft::tools
