// SPDX-License-Identifier: Apache-2.0
//
// Small text files, a line at a time, with a small buffer: some callers are on small stacks.
//
//   LineReader reader(path);  Text<160> line;
//   while (reader.next(line)) { Text<16> word; if (field(line.c_str(), 1, word)) … }
// A file that is not there has no lines. Raw system calls only: no lock, no allocation, errno untouched.
#pragma once

#include <fcntl.h>

#include "nic/preload/syscalls.h"
#include "nic/preload/text.h"

namespace weft::preload {

class LineReader {
 public:
  explicit LineReader(const char* path) : fd_(static_cast<int>(raw::open(path, O_RDONLY | O_CLOEXEC))) {}
  ~LineReader() {
    if (fd_ >= 0) raw::close(fd_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// What does not fit into `line` is cut; line.overflowed() tells.
  template <size_t kCapacity>
  bool next(Text<kCapacity>& line) {
    line.clear();
    for (;;) {
      if (at_ == size_ && !refill()) return line.size() != 0;
      const char c = buffer_[at_++];
      if (c == '\n') return true;
      line.add(c);
    }
  }

 private:
  bool refill() {
    if (fd_ < 0) return false;
    const long got = raw::read(fd_, buffer_, sizeof buffer_);
    at_ = 0;
    size_ = got > 0 ? static_cast<size_t>(got) : 0;
    return size_ != 0;
  }

  int fd_;
  size_t at_ = 0;
  size_t size_ = 0;
  char buffer_[512];
};

/// Field `index` of a line of words, as a copy; false when there is none, a comment begins before it, or it does not
/// fit.
template <size_t kCapacity>
bool field(const char* line, int index, Text<kCapacity>& out) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  out.clear();
  for (int i = 0;; ++i) {
    while (is_blank(*line)) ++line;
    if (*line == '\0' || *line == '#') return false;
    const char* start = line;
    while (*line != '\0' && !is_blank(*line)) ++line;
    if (i != index) continue;
    out.add(start, static_cast<size_t>(line - start));
    return !out.overflowed();
  }
}

}  // namespace weft::preload
