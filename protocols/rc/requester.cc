// SPDX-License-Identifier: Apache-2.0
#include "protocols/rc/requester.h"

#include <algorithm>
#include <bit>

#include "protocols/base/assert.h"
#include "protocols/transport/machine.h"
#include "protocols/transport/segment.h"
#include "protocols/transport/timers.h"

namespace weft {

static_assert(RequesterMachine<RcRequester>);

namespace {

constexpr uint8_t kUnlimitedRnr = 7;
constexpr uint8_t kMaxBackoff = 3;  // 8 · T
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
  failed_ = flushed_ = error_taken_ = stop_ = noticed_ = placing_ = false;
  nak_counts_ = configured_ = true;
  timeout_ = ack_timeout(config.timeout);
  deadline_ = kNever;
  rnr_until_ = Instant::min();
  stats_ = {};
}

// --- work in, completions out ------------------------------------------------------------------------------------------

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
  e.packets = is_local(work.opcode) ? 0 : is_read_or_atomic(work.opcode) && work.opcode != WorkOpcode::kRead
                                              ? 1
                                              : packets_of(work.length, config_.mtu_bytes);
  const WorkNumber number = tail_++;
  if (!is_supported(work.opcode)) {
    e.packets = 0;
    stop_at(number, WorkStatus::kLocalQpOperation);
  } else if (work.length > kMaxMessageBytes) {
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
  // Earlier works must still be acknowledged, and what was sent of them may not have asked for it: send them again, the
  // last packet asks because nothing may follow it.
  rewind();
}

void RcRequester::stop_at(WorkNumber work, WorkStatus status) {
  if (stop_ && distance(stop_work_, work) >= 0) return;
  stop_ = true;
  stop_work_ = work;
  stop_status_ = status;
}

/// The oldest work ends in an error; it is the last completion before flush().
void RcRequester::fail_head(WorkStatus status) {
  stop_status_ = status;
  failed_ = true;
  deadline_ = kNever;
}

// --- sending ----------------------------------------------------------------------------------------------------------

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
  const bool swap = work.opcode == WorkOpcode::kCompareSwap;
  out.header.opcode = swap ? Opcode::kRcCompareSwap : Opcode::kRcFetchAdd;
  out.header.atomic.va = work.remote_addr;
  out.header.atomic.rkey = work.rkey;
  out.header.atomic.swap_add = swap ? work.swap : work.compare_add;
  out.header.atomic.compare = swap ? work.compare_add : 0;
}

// --- responses --------------------------------------------------------------------------------------------------------

Placement RcRequester::on_response(Instant now, const TransportHeader& header, uint32_t payload_bytes) {
  WEFT_ASSERT(!placing_);
  if (stopped()) return {};
  const int32_t ahead = psn_difference(header.psn, una_);
  if (ahead < 0 || static_cast<uint32_t>(ahead) >= max_sent_ - una_) {
    ++stats_.stale;
    return {};
  }
  const LinearPsn psn = una_ + static_cast<uint32_t>(ahead);
  switch (header.opcode) {
    case Opcode::kRcAcknowledge:
      if (payload_bytes != 0) break;
      on_acknowledge(now, psn, header.aeth.syndrome);
      return {};
    case Opcode::kRcReadResponseFirst:
    case Opcode::kRcReadResponseMiddle:
    case Opcode::kRcReadResponseLast:
    case Opcode::kRcReadResponseOnly:
      return on_read_response(now, psn, header, payload_bytes);
    case Opcode::kRcAtomicAcknowledge:
      if (payload_bytes != 0) break;
      return on_atomic_acknowledge(now, psn);
    default: break;
  }
  ++stats_.malformed;
  return {};
}

void RcRequester::on_acknowledge(Instant now, LinearPsn psn, uint8_t syndrome) {
  switch (syndrome >> 5) {
    case 0:
      if (!acknowledge(psn + 1, now)) implied_nak();
      return;
    case 1: on_rnr_nak(now, psn, syndrome & 0x1f); return;
    case 3: on_nak(now, psn, syndrome); return;
    default: ++stats_.malformed; return;
  }
}

