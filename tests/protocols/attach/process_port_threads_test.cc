// SPDX-License-Identifier: Apache-2.0
//
// The sleeping protocol with two real threads and two real pipes: whoever sleeps has been promised a kick, so a poll()
// that times out is a lost wake-up.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "protocols/attach/process_port.h"
#include "tests/protocols/attach/fake_daemon.h"

using namespace weft::attach;

namespace {

constexpr uint32_t kFrames = 20000;
constexpr int kLostMs = 5000;

class Pipe {
 public:
  Pipe() { REQUIRE(pipe2(fd_, O_NONBLOCK | O_CLOEXEC) == 0); }
  ~Pipe() {
    close(fd_[0]);
    close(fd_[1]);
  }
  void kick() const {
    const char byte = 1;
    [[maybe_unused]] const ssize_t n = write(fd_[1], &byte, 1);
  }
  bool wait() const {
    pollfd p{fd_[0], POLLIN, 0};
    if (poll(&p, 1, kLostMs) != 1) return false;
    char sink[256];
    while (read(fd_[0], sink, sizeof(sink)) > 0) {
    }
    return true;
  }

 private:
  int fd_[2] = {-1, -1};
};

struct Wire {
  FakeDaemon daemon{64, 32, 256};
  Pipe to_daemon;
  Pipe to_process;
  std::atomic<uint32_t> lost{0};
};

/// Sends every frame straight back. Takes from any priority; holds what finds no receive slot.
void run_daemon(Wire& w) {
  PortControl* c = w.daemon.control();
  std::vector<uint32_t> free_rx;
  for (uint32_t i = 0; i < 32; ++i) free_rx.push_back(i);
  uint32_t echoed = 0;
  bool holding = false;
  SlotDescriptor d{};
  while (echoed < kFrames && w.lost == 0) {
    bool moved = false;
    for (uint32_t slot; w.daemon.take_released(slot); moved = true) free_rx.push_back(slot);
    for (uint32_t p = 0; p < kPriorities; ++p) {
      while ((holding || (holding = w.daemon.take(p, d))) && !free_rx.empty()) {
        const uint32_t to = free_rx.back();
        free_rx.pop_back();
        std::memcpy(w.daemon.rx_payload(to), w.daemon.tx_payload(d.slot), d.payload_bytes);
        w.daemon.deliver({to, d.header_bytes, 0, d.payload_bytes, 0});
        w.daemon.give_back(d.slot);
        holding = false;
        moved = true;
        ++echoed;
      }
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (moved && c->process_sleeping.load(std::memory_order_relaxed) != 0) w.to_process.kick();
    if (moved || echoed == kFrames) continue;
    w.daemon.status()->daemon_sleeping.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    bool work = c->rx_return.producer != c->rx_return.consumer;
    for (const RingIndices& ring : c->tx) work = work || (!holding && ring.producer != ring.consumer);
    if (!work && !w.to_daemon.wait()) w.lost = 1;
    w.daemon.status()->daemon_sleeping.store(0, std::memory_order_relaxed);
  }
}

}  // namespace

TEST_CASE("nobody sleeps through a frame") {
  Wire w;
  ProcessPort port;
  REQUIRE(port.open(w.daemon.memory(), w.daemon.layout(), w.daemon.status(), w.daemon.notices()));
  std::thread daemon(run_daemon, std::ref(w));
  uint32_t sent[kPriorities] = {};
  uint32_t total_sent = 0;
  uint32_t seen[kPriorities] = {};
  uint32_t received = 0;
  bool in_order = true;
  while (received < kFrames && w.lost == 0) {
    bool moved = false;
    ReceivedFrame f;
    for (int burst = 0; burst < 7 && port.receive(f); ++burst) {
      uint32_t word[2];
      std::memcpy(word, f.payload, sizeof(word));
      in_order = in_order && word[0] < kPriorities && seen[word[0] % kPriorities]++ == word[1];
      port.release(f.slot);
      ++received;
      moved = true;
    }
    bool starved = false;
    for (int burst = 0; burst < 5 && total_sent < kFrames && !starved; ++burst) {
      const uint8_t priority = total_sent % kPriorities;
      const uint32_t slot = port.begin_frame(priority, false);
      starved = slot == kNoSlot;
      if (starved) break;
      const uint32_t word[2] = {priority, sent[priority]++};
      std::memcpy(port.payload(slot), word, sizeof(word));
      port.publish(slot, priority, 60, sizeof(word));
      ++total_sent;
      moved = true;
    }
    port.note_poll();
    if (port.flush()) w.to_daemon.kick();
    if (moved) continue;
    if (port.prepare_sleep(starved)) {
      if (!w.to_process.wait()) w.lost = 2;
      port.awake();
    }
  }
  daemon.join();
  CHECK(w.lost == 0);
  CHECK(in_order);
  CHECK(received == kFrames);
}
