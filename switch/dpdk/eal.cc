// SPDX-License-Identifier: Apache-2.0
#include "switch/dpdk/eal.h"

#include <fcntl.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vector>

namespace weft::dpdk {
namespace {

/// The processors this process may use, as EAL wants them: "0,2-3". One logical core floats over all of them, because
/// EAL pins its main thread and every thread made later inherits that.
std::string allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "0";
  std::string text;
  for (int first = 0; first < CPU_SETSIZE; ++first) {
    if (!CPU_ISSET(first, &set)) continue;
    int last = first;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(first);
    if (last > first) text += '-' + std::to_string(last);
    first = last;
  }
  return text.empty() ? "0" : text;
}

std::string make_temporary_folder() {
  char name[] = "/tmp/weft-eal-XXXXXX";
  const char* made = mkdtemp(name);
  return made != nullptr ? made : "/tmp";
}

/// Where descriptors run out half way, EAL's own thread ends the process (rte_panic): they are counted before.
bool has_descriptors() {
  constexpr int kEnough = 16;  // it opens 8 of its own
  int opened[kEnough];
  int count = 0;
  while (count < kEnough && (opened[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) ++count;
  for (int i = 0; i < count; ++i) close(opened[i]);
  return count == kEnough;
}

bool initialise(const EalSettings& settings, std::string& error) {
  if (!has_descriptors()) {
    error = "DPDK does not start: too few file descriptors are left; raise the limit (ulimit -n)";
    return false;
  }
  const bool temporary = settings.runtime_folder.empty();
  const std::string folder = temporary ? make_temporary_folder() : settings.runtime_folder;
  const std::string lcores = "0@(" + allowed_processors() + ")";
  const std::string prefix = "weft" + std::to_string(getpid());
  std::vector<std::string> words = {"weft", "--no-huge", "--no-pci", "--no-shconf", "--no-telemetry",
                                    "--log-level=warning", "--lcores", lcores, "-m",
                                    std::to_string(settings.megabytes), "--file-prefix", prefix};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  cpu_set_t before;
  CPU_ZERO(&before);
  const bool have_affinity = sched_getaffinity(0, sizeof before, &before) == 0;
  setenv("RUNTIME_DIRECTORY", folder.c_str(), 1);
  EalLog log;
  const int result = rte_eal_init(static_cast<int>(words.size()), arguments.data());
  const int failure = rte_errno;
  unsetenv("RUNTIME_DIRECTORY");
  if (have_affinity) sched_setaffinity(0, sizeof before, &before);
  if (temporary) {
    rmdir((folder + "/dpdk/" + prefix).c_str());
    rmdir((folder + "/dpdk").c_str());
    rmdir(folder.c_str());
  }
  if (result >= 0) return true;
  error = std::string("DPDK does not start: ") + strerror(failure);
  const std::string detail = log.last_line();
  if (!detail.empty()) error += " (" + detail + ")";
  return false;
}

}  // namespace

EalLog::EalLog() : stream_(open_memstream(&text_, &size_)) {
  if (stream_ != nullptr) rte_openlog_stream(stream_);
}

EalLog::~EalLog() {
  static FILE* const quiet = fopen("/dev/null", "w");
  rte_openlog_stream(quiet);
  if (stream_ != nullptr) fclose(stream_);
  free(text_);
}

std::string EalLog::last_line() {
  if (stream_ == nullptr) return {};
  fflush(stream_);
  std::string all(text_ != nullptr ? text_ : "");
  while (!all.empty() && all.back() == '\n') all.pop_back();
  const size_t cut = all.rfind('\n');
  return cut == std::string::npos ? all : all.substr(cut + 1);
}

bool start_eal(const EalSettings& settings, std::string& error) {
  static bool tried = false;
  static bool works = false;
  if (!tried) {
    tried = true;
    works = initialise(settings, error);
  } else if (!works) {
    error = "DPDK did not start before and cannot be tried twice in one process";
  }
  return works;
}

ThreadRegistration::ThreadRegistration() : registered_(rte_thread_register() == 0) {}

ThreadRegistration::~ThreadRegistration() {
  if (registered_) rte_thread_unregister();
}

}  // namespace weft::dpdk