/// Everything before `to` has been received by the peer. False when a READ or atomic stands before it, whose data must
/// have been lost then: those complete only by their own response.
bool RcRequester::acknowledge(LinearPsn to, Instant now) {
  const LinearPsn before = una_;
  while (una_ != to && !failed_) {
    const Entry& e = entry(done_);
    if (is_read_or_atomic(e.opcode)) break;
    const LinearPsn end = e.first_psn + e.packets;
    const uint32_t step = std::min(to - una_, end - una_);
    const int32_t sent = distance(una_, next_);
    if (sent > 0) in_flight_ -= std::min(step, static_cast<uint32_t>(sent));
    una_ += step;
    if (una_ == end) {
      ++done_;
      complete_head();
    }
  }
  if (una_ != before) made_progress(now);
  return una_ == to;
}

/// Works without packets complete as soon as everything before them has; a work that was stopped fails then.
void RcRequester::complete_head() {
  while (done_ != tail_) {
    if (stop_ && done_ == stop_work_) {
      fail_head(stop_status_);
      return;
    }
    if (entry(done_).packets != 0) return;
    ++done_;
  }
}

void RcRequester::made_progress(Instant now) {
  if (distance(next_, una_) > 0) {  // the peer had more than was thought when we went back
    next_ = una_;
    send_ = done_;
    in_flight_ = 0;
  } else if (distance(send_, done_) > 0) {
    send_ = done_;
  }
  skip_sent_works();
  retries_left_ = config_.retry_count;
  rnr_left_ = config_.rnr_retry;
  backoff_ = 0;
  noticed_ = false;
  nak_counts_ = true;
  window_ = config_.window_packets;
  rnr_until_ = Instant::min();
  if (failed_ || timeout_ == Duration::max()) {
    deadline_ = kNever;
  } else {
    deadline_ = now + timeout_;
  }
}

void RcRequester::on_nak(Instant now, LinearPsn psn, uint8_t syndrome) {
  if (!acknowledge(psn, now)) {
    implied_nak();
    return;
  }
  if (failed_) return;
  switch (syndrome) {
    case kNakSequence:
      ++stats_.sequence_naks;
      // A responder says it once until the PSN arrives; a second one is a copy. With nothing outstanding the PSN is
      // about to be sent anyway.
      if (nak_counts_ && outstanding()) {
        nak_counts_ = false;
        retry();
      }
      return;
    case kNakInvalidRequest: fail_head(WorkStatus::kRemoteInvalidRequest); return;
    case kNakRemoteAccess: fail_head(WorkStatus::kRemoteAccess); return;
    case kNakRemoteOperation: fail_head(WorkStatus::kRemoteOperation); return;
    default: ++stats_.malformed; return;
  }
}

void RcRequester::on_rnr_nak(Instant now, LinearPsn psn, uint8_t timer) {
  if (!acknowledge(psn, now)) {
    implied_nak();
    return;
  }
  if (failed_ || !outstanding()) return;  // already waiting to send it again: a copy
  ++stats_.rnr_naks;
  if (config_.rnr_retry != kUnlimitedRnr) {
    if (rnr_left_ == 0) {
      fail_head(WorkStatus::kRnrRetryExceeded);
      return;
    }
    --rnr_left_;
  }
  rewind();
  noticed_ = false;
  rnr_until_ = now + rnr_delay(timer);
}

