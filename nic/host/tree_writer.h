// SPDX-License-Identifier: Apache-2.0
//
// Small files below a root, as sysfs has them: one line each.
//
//   TreeWriter tree(root);  tree.directory("/class");  tree.file("/class/x", "1");  return tree.error();
//
// Remembers the first error, one line for people, and does nothing after it. What is there already is rewritten in
// place.
#pragma once

#include <string>

namespace weft::host {

class TreeWriter {
 public:
  explicit TreeWriter(std::string root) : root_(std::move(root)) {}

  void directory(const std::string& path);
  /// Appends the newline. In one write, because readers take a file in one read.
  void file(const std::string& path, const std::string& value);
  void link(const std::string& path, const std::string& target);
  const std::string& error() const { return error_; }

 private:
  void fail(const char* verb, const std::string& path);

  std::string root_;
  std::string error_;
};

}  // namespace weft::host
