// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/run_notes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace weft::tools {
namespace {

constexpr off_t kMaxNotes = 64 << 10;  // where nic/preload/run_notes.cc stops

std::string notes_path(const std::string& run_folder, const std::string& id) { return run_folder + "/runs/" + id; }

}  // namespace

bool NotedRun::was_loaded_into(pid_t pid) const {
  return std::any_of(loaded.begin(), loaded.end(), [&](const Loaded& l) { return l.pid == pid; });
}

bool NotedRun::was_loaded_into(pid_t pid, const std::string& program) const {
  return std::any_of(loaded.begin(), loaded.end(), [&](const Loaded& l) { return l.pid == pid && l.program == program; });
}

NotedRun parse_notes(const std::string& text) {
  NotedRun run;
  run.known = true;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what;
    pid_t pid = 0;
    std::string rest;
    words >> what >> pid;
    std::getline(words >> std::ws, rest);
    if (what == "nested") run.nested = true;
    if (what == "loaded" && pid > 0) run.loaded.push_back({pid, rest});
    if (what == "refused" && pid > 0 && !rest.empty()) run.refusal = rest;
  }
  return run;
}

RunNotes::RunNotes(const RunFolder& folder, uint64_t run_id) : path_(notes_path(folder.path, std::to_string(run_id))) {
  (void)mkdir(folder.file("runs").c_str(), 0700);
  // A disk that cannot hold this line holds no notes either: then nothing is known.
  made_ = write_file(path_, "run " + std::to_string(getpid()) + "\n").empty();
  if (!made_) (void)unlink(path_.c_str());
}

RunNotes::~RunNotes() {
  if (made_) (void)unlink(path_.c_str());
}

NotedRun RunNotes::read() const {
  // Gone with its folder: nothing is known.
  if (!made_ || access(path_.c_str(), R_OK) != 0) return {};
  NotedRun run = parse_notes(read_file(path_));
  // Full: who came later could not note anything.
  struct stat info{};
  if (stat(path_.c_str(), &info) != 0 || info.st_size >= kMaxNotes) run.known = false;
  return run;
}

void note_nested_run() {
  const char* folder = std::getenv("WEFT_RUN");
  const char* id = std::getenv("WEFT_RUN_ID");
  if (folder == nullptr || id == nullptr || *id == '\0' || std::string(id).find_first_not_of("0123456789") != std::string::npos) return;
  const int fd = open(notes_path(folder, id).c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;
  const std::string line = "nested " + std::to_string(getpid()) + "\n";
  (void)!write(fd, line.data(), line.size());
  close(fd);
}

}  // namespace weft::tools
