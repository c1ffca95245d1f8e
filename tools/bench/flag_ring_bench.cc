// SPDX-License-Identifier: Apache-2.0
//
// flag_ring_bench PROCESSES TURNS [SPINS]: how long a flag takes once round several processes that hand it on.
//
// The floor under every latency of the fabric on this machine: program, daemon and program do at least this, whatever
// their protocol. Each process spins SPINS times (default 32), then yields. Prints one line of JSON with percentiles of
// one turn in microseconds.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tools/bench/stages.h"

namespace weft::bench {
namespace {

constexpr int kMostProcesses = 16;

struct Ring {
  struct alignas(128) Flag {
    std::atomic<uint32_t> turn;
  };
  Flag flag[kMostProcesses];  ///< flag[k] is what process k waits for
};

void await(const std::atomic<uint32_t>& flag, uint32_t turn, int spins) {
  Waiter waiter(spins);
  while (flag.load(std::memory_order_acquire) < turn) waiter.idle();
}

double percentile(const std::vector<double>& sorted, double share) {
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(share * static_cast<double>(sorted.size())))];
}

int run(int processes, uint32_t turns, int spins) {
  Ring* ring = share<Ring>();
  std::vector<pid_t> stages;
  for (int k = 1; k < processes; k++)
    stages.push_back(start_stage([=] {
      for (uint32_t turn = 1; turn <= turns; turn++) {
        await(ring->flag[k].turn, turn, spins);
        ring->flag[(k + 1) % processes].turn.store(turn, std::memory_order_release);
      }
    }));
  std::vector<double> microseconds;
  microseconds.reserve(turns);
  for (uint32_t turn = 1; turn <= turns; turn++) {
    double begin = seconds_now();
    ring->flag[1].turn.store(turn, std::memory_order_release);
    await(ring->flag[0].turn, turn, spins);
    microseconds.push_back((seconds_now() - begin) * 1e6);
  }
  for (pid_t stage : stages) waitpid(stage, nullptr, 0);
  std::sort(microseconds.begin(), microseconds.end());
  printf("{\"processes\": %d, \"turns\": %u, \"p50_us\": %.3f, \"p90_us\": %.3f, \"p99_us\": %.3f, \"max_us\": %.1f}\n",
         processes, turns, percentile(microseconds, 0.5), percentile(microseconds, 0.9),
         percentile(microseconds, 0.99), microseconds.back());
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  int processes = argc > 1 ? atoi(argv[1]) : 0;
  long turns = argc > 2 ? atol(argv[2]) : 0;
  int spins = argc > 3 ? atoi(argv[3]) : 32;
  if (processes < 2 || processes > weft::bench::kMostProcesses || turns < 1 || turns > 100'000'000 || spins < 1) {
    fprintf(stderr, "usage: flag_ring_bench PROCESSES(2-%d) TURNS [SPINS]\n", weft::bench::kMostProcesses);
    return 2;
  }
  return weft::bench::run(processes, static_cast<uint32_t>(turns), spins);
}
