// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/inline_progress.h"

#include <errno.h>

#include "nic/abi/context.h"
#include "nic/engine/copy.h"
#include "nic/engine/lock.h"
#include "nic/preload/clock.h"
#include "nic/preload/drained_polls.h"
#include "nic/preload/faults.h"
#include "nic/preload/guest.h"
#include "nic/preload/settings.h"
#include "nic/preload/syscalls.h"

namespace weft::preload::inline_progress {

namespace {

using PollCq = int (*)(void* cq, int count, void* wc);
using PostRecv = int (*)(void* object, void* wr, void** bad_wr);
using StartPoll = int (*)(void* cq, void* attributes);
using NextPoll = int (*)(void* cq);
using EndPoll = void (*)(void* cq);

// One of the library's contexts. An entry keeps its functions after the device was closed, so that a late call of the
// program still lands; the next context takes its place.
struct PatchedContext {
  std::atomic<uintptr_t> context{0};
  std::atomic<nic::Device*> device{nullptr};  ///< nullptr: pass through
  attach::ProcessPort* port = nullptr;
  const OpenDevice* file = nullptr;
  PollCq poll_cq = nullptr;
  PostRecv post_recv = nullptr;
  StartPoll start_poll = nullptr;
  NextPoll next_poll = nullptr;
  EndPoll end_poll = nullptr;
  std::atomic<bool> steps_over{false};  ///< what end_poll does after a next_poll that found nothing, seen once
  std::atomic<uint32_t> empty_polls{0};
};

constexpr uint32_t kMaxContexts = 64;
// The first empty poll may just have missed a completion; from the second on somebody else needs the core (DESIGN D6).
constexpr uint32_t kEmptyPollsBeforeYield = 2;
constexpr uintptr_t kNear = 1u << 20;  // two functions of one provider library lie closer than this

constinit PatchedContext contexts[kMaxContexts];
constinit nic::FutexLock patch_lock;
PatchedContext* find(const void* object) {
  const uintptr_t context = *static_cast<const uintptr_t*>(object);
  for (PatchedContext& entry : contexts) {
    const uintptr_t known = entry.context.load(std::memory_order_acquire);
    if (known == context) return &entry;
    if (known == 0) return nullptr;
  }
  return nullptr;
}

void progress(PatchedContext& entry) {
  nic::Device* device = entry.device.load(std::memory_order_acquire);
  if (device == nullptr) return;
  entry.port->note_poll();
  if (!device->quiet()) device->try_progress(read_clock());
}

void polled(PatchedContext& entry, bool found_something) {
  if (found_something) {
    if (entry.empty_polls.load(std::memory_order_relaxed) != 0) entry.empty_polls.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t empty = entry.empty_polls.load(std::memory_order_relaxed) + 1;
  entry.empty_polls.store(empty, std::memory_order_relaxed);
  if (empty >= kEmptyPollsBeforeYield && entry.device.load(std::memory_order_relaxed) != nullptr) raw::sched_yield();
}

uint32_t status_of(const void* wc) {
  uint32_t status = 0;
  __builtin_memcpy(&status, static_cast<const char*>(wc) + kWcStatus, sizeof status);
  return status;
}

// Closes the gaps that withdrawn completions leave among those found; how many stay.
int without_withdrawn(nic::Device& device, int found, void* wc) {
  auto* entries = static_cast<char*>(wc);
  int kept = 0;
  for (int i = 0; i < found; ++i) {
    const char* from = entries + static_cast<size_t>(i) * kWcBytes;
    if (status_of(from) == nic::kWithdrawn) continue;
    if (kept != i) __builtin_memmove(entries + static_cast<size_t>(kept) * kWcBytes, from, kWcBytes);
    ++kept;
  }
  if (kept != found) device.found_withdrawn(static_cast<uint32_t>(found - kept));
  return kept;
}

int poll_what_counts(PatchedContext& entry, void* cq, int count, void* wc) {
  for (;;) {
    const int found = entry.poll_cq(cq, count, wc);
    nic::Device* device = entry.device.load(std::memory_order_relaxed);
    if (found <= 0 || device == nullptr || device->withdrawn() == 0) return found;
    const int kept = without_withdrawn(*device, found, wc);
    if (kept != 0) return kept;
  }
}

int poll_cq_hook(void* cq, int count, void* wc) {
  PatchedContext* entry = find(cq);
  if (entry == nullptr) return -1;
  progress(*entry);
  const int found = poll_what_counts(*entry, cq, count, wc);
  polled(*entry, found != 0);
  return found;
}

// Without inline progress.
int poll_cq_plain_hook(void* cq, int count, void* wc) {
  PatchedContext* entry = find(cq);
  return entry == nullptr ? -1 : poll_what_counts(*entry, cq, count, wc);
}

bool at_withdrawn(PatchedContext& entry, const void* cq) {
  nic::Device* device = entry.device.load(std::memory_order_relaxed);
  if (device == nullptr || device->withdrawn() == 0) return false;
  uint32_t status = 0;
  __builtin_memcpy(&status, static_cast<const char*>(cq) + kExtendedStatus, sizeof status);
  if (status != nic::kWithdrawn) return false;
  device->found_withdrawn(1);
  return true;
}

int start_poll_hook(void* cq, void* attributes) {
  PatchedContext* entry = find(cq);
  if (entry == nullptr) return ENOENT;
  if (settings().inline_progress) progress(*entry);
  int result = entry->start_poll(cq, attributes);
  while (result == 0 && at_withdrawn(*entry, cq)) {
    entry->end_poll(cq);  // takes it
    result = entry->start_poll(cq, attributes);
  }
  if (settings().inline_progress) polled(*entry, result == 0);
  return result;
}

int next_poll_hook(void* cq) {
  PatchedContext* entry = find(cq);
  if (entry == nullptr) return ENOENT;
  if (settings().inline_progress) progress(*entry);
  int result = entry->next_poll(cq);
  while (result == 0 && at_withdrawn(*entry, cq)) result = entry->next_poll(cq);
  if (result == ENOENT) drained_polls::mark(cq);
  return result;
}

// When next_poll finds nothing, rdma-core before 55 has given up its place and its lock already, and end_poll then
// steps over the completion that comes next: lost without a trace (kernel_abi C.5). There, end_poll has nothing left to
// do. Newer ones must have it called. Which one this is shows the first time, in the engine's lock, where nothing is
// added.
void end_poll_hook(void* cq) {
  PatchedContext* entry = find(cq);
  if (entry == nullptr) return;
  if (!drained_polls::take(cq)) return entry->end_poll(cq);
  if (entry->steps_over.load(std::memory_order_relaxed)) return;
  abi::Context* context = entry->device.load(std::memory_order_acquire) == nullptr ? nullptr : entry->file->context;
  if (context == nullptr) return entry->end_poll(cq);
  if (context->end_drained_poll(reinterpret_cast<uint64_t>(cq), entry->end_poll, cq, read_clock())) {
    entry->steps_over.store(true, std::memory_order_relaxed);
  }
}

// A receive posted to a QP in ERR is flushed, and the program may sleep on its channel for that completion. In other
// states nothing happens until a frame comes.
int post_recv_hook(void* qp, void* wr, void** bad_wr) {
  PatchedContext* entry = find(qp);
  if (entry == nullptr) return ENOSYS;
  const int result = entry->post_recv(qp, wr, bad_wr);
  const int state = *reinterpret_cast<const int*>(static_cast<const char*>(qp) + kQpState);
  if (state != kErrorState) return result;
  // Not the thread: a wake of it is only a look at the deadlines. Errors are rare, and a flush is short.
  nic::Device* device = entry->device.load(std::memory_order_acquire);
  if (device != nullptr) device->try_progress(read_clock());
  return result;
}

template <typename T>
bool read_word(uintptr_t address, T& out) {
  return nic::copy_from_user(&out, reinterpret_cast<const void*>(address), sizeof out);
}

template <typename Function>
Function pointer_at(uintptr_t address) {
  uintptr_t value = 0;
  return read_word(address, value) ? reinterpret_cast<Function>(value) : nullptr;
}

template <typename Function>
void patch(uintptr_t address, Function hook) {
  __atomic_store_n(reinterpret_cast<uintptr_t*>(address), reinterpret_cast<uintptr_t>(hook), __ATOMIC_RELEASE);
}

// The entry of a context: its own, a fresh one, or that of a device that was closed.
PatchedContext* entry_for(uintptr_t context) {
  PatchedContext* closed = nullptr;
  for (PatchedContext& entry : contexts) {
    const uintptr_t known = entry.context.load();
    if (known == context || known == 0) return &entry;
    if (closed == nullptr && entry.device.load() == nullptr) closed = &entry;
  }
  return closed;
}

PatchedContext* patch_context(uintptr_t context) {
  int command_fd = -1;
  if (!read_word(context + kContextCommandFd, command_fd)) return nullptr;
  const OpenDevice* file = descriptors::command_file(command_fd);
  if (file == nullptr || file->guest == nullptr) return nullptr;
  const uintptr_t ops = context + kContextOps;
  const auto poll_cq = pointer_at<PollCq>(ops + kOpsPollCq);
  const auto post_recv = pointer_at<PostRecv>(ops + kOpsPostRecv);
  if (poll_cq == nullptr || post_recv == nullptr) return nullptr;
  PatchedContext* entry = entry_for(context);
  if (entry == nullptr) return nullptr;
  if (post_recv == post_recv_hook) return entry->context.load() == context ? entry : nullptr;
  entry->device.store(nullptr);
  entry->port = &file->guest->port(file->nic);
  entry->file = file;
  entry->poll_cq = poll_cq;
  entry->post_recv = post_recv;
  entry->start_poll = nullptr;
  entry->next_poll = nullptr;
  entry->end_poll = nullptr;
  entry->steps_over.store(false);
  entry->context.store(context, std::memory_order_release);
  entry->device.store(&file->guest->device(file->nic), std::memory_order_release);
  patch(ops + kOpsPollCq, settings().inline_progress ? poll_cq_hook : poll_cq_plain_hook);
  patch(ops + kOpsPostRecv, post_recv_hook);
  return entry;
}

bool near(const void* a, const void* b) {
  const auto x = reinterpret_cast<uintptr_t>(a);
  const auto y = reinterpret_cast<uintptr_t>(b);
  return (x > y ? x - y : y - x) < kNear;
}

// An ibv_cq_ex has its own pair of functions; a plain ibv_cq has nothing, or something else, at their place.
void patch_extended(uintptr_t cq, PatchedContext& entry) {
  const auto start = pointer_at<StartPoll>(cq + kExtendedStartPoll);
  const auto next = pointer_at<NextPoll>(cq + kExtendedNextPoll);
  const auto end = pointer_at<EndPoll>(cq + kExtendedEndPoll);
  if (start == nullptr || next == nullptr || end == nullptr || next == next_poll_hook) return;
  const auto* provider = reinterpret_cast<const void*>(entry.poll_cq);
  if (!near(reinterpret_cast<const void*>(start), provider) || !near(reinterpret_cast<const void*>(next), provider) ||
      !near(reinterpret_cast<const void*>(end), provider)) {
    return;
  }
  if (entry.start_poll != nullptr && (entry.start_poll != start || entry.next_poll != next || entry.end_poll != end)) {
    return;
  }
  entry.end_poll = end;
  entry.next_poll = next;
  entry.start_poll = start;
  patch(cq + kExtendedEndPoll, end_poll_hook);
  patch(cq + kExtendedNextPoll, next_poll_hook);
  patch(cq + kExtendedStartPoll, start_poll_hook);
}

}  // namespace

void completion_queue_seen(uint64_t user_handle) {
  const auto cq = static_cast<uintptr_t>(user_handle);
  uintptr_t context = 0;
  if (cq == 0 || (cq & 7) != 0) return;
  faults::install();
  nic::LockGuard guard(patch_lock);
  if (!read_word(cq, context) || context == 0 || (context & 7) != 0) return;
  PatchedContext* entry = patch_context(context);
  if (entry != nullptr) patch_extended(cq, *entry);
}

bool polled_here(uint64_t user_handle) {
  const auto cq = static_cast<uintptr_t>(user_handle);
  uintptr_t context = 0;
  if (cq == 0 || (cq & 7) != 0 || !read_word(cq, context) || context == 0) return false;
  for (const PatchedContext& entry : contexts) {
    if (entry.context.load(std::memory_order_acquire) == context) return entry.device.load() != nullptr;
  }
  return false;
}

void forget(const OpenDevice& file) {
  for (PatchedContext& entry : contexts) {
    if (entry.file == &file) entry.device.store(nullptr);
  }
}

void forget_all() {
  for (PatchedContext& entry : contexts) entry.device.store(nullptr);
}

}  // namespace weft::preload::inline_progress
