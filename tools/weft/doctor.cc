// SPDX-License-Identifier: Apache-2.0
//
// `weft doctor`: what a fabric and its programs need of this machine, checked one by one.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tools/weft/commands.h"
#include "tools/weft/launch.h"

namespace weft::tools {
namespace {

struct Finding {
  const char* what;
  bool good = false;
  std::string detail;
};

Finding check_library() {
  Outcome<std::string> library = find_preload_library();
  return {"libweft.so", static_cast<bool>(library), library ? *library : library.error()};
}

Finding check_run_folder(const std::string& name) {
  Outcome<RunFolder> folder = find_run_folder(name);
  if (!folder) return {"run folder", false, folder.error()};
  return {"run folder", true, folder->path};
}

Finding check_provider() {
  const bool installed = is_rxe_provider_installed();
  return {"rxe provider of rdma-core", installed, installed ? "installed" : "apt-get install ibverbs-providers"};
}

Finding check_program(const char* program, const char* package) {
  const std::string path = find_program(program);
  return {program, !path.empty(), path.empty() ? std::string("apt-get install ") + package : path};
}

Finding check_memfd() {
  const int fd = memfd_create("weft-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const Finding finding{"memfd_create", fd >= 0, fd >= 0 ? "works" : std::strerror(errno)};
  if (fd >= 0) close(fd);
  return finding;
}

Finding check_pidfd() {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  const Finding finding{"pidfd_open", fd >= 0, fd >= 0 ? "works" : "missing: deaths are seen by the end of a socket only"};
  if (fd >= 0) close(fd);
  return finding;
}

Finding check_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  constexpr rlim_t kComfortable = 4096;
  const bool good = limit.rlim_max >= kComfortable;
  std::string detail = "hard limit " + std::to_string(limit.rlim_max);
  if (!good) detail += ": enough for about " + std::to_string(limit.rlim_max / 6) + " processes; raise it with ulimit -Hn";
  return {"file descriptors", good, detail};
}

Finding check_cores() {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return {"cores", cores >= 2, std::to_string(cores) + (cores >= 2 ? "" : ": works, but slowly; polling programs take turns")};
}

}  // namespace

int command_doctor(const ParsedLine& line) {
  const Finding findings[] = {check_library(),     check_run_folder(line.name), check_memfd(),
                              check_pidfd(),       check_descriptors(),         check_cores(),
                              check_provider(),    check_program("ib_write_bw", "perftest"),
                              check_program("ibv_rc_pingpong", "ibverbs-utils")};
  int missing = 0;
  for (const Finding& finding : findings) {
    std::printf("%-4s %-26s %s\n", finding.good ? "ok" : "--", finding.what, finding.detail.c_str());
    missing += finding.good ? 0 : 1;
  }
  return missing == 0 ? 0 : 1;
}

}  // namespace weft::tools
