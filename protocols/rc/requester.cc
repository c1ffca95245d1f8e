// SPDX-License-Identifier: Apache-2.0
#include "protocols/rc/requester.h"

#include <bit>

#include "protocols/base/assert.h"
#include "protocols/transport/machine.h"
#include "protocols/transport/segment.h"
#include "protocols/transport/timers.h"

namespace weft {

static_assert(RequesterMachine<RcRequester>);

namespace {

// Half of the PSN circle: more outstanding and an acknowledge would be ambiguous (IBTA Vol 1, 9.7.2).
constexpr uint32_t kMaxPsnSpan = 1u << 23;

int32_t distance(uint32_t from, uint32_t to) { return static_cast<int32_t>(to - from); }

bool is_supported(WorkOpcode opcode) {
  return is_send(opcode) || is_write(opcode) || is_read_or_atomic(opcode) || is_local(opcode);
}

}  // namespace

void RcRequester::configure(const RequesterConfig& config) {
  WEFT_ASSERT(is_path_mtu(config.mtu_bytes));
  WEFT_ASSERT(config.window_packets > 0 && config.ack_every > 0);
  config_ = config;
  mtu_shift_ = static_cast<uint32_t>(std::countr_zero(config.mtu_bytes));
  reported_ = done_ = send_ = tail_ = 0;
  una_ = next_ = max_sent_ = post_psn_ = config.first_psn & kPsnMask;
  in_flight_ = since_request_ = 0;
  window_ = config.window_packets;
  reads_out_ = backoff_ = 0;
  retries_left_ = config.retry_count;
  rnr_left_ = config.rnr_retry;
  failed_ = flushed_ = error_taken_ = stop_ = noticed_ = charge_ = lasting_ = placing_ = false;
  nak_counts_ = configured_ = true;
  timeout_ = ack_timeout(config.timeout);
  deadline_ = kNever;
  rnr_until_ = Instant::min();
  stats_ = {};
  timeouts_of_psn_ = 0;
  failure_ = {};
}

void RcRequester::adjust(const RequesterConfig& config) {
  config_.timeout = config.timeout;
  config_.retry_count = config.retry_count;
  config_.rnr_retry = config.rnr_retry;
  config_.max_rd_atomic = config.max_rd_atomic;
  config_.patient = config.patient;
  timeout_ = ack_timeout(config.timeout);
  retries_left_ = config.retry_count;
  rnr_left_ = config.rnr_retry;
}

// --- work in, completions out
// ------------------------------------------------------------------------------------------

void RcRequester::post(const SendWork& work) {
  WEFT_ASSERT(can_post());
  Entry& e = works_[tail_ % kMaxWorks];
  e.remote_addr = work.remote_addr;
  e.compare_add = work.compare_add;
  e.swap = work.swap;
  e.length = work.length;
  e.immediate = work.immediate;
  e.rkey = work.rkey;
  e.first_psn = post_psn_;
  e.opcode = work.opcode;
  e.signaled = work.signaled;
  e.solicited = work.solicited;
  e.fence = work.fence;
  e.packets = is_local(work.opcode) ? 0
              : is_read_or_atomic(work.opcode) && work.opcode != WorkOpcode::kRead
                  ? 1
                  : packets_of(work.length, config_.mtu_bytes);
  const WorkNumber number = tail_++;
  if (!is_supported(work.opcode)) {
    e.packets = 0;
    stop_at(number, WorkStatus::kLocalQpOperation);
  } else if (work.length > kMaxMessageBytes ||
             (work.opcode == WorkOpcode::kAtomicWrite && work.length != kAtomicWriteBytes)) {
    e.packets = 0;
    stop_at(number, WorkStatus::kLocalLength);
  }
  post_psn_ += e.packets;
  if (stopped()) return;
  if (done_ == number) complete_head();  // a local work, or one that cannot be sent, with nothing before it
  skip_sent_works();
}

bool RcRequester::next_completion(SendCompletion& out) {
  if (distance(reported_, done_) > 0) {
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

void RcRequester::flush() {
  flushed_ = true;
  deadline_ = kNever;
}

void RcRequester::fail(Instant now, WorkNumber work, WorkStatus status) {
  if (stopped() || work - done_ >= tail_ - done_) return;
  stop_at(work, status);
  if (done_ == stop_work_) {
    fail_head(stop_status_);
    return;
  }
  // Earlier works must still be acknowledged. Where the last packet sent of them has not asked for it, or packets of
  // the failed work are out too, go back: the last one pulled will ask, because nothing may follow it.
  const int32_t beyond = distance(entry(stop_work_).first_psn, next_);
  if (beyond > 0 || (beyond == 0 && outstanding() && since_request_ != 0)) rewind();
}

void RcRequester::stop_at(WorkNumber work, WorkStatus status) {
  if (stop_ && distance(stop_work_, work) >= 0) return;
  stop_ = true;
  stop_work_ = work;
  stop_status_ = status;
}

/// The oldest work ends in an error; it is the last completion before flush().
void RcRequester::fail_head(WorkStatus status, uint8_t syndrome) {
  const Entry& e = entry(done_);
  failure_ = {status, syndrome, noticed_, una_ & kPsnMask, 1u, 0, timeout_, e.opcode, e.rkey, e.length, e.remote_addr};
  if (timed_out_psn_ == una_) failure_.timeouts = timeouts_of_psn_;
  if (status == WorkStatus::kRetryExceeded) failure_.transmissions = 1u + config_.retry_count;
  if (status == WorkStatus::kRnrRetryExceeded) failure_.transmissions = 1u + config_.rnr_retry;
  stop_status_ = status;
  failed_ = true;
  deadline_ = kNever;
}

// --- sending
// ----------------------------------------------------------------------------------------------------------

/// Keeps send_ at the work that next_ belongs to: works sent whole, and works without packets, are passed.
void RcRequester::skip_sent_works() {
  while (send_ != tail_ && !(stop_ && send_ == stop_work_)) {
    const Entry& e = entry(send_);
    if (next_ - e.first_psn < e.packets) return;
    ++send_;
  }
}

bool RcRequester::wants_to_send(Instant now) const {
  if (stopped() || send_ == tail_ || (stop_ && send_ == stop_work_)) return false;
  if (in_flight_ >= window_ || now < rnr_until_) return false;
  const Entry& e = entry(send_);
  const bool limited = is_read_or_atomic(e.opcode);
  if (e.fence && next_ == e.first_psn && reads_out_ != 0) return false;
  if (limited && reads_out_ >= config_.max_rd_atomic) return false;
  const LinearPsn end = limited ? e.first_psn + e.packets : next_ + 1;
  return end - una_ <= kMaxPsnSpan;
}

bool RcRequester::pull(Instant now, OutFrame& out) {
  if (!wants_to_send(now)) return false;
  const Entry& e = entry(send_);
  const uint32_t index = next_ - e.first_psn;
  out = OutFrame{};
  out.header.dest_qpn = config_.dest_qpn;
  out.header.psn = next_ & kPsnMask;
  out.work = send_;
  if (!outstanding()) {
    deadline_ = timeout_ == Duration::max() ? kNever : now + interval();
    rnr_until_ = Instant::min();
  }

  bool ask = true;  // READs and atomics are always answered
  if (is_read_or_atomic(e.opcode)) {
    fill_read_or_atomic(e, index, out);
    ++reads_out_;
    next_ = e.first_psn + e.packets;
  } else {
    fill_message(e, index, out);
    ask = (e.signaled && index + 1 == e.packets) || since_request_ + 1 >= config_.ack_every;
    ++next_;
  }
  ++in_flight_;
  ++stats_.packets_sent;
  if (distance(max_sent_, next_) > 0) max_sent_ = next_;
  skip_sent_works();
  // A sender that may send nothing more must have asked: nobody else would wake it.
  ask = ask || !wants_to_send(now);
  out.header.ack_request = ask;
  since_request_ = ask ? 0 : since_request_ + 1;
  return true;
}

void RcRequester::fill_message(const Entry& work, uint32_t index, OutFrame& out) const {
  const bool first = index == 0;
  const bool last = index + 1 == work.packets;
  out.header.opcode = message_opcode(work.opcode, first, last);
  if (first && is_write(work.opcode)) out.header.reth = {work.remote_addr, work.rkey, work.length};
  if (last) {
    out.header.solicited = work.solicited && work.opcode != WorkOpcode::kWrite;
    if (work.opcode == WorkOpcode::kSendInvalidate) {
      out.header.invalidate_rkey = work.immediate;
    } else {
      out.header.immediate = work.immediate;
    }
  }
  out.offset = index << mtu_shift_;
  out.payload_bytes = payload_of(work.length, config_.mtu_bytes, index);
  out.source = out.payload_bytes == 0 ? PayloadSource::kNone : PayloadSource::kWork;
}

/// `index` is not 0 when the first part of a READ has arrived and the rest is asked for again (IBTA Vol 1, 9.7.5.1.5).
void RcRequester::fill_read_or_atomic(const Entry& work, uint32_t index, OutFrame& out) const {
  if (work.opcode == WorkOpcode::kRead) {
    const uint32_t offset = index << mtu_shift_;
    out.header.opcode = Opcode::kRcReadRequest;
    out.header.reth = {work.remote_addr + offset, work.rkey, work.length - offset};
    return;
  }
  if (work.opcode == WorkOpcode::kAtomicWrite) {
    // IBTA Vol 1, annex A19: RETH and eight bytes of payload.
    out.header.opcode = Opcode::kRcAtomicWrite;
    out.header.reth = {work.remote_addr, work.rkey, work.length};
    out.source = PayloadSource::kWork;
    out.payload_bytes = work.length;
    return;
  }
  const bool swap = work.opcode == WorkOpcode::kCompareSwap;
  out.header.opcode = swap ? Opcode::kRcCompareSwap : Opcode::kRcFetchAdd;
  out.header.atomic.va = work.remote_addr;
  out.header.atomic.rkey = work.rkey;
  out.header.atomic.swap_add = swap ? work.swap : work.compare_add;
  out.header.atomic.compare = swap ? work.compare_add : 0;
}

}  // namespace weft
