// SPDX-License-Identifier: Apache-2.0
//
// The kick policy alone: a port as a process maps it, a pipe, and a clock that the test turns.
#include "scenarios/engine/kicks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "protocols/attach/process_port.h"
#include "switch/dpdk/eal.h"
#include "switch/dpdk/frame_store.h"

using namespace weft;
using weft::engine::Kicks;
using weft::engine::LiveSeat;

namespace {

/// The process's half is the port's control words; frames are published by giving the daemon's half something to publish.
class Rig {
 public:
  Rig() {
    PortSetup setup;
    setup.layout = attach::port_layout(256, 256, 4096);
    memory_ = static_cast<uint8_t*>(mmap(nullptr, setup.layout.total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    notices_ = static_cast<attach::NoticeRing*>(
        mmap(nullptr, sizeof(attach::NoticeRing), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    setup.memory = memory_;
    setup.notices = notices_;
    int to_daemon[2];
    int to_process[2];
    REQUIRE(pipe2(to_daemon, O_NONBLOCK | O_CLOEXEC) == 0);
    REQUIRE(pipe2(to_process, O_NONBLOCK | O_CLOEXEC) == 0);
    setup.kick_read = to_daemon[0];
    client_write_ = to_daemon[1];
    setup.kick_write = to_process[1];
    client_read_ = to_process[0];
    std::string error;
    REQUIRE(dpdk::start_eal({}, error));
    dpdk::PacketMemorySettings memory;
    memory.small_mbufs = memory.large_mbufs = 511;
    REQUIRE(store_.open(1024, memory, error));
    store_.unpublished().reserve(4);
    seat = std::make_unique<LiveSeat>(store_, setup, 0, 0);
    REQUIRE(process.open(memory_, setup.layout, nullptr, notices_));
    control = reinterpret_cast<attach::PortControl*>(memory_);
  }
  ~Rig() {
    seat.reset();
    close(client_write_);
    close(client_read_);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  void sleep_thread(bool sleeps = true) { control->process_sleeping.store(sleeps ? 1 : 0); }
  void poll_once() { control->poll_seq.fetch_add(1); }
  /// Untaken frames, as the process's index tells: it is behind what the daemon published (nothing) by so many.
  void leave_untaken(uint32_t frames) { control->rx.consumer.store(0u - frames); }
  void take_all() { leave_untaken(0); }
  void publish() { kicks.published(now, *seat, true); }
  void pass(Duration time) {
    now += time;
    kicks.recheck(now);
  }
  /// Bytes in the process's pipe since the last look.
  int kicks_received() const {
    uint8_t bytes[64];
    const ssize_t got = read(client_read_, bytes, sizeof bytes);
    return got < 0 ? 0 : static_cast<int>(got);
  }

  /// The process publishes all its slots; the daemon takes them.
  std::vector<PacketRef> use_all_slots() {
    std::vector<PacketRef> packets;
    for (;;) {
      const uint32_t slot = process.begin_frame(0, true);
      if (slot == attach::kNoSlot) break;
      process.publish(slot, 0, 64, 1024);
      process.flush();
    }
    for (;;) {
      const uint32_t count = seat->port.take(0, taken_);
      for (uint32_t i = 0; i < count; ++i) packets.push_back(taken_[i].packet);
      if (count == 0) return packets;
    }
  }
  /// They come back, and that is published.
  void give_back(const std::vector<PacketRef>& packets) {
    for (const PacketRef packet : packets) store_.release(packet);
    store_.unpublished().clear();
    seat->port.publish();
  }

  std::unique_ptr<LiveSeat> seat;
  attach::ProcessPort process;
  attach::PortControl* control = nullptr;
  Kicks kicks;
  Instant now{seconds(100)};

 private:
  dpdk::FrameStore store_;
  attach::TakenFrame taken_[32];
  uint8_t* memory_ = nullptr;
  attach::NoticeRing* notices_ = nullptr;
  int client_read_ = -1;
  int client_write_ = -1;
};

}  // namespace

TEST_CASE("A process whose thread is awake is not kicked") {
  Rig rig;
  rig.leave_untaken(3);
  rig.publish();
  rig.pass(milliseconds(1));
  CHECK(rig.kicks_received() == 0);
  CHECK(rig.kicks.next_recheck() == kNever);
}

TEST_CASE("Nobody polled since the last delivery: kicked at once, and once") {
  Rig rig;
  rig.sleep_thread();
  rig.leave_untaken(3);
  rig.publish();
  CHECK(rig.kicks_received() == 1);
  rig.publish();  // a kick that nobody acted on is still under way
  rig.publish();
  CHECK(rig.kicks_received() == 0);
  CHECK(rig.kicks.sent() == 1);
  // It took some, and went to sleep again with others there.
  rig.leave_untaken(1);
  rig.publish();
  CHECK(rig.kicks_received() == 1);
}

TEST_CASE("A thread that woke by itself is kicked anew when it sleeps again") {
  Rig rig;
  rig.sleep_thread();
  rig.leave_untaken(2);
  rig.publish();
  CHECK(rig.kicks_received() == 1);
  rig.sleep_thread(false);
  rig.publish();
  rig.sleep_thread();
  rig.publish();
  CHECK(rig.kicks_received() == 1);
}

TEST_CASE("Frames that were taken already need no kick") {
  Rig rig;
  rig.sleep_thread();
  rig.take_all();
  rig.publish();
  rig.pass(milliseconds(1));
  CHECK(rig.kicks_received() == 0);
}

TEST_CASE("Who polls is given its time, and kicked when it stopped polling without a word") {
  Rig rig;
  rig.sleep_thread();
  rig.poll_once();
  rig.leave_untaken(2);
  rig.publish();
  CHECK(rig.kicks_received() == 0);
  CHECK(rig.kicks.next_recheck() == rig.now + Kicks::kTakeTime);
  rig.pass(Kicks::kTakeTime - nanoseconds(1));
  CHECK(rig.kicks_received() == 0);
  rig.pass(nanoseconds(1));
  CHECK(rig.kicks_received() == 1);
  CHECK(rig.kicks.next_recheck() == kNever);
}

TEST_CASE("Who takes its frames, however slowly, is watched on and not kicked") {
  Rig rig;
  rig.sleep_thread();
  rig.poll_once();
  for (uint32_t left = 5; left > 0; --left) {
    rig.leave_untaken(left);
    if (left == 5) rig.publish();
    rig.pass(Kicks::kTakeTime);
    // The first look finds what was there when the watch began.
    if (left == 5) CHECK(rig.kicks_received() == 1);
    if (left == 5) rig.poll_once(), rig.publish();
  }
  rig.take_all();
  rig.pass(Kicks::kTakeTime);
  CHECK(rig.kicks_received() == 0);
  CHECK(rig.kicks.next_recheck() == kNever);
}

TEST_CASE("A process without slots is kicked when some came back, though no frame was for it") {
  Rig rig;
  const std::vector<PacketRef> packets = rig.use_all_slots();
  REQUIRE(packets.size() > 128);
  rig.sleep_thread();
  rig.give_back(packets);
  rig.kicks.published(rig.now, *rig.seat, false);
  CHECK(rig.kicks_received() == 1);
}

TEST_CASE("A process that has slots is not woken for more") {
  Rig rig;
  const uint32_t slot = rig.process.begin_frame(0, false);
  REQUIRE(slot != attach::kNoSlot);
  rig.process.publish(slot, 0, 64, 1024);
  rig.process.flush();
  attach::TakenFrame taken[32];
  REQUIRE(rig.seat->port.take(0, taken) == 1);
  rig.sleep_thread();
  rig.give_back({taken[0].packet});
  rig.kicks.published(rig.now, *rig.seat, false);
  rig.pass(milliseconds(1));
  CHECK(rig.kicks_received() == 0);
}

TEST_CASE("A seat that is forgotten is not looked at again, and a pipe that nobody reads stops nobody") {
  Rig rig;
  rig.sleep_thread();
  rig.poll_once();
  rig.leave_untaken(2);
  rig.publish();
  rig.kicks.forget(*rig.seat);
  rig.pass(milliseconds(1));
  CHECK(rig.kicks_received() == 0);
  for (uint32_t i = 0; i < 200'000; ++i) {
    rig.leave_untaken(1 + i % 7);
    rig.publish();
  }
  CHECK(rig.kicks.sent() > 65'536);
}
