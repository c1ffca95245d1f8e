// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/run_folder.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

using namespace weft;
using namespace weft::tools;

namespace {

struct Base {
  Base() {
    char pattern[] = "/tmp/weft-folder-test-XXXXXX";
    path = mkdtemp(pattern);
  }
  ~Base() { std::filesystem::remove_all(path); }
  std::string path;
};

RunFolder folder_in(const std::string& base, const std::string& name = "f") {
  auto folder = find_run_folder(name, base, geteuid());
  REQUIRE(folder);
  return *folder;
}

}  // namespace

TEST_CASE("The folder is below XDG_RUNTIME_DIR when that is ours, else below /tmp") {
  Base base;
  const std::string personal = "/tmp/weft-" + std::to_string(geteuid());
  CHECK(folder_in(base.path, "x").path == base.path + "/weft/x");
  CHECK(folder_in("", "x").path == personal + "/x");
  CHECK(folder_in("relative", "x").path == personal + "/x");
  CHECK(folder_in("/nonexistent", "x").path == personal + "/x");
  auto another = find_run_folder("x", base.path, geteuid() + 1);  // after su: the variable names somebody else's
  REQUIRE(another);
  CHECK(another->path == "/tmp/weft-" + std::to_string(geteuid() + 1) + "/x");
}

TEST_CASE("Socket paths fit whatever the name") {
  Base base;
  const std::string long_name(64, 'n');
  for (const std::string& xdg : {base.path, std::string(), base.path + "/" + std::string(80, 'd')}) {
    std::filesystem::create_directories(xdg.empty() ? base.path : xdg);
    for (const std::string& name : {long_name, std::string("s")}) {
      const RunFolder folder = folder_in(xdg, name);
      CAPTURE(folder.path);
      CHECK((folder.host_folder(std::string(kMaxHostName, 'h')) + "/attach").size() < 108);
    }
  }
  // Two long names that begin alike are two folders.
  CHECK(folder_in(base.path, std::string(63, 'n') + "a").path != folder_in(base.path, std::string(63, 'n') + "b").path);
}

TEST_CASE("Names that could leave the folder are refused") {
  for (const char* wrong : {"", ".", "..", "a/b", "/", "-x", ".hidden", "a b", "a\nb", "\xC3\xA4"}) {
    CAPTURE(wrong);
    CHECK_FALSE(is_valid_name(wrong));
    CHECK_FALSE(find_run_folder(wrong, "", 0));
  }
  CHECK_FALSE(is_valid_name(std::string(65, 'a')));
  CHECK(is_valid_name("Test_1.2-x"));
}

