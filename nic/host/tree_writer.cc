// SPDX-License-Identifier: Apache-2.0
#include "nic/host/tree_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weft::host {

void TreeWriter::directory(const std::string& path) {
  if (!error_.empty()) return;
  const std::string full = root_ + path;
  if (mkdir(full.c_str(), 0755) != 0 && errno != EEXIST) fail("make", full);
}

void TreeWriter::file(const std::string& path, const std::string& value) {
  if (!error_.empty()) return;
  const std::string full = root_ + path;
  const std::string content = value + "\n";
  const int fd = open(full.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return fail("write", full);
  if (write(fd, content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      ftruncate(fd, static_cast<off_t>(content.size())) != 0) {
    fail("write", full);
  }
  close(fd);
}

void TreeWriter::link(const std::string& path, const std::string& target) {
  if (!error_.empty()) return;
  const std::string full = root_ + path;
  if (symlink(target.c_str(), full.c_str()) != 0 && errno != EEXIST) fail("make", full);
}

void TreeWriter::fail(const char* verb, const std::string& path) {
  error_ = std::string("cannot ") + verb + " " + path + ": " + std::strerror(errno);
}

}  // namespace weft::host
