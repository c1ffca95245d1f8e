// SPDX-License-Identifier: Apache-2.0
#include "protocols/ud/ud.h"

#include "protocols/base/assert.h"
#include "protocols/transport/segment.h"

namespace weft {

namespace {
constexpr uint32_t kUseOwnQkey = 0x80000000u;
}

void UdSender::configure(uint32_t mtu_bytes, uint32_t own_qpn, uint32_t own_qkey, uint32_t first_psn) {
  WEFT_ASSERT(is_path_mtu(mtu_bytes));
  mtu_bytes_ = mtu_bytes;
  own_qpn_ = own_qpn;
  own_qkey_ = own_qkey;
  psn_ = first_psn & kPsnMask;
  queue_.reset();
}

void UdSender::post(const SendWork& work) {
  WorkStatus status = WorkStatus::kSuccess;
  if (work.opcode != WorkOpcode::kSend && work.opcode != WorkOpcode::kSendImm) {
    status = WorkStatus::kLocalQpOperation;
  } else if (work.length > mtu_bytes_) {
    status = WorkStatus::kLocalLength;
  }
  queue_.post(work, status);
}

bool UdSender::pull(OutFrame& out) {
  if (!queue_.sendable()) return false;
  const SendWork& work = queue_.current_work();
  const bool immediate = work.opcode == WorkOpcode::kSendImm;
  out = OutFrame{};
  out.header.opcode = immediate ? Opcode::kUdSendOnlyImm : Opcode::kUdSendOnly;
  out.header.solicited = work.solicited;
  out.header.dest_qpn = work.remote_qpn & kQpnMask;
  out.header.psn = psn_;
  if (immediate) out.header.immediate = work.immediate;
  out.header.deth.qkey = (work.remote_qkey & kUseOwnQkey) != 0 ? own_qkey_ : work.remote_qkey;
  out.header.deth.source_qpn = own_qpn_;
  out.source = work.length == 0 ? PayloadSource::kNone : PayloadSource::kWork;
  out.payload_bytes = work.length;
  out.work = queue_.current();
  psn_ = (psn_ + 1) & kPsnMask;
  queue_.complete_current();
  return true;
}

bool ud_accepts(const TransportHeader& header, uint32_t own_qkey) {
  return (header.opcode == Opcode::kUdSendOnly || header.opcode == Opcode::kUdSendOnlyImm) &&
         header.deth.qkey == own_qkey;
}

}  // namespace weft