Placement RcRequester::on_read_response(Instant now, LinearPsn psn, const TransportHeader& header,
                                        uint32_t payload_bytes) {
  if (!acknowledge(psn, now)) {
    implied_nak();
    return {};
  }
  if (failed_) return {};
  const Entry& e = entry(done_);
  const uint32_t index = psn - e.first_psn;
  const bool last = index + 1 == e.packets;
  const bool says_last =
      header.opcode == Opcode::kRcReadResponseLast || header.opcode == Opcode::kRcReadResponseOnly;
  const bool has_aeth = header.opcode != Opcode::kRcReadResponseMiddle;
  if (e.opcode != WorkOpcode::kRead || last != says_last || (has_aeth && header.aeth.syndrome >> 5 != 0) ||
      payload_bytes != payload_of(e.length, config_.mtu_bytes, index)) {
    ++stats_.malformed;
    return {};
  }
  if (payload_bytes == 0) {
    accept_data(now);
    return {};
  }
  placing_ = true;
  return {true, false, done_, index << mtu_shift_, payload_bytes};
}

Placement RcRequester::on_atomic_acknowledge(Instant now, LinearPsn psn) {
  if (!acknowledge(psn, now)) {
    implied_nak();
    return {};
  }
  if (failed_) return {};
  const Entry& e = entry(done_);
  if (!is_read_or_atomic(e.opcode) || e.opcode == WorkOpcode::kRead) {
    ++stats_.malformed;
    return {};
  }
  placing_ = true;
  return {true, true, done_, 0, 8};
}

void RcRequester::placed(Instant now, bool ok) {
  WEFT_ASSERT(placing_);
  placing_ = false;
  if (stopped()) return;
  if (ok) {
    accept_data(now);
  } else {
    fail_head(WorkStatus::kLocalProtection);
  }
}

/// The response packet for una_, part of a READ or atomic, has been taken.
void RcRequester::accept_data(Instant now) {
  const Entry& e = entry(done_);
  const bool sent = distance(una_, next_) > 0;  // false: an answer to the request before we went back
  ++una_;
  if (una_ == e.first_psn + e.packets) {
    if (sent) {
      --in_flight_;
      --reads_out_;
    }
    ++done_;
    complete_head();
  }
  made_progress(now);
}

// --- recovery ---------------------------------------------------------------------------------------------------------

/// A later PSN was acknowledged before the data of a READ or atomic came (IBTA Vol 1, 9.7.5.1.3): it was lost.
void RcRequester::implied_nak() {
  if (failed_ || !nak_counts_ || !outstanding()) return;
  ++stats_.implied_naks;
  nak_counts_ = false;
  retry();
}

void RcRequester::retry() {
  if (retries_left_ == 0) {
    fail_head(WorkStatus::kRetryExceeded);
    return;
  }
  --retries_left_;
  window_ = config_.window_packets;
  rewind();
}

/// Go back to the oldest packet that is not acknowledged.
void RcRequester::rewind() {
  next_ = una_;
  send_ = done_;
  in_flight_ = 0;
  reads_out_ = 0;
  since_request_ = 0;
  deadline_ = kNever;  // set again by the first packet pulled
  skip_sent_works();
}

/// How long to wait for an acknowledge now.
Duration RcRequester::interval() const { return backoff_ == 0 ? timeout_ : timeout_ * (1 << backoff_); }

Instant RcRequester::next_deadline() const {
  if (stopped()) return kNever;
  if (!outstanding()) return rnr_until_ == Instant::min() ? kNever : rnr_until_;
  return deadline_;
}

void RcRequester::on_timer(Instant now) {
  if (now < next_deadline()) return;
  if (!outstanding()) {
    rnr_until_ = Instant::min();
    return;
  }
  nak_counts_ = true;
  if (config_.patient && !noticed_) {
    // Nobody knows of a loss: the peer may be stopped or waiting for a processor. One packet asks how it is.
    ++stats_.probes;
    backoff_ = std::min<uint8_t>(static_cast<uint8_t>(backoff_ + 1), kMaxBackoff);
    rewind();
    window_ = 1;
    return;
  }
  ++stats_.timeouts;
  retry();
}

void RcRequester::on_notice(Instant now) {
  if (stopped() || done_ == tail_) return;
  noticed_ = true;
  backoff_ = 0;
  if (outstanding() && timeout_ != Duration::max()) deadline_ = std::min(deadline_, now + timeout_);
}

}  // namespace weft
