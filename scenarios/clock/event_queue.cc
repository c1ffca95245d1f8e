// SPDX-License-Identifier: Apache-2.0
#include "scenarios/clock/event_queue.h"

#include <algorithm>
#include <bit>

namespace weft {

namespace {
constexpr size_t kArity = 4;
constexpr size_t kInsertionSortLimit = 24;
constexpr size_t kCompactAbove = 256;
}  // namespace

EventQueue::EventQueue(const Settings& settings) {
  WEFT_ASSERT(settings.bucket_width > Duration::zero());
  WEFT_ASSERT(settings.wheel_log2 >= 6 && settings.wheel_log2 <= 20);
  shift_ = static_cast<int>(std::bit_width(static_cast<uint64_t>(settings.bucket_width.count()) - 1));
  const size_t buckets = size_t{1} << settings.wheel_log2;
  mask_ = buckets - 1;
  heads_.assign(buckets, kNoBlock);
  occupied_.assign(buckets / 64, 0);
  summary_.assign((buckets / 64 + 63) / 64, 0);
  // Blocks that are not full are the rule when events spread thinly, so one per event up to the number of buckets.
  blocks_.reserve(1 + std::min(settings.expected_events, buckets) + settings.expected_events / kBlockEvents);
  blocks_.emplace_back();
  overflow_.reserve(settings.expected_events);
  run_.reserve(std::max<size_t>(settings.expected_events, 64));
}

void EventQueue::schedule(Instant due, uint32_t kind, EventSource& source, uint64_t a, uint64_t b) {
  WEFT_ASSERT(due != kNever);
  WEFT_ASSERT(kind <= Event::kMaxKind && source.id <= Event::kMaxSource);
  WEFT_ASSERT(source.scheduled < (uint64_t{1} << Event::kCounterBits));
  if (due < now_) {
    due = now_;
    ++late_;
  }
  Event event;
  event.due = due;
  event.order = (uint64_t{kind} << (Event::kSourceBits + Event::kCounterBits)) |
                (uint64_t{source.id} << Event::kCounterBits) | source.scheduled++;
  event.a = a;
  event.b = b;
  ++size_;
  const uint64_t bucket = bucket_of(due);
  if (bucket <= cursor_) {
    insert_into_run(event);
  } else if (bucket - cursor_ <= mask_) {
    put(bucket, event);
  } else {
    overflow_push(event);
  }
}

Instant EventQueue::next_due() const {
  if (position_ < run_.size()) return run_[position_].due;
  Instant best = kNever;
  const uint64_t bucket = next_wheel_bucket();
  if (bucket != kNoBucket) {
    for (uint32_t b = heads_[bucket & mask_]; b != kNoBlock; b = blocks_[b].next)
      for (uint32_t i = 0; i < blocks_[b].count; ++i) best = std::min(best, blocks_[b].events[i].due);
  }
  if (!overflow_.empty()) best = std::min(best, overflow_.front().due);
  return best;
}

/// Nothing is left up to `limit`: time has got there, and the wheel's horizon moves along.
bool EventQueue::finish(Instant limit) {
  if (limit == kNever || limit < now_) return false;
  now_ = limit;
  const uint64_t bucket = bucket_of(limit);
  if (position_ == run_.size() && bucket > cursor_ + 1) cursor_ = bucket - 1;
  return false;
}

// --- the open bucket
// --------------------------------------------------------------------------------------------------

void EventQueue::insert_into_run(const Event& event) {
  if (position_ == run_.size()) {
    run_.clear();
    position_ = 0;
  } else if (position_ > kCompactAbove && position_ > run_.size() / 2) {
    // A live queue may keep one far event at the end of the run for long: what was executed must not pile up.
    run_.erase(run_.begin(), run_.begin() + static_cast<std::ptrdiff_t>(position_));
    position_ = 0;
  }
  size_t i = run_.size();
  run_.push_back(event);
  for (; i > position_ && event < run_[i - 1]; --i) run_[i] = run_[i - 1];
  run_[i] = event;
}

bool EventQueue::open_next_bucket(Instant limit) {
  uint64_t next = next_wheel_bucket();
  if (!overflow_.empty()) next = std::min(next, bucket_of(overflow_.front().due));
  if (next == kNoBucket || next > bucket_of(limit)) return false;
  cursor_ = next;
  run_.clear();
  position_ = 0;
  while (!overflow_.empty() && bucket_of(overflow_.front().due) - cursor_ <= mask_) {
    const Event event = overflow_pop();
    const uint64_t bucket = bucket_of(event.due);
    if (bucket == cursor_) {
      run_.push_back(event);
    } else {
      put(bucket, event);
    }
  }
  take_bucket(cursor_);
  if (run_.size() > kInsertionSortLimit) {
    std::sort(run_.begin(), run_.end());
    return true;
  }
  for (size_t n = 1; n < run_.size(); ++n) {
    const Event event = run_[n];
    size_t i = n;
    for (; i > 0 && event < run_[i - 1]; --i) run_[i] = run_[i - 1];
    run_[i] = event;
  }
  return true;
}

// --- the wheel
// --------------------------------------------------------------------------------------------------------

uint32_t EventQueue::new_block() {
  if (free_block_ != kNoBlock) {
    const uint32_t block = free_block_;
    free_block_ = blocks_[block].next;
    return block;
  }
  blocks_.emplace_back();
  return static_cast<uint32_t>(blocks_.size() - 1);
}

void EventQueue::put(uint64_t bucket, const Event& event) {
  const size_t slot = bucket & mask_;
  uint32_t block = heads_[slot];
  if (block == kNoBlock || blocks_[block].count == kBlockEvents) {
    const uint32_t fresh = new_block();
    blocks_[fresh].next = block;
    blocks_[fresh].count = 0;
    heads_[slot] = block = fresh;
    occupied_[slot / 64] |= uint64_t{1} << (slot % 64);
    summary_[slot / 4096] |= uint64_t{1} << (slot / 64 % 64);
  }
  blocks_[block].events[blocks_[block].count++] = event;
}

/// Moves a bucket's events to the run, unsorted.
void EventQueue::take_bucket(uint64_t bucket) {
  const size_t slot = bucket & mask_;
  uint32_t block = heads_[slot];
  if (block == kNoBlock) return;
  heads_[slot] = kNoBlock;
  occupied_[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  if (occupied_[slot / 64] == 0) summary_[slot / 4096] &= ~(uint64_t{1} << (slot / 64 % 64));
  while (block != kNoBlock) {
    Block& b = blocks_[block];
    run_.insert(run_.end(), b.events, b.events + b.count);
    const uint32_t next = b.next;
    b.next = free_block_;
    free_block_ = block;
    block = next;
  }
}

/// The first bucket after the cursor that holds something, or kNoBucket. The wheel holds only (cursor, cursor +
/// buckets).
uint64_t EventQueue::next_wheel_bucket() const {
  const size_t start = (cursor_ + 1) & mask_;
  const size_t words = occupied_.size();
  const size_t first_word = start / 64;
  const auto found = [&](size_t word, uint64_t bits) {
    const size_t slot = word * 64 + static_cast<size_t>(std::countr_zero(bits));
    return cursor_ + 1 + ((slot - start) & mask_);
  };
  const uint64_t upper = occupied_[first_word] & (~uint64_t{0} << (start % 64));
  if (upper != 0) return found(first_word, upper);
  // The words after the first, once round, ending with the first again (its lower bits are a turn away). Word by word
  // where that is short, by summary where it is not.
  for (size_t step = 1; step <= words;) {
    const size_t word = (first_word + step) % words;
    const uint64_t rest = summary_[word / 64] >> (word % 64);
    if (rest == 0) {
      step += std::min(64 - word % 64, words - word);
      continue;
    }
    const size_t skip = static_cast<size_t>(std::countr_zero(rest));
    if (step + skip > words) break;
    return found(word + skip, occupied_[word + skip]);
  }
  return kNoBucket;
}

// --- beyond the horizon
// -----------------------------------------------------------------------------------------------

void EventQueue::overflow_push(const Event& event) {
  size_t i = overflow_.size();
  overflow_.push_back(event);
  while (i > 0) {
    const size_t parent = (i - 1) / kArity;
    if (!(event < overflow_[parent])) break;
    overflow_[i] = overflow_[parent];
    i = parent;
  }
  overflow_[i] = event;
}

Event EventQueue::overflow_pop() {
  const Event result = overflow_.front();
  const Event moved = overflow_.back();
  overflow_.pop_back();
  const size_t count = overflow_.size();
  size_t i = 0;
  for (;;) {
    const size_t child = kArity * i + 1;
    if (child >= count) break;
    size_t least = child;
    const size_t end = std::min(child + kArity, count);
    for (size_t c = child + 1; c < end; ++c)
      if (overflow_[c] < overflow_[least]) least = c;
    if (!(overflow_[least] < moved)) break;
    overflow_[i] = overflow_[least];
    i = least;
  }
  if (count > 0) overflow_[i] = moved;
  return result;
}

}  // namespace weft
