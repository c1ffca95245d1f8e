// SPDX-License-Identifier: Apache-2.0
//
// The copy routine (nic/engine/copy.h): right bytes for every size and alignment, faults at both ends, the order of the
// last word, atomics, and its speed beside memcpy's.
#include "nic/engine/copy.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

using namespace weft::nic;

#if defined(__x86_64__)
void on_fault(int number, siginfo_t*, void* context) {
  auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
  const uintptr_t fixup = copy_fixup(static_cast<uintptr_t>(machine->gregs[REG_RIP]));
  if (fixup == 0) {
    signal(number, SIG_DFL);
    return;
  }
  machine->gregs[REG_RIP] = static_cast<greg_t>(fixup);
}

struct Handler {
  Handler() {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
  }
  ~Handler() {
    sigaction(SIGSEGV, &old_segv, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
  }
  struct sigaction old_segv {};
  struct sigaction old_bus {};
};
#else
struct Handler {};
#endif

// Pages in the middle of two that are not there.
struct Island {
  static constexpr size_t kPage = 4096;
  explicit Island(size_t page_count) : bytes(page_count * kPage) {
    base = static_cast<uint8_t*>(mmap(nullptr, bytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(base != MAP_FAILED);
    start = base + kPage;
    REQUIRE(mprotect(start, bytes, PROT_READ | PROT_WRITE) == 0);
  }
  ~Island() { munmap(base, bytes + 2 * kPage); }
  uint8_t* end() const { return start + bytes; }
  size_t bytes;
  uint8_t* base;
  uint8_t* start;
};

uint8_t pattern(size_t i) { return static_cast<uint8_t>(i * 7 + 3); }

double now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

struct BySystemCalls {
  explicit BySystemCalls(bool on) { copy_use_system_calls(on); }
  ~BySystemCalls() { copy_use_system_calls(false); }
};

void copies_every_size_and_alignment() {
  std::vector<uint8_t> source(512);
  for (size_t i = 0; i < source.size(); ++i) source[i] = pattern(i);
  alignas(64) uint8_t target[512];
  for (size_t bytes = 0; bytes <= 200; ++bytes) {
    for (size_t from = 0; from < 17; ++from) {
      for (size_t to = 0; to < 17; ++to) {
        const auto check = [&] {
          bool same = memcmp(target + 64 + to, source.data() + from, bytes) == 0;
          for (size_t i = 0; i < 64 + to; ++i) same = same && target[i] == 0xee;
          for (size_t i = 64 + to + bytes; i < sizeof target; ++i) same = same && target[i] == 0xee;
          return same;
        };
        memset(target, 0xee, sizeof target);
        if (!copy_from_user(target + 64 + to, source.data() + from, bytes) || !check()) {
          FAIL("copy_from_user of " << bytes << " from +" << from << " to +" << to);
        }
        memset(target, 0xee, sizeof target);
        if (!copy_to_user(target + 64 + to, source.data() + from, bytes) || !check()) {
          FAIL("copy_to_user of " << bytes << " from +" << from << " to +" << to);
        }
      }
    }
  }
}

void faults_are_reported() {
  Island island(2);
  std::vector<uint8_t> slot(8192 + 64, 0x11);
  for (size_t i = 0; i < island.bytes; ++i) island.start[i] = pattern(i);
  for (const size_t bytes : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 1000, 4096}) {
    INFO("bytes " << bytes);
    // Wholly inside, touching both ends.
    CHECK(copy_from_user(slot.data(), island.start, bytes));
    CHECK(copy_from_user(slot.data(), island.end() - bytes, bytes));
    CHECK(copy_to_user(island.end() - bytes, slot.data(), bytes));
    // One byte beyond either end.
    CHECK_FALSE(copy_from_user(slot.data(), island.start - 1, bytes));
    CHECK_FALSE(copy_from_user(slot.data(), island.end() - bytes + 1, bytes));
    CHECK_FALSE(copy_to_user(island.start - 1, slot.data(), bytes));
    CHECK_FALSE(copy_to_user(island.end() - bytes + 1, slot.data(), bytes));
    // Nowhere at all.
    CHECK_FALSE(copy_from_user(slot.data(), nullptr, bytes));
    CHECK_FALSE(copy_to_user(reinterpret_cast<void*>(0x10), slot.data(), bytes));
    // Not canonical: a general protection fault, which Linux reports as SIGSEGV without an address.
    CHECK_FALSE(copy_from_user(slot.data(), reinterpret_cast<void*>(uint64_t{0xdead} << 48), bytes));
  }
  uint64_t original = 0;
  CHECK_FALSE(compare_swap_user(island.end(), 0, 1, original));
  CHECK_FALSE(fetch_add_user(island.start - 8, 1, original));
}

void what_was_copied_stays() {
  Island island(1);
  std::vector<uint8_t> slot(4096, 0xab);
  memset(island.start, 0, island.bytes);
  CHECK_FALSE(copy_to_user(island.end() - 1000, slot.data(), 2000));
  // The kernel copies page by page or not at all; our own routine goes as far as it can.
  CHECK(island.end()[-1000] == 0xab);
}

}  // namespace

TEST_CASE("copies move the right bytes at every size and alignment") {
  Handler handler;
  copies_every_size_and_alignment();
}

TEST_CASE("copies by system calls move the right bytes at every size and alignment") {
  BySystemCalls slow(true);
  copies_every_size_and_alignment();
}

TEST_CASE("a fault at either end is a false, not a signal") {
  Handler handler;
  faults_are_reported();
  what_was_copied_stays();
}

TEST_CASE("a fault at either end is a false with system calls, too") {
  BySystemCalls slow(true);
  faults_are_reported();
}

TEST_CASE("a file mapping cut short is a false") {
  Handler handler;
  const int fd = static_cast<int>(memfd_create("cut", 0));
  REQUIRE(fd >= 0);
  REQUIRE(ftruncate(fd, 8192) == 0);
  auto* map = static_cast<uint8_t*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  REQUIRE(ftruncate(fd, 4096) == 0);
  std::vector<uint8_t> slot(4096, 1);
  CHECK(copy_to_user(map, slot.data(), 4096));
  CHECK_FALSE(copy_to_user(map + 4000, slot.data(), 200));
  CHECK_FALSE(copy_from_user(slot.data(), map + 4096, 8));
  munmap(map, 8192);
  close(fd);
}

TEST_CASE("read-only memory can be read and not written") {
  Handler handler;
  Island island(1);
  memset(island.start, 9, island.bytes);
  REQUIRE(mprotect(island.start, island.bytes, PROT_READ) == 0);
  std::vector<uint8_t> slot(64, 0);
  CHECK(copy_from_user(slot.data(), island.start, 64));
  CHECK(slot[63] == 9);
  CHECK_FALSE(copy_to_user(island.start, slot.data(), 64));
  uint64_t original = 0;
  CHECK_FALSE(fetch_add_user(island.start, 1, original));
}

TEST_CASE("atomics") {
  Handler handler;
  for (const bool slow : {false, true}) {
    BySystemCalls guard(slow);
    alignas(8) uint64_t word = 5;
    uint64_t original = 0;
    CHECK(compare_swap_user(&word, 5, 6, original));
    CHECK((word == 6 && original == 5));
    CHECK(compare_swap_user(&word, 5, 7, original));
    CHECK((word == 6 && original == 6));
    CHECK(fetch_add_user(&word, UINT64_MAX, original));
    CHECK((word == 5 && original == 6));
    // IBTA Vol 1, 9.4.5: atomics are on naturally aligned 8-byte words.
    alignas(8) uint8_t bytes[16] = {};
    CHECK_FALSE(fetch_add_user(bytes + 4, 1, original));
  }
}

TEST_CASE("two threads add without losing one") {
  Handler handler;
  alignas(8) uint64_t word = 0;
  const auto add = [&word] {
    uint64_t original;
    for (int i = 0; i < 20000; ++i) {
      if (!fetch_add_user(&word, 1, original)) return;
    }
  };
  std::thread other(add);
  add();
  other.join();
  CHECK(word == 40000);
}

TEST_CASE("the last byte becomes visible after all others") {
  Handler handler;
  alignas(64) static uint8_t target[4096 + 64];
  alignas(64) static uint8_t source[4096];
  constexpr int kMessages = 3000;
  for (const size_t bytes : {size_t{9}, size_t{64}, size_t{100}, size_t{1024}, size_t{4093}, size_t{4096}}) {
    memset(target, 0, sizeof target);
    std::atomic<int> seen{0};
    std::atomic<int> torn{0};
    std::thread reader([&] {
      volatile uint8_t* last = target + bytes - 1;
      for (int message = 1; message <= kMessages; ++message) {
        const auto value = static_cast<uint8_t>(message);
        for (int spins = 0; *last != value; ++spins) {
          if (spins % 4096 == 4095) std::this_thread::yield();  // fewer cores than threads
        }
        std::atomic_thread_fence(std::memory_order_acquire);
        for (size_t i = 0; i < bytes; ++i) {
          if (static_cast<volatile uint8_t*>(target)[i] == value) continue;
          torn.fetch_add(1);
          break;
        }
        seen.store(message, std::memory_order_release);
      }
    });
    for (int message = 1; message <= kMessages; ++message) {
      memset(source, static_cast<uint8_t>(message), bytes);
      REQUIRE(copy_to_user(target, source, bytes));
      while (seen.load(std::memory_order_acquire) != message) std::this_thread::yield();
    }
    reader.join();
    INFO("bytes " << bytes);
    CHECK(torn.load() == 0);
  }
}

TEST_CASE("aligned words are written in one store") {
  Handler handler;
  alignas(8) static uint64_t word = 0;
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::thread reader([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t value = *static_cast<volatile uint64_t*>(&word);
      if (value != 0 && value != UINT64_MAX) torn.fetch_add(1);
    }
  });
  for (int i = 0; i < 200000; ++i) {
    const uint64_t value = (i & 1) != 0 ? UINT64_MAX : 0;
    if (!copy_to_user(&word, &value, sizeof value)) torn.fetch_add(1000);
  }
  stop.store(true);
  reader.join();
  CHECK(torn.load() == 0);
}

