// SPDX-License-Identifier: Apache-2.0
//
// What `weft show` prints: aligned tables for people, JSON for scripts.
//
//   Table t({"HOST", "ADDRESS"});  t.row({"h0", "198.18.0.1"});  std::string text = t.text();
//
//   JsonWriter j;  j.begin_object();  j.key("hosts");  j.begin_array();  …  j.end_array();  j.end_object();  j.text()
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tools {

class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  size_t rows() const { return rows_.size() - 1; }
  /// Columns of digits align to the right.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Commas and indentation by itself; the caller opens and closes in order.
class JsonWriter {
 public:
  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  void key(std::string_view name);
  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  void value(uint64_t number);
  void value(int64_t number);
  void value(bool truth);

  template <typename T>
  void member(std::string_view name, const T& v) {
    key(name);
    value(v);
  }
  std::string text() const { return text_ + "\n"; }

 private:
  void open(char bracket);
  void close(char bracket);
  void before_value();
  void new_line();

  std::string text_;
  std::vector<bool> filled_;  ///< per open bracket: has a member already
  bool after_key_ = false;
};

std::string json_quoted(std::string_view text);

/// "100G", "2.5G", "10M"
std::string text_of_bits(uint64_t bits_per_second);
/// 'it'\''s'
std::string shell_quoted(const std::string& text);

}  // namespace weft::tools
