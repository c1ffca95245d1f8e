// SPDX-License-Identifier: Apache-2.0
//
// Threads that post, poll, wait for events, create and destroy, all at once, over two NICs and a fabric that loses
// frames: what a sanitizer build of the engine is for. A preloaded library cannot be built with one, so the engine, the
// ABI and the protocols are linked into this program.
//
//   storm [JOBS] [CHURNS]    ends with 0 when all data was right; sanitizers report in their own way
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/nic/storm/storm_side.h"

using namespace weft::test;

namespace {

constexpr unsigned kPatience = 100;  // seconds, then SIGALRM ends it

/// A QP pair of its own: connected, busy, put into ERR or destroyed while it works, in clients that come and go.
void churn_once(StormFabric& fabric, uint32_t turn) {
  constexpr uint32_t kWrites = 24;
  std::vector<uint8_t> memory(8192, static_cast<uint8_t>(turn));
  Client a(fabric.rig, turn % 2), b(fabric.rig, 1 - turn % 2);
  const Cq a_cq = a.create_cq(64), b_cq = b.create_cq(64);
  const Qp a_qp = a.create_qp(a_cq, a_cq), b_qp = b.create_qp(b_cq, b_cq);
  const Mr a_mr = a.reg_mr(memory.data(), 4096), b_mr = b.reg_mr(memory.data() + 4096, 4096);
  connect(a, a_qp, b, b_qp);
  Post p;
  p.opcode = kWrite;
  p.sges = {sge(memory.data(), 3000, a_mr.lkey)};
  p.remote_addr = reinterpret_cast<uint64_t>(memory.data() + 4096);
  p.rkey = b_mr.rkey;
  for (uint32_t i = 0; i < kWrites; ++i) {
    p.wr_id = i;
    a.post(a_qp, p);
  }
  if (turn % 3 == 0) return;  // the context closes with everything in flight
  if (turn % 3 == 1) {
    if (a.destroy_qp(a_qp) < 0) storm_failed("destroy_qp");
    ib_uverbs_wc wc;
    while (a.poll(a_cq, wc)) {  // what had been completed by then
    }
    for (int i = 0; i < 100; ++i) {
      fabric.progress(a.node);
      std::this_thread::yield();
      if (a.poll(a_cq, wc)) storm_failed("a completion after its QP was destroyed");
    }
    return;
  }
  if (a.to_state(a_qp, 6) < 0) storm_failed("to ERR");
  uint32_t next = 0;
  bool flushed = false;
  while (next < kWrites) {
    ib_uverbs_wc wc;
    fabric.progress(a.node);
    if (!a.poll(a_cq, wc)) {
      std::this_thread::yield();
      continue;
    }
    if (wc.wr_id != next++)
      storm_failed("completion %u came as %llu", next - 1, static_cast<unsigned long long>(wc.wr_id));
    if (wc.status != 0 && wc.status != kFlushErr) storm_failed("status %u in ERR", wc.status);
    if (flushed && wc.status == 0) storm_failed("a success after a flush");
    flushed = wc.status != 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t jobs = argc > 1 ? std::strtoull(argv[1], nullptr, 0) : 10000;
  const uint32_t churns = argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 0)) : 150;
  alarm(kPatience);
  StormFabric fabric(200);
  StormSide a(fabric, 0, jobs), b(fabric, 1, jobs);
  StormSide::connect(a, b);

  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (StormSide* side : {&a, &b}) {
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([side, &stop] {
        while (!stop) {
          if (!side->work()) std::this_thread::yield();
        }
      });
    }
    threads.emplace_back([side, &stop] { side->wait_events(stop); });
  }
  for (uint32_t turn = 0; turn < churns; ++turn) churn_once(fabric, turn);
  const auto settled = [&] {
    return a.finished() && b.finished() && a.received() == b.reliable_sends() && b.received() == a.reliable_sends();
  };
  while (!settled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  fabric.stop();
  a.check(b);
  b.check(a);
  std::printf("%llu jobs each, %u QP pairs came and went, %llu + %llu events, %llu frames, %llu lost\n",
              static_cast<unsigned long long>(jobs), churns, static_cast<unsigned long long>(a.events()),
              static_cast<unsigned long long>(b.events()), static_cast<unsigned long long>(fabric.rig.frames),
              static_cast<unsigned long long>(fabric.rig.dropped));
  return 0;
}
