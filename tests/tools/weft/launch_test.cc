// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/launch.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

using namespace weft::tools;

namespace {
struct Base {
  Base() {
    char pattern[] = "/tmp/weft-launch-test-XXXXXX";
    path = mkdtemp(pattern);
  }
  ~Base() { std::filesystem::remove_all(path); }
  std::string path;
};
}  // namespace

TEST_CASE("Programs are found as execvp finds them") {
  Base base;
  std::ofstream(base.path + "/plain") << "#!/bin/sh\n";
  std::ofstream(base.path + "/tool") << "#!/bin/sh\n";
  chmod((base.path + "/tool").c_str(), 0755);
  const std::string before = getenv("PATH");
  setenv("PATH", ("/nonexistent:" + base.path).c_str(), 1);
  CHECK(find_program("tool") == base.path + "/tool");
  CHECK(find_program("plain").empty());
  CHECK(find_program("nothing").empty());
  CHECK(find_program(base.path + "/tool") == base.path + "/tool");
  setenv("PATH", before.c_str(), 1);
}

TEST_CASE("Why nothing was opened") {
  CHECK(why_nothing_opened({{WEFT_STATIC_PROGRAM}, 1, {}, {}}).find("statically") != std::string::npos);
  CHECK(why_nothing_opened({{"/bin/sh"}, 1, {}, {}}).find("statically") == std::string::npos);
  if (geteuid() == 0) {
    Base base;
    const std::string copy = base.path + "/setuid";
    std::filesystem::copy_file("/bin/true", copy);
    REQUIRE(chown(copy.c_str(), 65534, 65534) == 0);
    REQUIRE(chmod(copy.c_str(), 04755) == 0);
    CHECK(why_nothing_opened({{copy}, 1, {}, {}}).find("setuid") != std::string::npos);
  }
}

TEST_CASE("A library whose path LD_PRELOAD cannot carry is linked into the run folder") {
  Base base;
  const RunFolder folder{"f", base.path, base.path};
  const std::string spaced = base.path + "/with space.so";
  std::ofstream(spaced) << "x";
  auto link = preloadable_path(spaced, folder);
  REQUIRE(link);
  CHECK(std::filesystem::read_symlink(*link) == spaced);
  CHECK(preloadable_path(spaced, folder));
  auto plain = preloadable_path("/usr/lib/libweft.so", folder);
  REQUIRE(plain);
  CHECK(*plain == "/usr/lib/libweft.so");
  const RunFolder also_spaced{"f", base.path, base.path + "/a b"};
  CHECK_FALSE(preloadable_path(spaced, also_spaced));
}

TEST_CASE("A program's AddressSanitizer is found, and nothing in files of other kinds") {
  CHECK(needed_sanitizer(WEFT_ASAN_PROGRAM).rfind("libasan.so", 0) == 0);
  CHECK(needed_sanitizer(WEFT_STATIC_PROGRAM).empty());
  CHECK(needed_sanitizer("/bin/sh").empty());
  CHECK(needed_sanitizer("/etc/passwd").empty());
  CHECK(needed_sanitizer("/nonexistent").empty());
  CHECK(needed_sanitizer("/dev").empty());
}

TEST_CASE("Run ids are never 0 and differ") {
  const uint64_t first = new_run_id();
  CHECK(first != 0);
  CHECK(first != new_run_id());
}

TEST_CASE("What its processes noted decides what a run is told") {
  const auto why = [](const std::vector<std::string>& command, const std::string& last, const std::string& notes) {
    return why_nothing_opened({command, 7, last, parse_notes(notes)});
  };
  CHECK(why({"/bin/sh"}, "sh", "loaded 7 sh\nrefused 7 the fabric refused: no room\n") ==
        "it could not attach: the fabric refused: no room");
  // env -i wipes LD_PRELOAD between itself and the program.
  CHECK(why({"/usr/bin/env", "-i", "sort"}, "sort", "loaded 7 env\n") ==
        "sort ran without libweft.so: env did not hand LD_PRELOAD on to it");
  CHECK(why({"/usr/bin/env", "-i", WEFT_STATIC_PROGRAM}, "static_program", "loaded 7 env\n").find("statically") != std::string::npos);
  CHECK(why({"/usr/bin/env", "sort"}, "sort", "loaded 7 env\nloaded 7 sort\n").find("without") == std::string::npos);
  // It named itself: nothing was run between.
  CHECK(why({"/bin/sh"}, "other", "loaded 7 sh\n").find("without") == std::string::npos);
  // Another process's note is not this one's.
  CHECK(why({"/bin/sh"}, "sh", "loaded 8 sh\n").find("was not loaded into it") != std::string::npos);
  CHECK(why({"/bin/sh"}, "sh", "").find("was not loaded into it") != std::string::npos);
}