TEST_CASE("The folder is private, and a foreign or strange one is refused in one line") {
  Base base;
  const RunFolder folder = folder_in(base.path);
  REQUIRE(make_run_folder(folder) == "");
  struct stat info{};
  REQUIRE(stat(folder.path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  chmod(folder.path.c_str(), 0755);
  REQUIRE(make_run_folder(folder) == "");
  REQUIRE(stat(folder.path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);

  const RunFolder in_the_way = folder_in(base.path, "file");
  std::ofstream(in_the_way.path) << "x";
  CHECK(make_run_folder(in_the_way).find("not a folder") != std::string::npos);
  const RunFolder link = folder_in(base.path, "link");
  std::filesystem::create_directory_symlink(base.path, link.path);
  CHECK(make_run_folder(link).find("not a folder") != std::string::npos);
  if (geteuid() == 0) {
    const RunFolder foreign = folder_in(base.path, "foreign");
    REQUIRE(mkdir(foreign.path.c_str(), 0700) == 0);
    REQUIRE(chown(foreign.path.c_str(), 65534, 65534) == 0);
    CHECK(make_run_folder(foreign).find("another user") != std::string::npos);
  }
}

TEST_CASE("One daemon has the lock; a dead one's lock is free") {
  Base base;
  const RunFolder folder = folder_in(base.path);
  CHECK_FALSE(is_locked(folder));
  {
    FolderLock lock;
    CHECK(lock.take(folder) == FolderLock::Taken::kYes);
    CHECK(is_locked(folder));
    CHECK(is_locked(folder));  // asking does not take it
    FolderLock second;
    CHECK(second.take(folder) == FolderLock::Taken::kHeldByAnother);
  }
  CHECK_FALSE(is_locked(folder));
  const pid_t daemon = fork();
  if (daemon == 0) {
    FolderLock lock;
    (void)lock.take(folder);
    _exit(is_locked(folder) ? 0 : 1);
  }
  int status = 1;
  waitpid(daemon, &status, 0);
  CHECK(status == 0);
  FolderLock after;
  CHECK(after.take(folder) == FolderLock::Taken::kYes);
}

TEST_CASE("Clearing spares the lock, follows no link, and removing takes all") {
  Base base;
  const RunFolder folder = folder_in(base.path);
  FolderLock lock;
  REQUIRE(lock.take(folder) == FolderLock::Taken::kYes);
  const std::string precious = base.path + "/precious";
  std::filesystem::create_directories(precious);
  std::ofstream(precious + "/file") << "keep";
  std::filesystem::create_directories(folder.file("hosts/h0/sys/class"));
  std::ofstream(folder.file("hosts/h0/sys/class/x")) << "y";
  std::filesystem::create_directory_symlink(precious, folder.file("hosts/link"));
  REQUIRE(write_file(folder.file("daemon.pid"), "1\n") == "");
  CHECK(read_file(folder.file("daemon.pid")) == "1\n");
  clear_run_folder(folder);
  CHECK_FALSE(std::filesystem::exists(folder.file("hosts")));
  CHECK(std::filesystem::exists(folder.file("lock")));
  CHECK(std::filesystem::exists(precious + "/file"));
  remove_run_folder(folder, lock);
  CHECK_FALSE(std::filesystem::exists(folder.path));
  CHECK_FALSE(std::filesystem::exists(folder.parent));
}

TEST_CASE("A lock file that was removed under us does not count") {
  Base base;
  const RunFolder folder = folder_in(base.path);
  FolderLock old;
  REQUIRE(old.take(folder) == FolderLock::Taken::kYes);
  remove_run_folder(folder, old);
  CHECK_FALSE(old.is_still_there(folder));
  FolderLock fresh;
  CHECK(fresh.take(folder) == FolderLock::Taken::kYes);
  CHECK(is_locked(folder));
  // Whoever lost the folder takes nothing of its next owner with it.
  remove_run_folder(folder, old);
  CHECK(fresh.is_still_there(folder));
}

TEST_CASE("Leftovers are removed by whoever gets the lock, and by nobody else") {
  Base base;
  const RunFolder folder = folder_in(base.path);
  CHECK(remove_leftovers(folder) == FolderLock::Taken::kGone);
  CHECK_FALSE(std::filesystem::exists(folder.path));
  {
    FolderLock lock;
    REQUIRE(lock.take(folder) == FolderLock::Taken::kYes);
    REQUIRE(write_file(folder.file("daemon.pid"), "1\n") == "");
    CHECK(remove_leftovers(folder) == FolderLock::Taken::kHeldByAnother);
    CHECK(std::filesystem::exists(folder.file("daemon.pid")));
  }
  CHECK(remove_leftovers(folder) == FolderLock::Taken::kYes);
  CHECK_FALSE(std::filesystem::exists(folder.path));
}

TEST_CASE("A holder serves while its process lives and has not said that it ends") {
  Base base;
  const RunFolder folder = folder_in(base.path);
  REQUIRE(make_run_folder(folder) == "");
  CHECK_FALSE(holder_is_alive(folder));
  REQUIRE(write_file(folder.file("daemon.pid"), std::to_string(getpid()) + "\n") == "");
  CHECK(holder_is_alive(folder));
  REQUIRE(write_file(folder.ended(), "weft down\n") == "");
  CHECK_FALSE(holder_is_alive(folder));
  unlink(folder.ended().c_str());
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);  // a zombie
  REQUIRE(write_file(folder.file("daemon.pid"), std::to_string(child) + "\n") == "");
  CHECK_FALSE(holder_is_alive(folder));
  waitpid(child, nullptr, 0);
  CHECK_FALSE(holder_is_alive(folder));
}
