// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/descriptors.h"

#include <errno.h>

#include <span>

#include "nic/abi/context.h"
#include "nic/engine/lock.h"
#include "nic/preload/clock.h"
#include "nic/preload/guest.h"
#include "nic/preload/syscalls.h"

namespace weft::preload::descriptors {

namespace {

// 0: the program's. 1..kMaxOpenDevices: an OpenDevice. kPrivateBase + i: libweft's own, privates[i].
using Entry = std::atomic<uint16_t>;
constexpr uint16_t kPrivateBase = 0x8000;

struct PrivateDescriptor {
  std::atomic<int> fd{-1};
  std::atomic<int>* holder = nullptr;  ///< who must learn of a new number
};

// A NIC takes three, a guest two more; several guests when a program outlives daemons.
constexpr uint32_t kMaxPrivate = 512;

constinit std::atomic<Entry*> table{nullptr};
constinit OpenDevice files[kMaxOpenDevices];
constinit PrivateDescriptor privates[kMaxPrivate];
constinit nic::FutexLock table_lock;
constinit std::atomic<long> owner{0};

Entry* entry_of(int fd) {
  Entry* entries = table.load(std::memory_order_acquire);
  if (entries == nullptr || static_cast<unsigned>(fd) >= kMaxDescriptors) return nullptr;
  return entries + fd;
}

bool make_table() {
  if (table.load() != nullptr) return true;
  void* memory =
      raw::mmap(kMaxDescriptors * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (memory == nullptr) return false;
  Entry* expected = nullptr;
  if (!table.compare_exchange_strong(expected, static_cast<Entry*>(memory))) {
    raw::munmap(memory, kMaxDescriptors * sizeof(Entry));
  }
  return true;
}

// Entries of `files` that were ever in use; nearly always one.
constinit std::atomic<uint32_t> files_used{0};

std::span<OpenDevice> used_files() { return {files, files_used.load(std::memory_order_acquire)}; }

OpenDevice* free_file() {
  for (uint32_t i = 0; i < kMaxOpenDevices; ++i) {
    uint32_t expected = 0;
    if (!files[i].references.compare_exchange_strong(expected, 1)) continue;
    uint32_t used = files_used.load();
    while (used < i + 1 && !files_used.compare_exchange_weak(used, i + 1)) {
    }
    return &files[i];
  }
  return nullptr;
}

// The highest number that ever was an open device; what a scan of the table has to look at.
constinit std::atomic<uint32_t> highest_fd{0};

void set_entry(int fd, const OpenDevice& file) {
  const auto number = static_cast<uint32_t>(fd);
  uint32_t highest = highest_fd.load();
  while (highest < number && !highest_fd.compare_exchange_weak(highest, number)) {
  }
  entry_of(fd)->store(static_cast<uint16_t>(&file - files + 1), std::memory_order_release);
}

int make_memfd(int flags) {
  const unsigned cloexec = (flags & O_CLOEXEC) != 0 ? 1u : 0u;  // MFD_CLOEXEC
  const long fd = raw::call(SYS_memfd_create, "weft-uverbs", cloexec);
  if (fd >= 0 && static_cast<unsigned long>(fd) >= kMaxDescriptors) {
    raw::close(static_cast<int>(fd));
    return -EMFILE;
  }
  return static_cast<int>(fd);
}

// Another descriptor of the same open device; the engine maps its rings through it.
int find_live(const OpenDevice& file) {
  for (uint32_t fd = 0; fd <= highest_fd.load(); ++fd) {
    if (command_file(static_cast<int>(fd)) == &file) return static_cast<int>(fd);
  }
  return -1;
}

// Numbers that programs do not reach soon: select() users and dup2() to small numbers stay clear of them.
long private_floor() {
  rlimit limit{};
  raw::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit);
  const uint64_t top = limit.rlim_cur;
  if (top > 4096) return 3840;
  return static_cast<long>(top > 512 ? top - 256 : top / 2);
}

}  // namespace

OpenDevice* command_file(int fd) {
  const Entry* entry = entry_of(fd);
  if (entry == nullptr) return nullptr;
  const uint16_t value = entry->load(std::memory_order_acquire);
  if (__builtin_expect(value == 0 || value >= kPrivateBase, 1)) return nullptr;
  return &files[value - 1];
}

int open_command_file(Guest& guest, uint32_t nic, int flags) {
  if (!make_table()) return -ENOMEM;
  const int fd = make_memfd(flags);
  if (fd < 0) return fd;
  OpenDevice* file = free_file();
  struct stat status;
  if (file == nullptr || raw::fstat(fd, &status) != 0) {
    if (file != nullptr) file->references.store(0);
    raw::close(fd);
    return -EMFILE;
  }
  file->guest = &guest;
  file->nic = nic;
  file->number = fd;
  file->live.store(fd);
  file->device = status.st_dev;
  file->inode = status.st_ino;
  file->file_end.store(0);
  file->context = abi::Context::open(guest.device(nic), fd);
  if (file->context == nullptr) {
    file->references.store(0);
    raw::close(fd);
    return -ENOMEM;
  }
  set_entry(fd, *file);
  return fd;
}

bool verify(int fd, const OpenDevice& file) {
  struct stat status;
  return raw::fstat(fd, &status) == 0 && status.st_dev == file.device && status.st_ino == file.inode;
}

void copied(int from, int to) {
  OpenDevice* file = command_file(from);
  if (file == nullptr || to < 0 || from == to || !owner_here()) return;
  if (static_cast<unsigned>(to) >= kMaxDescriptors || !verify(to, *file)) return;
  file->references.fetch_add(1);
  set_entry(to, *file);
}

void closed(int fd) {
  OpenDevice* file = command_file(fd);
  if (file == nullptr || !owner_here()) return;
  entry_of(fd)->store(0, std::memory_order_release);
  if (file->references.load() > 1) {
    if (file->live.load() == fd) file->live.store(find_live(*file));
    file->references.fetch_sub(1);
    return;
  }
  abi::Context* context = file->context;
  file->context = nullptr;
  if (file->guest != nullptr) {
    file->guest->forget_context(*file);
    context->close(read_clock());
  }
  file->guest = nullptr;
  file->number = -1;
  file->live.store(-1);
  file->references.store(0);
}

void closed_range(unsigned first, unsigned last) {
  if (table.load() == nullptr || !owner_here()) return;
  const unsigned highest = highest_fd.load(std::memory_order_acquire);
  if (last > highest) last = highest;
  for (unsigned fd = first; fd <= last; ++fd) closed(static_cast<int>(fd));
}

bool is_private(int fd) {
  const Entry* entry = entry_of(fd);
  if (entry != nullptr && entry->load(std::memory_order_relaxed) >= kPrivateBase) return true;
  for (const OpenDevice& file : used_files()) {
    if (file.references.load(std::memory_order_relaxed) == 0) continue;
    if (file.guest != nullptr && file.context != nullptr && file.context->owns_private_fd(fd)) return true;
  }
  return false;
}

int keep_private(int fd, std::atomic<int>* holder) {
  if (!make_table()) return -ENOMEM;
  long moved = raw::fcntl(fd, F_DUPFD_CLOEXEC, private_floor());
  if (moved >= 0) {
    raw::close(fd);
  } else {
    raw::fcntl(fd, F_SETFD, FD_CLOEXEC);
    moved = fd;
  }
  Entry* entry = entry_of(static_cast<int>(moved));
  if (entry == nullptr) return -EMFILE;
  for (uint32_t i = 0; i < kMaxPrivate; ++i) {
    int expected = -1;
    if (!privates[i].fd.compare_exchange_strong(expected, static_cast<int>(moved))) continue;
    privates[i].holder = holder;
    if (holder != nullptr) holder->store(static_cast<int>(moved));
    entry->store(static_cast<uint16_t>(kPrivateBase + i), std::memory_order_release);
    return static_cast<int>(moved);
  }
  raw::close(static_cast<int>(moved));
  return -EMFILE;
}

bool move_private(int fd) {
  Entry* entry = entry_of(fd);
  const uint16_t value = entry == nullptr ? 0 : entry->load();
  if (value < kPrivateBase) return false;  // one of a context's: the engine knows its number
  PrivateDescriptor& mine = privates[value - kPrivateBase];
  if (mine.holder == nullptr) return false;
  const long moved = raw::fcntl(fd, F_DUPFD_CLOEXEC, private_floor());
  if (moved < 0 || static_cast<unsigned long>(moved) >= kMaxDescriptors) {
    if (moved >= 0) raw::close(static_cast<int>(moved));
    return false;
  }
  entry_of(static_cast<int>(moved))->store(value);
  mine.fd.store(static_cast<int>(moved));
  mine.holder->store(static_cast<int>(moved));
  entry->store(0);
  return true;
}

void drop_private(int fd) {
  Entry* entry = entry_of(fd);
  const uint16_t value = entry == nullptr ? 0 : entry->load();
  if (value < kPrivateBase) return;
  entry->store(0);
  PrivateDescriptor& mine = privates[value - kPrivateBase];
  if (mine.holder != nullptr) mine.holder->store(-1);
  mine.holder = nullptr;
  mine.fd.store(-1);
  raw::close(fd);
}

int next_private(int from) {
  int best = -1;
  for (const PrivateDescriptor& mine : privates) {
    const int fd = mine.fd.load();
    if (fd >= from && (best < 0 || fd < best)) best = fd;
  }
  // A context's own descriptors are only known by asking; event channels have small numbers, so the scan is short.
  const int limit = best < 0 ? static_cast<int>(private_floor()) + 512 : best;
  bool any_context = false;
  for (const OpenDevice& file : used_files()) any_context = any_context || file.context != nullptr;
  for (int fd = from < 0 ? 0 : from; any_context && fd < limit; ++fd) {
    if (is_private(fd)) return fd;
  }
  return best;
}

bool owner_here() {
  const long pid = owner.load(std::memory_order_relaxed);
  return pid != 0 && pid == raw::getpid();
}

void set_owner() { owner.store(raw::getpid()); }

void after_fork_in_child() {
  for (PrivateDescriptor& mine : privates) {
    const int fd = mine.fd.exchange(-1);
    if (fd < 0) continue;
    entry_of(fd)->store(0);
    raw::close(fd);
  }
  for (OpenDevice& file : used_files()) {
    if (file.references.load() != 0) file.guest = nullptr;
  }
  owner.store(raw::getpid());
}

OpenDevice* file_of_number(int number) {
  OpenDevice* file = command_file(number);
  if (file != nullptr && file->number == number) return file;
  for (OpenDevice& candidate : used_files()) {
    if (candidate.references.load() != 0 && candidate.number == number) return &candidate;
  }
  return nullptr;
}

uint32_t index_of(const OpenDevice& file) { return static_cast<uint32_t>(&file - files); }

OpenDevice* file_at(uint64_t index) { return index < kMaxOpenDevices ? &files[index] : nullptr; }

}  // namespace weft::preload::descriptors
