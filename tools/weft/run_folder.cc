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

#include "tools/weft/process_setup.h"

namespace weft::tools {
namespace {

constexpr size_t kSunPath = 108;
// "/hosts/" + host name + "/attach" + NUL is the longest socket path below a folder.
constexpr size_t kBelowFolder = 7 + kMaxHostName + 7 + 1;
constexpr size_t kShortName = 8;
constexpr int kTries = 100;

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
  if (errno != EEXIST) return "cannot make " + path + ": " + error_text(errno);
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
  // A fabric that ends takes an empty parent with it, maybe between our two steps.
  std::string error;
  for (int tries = 0; tries < kTries; ++tries) {
    error = make_private_directory(folder.parent);
    if (!error.empty()) return error;
    error = make_private_directory(folder.path);
    if (error.empty() || access(folder.parent.c_str(), F_OK) == 0) return error;
  }
  return error;
}

FolderLock::~FolderLock() { release(); }

void FolderLock::release() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

FolderLock::Taken FolderLock::take(const RunFolder& folder) {
  // The lock of a daemon that just ended may be unlinked between our open and our lock; then the file is a new one.
  for (int tries = 0; tries < kTries; ++tries) {
    if (!make_run_folder(folder).empty()) return Taken::kFailed;
    const Taken taken = try_once(folder);
    if (taken != Taken::kGone) return taken;
  }
  return Taken::kFailed;
}

FolderLock::Taken FolderLock::take_existing(const RunFolder& folder) {
  for (int tries = 0; tries < kTries; ++tries) {
    const Taken taken = try_once(folder);
    if (taken != Taken::kGone || access(folder.path.c_str(), F_OK) != 0) return taken;
  }
  return Taken::kFailed;
}

FolderLock::Taken FolderLock::try_once(const RunFolder& folder) {
  release();
  fd_ = open(folder.file("lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd_ < 0) return errno == ENOENT ? Taken::kGone : Taken::kFailed;
  struct flock whole = whole_file();
  if (fcntl(fd_, F_OFD_SETLK, &whole) != 0) {
    const bool held = errno == EAGAIN || errno == EACCES;
    release();
    return held ? Taken::kHeldByAnother : Taken::kFailed;
  }
  if (is_still_there(folder)) return Taken::kYes;
  release();
  return Taken::kGone;
}

bool FolderLock::is_still_there(const RunFolder& folder) const {
  struct stat mine{};
  struct stat now_there{};
  return fd_ >= 0 && fstat(fd_, &mine) == 0 && stat(folder.file("lock").c_str(), &now_there) == 0 &&
         mine.st_ino == now_there.st_ino && mine.st_dev == now_there.st_dev;
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

void remove_run_folder(const RunFolder& folder, const FolderLock& lock) {
  if (!lock.is_still_there(folder)) return;
  // The word about an orderly end goes last: until then it explains what is missing.
  for (const char* first : {"control", "daemon.pid"}) (void)unlink(folder.file(first).c_str());
  clear_run_folder(folder);
  (void)unlink(folder.file("lock").c_str());
  (void)rmdir(folder.path.c_str());
  (void)rmdir(folder.parent.c_str());
}

FolderLock::Taken remove_leftovers(const RunFolder& folder) {
  FolderLock lock;
  const FolderLock::Taken taken = lock.take_existing(folder);
  if (taken == FolderLock::Taken::kYes) remove_run_folder(folder, lock);
  return taken;
}

bool holder_is_alive(const RunFolder& folder) {
  const std::string pid = read_file(folder.file("daemon.pid"));
  if (pid.empty() || access(folder.ended().c_str(), F_OK) == 0) return false;
  const std::string stat = read_file("/proc/" + std::to_string(std::atoi(pid.c_str())) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.compare(name_end, 3, ") Z") != 0;
}

std::string write_file(const std::string& path, const std::string& content) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return "cannot write " + path + ": " + error_text(errno);
  std::string error;
  for (size_t done = 0; done < content.size() && error.empty();) {
    const ssize_t wrote = write(fd, content.data() + done, content.size() - done);
    if (wrote < 0 && errno != EINTR) error = "cannot write " + path + ": " + error_text(errno);
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
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
