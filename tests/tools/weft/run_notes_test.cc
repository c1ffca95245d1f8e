// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/run_notes.h"

#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

using namespace weft::tools;

TEST_CASE("Notes are read line by line, and what is no note is passed over") {
  const NotedRun run = parse_notes("loaded 12 env\nloaded x y\n\nrubbish\nrefused 13 no fabric there; type: weft up\nloaded 13 my tool\n");
  CHECK(run.known);
  CHECK_FALSE(run.nested);
  REQUIRE(run.loaded.size() == 2);
  CHECK(run.was_loaded_into(12));
  CHECK(run.was_loaded_into(13, "my tool"));
  CHECK_FALSE(run.was_loaded_into(12, "my tool"));
  CHECK(run.refusal == "no fabric there; type: weft up");
  CHECK_FALSE(parse_notes("refused 0 x").refusal.size());
  CHECK(parse_notes("nested 4\n").nested);
}

TEST_CASE("The file is there for its run only, and a run inside it says so") {
  char pattern[] = "/tmp/weft-notes-test-XXXXXX";
  RunFolder folder;
  folder.path = mkdtemp(pattern);
  {
    const RunNotes notes(folder, 99);
    CHECK(notes.read().known);
    CHECK(notes.read().loaded.empty());
    std::ofstream(folder.file("runs/99"), std::ios::app) << "loaded 5 x\n";
    CHECK(notes.read().was_loaded_into(5));
    std::filesystem::resize_file(folder.file("runs/99"), 64 << 10);
    CHECK_FALSE(notes.read().known);  // full
    std::filesystem::resize_file(folder.file("runs/99"), 0);
    setenv("WEFT_RUN", folder.path.c_str(), 1);
    for (const char* id : {"", "../99", "98"}) {
      setenv("WEFT_RUN_ID", id, 1);
      note_nested_run();
      CHECK_FALSE(notes.read().nested);
    }
    setenv("WEFT_RUN_ID", "99", 1);
    note_nested_run();
    CHECK(notes.read().nested);
    unsetenv("WEFT_RUN");
    unsetenv("WEFT_RUN_ID");
    std::filesystem::remove(folder.file("runs/99"));
    CHECK_FALSE(notes.read().known);
  }
  CHECK(std::filesystem::is_empty(folder.file("runs")));
  std::filesystem::remove_all(folder.path);
  const RunNotes nowhere(folder, 1);
  CHECK_FALSE(nowhere.read().known);
}
