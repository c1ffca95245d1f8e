// SPDX-License-Identifier: Apache-2.0
//
// The requester's other half: what responses, their absence and the fabric's notices do to it.
#include <algorithm>

#include "protocols/base/assert.h"
#include "protocols/rc/requester.h"
#include "protocols/transport/segment.h"
#include "protocols/transport/timers.h"

namespace weft {

namespace {

constexpr uint8_t kUnlimitedRnr = 7;
constexpr uint8_t kMaxBackoff = 3;  // 8 · T

int32_t distance(uint32_t from, uint32_t to) { return static_cast<int32_t>(to - from); }

}  // namespace

// --- responses
// --------------------------------------------------------------------------------------------------------

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
    default:
      break;
  }
  ++stats_.malformed;
  return {};
}

void RcRequester::on_acknowledge(Instant now, LinearPsn psn, uint8_t syndrome) {
  switch (syndrome >> 5) {
    case 0:
      if (!acknowledge(psn + 1, now)) implied_nak();
      return;
    case 1:
      on_rnr_nak(now, psn, syndrome & 0x1f);
      return;
    case 3:
      on_nak(now, psn, syndrome);
      return;
    default:
      ++stats_.malformed;
      return;
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
  noticed_ = charge_ = lasting_ = false;
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
      count(NicCounter::kPacketSequenceError);
      // A responder says it once until the PSN arrives; a second one is a copy. With nothing outstanding the PSN is
      // about to be sent anyway.
      if (nak_counts_ && outstanding()) {
        nak_counts_ = false;
        retry();
      }
      return;
    case kNakInvalidRequest:
      count(NicCounter::kRequesterRemoteInvalid);
      fail_head(WorkStatus::kRemoteInvalidRequest, syndrome);
      return;
    case kNakRemoteAccess:
      count(NicCounter::kRequesterRemoteAccess);
      fail_head(WorkStatus::kRemoteAccess, syndrome);
      return;
    case kNakRemoteOperation:
      count(NicCounter::kRequesterRemoteOperation);
      fail_head(WorkStatus::kRemoteOperation, syndrome);
      return;
    default:
      ++stats_.malformed;
      return;
  }
}

void RcRequester::on_rnr_nak(Instant now, LinearPsn psn, uint8_t timer) {
  if (!acknowledge(psn, now)) {
    implied_nak();
    return;
  }
  if (failed_ || !outstanding()) return;  // already waiting to send it again: a copy
  ++stats_.rnr_naks;
  count(NicCounter::kRnrNakReceived);
  if (config_.rnr_retry != kUnlimitedRnr) {
    if (rnr_left_ == 0) {
      count(NicCounter::kRnrRetryExceeded);
      fail_head(WorkStatus::kRnrRetryExceeded, static_cast<uint8_t>(0x20 | timer));
      return;
    }
    --rnr_left_;
  }
  rewind();
  noticed_ = charge_ = lasting_ = false;
  // The peer answers: what was lost before says nothing of it. Its answers have a budget of their own.
  if (config_.patient) {
    retries_left_ = config_.retry_count;
    backoff_ = 0;
    window_ = config_.window_packets;
  }
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
  const bool says_last = header.opcode == Opcode::kRcReadResponseLast || header.opcode == Opcode::kRcReadResponseOnly;
  const bool has_aeth = header.opcode != Opcode::kRcReadResponseMiddle;
  if (e.opcode == WorkOpcode::kAtomicWrite) {
    // Answered as a READ of nothing. IBTA Vol 1, annex A19.
    if (header.opcode == Opcode::kRcReadResponseOnly && header.aeth.syndrome >> 5 == 0 && payload_bytes == 0) {
      accept_data(now);
    } else {
      ++stats_.malformed;
    }
    return {};
  }
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
  if (e.opcode != WorkOpcode::kCompareSwap && e.opcode != WorkOpcode::kFetchAdd) {
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

// --- recovery
// ---------------------------------------------------------------------------------------------------------

/// A later PSN was acknowledged before the data of a READ or atomic came (IBTA Vol 1, 9.7.5.1.3): it was lost.
void RcRequester::implied_nak() {
  if (failed_ || !nak_counts_ || !outstanding()) return;
  ++stats_.implied_naks;
  count(NicCounter::kImpliedNak);
  nak_counts_ = false;
  retry();
}

void RcRequester::retry() {
  if (retries_left_ == 0) {
    count(NicCounter::kRetryExceeded);
    fail_head(WorkStatus::kRetryExceeded);
    return;
  }
  count(NicCounter::kRetries);
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
  count(NicCounter::kAckTimeout);
  if (config_.patient && !charge_) {
    // Nobody knows of a loss: the peer may be stopped or waiting for a processor. One packet asks how it is.
    ++stats_.probes;
    backoff_ = std::min<uint8_t>(static_cast<uint8_t>(backoff_ + 1), kMaxBackoff);
    rewind();
    window_ = 1;
    return;
  }
  ++stats_.timeouts;
  if (timed_out_psn_ != una_) timeouts_of_psn_ = 0;
  timed_out_psn_ = una_;
  ++timeouts_of_psn_;
  charge_ = lasting_;
  retry();
}

void RcRequester::on_notice(Instant now, PathTrouble kind) {
  if (stopped() || done_ == tail_) return;
  noticed_ = true;
  if (kind != PathTrouble::kLaterFrameLost) charge_ = true;
  if (kind == PathTrouble::kNobodyThere) lasting_ = true;
  backoff_ = 0;
  if (outstanding() && timeout_ != Duration::max()) deadline_ = std::min(deadline_, now + timeout_);
}

}  // namespace weft
