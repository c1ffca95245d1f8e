// SPDX-License-Identifier: Apache-2.0
//
// Which QP's timer is due next. One entry per QP at most; an earlier deadline moves the entry at once, a later one is
// noticed when the entry comes up (engine_rules 10), so an acknowledge costs nothing here.
//
//   schedule(id, at)   makes sure that `id` comes up at `at` or before
//   due(now)           the id whose entry is due, or kNone; the entry is gone, schedule() it again
//   remove(id)
//   next()             the earliest entry's time, kNever
//
// A binary heap with positions. Memory is for `capacity` ids, mapped on open. Not thread-safe.
#pragma once

#include <cstdint>

#include "nic/engine/arena.h"
#include "protocols/base/time.h"

namespace weft::nic {

class DeadlineHeap {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  bool open(uint32_t capacity) {
    entries_ = static_cast<Entry*>(map_memory(round_up(capacity * sizeof(Entry), 4096)));
    position_ = static_cast<uint32_t*>(map_memory(round_up(capacity * sizeof(uint32_t), 4096)));
    return entries_ != nullptr && position_ != nullptr;
  }

  Instant next() const { return count_ == 0 ? kNever : entries_[0].at; }

  void schedule(uint32_t id, Instant at) {
    if (at == kNever) return;
    uint32_t slot = position_[id];  // 1-based, 0 = absent: fresh memory means "no entry"
    if (slot == 0) {
      slot = ++count_;
    } else if (entries_[slot - 1].at <= at) {
      return;
    }
    sift_up(slot - 1, Entry{at, id});
  }

  uint32_t due(Instant now) {
    if (count_ == 0 || entries_[0].at > now) return kNone;
    const uint32_t id = entries_[0].id;
    remove(id);
    return id;
  }

  void remove(uint32_t id) {
    const uint32_t slot = position_[id];
    if (slot == 0) return;
    position_[id] = 0;
    const Entry last = entries_[--count_];
    if (last.id == id) return;
    const uint32_t hole = slot - 1;
    if (hole > 0 && last.at < entries_[(hole - 1) / 2].at) {
      sift_up(hole, last);
    } else {
      sift_down(hole, last);
    }
  }

 private:
  struct Entry {
    Instant at;
    uint32_t id;
  };

  void put(uint32_t slot, const Entry& entry) {
    entries_[slot] = entry;
    position_[entry.id] = slot + 1;
  }
  void sift_up(uint32_t slot, const Entry& entry) {
    while (slot > 0 && entry.at < entries_[(slot - 1) / 2].at) {
      put(slot, entries_[(slot - 1) / 2]);
      slot = (slot - 1) / 2;
    }
    put(slot, entry);
  }
  void sift_down(uint32_t slot, const Entry& entry) {
    for (;;) {
      uint32_t child = 2 * slot + 1;
      if (child >= count_) break;
      if (child + 1 < count_ && entries_[child + 1].at < entries_[child].at) ++child;
      if (entry.at <= entries_[child].at) break;
      put(slot, entries_[child]);
      slot = child;
    }
    put(slot, entry);
  }

  Entry* entries_ = nullptr;
  uint32_t* position_ = nullptr;
  uint32_t count_ = 0;
};

}  // namespace weft::nic
