// SPDX-License-Identifier: Apache-2.0
//
// DPDK as a guest in an ordinary process: no hugepages, no PCI, no root, no telemetry, nothing pinned.
//
//   start_eal(settings, error)   once per process; later calls only check. False and one line when it fails.
//   ThreadRegistration           makes the calling thread known to DPDK while it lives: mempool caches need that
//
// Call start_eal before other threads exist that read the environment: it sets RUNTIME_DIRECTORY while it runs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace weft::dpdk {

struct EalSettings {
  std::string runtime_folder;  ///< for DPDK's own files; empty: a private temporary folder
  uint32_t megabytes = 64;     ///< all memory DPDK may use, filled lazily
};

bool start_eal(const EalSettings& settings, std::string& error);

/// EAL logs to stderr and syslog; a guest keeps what it says for the error line only. One at a time; afterwards it is
/// quiet.
class EalLog {
 public:
  EalLog();
  ~EalLog();
  EalLog(const EalLog&) = delete;
  EalLog& operator=(const EalLog&) = delete;
  std::string last_line();

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  FILE* stream_;
};

class ThreadRegistration {
 public:
  ThreadRegistration();
  ~ThreadRegistration();
  ThreadRegistration(const ThreadRegistration&) = delete;
  ThreadRegistration& operator=(const ThreadRegistration&) = delete;
  bool registered() const { return registered_; }

 private:
  bool registered_;
};

}  // namespace weft::dpdk
