// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/text_output.h"

#include <algorithm>
#include <cstdio>

namespace weft::tools {
namespace {

bool is_number(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("0123456789") == std::string::npos;
}

/// Characters on a screen, for UTF-8.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string Table::text() const {
  std::vector<size_t> width(rows_[0].size());
  std::vector<bool> numeric(rows_[0].size(), rows_.size() > 1);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < rows_[r].size() && c < width.size(); ++c) {
      width[c] = std::max(width[c], width_of(rows_[r][c]));
      if (r > 0 && !is_number(rows_[r][c])) numeric[c] = false;
    }
  }
  std::string out;
  for (const auto& cells : rows_) {
    std::string line;
    for (size_t c = 0; c < cells.size() && c < width.size(); ++c) {
      const std::string pad(width[c] - width_of(cells[c]), ' ');
      line += numeric[c] ? pad + cells[c] : cells[c] + pad;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void JsonWriter::new_line() { text_ += "\n" + std::string(filled_.size() * 2, ' '); }

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (filled_.empty()) return;
  if (filled_.back()) text_ += ",";
  filled_.back() = true;
  new_line();
}

void JsonWriter::open(char bracket) {
  before_value();
  text_ += bracket;
  filled_.push_back(false);
}

void JsonWriter::close(char bracket) {
  const bool had_members = filled_.back();
  filled_.pop_back();
  if (had_members) new_line();
  text_ += bracket;
}

void JsonWriter::key(std::string_view name) {
  before_value();
  text_ += json_quoted(name) + ": ";
  after_key_ = true;
}

void JsonWriter::value(std::string_view text) {
  before_value();
  text_ += json_quoted(text);
}
void JsonWriter::value(uint64_t number) {
  before_value();
  text_ += std::to_string(number);
}
void JsonWriter::value(int64_t number) {
  before_value();
  text_ += std::to_string(number);
}
void JsonWriter::value(bool truth) {
  before_value();
  text_ += truth ? "true" : "false";
}

std::string text_of_bits(uint64_t bits_per_second) {
  char text[32];
  const bool giga = bits_per_second >= 1'000'000'000;
  std::snprintf(text, sizeof text, "%.10g%c", static_cast<double>(bits_per_second) / (giga ? 1e9 : 1e6), giga ? 'G' : 'M');
  return text;
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace weft::tools
