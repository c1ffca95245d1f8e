// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/loopback_claim.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <vector>

namespace weft::tools {
namespace {

struct Folder {
  Folder() { REQUIRE(mkdtemp(path) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string lock_file() const {
    for (const auto& entry : std::filesystem::directory_iterator(path)) return entry.path();
    return {};
  }
  char path[32] = "/tmp/weft-claim-test-XXXXXX";
};

}  // namespace

TEST_CASE("Fabrics side by side get numbers of their own, and a freed one is taken again") {
  const Folder folder;
  LoopbackClaim first(folder.path);
  LoopbackClaim second(folder.path);
  LoopbackClaim third(folder.path);
  REQUIRE(first.take() == "");
  REQUIRE(second.take() == "");
  CHECK(first.number() == 18);
  CHECK(second.number() == 19);
  first.release();
  CHECK(first.number() == 0);
  REQUIRE(third.take() == "");
  CHECK(third.number() == 18);
}

TEST_CASE("The last to leave removes the file; it is everybody's while it is there") {
  const Folder folder;
  {
    LoopbackClaim first(folder.path);
    REQUIRE(first.take() == "");
    const mode_t before = umask(077);
    umask(before);
    struct stat info {};
    REQUIRE(stat(folder.lock_file().c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0666);
    {
      LoopbackClaim second(folder.path);
      REQUIRE(second.take() == "");
    }
    CHECK(folder.lock_file() != "");
  }
  CHECK(folder.lock_file() == "");
}

TEST_CASE("A killed daemon's number is free at once") {
  const Folder folder;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    LoopbackClaim claim(folder.path);
    const char got = claim.take().empty() ? static_cast<char>(claim.number()) : 0;
    (void)!write(ready[1], &got, 1);
    pause();
    _exit(0);
  }
  char got = 0;
  REQUIRE(read(ready[0], &got, 1) == 1);
  CHECK(got == 18);
  LoopbackClaim other(folder.path);
  REQUIRE(other.take() == "");
  CHECK(other.number() == 19);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  LoopbackClaim next(folder.path);
  REQUIRE(next.take() == "");
  CHECK(next.number() == 18);
}

TEST_CASE("All taken, no folder, and a trap in the file's place are one line each") {
  const Folder folder;
  std::vector<std::unique_ptr<LoopbackClaim>> all;
  for (uint32_t b = LoopbackClaim::kFirst; b <= LoopbackClaim::kLast; ++b) {
    all.push_back(std::make_unique<LoopbackClaim>(folder.path));
    REQUIRE(all.back()->take() == "");
    REQUIRE(all.back()->number() == b);
  }
  LoopbackClaim late(folder.path);
  CHECK(late.take().find("--shared-tcp") != std::string::npos);
  CHECK(late.number() == 0);
  const std::string name = folder.lock_file();
  all.clear();

  LoopbackClaim nowhere("/nonexistent");
  CHECK(nowhere.take().find("/nonexistent/weft-net-") != std::string::npos);
  REQUIRE(mkfifo(name.c_str(), 0666) == 0);
  CHECK(late.take().find(name) != std::string::npos);
  unlink(name.c_str());
  REQUIRE(symlink("/dev/null", name.c_str()) == 0);
  CHECK(late.take().find(name) != std::string::npos);
}

}  // namespace weft::tools