TEST_CASE("speed beside memcpy", "[speed]") {
  Handler handler;
  constexpr size_t kStride = 4352;
  constexpr size_t kSlots = 64;
  std::vector<uint8_t> slots(kStride * kSlots, 1);
  std::vector<uint8_t> user(1 << 20, 2);
  for (const size_t bytes : {size_t{8}, size_t{64}, size_t{1024}, size_t{4096}}) {
    double best[3] = {1e9, 1e9, 1e9};
    constexpr int kRounds = 20000;
    for (int repeat = 0; repeat < 9; ++repeat) {
      for (int kind = 0; kind < 3; ++kind) {
        const double start = now_ns();
        bool fine = true;
        for (int i = 0; i < kRounds; ++i) {
          uint8_t* slot = slots.data() + static_cast<size_t>(i) % kSlots * kStride;
          uint8_t* place = user.data() + static_cast<size_t>(i) * bytes % (user.size() - 4096);
          if (kind == 0) memcpy(slot, place, bytes);
          if (kind == 1) fine = copy_from_user(slot, place, bytes) && fine;
          if (kind == 2) fine = copy_to_user(place, slot, bytes) && fine;
          __asm__ volatile("" : : "r"(slot) : "memory");
        }
        REQUIRE(fine);
        best[kind] = std::min(best[kind], (now_ns() - start) / kRounds);
      }
    }
    printf("%5zu B: memcpy %.1f ns, copy_from_user %.1f ns, copy_to_user %.1f ns\n", bytes, best[0], best[1], best[2]);
    // A routine that fell back to system calls is an order of magnitude off; neighbours on the machine are not.
    CHECK(best[1] < 5 * best[0] + 50);
    CHECK(best[2] < 5 * best[0] + 50);
  }
}
