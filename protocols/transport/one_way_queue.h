// SPDX-License-Identifier: Apache-2.0
//
// The send queue of the transports that are not acknowledged (UC, UD): works wait, are sent in order, complete once
// their last packet has been pulled. A work that cannot be sent ends in its status after all earlier ones; the rest
// waits for flush(). Fixed memory; not thread-safe; an implementation detail of uc/ and ud/.
#pragma once

#include <array>
#include <cstdint>

#include "protocols/base/assert.h"
#include "protocols/transport/segment.h"
#include "protocols/transport/work.h"

namespace weft {

class OneWayQueue {
 public:
  static constexpr uint32_t kMaxWorks = 128;

  void reset() {
    reported_ = done_ = tail_ = 0;
    stop_ = failed_ = flushed_ = error_taken_ = false;
  }
  bool can_post() const { return tail_ - reported_ < kMaxWorks; }

  /// `status` other than success: the work is not sent and ends in it.
  void post(const SendWork& work, WorkStatus status) {
    WEFT_ASSERT(can_post());
    works_[tail_ % kMaxWorks] = work;
    if (status != WorkStatus::kSuccess) stop_at(tail_, status);
    ++tail_;
    pass_local();
    note_stop();
  }

  /// The work to send now, or none.
  bool sendable() const { return !failed_ && !flushed_ && done_ != tail_ && !(stop_ && done_ == stop_work_); }
  WorkNumber current() const { return done_; }
  const SendWork& current_work() const { return works_[done_ % kMaxWorks]; }
  void complete_current() {
    ++done_;
    pass_local();
    note_stop();
  }

  /// The engine could not read what it just pulled, be it the work's last packet or an earlier one.
  void fail(WorkNumber work, WorkStatus status) {
    if (failed_ || flushed_ || work - reported_ >= tail_ - reported_) return;
    if (static_cast<int32_t>(done_ - work) > 0) done_ = work;  // its last packet was pulled but never left
    stop_at(work, status);
    note_stop();
  }
  void flush() { flushed_ = true; }

  bool next_completion(SendCompletion& out) {
    if (static_cast<int32_t>(done_ - reported_) > 0) {
      out = {reported_++, WorkStatus::kSuccess};
      return true;
    }
    if (failed_ && !error_taken_) {
      error_taken_ = true;
      out = {reported_++, stop_status_};
      return true;
    }
    if (flushed_ && reported_ != tail_) {
      out = {reported_++, WorkStatus::kFlushed};
      return true;
    }
    return false;
  }
  bool failed() const { return failed_; }
  bool idle() const { return reported_ == tail_; }

 private:
  void stop_at(WorkNumber work, WorkStatus status) {
    if (stop_ && static_cast<int32_t>(work - stop_work_) >= 0) return;
    stop_ = true;
    stop_work_ = work;
    stop_status_ = status;
  }
  /// Local works are done by the engine and only take their turn here.
  void pass_local() {
    while (sendable() && is_local(current_work().opcode)) ++done_;
  }
  void note_stop() {
    if (stop_ && !flushed_ && done_ == stop_work_) failed_ = true;
  }

  WorkNumber reported_ = 0;  ///< completions given out
  WorkNumber done_ = 0;      ///< sent whole; also the work being sent
  WorkNumber tail_ = 0;
  WorkNumber stop_work_ = 0;
  WorkStatus stop_status_ = WorkStatus::kSuccess;
  bool stop_ = false;
  bool failed_ = false;
  bool flushed_ = false;
  bool error_taken_ = false;
  std::array<SendWork, kMaxWorks> works_{};
};

}  // namespace weft
