// SPDX-License-Identifier: Apache-2.0
//
// What the processes under a `weft run` note down for it (nic/preload/run_notes.h), and what a `weft run` inside another
// one tells the outer: `nested`, because its programs are its own business.
//
//   RunNotes notes(folder, run_id);       makes the file; the destructor removes it
//   … the program runs …
//   NotedRun said = notes.read();
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/weft/run_folder.h"

namespace weft::tools {

struct NotedRun {
  struct Loaded {
    pid_t pid = 0;
    std::string program;
  };
  bool known = false;            ///< false: there was no file to note in
  bool nested = false;
  std::vector<Loaded> loaded;    ///< that libweft.so was loaded into, in order
  std::string refusal;           ///< the last reason why an attach failed; empty: none did

  bool was_loaded_into(pid_t pid) const;
  bool was_loaded_into(pid_t pid, const std::string& program) const;
};

NotedRun parse_notes(const std::string& text);

class RunNotes {
 public:
  RunNotes(const RunFolder& folder, uint64_t run_id);
  RunNotes(const RunNotes&) = delete;
  RunNotes& operator=(const RunNotes&) = delete;
  ~RunNotes();
  NotedRun read() const;

 private:
  std::string path_;
  bool made_ = false;
};

/// In the environment of an outer `weft run`: tells it.
void note_nested_run();

}  // namespace weft::tools
