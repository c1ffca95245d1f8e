// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/settings.h"

#include <unistd.h>

#include <atomic>

#include "nic/preload/syscalls.h"
#include "nic/preload/text.h"

namespace weft::preload {

namespace {

enum State : int { kUnread, kReading, kRead };

constinit std::atomic<int> state{kUnread};
constinit Settings current;
constinit const Settings kInert;

bool copy_value(const char* value, char* out, size_t capacity) {
  const size_t size = length(value);
  if (size == 0 || size >= capacity) return false;
  for (size_t i = 0; i <= size; ++i) out[i] = value[i];
  return true;
}

// A name becomes part of a path; a slash in it would leave the run folder.
bool plain_name(const char* name) {
  if (name[0] == '.') return false;
  for (; *name != '\0'; ++name) {
    if (*name == '/') return false;
  }
  return true;
}

void read_environment() {
  bool have_run = false;
  bool have_host = false;
  bool too_long = false;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* rest = after(*entry, "WEFT_");
    if (rest == nullptr) continue;
    if (const char* run = after(rest, "RUN=")) {
      have_run = copy_value(run, current.run, sizeof current.run) && run[0] == '/';
      too_long = too_long || (!have_run && run[0] != '\0');
    } else if (const char* host = after(rest, "HOST=")) {
      have_host = copy_value(host, current.host, sizeof current.host) && plain_name(host);
      too_long = too_long || (!have_host && host[0] != '\0');
    } else if (const char* name = after(rest, "NAME=")) {
      if (!copy_value(name, current.fabric, sizeof current.fabric)) current.fabric[0] = '\0';
    } else if (const char* id = after(rest, "RUN_ID=")) {
      for (; *id >= '0' && *id <= '9'; ++id) current.run_id = current.run_id * 10 + static_cast<uint64_t>(*id - '0');
    } else if (const char* on = after(rest, "INLINE=")) {
      current.inline_progress = !same(on, "0");
    } else if (const char* wanted = after(rest, "EXPLAIN=")) {
      current.explain = !same(wanted, "0") && wanted[0] != '\0';
    } else if (const char* shared = after(rest, "SHARED_TCP=")) {
      current.shared_tcp = !same(shared, "0") && shared[0] != '\0';
    }
  }
  for (size_t i = 0; current.host[i] != ',' && current.host[i] != '\0'; ++i) current.name[i] = current.host[i];
  current.active = have_run && have_host;
  if (too_long) say("WEFT_RUN or WEFT_HOST is not an absolute path or a host's name; no RDMA devices. Use `weft run`");
}

}  // namespace

const Settings& settings() {
  if (__builtin_expect(state.load(std::memory_order_acquire) == kRead, 1)) return current;
  // Another library's constructor may call us before libc has set up the environment, and two threads may meet here.
  if (environ == nullptr) return kInert;
  int expected = kUnread;
  if (state.compare_exchange_strong(expected, kReading)) {
    read_environment();
    state.store(kRead, std::memory_order_release);
  } else {
    while (state.load(std::memory_order_acquire) != kRead) raw::sched_yield();
  }
  return current;
}

void say(const char* text) {
  Text<512> line;
  line.add("weft: ").add(text);
  if (line.overflowed()) line = Text<512>().add("weft: ").add(text, 480);
  line.add('\n');
  raw::write(STDERR_FILENO, line.c_str(), line.size());
}

}  // namespace weft::preload
