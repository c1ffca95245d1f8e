// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/run_notes.h"

#include <fcntl.h>

#include "nic/preload/settings.h"
#include "nic/preload/syscalls.h"
#include "nic/preload/text.h"

namespace weft::preload {

namespace {

// A build of thousands of programs under one `weft run` must not fill the disk with their names.
constexpr long kMaxNotes = 64 << 10;

void note(const char* what, const char* text) {
  const Settings& s = settings();
  if (!s.active || s.run_id == 0) return;
  Text<kMaxRunFolder + 32> path;
  path.add(s.run).add("/runs/").number(s.run_id);
  const long fd = raw::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;
  struct stat status;
  if (raw::fstat(static_cast<int>(fd), &status) == 0 && S_ISREG(status.st_mode) && status.st_size < kMaxNotes) {
    Text<320> line;
    line.add(what).add(' ').number(static_cast<uint64_t>(raw::getpid())).add(' ').add(text);
    if (line.overflowed()) line.clear();
    line.add('\n');
    raw::write(static_cast<int>(fd), line.c_str(), line.size());
  }
  raw::close(static_cast<int>(fd));
}

__attribute__((constructor)) void note_load() {
  if (!settings().active || settings().run_id == 0) return;
  char name[64];
  const long fd = raw::open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  const long size = fd < 0 ? 0 : raw::read(static_cast<int>(fd), name, sizeof name - 1);
  if (fd >= 0) raw::close(static_cast<int>(fd));
  Text<64> text;
  for (long i = 0; i < size && name[i] != '\n'; ++i) text.add(name[i]);
  note("loaded", text.c_str());
}

}  // namespace

void note_refusal(const char* why) { note("refused", why); }

}  // namespace weft::preload
