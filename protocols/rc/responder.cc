// SPDX-License-Identifier: Apache-2.0
#include "protocols/rc/responder.h"

#include "protocols/base/assert.h"
#include "protocols/transport/machine.h"

namespace weft {

static_assert(ResponderMachine<RcResponder>);

namespace {
constexpr uint32_t kNoResource = UINT32_MAX;
constexpr uint32_t next_psn(uint32_t psn, uint32_t n = 1) { return (psn + n) & kPsnMask; }
}  // namespace

void RcResponder::configure(const ResponderConfig& config) {
  WEFT_ASSERT(is_path_mtu(config.mtu_bytes));
  WEFT_ASSERT(config.max_dest_rd_atomic <= kMaxResources);
  config_ = config;
  capacity_ = config.max_dest_rd_atomic == 0 ? 1 : config.max_dest_rd_atomic;
  expected_ = config.first_psn & kPsnMask;
  msn_ = offset_ = message_bytes_ = message_rkey_ = acknowledge_psn_ = 0;
  message_va_ = 0;
  answers_ = answer_ = newest_ = oldest_ = 0;
  nak_ = 0;
  in_message_ = message_is_write_ = gap_reported_ = acknowledge_owed_ = fatal_ = last_was_read_ = false;
  configured_ = true;
  pending_ = Pending::kNone;
  stats_ = {};
}

void RcResponder::adjust(uint8_t max_dest_rd_atomic, uint8_t min_rnr_timer) {
  WEFT_ASSERT(max_dest_rd_atomic <= kMaxResources);
  config_.max_dest_rd_atomic = max_dest_rd_atomic;
  config_.min_rnr_timer = min_rnr_timer;
  capacity_ = max_dest_rd_atomic == 0 ? 1 : max_dest_rd_atomic;
  while (newest_ - oldest_ > capacity_) drop_oldest();
}

// --- receiving
// --------------------------------------------------------------------------------------------------------

Demand RcResponder::on_request(Instant, const TransportHeader& header, uint32_t payload_bytes) {
  WEFT_ASSERT(pending_ == Pending::kNone);
  if (fatal_ || !configured_) return {};
  const MessagePacket kind = classify_message(static_cast<uint8_t>(header.opcode));
  const bool read = header.opcode == Opcode::kRcReadRequest;
  const bool atomic = header.opcode == Opcode::kRcCompareSwap || header.opcode == Opcode::kRcFetchAdd;
  const int32_t ahead = psn_difference(header.psn, expected_);
  if (ahead > 0) {
    ++stats_.out_of_sequence;
    count(NicCounter::kOutOfSequence);
    if (!gap_reported_) {
      gap_reported_ = true;
      ++stats_.sequence_naks;
      nak_ = kNakSequence;
      nak_psn_ = expected_;
    }
    return {};
  }
  if (ahead < 0) return on_duplicate(header, payload_bytes);
  pending_header_ = header;
  pending_kind_ = kind;
  pending_bytes_ = payload_bytes;
  if (kind.valid) return on_message(header, payload_bytes);
  if (read) return on_read(header, payload_bytes);
  if (atomic) return on_atomic(header, payload_bytes);
  if (header.opcode == Opcode::kRcAtomicWrite) return on_atomic_write(header, payload_bytes);
  return refuse(kNakInvalidRequest);
}

/// The packet is not acceptable and ends the connection.
Demand RcResponder::refuse(uint8_t syndrome) {
  if (syndrome == kNakRemoteAccess) count(NicCounter::kResponderRemoteAccess);
  nak_ = syndrome;
  nak_psn_ = expected_;
  fatal_ = true;
  pending_ = Pending::kNone;
  return {};
}

Demand RcResponder::on_message(const TransportHeader& header, uint32_t payload_bytes) {
  const MessagePacket& kind = pending_kind_;
  // Opcode sequence, IBTA Vol 1, 9.7.4.1.2.
  if (kind.first == in_message_ || (in_message_ && kind.write != message_is_write_)) return refuse(kNakInvalidRequest);
  // Length rules, 9.7.4.1.7.
  const uint32_t mtu = config_.mtu_bytes;
  const bool whole_packet = kind.last ? payload_bytes <= mtu : payload_bytes == mtu;
  const bool empty_last = kind.last && !kind.first && payload_bytes == 0;
  const uint32_t so_far = kind.first ? 0 : offset_;
  if (!whole_packet || empty_last || payload_bytes > kMaxMessageBytes - so_far) return refuse(kNakInvalidRequest);
  if (kind.write) {
    const uint32_t total = kind.first ? header.reth.length : message_bytes_;
    const uint32_t end = so_far + payload_bytes;
    if (total > kMaxMessageBytes || (kind.last ? end != total : end >= total)) return refuse(kNakInvalidRequest);
  }
  pending_ = Pending::kMessage;
  return describe_message(header, payload_bytes);
}

Demand RcResponder::describe_message(const TransportHeader& header, uint32_t payload_bytes) const {
  const MessagePacket& kind = pending_kind_;
  Demand d;
  d.opcode = header.opcode;
  d.first = kind.first;
  d.last = kind.last;
  d.solicited = header.solicited && kind.last;
  d.offset = kind.first ? 0 : offset_;
  d.length = payload_bytes;
  d.with_immediate = kind.immediate;
  d.with_invalidate = kind.invalidate;
  d.immediate = kind.invalidate ? header.invalidate_rkey : kind.immediate ? header.immediate : 0;
  if (kind.write) {
    d.need = Need::kPlaceWrite;
    d.message_bytes = kind.first ? header.reth.length : message_bytes_;
    d.va = (kind.first ? header.reth.va : message_va_) + d.offset;
    d.rkey = kind.first ? header.reth.rkey : message_rkey_;
    d.takes_receive = d.completes_receive = kind.immediate;
  } else {
    d.need = Need::kPlaceSend;
    d.takes_receive = kind.first;
    d.completes_receive = kind.last;
    d.message_bytes = kind.last ? d.offset + payload_bytes : 0;
  }
  return d;
}

Demand RcResponder::on_read(const TransportHeader& header, uint32_t payload_bytes) {
  if (in_message_ || payload_bytes != 0 || header.reth.length > kMaxMessageBytes || !resource_free())
    return refuse(kNakInvalidRequest);
  pending_ = Pending::kRead;
  Demand d;
  d.need = Need::kStartRead;
  d.first = d.last = true;
  d.opcode = header.opcode;
  d.message_bytes = header.reth.length;
  d.va = header.reth.va;
  d.rkey = header.reth.rkey;
  return d;
}

Demand RcResponder::on_atomic(const TransportHeader& header, uint32_t payload_bytes) {
  // Misaligned: IBTA Vol 1, 9.7.4.1.3 asks for an invalid request NAK.
  if (in_message_ || payload_bytes != 0 || (header.atomic.va & 7) != 0 || !resource_free())
    return refuse(kNakInvalidRequest);
  pending_ = Pending::kAtomic;
  Demand d;
  d.need = Need::kAtomic;
  d.first = d.last = true;
  d.opcode = header.opcode;
  d.length = d.message_bytes = 8;
  d.va = header.atomic.va;
  d.rkey = header.atomic.rkey;
  d.atomic = header.atomic;
  return d;
}

/// IBTA Vol 1, annex A19: eight bytes to an aligned address, one of the READs and atomics as resources go.
Demand RcResponder::on_atomic_write(const TransportHeader& header, uint32_t payload_bytes) {
  if (in_message_ || payload_bytes != kAtomicWriteBytes || header.reth.length != kAtomicWriteBytes ||
      (header.reth.va & 7) != 0 || !resource_free()) {
    return refuse(kNakInvalidRequest);
  }
  pending_ = Pending::kAtomicWrite;
  Demand d;
  d.need = Need::kAtomicWrite;
  d.first = d.last = true;
  d.opcode = header.opcode;
  d.length = d.message_bytes = kAtomicWriteBytes;
  d.va = header.reth.va;
  d.rkey = header.reth.rkey;
  return d;
}

Demand RcResponder::on_duplicate(const TransportHeader& header, uint32_t payload_bytes) {
  ++stats_.duplicates;
  count(NicCounter::kDuplicateRequest);
  const MessagePacket kind = classify_message(static_cast<uint8_t>(header.opcode));
  if (kind.valid) {
    owe_acknowledge();
    return {};
  }
  if (header.opcode == Opcode::kRcReadRequest && payload_bytes == 0) return read_again(header);
  const bool atomic_write = header.opcode == Opcode::kRcAtomicWrite;
  if (atomic_write || header.opcode == Opcode::kRcCompareSwap || header.opcode == Opcode::kRcFetchAdd) {
    const uint32_t number = find_resource(header.psn);
    if (number != kNoResource && resource(number).atomic && resource(number).atomic_write == atomic_write) {
      owe(number, 0);
      return {};
    }
  }
  ++stats_.malformed;
  return {};
}

Demand RcResponder::read_again(const TransportHeader& header) {
  const uint32_t number = find_resource(header.psn);
  if (number == kNoResource || resource(number).atomic) {
    ++stats_.malformed;
    return {};
  }
  const Resource& r = resource(number);
  const uint32_t from = static_cast<uint32_t>(psn_difference(header.psn, r.first_psn));
  const uint32_t skipped = from * config_.mtu_bytes;
  if (header.reth.va != r.va + skipped || header.reth.length != r.length - skipped) {
    ++stats_.malformed;
    return {};
  }
  pending_ = Pending::kReadAgain;
  pending_resource_ = number;
  pending_start_ = from;
  pending_header_ = header;
  Demand d;
  d.need = Need::kStartRead;
  d.first = d.last = true;
  d.opcode = header.opcode;
  d.message_bytes = header.reth.length;
  d.va = header.reth.va;
  d.rkey = header.reth.rkey;
  return d;
}

void RcResponder::settle(Instant, Outcome outcome, uint64_t atomic_original) {
  const Pending what = pending_;
  WEFT_ASSERT(what != Pending::kNone);
  pending_ = Pending::kNone;
  if (what == Pending::kReadAgain) {
    if (outcome == Outcome::kDone) {
      resource(pending_resource_).rkey = pending_header_.reth.rkey;
      owe(pending_resource_, pending_start_);
    } else {
      refuse(kNakRemoteAccess);
    }
    return;
  }
  switch (outcome) {
    case Outcome::kDone:
      break;
    case Outcome::kReceiverNotReady:
      ++stats_.rnr_naks;
      count(NicCounter::kRnrNakSent);
      count(NicCounter::kOutOfBuffer);
      nak_ = static_cast<uint8_t>(kSyndromeRnr | (config_.min_rnr_timer & 0x1f));
      nak_psn_ = expected_;
      gap_reported_ = true;  // what follows is dropped without a word until this packet comes again
      return;
    case Outcome::kInvalidRequest:
      refuse(kNakInvalidRequest);
      return;
    case Outcome::kRemoteAccess:
      refuse(kNakRemoteAccess);
      return;
    case Outcome::kRemoteOperation:
      refuse(kNakRemoteOperation);
      return;
  }
  if (what == Pending::kMessage) {
    accept_message();
    return;
  }
  Resource r;
  r.first_psn = expected_;
  r.atomic_write = what == Pending::kAtomicWrite;
  r.atomic = r.atomic_write || what == Pending::kAtomic;
  r.packets = 1;
  r.original = atomic_original;
  if (!r.atomic) {
    r.va = pending_header_.reth.va;
    r.rkey = pending_header_.reth.rkey;
    r.length = pending_header_.reth.length;
    r.packets = packets_of(r.length, config_.mtu_bytes);
  }
  msn_ = (msn_ + 1) & kPsnMask;
  r.msn = msn_;
  accept(r.packets);
  add_resource(r);
}

void RcResponder::accept_message() {
  const bool write = pending_kind_.write;
  if (pending_kind_.first) {
    offset_ = 0;
    message_is_write_ = write;
    if (write) {
      message_va_ = pending_header_.reth.va;
      message_rkey_ = pending_header_.reth.rkey;
      message_bytes_ = pending_header_.reth.length;
    }
  }
  offset_ += pending_bytes_;
  in_message_ = !pending_kind_.last;
  if (pending_kind_.last) msn_ = (msn_ + 1) & kPsnMask;
  accept(1);
  if (pending_header_.ack_request) owe_acknowledge();
}

void RcResponder::accept(uint32_t psns) {
  ++stats_.accepted;
  expected_ = next_psn(expected_, psns);
  gap_reported_ = false;
  // A NAK that was not sent yet asked for the packet that has just come. An ACK takes its place.
  if (nak_ != 0 && !fatal_) {
    nak_ = 0;
    owe_acknowledge();
  }
}

void RcResponder::owe_acknowledge() {
  acknowledge_owed_ = true;
  acknowledge_psn_ = next_psn(expected_, kPsnMask);
}

// --- resources
// --------------------------------------------------------------------------------------------------------

/// Whether one more READ or atomic may be taken: the oldest kept must have been answered whole, else the requester has
/// more outstanding than was agreed (IBTA Vol 1, 9.7.4.1.1).
bool RcResponder::resource_free() const {
  if (config_.max_dest_rd_atomic == 0) return false;
  return newest_ - oldest_ < capacity_ || resources_[oldest_ % kMaxResources].answered;
}

uint32_t RcResponder::find_resource(uint32_t psn) const {
  for (uint32_t n = newest_; n != oldest_;) {  // the newest match wins: PSNs come round again
    --n;
    const Resource& r = resources_[n % kMaxResources];
    const int32_t index = psn_difference(psn, r.first_psn);
    if (index >= 0 && static_cast<uint32_t>(index) < r.packets) return n;
  }
  return kNoResource;
}

void RcResponder::add_resource(const Resource& r) {
  if (newest_ - oldest_ == capacity_) drop_oldest();  // at most a repetition that nobody can be waiting for any more
  const uint32_t number = newest_++;
  resource(number) = r;
  owe(number, 0);
}

void RcResponder::drop_oldest() {
  if (resource(oldest_).owed) --answers_;
  ++oldest_;
  if (static_cast<int32_t>(answer_ - oldest_) < 0) answer_ = oldest_;
}

/// Answers (again) from packet `from` on. An answer under way that has not come so far yet goes on as it is.
void RcResponder::owe(uint32_t number, uint32_t from) {
  Resource& r = resource(number);
  if (r.owed && r.cursor <= from) return;
  if (!r.owed) {
    r.owed = true;
    if (answers_++ == 0) answer_ = number;
  }
  r.start = r.cursor = from;
  if (static_cast<int32_t>(number - answer_) < 0) answer_ = number;
}

// --- answering
// --------------------------------------------------------------------------------------------------------

bool RcResponder::pull(Instant, OutFrame& out) {
  if (!owes()) return false;
  out = OutFrame{};
  out.header.dest_qpn = config_.dest_qpn;
  last_was_read_ = false;
  if (answers_ != 0) {
    while (!resource(answer_).owed) ++answer_;
    Resource& r = resource(answer_);
    out.header.psn = next_psn(r.first_psn, r.cursor);
    // It acknowledges everything before it.
    if (acknowledge_owed_ && psn_difference(out.header.psn, acknowledge_psn_) >= 0) acknowledge_owed_ = false;
    if (r.atomic) {
      out.header.opcode = r.atomic_write ? Opcode::kRcReadResponseOnly : Opcode::kRcAtomicAcknowledge;
      out.header.aeth = {kSyndromeAck, r.msn};
      out.header.atomic_original = r.original;
      r.cursor = 1;
    } else {
      pull_read(r, out);
    }
    if (r.cursor == r.packets) finish_answer(r);
    return true;
  }
  out.header.opcode = Opcode::kRcAcknowledge;
  if (nak_ != 0) {
    out.header.psn = nak_psn_;
    out.header.aeth = {nak_, msn_};
    nak_ = 0;
  } else {
    out.header.psn = next_psn(expected_, kPsnMask);
    out.header.aeth = {kSyndromeAck, msn_};
  }
  acknowledge_owed_ = false;  // a NAK acknowledges everything before it too
  return true;
}

void RcResponder::pull_read(Resource& r, OutFrame& out) {
  const bool first = r.cursor == r.start;
  const bool last = r.cursor + 1 == r.packets;
  out.header.opcode = first ? (last ? Opcode::kRcReadResponseOnly : Opcode::kRcReadResponseFirst)
                            : (last ? Opcode::kRcReadResponseLast : Opcode::kRcReadResponseMiddle);
  if (first || last) out.header.aeth = {kSyndromeAck, r.msn};
  out.payload_bytes = payload_of(r.length, config_.mtu_bytes, r.cursor);
  out.source = out.payload_bytes == 0 ? PayloadSource::kNone : PayloadSource::kMemory;
  out.va = r.va + uint64_t{r.cursor} * config_.mtu_bytes;
  out.rkey = r.rkey;
  last_was_read_ = true;
  last_read_psn_ = out.header.psn;
  ++r.cursor;
}

void RcResponder::finish_answer(Resource& r) {
  r.owed = false;
  r.answered = true;
  --answers_;
}

void RcResponder::read_failed(Instant) {
  if (!last_was_read_ || fatal_) return;
  for (uint32_t n = oldest_; n != newest_; ++n) resource(n).owed = false;
  answers_ = 0;
  refuse(kNakRemoteAccess);
  nak_psn_ = last_read_psn_;
}

}  // namespace weft
