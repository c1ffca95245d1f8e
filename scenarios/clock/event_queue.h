// SPDX-License-Identifier: Apache-2.0
//
// The event queue of both clocks (DESIGN D2): a bucketed timing wheel, and a heap for what lies beyond its horizon.
//
//   EventSource link{link_id};
//   queue.schedule(due, kArrival, link, packet);
//   queue.run_until(limit, [&](const Event& e) { ... queue.now() == e.due ... });   // virtual: limit = kNever
//   queue.run_until(clock_reading, ...)                                             // live: all that is due by now
//   queue.next_due()                                                                // live: how long to sleep
//
// The order is total: (due, kind, source, per-source counter). Neither insertion order nor addresses decide, so the
// same calls give the same run on any machine; handlers may schedule more, at now() or later. An event asked for in the
// past (a frame stamped just before the clock was read again) becomes due now and is counted in late().
//
// Choose `bucket_width` so that a bucket holds a few events: a quarter to one nanosecond for 100-800G fabrics, more for
// slow ones (a wrong width costs 2-8 times in speed, never correctness). Events cost no allocation once the queue has
// seen its largest population, or from the start within `expected_events`. Not thread-safe: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "protocols/base/assert.h"
#include "protocols/base/time.h"

namespace weft {

/// Who schedules: a component with an id that is unique in the run. Owns the counter that breaks its own ties.
struct EventSource {
  uint32_t id = 0;
  uint64_t scheduled = 0;
};

struct Event {
  Instant due;
  uint64_t order = 0;  ///< kind, source, counter, from the top
  uint64_t a = 0;      ///< the handler's
  uint64_t b = 0;

  static constexpr int kSourceBits = 22;
  static constexpr int kCounterBits = 36;
  static constexpr uint32_t kMaxKind = 63;
  static constexpr uint32_t kMaxSource = (1u << kSourceBits) - 1;

  uint8_t kind() const { return static_cast<uint8_t>(order >> (kSourceBits + kCounterBits)); }
  uint32_t source() const { return static_cast<uint32_t>(order >> kCounterBits) & kMaxSource; }
  friend bool operator<(const Event& x, const Event& y) {
    return x.due < y.due || (x.due == y.due && x.order < y.order);
  }
};
static_assert(sizeof(Event) == 32 && std::is_trivially_copyable_v<Event>);

class EventQueue {
 public:
  struct Settings {
    Duration bucket_width = picoseconds(1024);  ///< rounded up to a power of two picoseconds
    uint32_t wheel_log2 = 13;                   ///< buckets: 2^6 .. 2^20
    size_t expected_events = 4096;              ///< reserved at once
  };

  explicit EventQueue(const Settings& settings);
  EventQueue() : EventQueue(Settings{}) {}

  /// Due time of the event at hand; between runs the last limit that was reached.
  Instant now() const { return now_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  uint64_t executed() const { return executed_; }
  uint64_t late() const { return late_; }

  /// kind 0..63: smaller first among events of one instant.
  void schedule(Instant due, uint32_t kind, EventSource& source, uint64_t a, uint64_t b = 0);

  /// Executes everything due at or before `limit`, in order; returns how many. Leaves now() at `limit` unless that is
  /// kNever.
  template <typename Handler>
  uint64_t run_until(Instant limit, Handler&& handle) {
    const uint64_t before = executed_;
    Event event;
    while (pop_due(limit, event)) handle(static_cast<const Event&>(event));
    return executed_ - before;
  }

  /// One step of run_until.
  bool pop_due(Instant limit, Event& out) {
    if (position_ == run_.size() && !open_next_bucket(limit)) return finish(limit);
    if (run_[position_].due > limit) return finish(limit);
    out = run_[position_++];
    now_ = out.due;
    --size_;
    ++executed_;
    return true;
  }

  /// The next event's due time, kNever when there is none. Cheap when called once per pass; looks at one bucket.
  Instant next_due() const;

  /// The event `n` places ahead if it is in the open bucket: for prefetching what its handler will touch.
  const Event* ahead(size_t n) const { return position_ + n < run_.size() ? &run_[position_ + n] : nullptr; }

 private:
  static constexpr uint32_t kBlockEvents = 7;
  static constexpr uint32_t kNoBlock = 0;
  static constexpr uint64_t kNoBucket = UINT64_MAX;
  struct Block {
    uint32_t next = kNoBlock;
    uint32_t count = 0;
    uint64_t unused = 0;
    Event events[kBlockEvents];
  };

  uint64_t bucket_of(Instant t) const { return static_cast<uint64_t>(t.time_since_epoch().count()) >> shift_; }
  bool finish(Instant limit);
  bool open_next_bucket(Instant limit);
  uint64_t next_wheel_bucket() const;
  void insert_into_run(const Event& event);
  void put(uint64_t bucket, const Event& event);
  void take_bucket(uint64_t bucket);
  uint32_t new_block();
  void overflow_push(const Event& event);
  Event overflow_pop();

  int shift_ = 10;
  uint64_t mask_ = 0;    ///< buckets − 1
  uint64_t cursor_ = 0;  ///< every event of this bucket and earlier ones is in run_
  Instant now_{};
  size_t size_ = 0;
  uint64_t executed_ = 0;
  uint64_t late_ = 0;
  size_t position_ = 0;             ///< in run_: what is before has been executed
  std::vector<Event> run_;          ///< the open bucket, sorted
  std::vector<uint32_t> heads_;     ///< first block of each bucket
  std::vector<uint64_t> occupied_;  ///< a bit per bucket
  std::vector<uint64_t> summary_;   ///< a bit per word of occupied_
  std::vector<Block> blocks_;       ///< [0] is never used
  uint32_t free_block_ = kNoBlock;
  std::vector<Event> overflow_;  ///< 4-ary min-heap
};

}  // namespace weft
