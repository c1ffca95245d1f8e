// SPDX-License-Identifier: Apache-2.0
#include "protocols/uc/uc.h"

#include "protocols/base/assert.h"

namespace weft {

namespace {
constexpr uint8_t kUcPrefix = 0x20;
constexpr uint8_t kPrefixMask = 0xe0;
}  // namespace

// --- sender
// -----------------------------------------------------------------------------------------------------------

void UcSender::configure(uint32_t mtu_bytes, uint32_t dest_qpn, uint32_t first_psn) {
  WEFT_ASSERT(is_path_mtu(mtu_bytes));
  mtu_bytes_ = mtu_bytes;
  dest_qpn_ = dest_qpn;
  psn_ = first_psn & kPsnMask;
  packet_ = 0;
  queue_.reset();
}

void UcSender::post(const SendWork& work) {
  WorkStatus status = WorkStatus::kSuccess;
  const bool carried = is_write(work.opcode) || work.opcode == WorkOpcode::kSend ||
                       work.opcode == WorkOpcode::kSendImm || work.opcode == WorkOpcode::kBindWindow;
  if (!carried) {
    status = WorkStatus::kLocalQpOperation;
  } else if (work.length > kMaxMessageBytes) {
    status = WorkStatus::kLocalLength;
  }
  queue_.post(work, status);
}

bool UcSender::pull(OutFrame& out) {
  if (!queue_.sendable()) return false;
  const SendWork& work = queue_.current_work();
  const bool first = packet_ == 0;
  const bool last = packet_ + 1 == packets_of(work.length, mtu_bytes_);
  out = OutFrame{};
  out.header.opcode = static_cast<Opcode>(static_cast<uint8_t>(message_opcode(work.opcode, first, last)) | kUcPrefix);
  out.header.dest_qpn = dest_qpn_;
  out.header.psn = psn_;
  if (first && is_write(work.opcode)) out.header.reth = {work.remote_addr, work.rkey, work.length};
  if (last) {
    out.header.solicited = work.solicited && work.opcode != WorkOpcode::kWrite;
    out.header.immediate = work.immediate;
  }
  out.work = queue_.current();
  out.offset = packet_ * mtu_bytes_;
  out.payload_bytes = payload_of(work.length, mtu_bytes_, packet_);
  out.source = out.payload_bytes == 0 ? PayloadSource::kNone : PayloadSource::kWork;
  psn_ = (psn_ + 1) & kPsnMask;
  ++packet_;
  if (last) {
    packet_ = 0;
    queue_.complete_current();
  }
  return true;
}

// --- receiver
// ---------------------------------------------------------------------------------------------------------

void UcReceiver::configure(uint32_t mtu_bytes, uint32_t first_psn) {
  WEFT_ASSERT(is_path_mtu(mtu_bytes));
  mtu_bytes_ = mtu_bytes;
  expected_ = first_psn & kPsnMask;
  in_message_ = pending_ = false;
  messages_dropped_ = packets_dropped_ = 0;
}

/// The packet, and the message it belongs to, are lost.
Demand UcReceiver::drop() {
  ++packets_dropped_;
  if (in_message_) ++messages_dropped_;
  in_message_ = false;
  return {};
}

Demand UcReceiver::on_request(const TransportHeader& header, uint32_t payload_bytes) {
  WEFT_ASSERT(!pending_);
  const uint8_t opcode = static_cast<uint8_t>(header.opcode);
  kind_ = (opcode & kPrefixMask) == kUcPrefix ? classify_message(opcode & ~kPrefixMask) : MessagePacket{};
  if (!kind_.valid || kind_.invalidate) {
    ++packets_dropped_;
    return {};
  }
  const bool in_order = header.psn == expected_;
  // Whatever its PSN, this packet sets what comes next (IBTA Vol 1, 9.8.2.2.1): a gap costs one message, not all of
  // them.
  expected_ = (header.psn + 1) & kPsnMask;
  if (kind_.first) {
    if (in_message_) ++messages_dropped_;  // its last packet was lost
    in_message_ = false;
    offset_ = 0;
  } else if (!in_message_ || !in_order || kind_.write != message_is_write_) {
    return drop();
  }
  const bool whole_packet = kind_.last ? payload_bytes <= mtu_bytes_ : payload_bytes == mtu_bytes_;
  const bool empty_last = kind_.last && !kind_.first && payload_bytes == 0;
  if (!whole_packet || empty_last || payload_bytes > kMaxMessageBytes - offset_) return drop();
  if (kind_.write) {
    const uint32_t total = kind_.first ? header.reth.length : message_bytes_;
    const uint32_t end = offset_ + payload_bytes;
    if (total > kMaxMessageBytes || (kind_.last ? end != total : end >= total)) return drop();
    if (kind_.first) {
      message_va_ = header.reth.va;
      message_rkey_ = header.reth.rkey;
      message_bytes_ = total;
    }
  }
  message_is_write_ = kind_.write;
  pending_ = true;
  pending_bytes_ = payload_bytes;
  Demand d;
  d.need = kind_.write ? Need::kPlaceWrite : Need::kPlaceSend;
  d.opcode = header.opcode;
  d.first = kind_.first;
  d.last = kind_.last;
  d.takes_receive = kind_.write ? kind_.immediate : kind_.first;
  d.completes_receive = kind_.write ? kind_.immediate : kind_.last;
  d.solicited = header.solicited && kind_.last;
  d.with_immediate = kind_.immediate;
  d.immediate = kind_.immediate ? header.immediate : 0;
  d.offset = offset_;
  d.length = payload_bytes;
  d.message_bytes = kind_.write ? message_bytes_ : kind_.last ? offset_ + payload_bytes : 0;
  d.va = kind_.write ? message_va_ + offset_ : 0;
  d.rkey = kind_.write ? message_rkey_ : 0;
  return d;
}

void UcReceiver::settle(Outcome outcome) {
  WEFT_ASSERT(pending_);
  pending_ = false;
  if (outcome != Outcome::kDone) {
    ++messages_dropped_;
    ++packets_dropped_;
    in_message_ = false;
    return;
  }
  offset_ += pending_bytes_;
  in_message_ = !kind_.last;
}

}  // namespace weft
