// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/run_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace weft::tools {
namespace {

constexpr size_t kSunPath = 108;
// "/hosts/" + host name + "/attach" + NUL is the longest socket path below a folder.
constexpr size_t kBelowFolder = 7 + kMaxHostName + 7 + 1;
constexpr size_t kShortName = 8;

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

/// "abcdefgh-0123456789abcdef"
std::string shortened(const std::string& name) {
  char hash[18];
  std::snprintf(hash, sizeof hash, "-%016llx", static_cast<unsigned long long>(fnv1a(name)));
  return name.substr(0, kShortName) + hash;
}

bool is_ours(const std::string& path, uid_t uid) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == uid;
}

std::string make_private_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return "cannot make " + path + ": " + std::strerror(errno);
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return "cannot look at " + path + ": " + std::strerror(errno);
  if (!S_ISDIR(info.st_mode)) return path + " is in the way: it is not a folder; remove it";
  if (info.st_uid != geteuid()) {
    return path + " belongs to another user (uid " + std::to_string(info.st_uid) + "); set XDG_RUNTIME_DIR to a folder of your own";
  }
  if ((info.st_mode & 077) != 0 && chmod(path.c_str(), 0700) != 0) return "cannot make " + path + " private: " + std::strerror(errno);
  return {};
}

// Locks of the open file: asking who holds one does not take it, unlike flock(2), so that a `weft show` never makes a
// `weft up` believe in a daemon.
struct flock whole_file() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// Removes what is below a folder; keep: a name to spare at this level. Needs one descriptor at a time, because it also
/// cleans up when there are none left. A symbolic link is unlinked, so nothing is followed.
void remove_below(const std::string& path, const char* keep) {
  std::vector<std::string> names;
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory)) names.emplace_back(entry->d_name);
  closedir(directory);
  for (const std::string& name : names) {
    if (name == "." || name == ".." || (keep != nullptr && name == keep)) continue;
    const std::string child = path + "/" + name;
    if (unlink(child.c_str()) == 0 || errno == ENOENT) continue;
    remove_below(child, nullptr);
    (void)rmdir(child.c_str());
  }
}

}  // namespace

bool is_valid_name(const std::string& name) {
  if (name.empty() || name.size() > 64 || name[0] == '.' || name[0] == '-') return false;
  for (const char c : name) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!fine) return false;
  }
  return true;
}

Outcome<RunFolder> find_run_folder(const std::string& name, const std::string& xdg, uid_t uid) {
  if (!is_valid_name(name)) {
    return Failure{"'" + name + "' is no name for a fabric: use letters, digits, '.', '_' and '-', at most 64"};
  }
  RunFolder folder;
  folder.name = name;
  const std::string personal = "/tmp/weft-" + std::to_string(uid);
  // After su the variable may still name the other user's folder.
  const bool use_xdg = !xdg.empty() && xdg[0] == '/' && is_ours(xdg, uid) &&
                       xdg.size() + 6 + kShortName + 17 + kBelowFolder <= kSunPath;
  folder.parent = use_xdg ? xdg + "/weft" : personal;
  folder.path = folder.parent + "/" + name;
  if (folder.path.size() + kBelowFolder > kSunPath) folder.path = folder.parent + "/" + shortened(name);
  return folder;
}

Outcome<RunFolder> find_run_folder(const std::string& name) {
  const char* xdg = std::getenv("XDG_RUNTIME_DIR");
  return find_run_folder(name, xdg == nullptr ? "" : xdg, geteuid());
}

std::string make_run_folder(const RunFolder& folder) {
  std::string error = make_private_directory(folder.parent);
  if (error.empty()) error = make_private_directory(folder.path);
  return error;
}

FolderLock::~FolderLock() { release(); }

void FolderLock::release() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

FolderLock::Taken FolderLock::take(const RunFolder& folder) {
  // The lock of a daemon that just ended may be unlinked between our open and our lock; then the file is a new one.
  for (int tries = 0; tries < 100; ++tries) {
    release();
    if (!make_run_folder(folder).empty()) return Taken::kFailed;
    fd_ = open(folder.file("lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd_ < 0 && errno == ENOENT) continue;
    if (fd_ < 0) return Taken::kFailed;
    struct flock whole = whole_file();
    if (fcntl(fd_, F_OFD_SETLK, &whole) != 0) {
      const bool held = errno == EAGAIN || errno == EACCES;
      release();
      return held ? Taken::kHeldByAnother : Taken::kFailed;
    }
    struct stat mine{};
    struct stat now_there{};
    if (fstat(fd_, &mine) == 0 && stat(folder.file("lock").c_str(), &now_there) == 0 && mine.st_ino == now_there.st_ino &&
        mine.st_dev == now_there.st_dev) {
      return Taken::kYes;
    }
  }
  release();
  return Taken::kFailed;
}

bool is_locked(const RunFolder& folder) {
  const int fd = open(folder.file("lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  struct flock whole = whole_file();
  const bool locked = fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
  close(fd);
  return locked;
}

void clear_run_folder(const RunFolder& folder) {
  struct stat info{};
  if (lstat(folder.path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) remove_below(folder.path, "lock");
}

void remove_run_folder(const RunFolder& folder) {
  clear_run_folder(folder);
  (void)unlink(folder.file("lock").c_str());
  (void)rmdir(folder.path.c_str());
  (void)rmdir(folder.parent.c_str());
}

std::string write_file(const std::string& path, const std::string& content) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return "cannot write " + path + ": " + std::strerror(errno);
  const bool done = write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size());
  const std::string error = done ? "" : "cannot write " + path + ": " + std::strerror(errno);
  close(fd);
  return error;
}

std::string read_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string content;
  if (fd < 0) return content;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;) content.append(buffer, static_cast<size_t>(got));
  close(fd);
  return content;
}

}  // namespace weft::tools
