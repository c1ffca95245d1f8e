// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/explain.h"

namespace weft::preload {
namespace {

using nic::ErrorReport;
using nic::ErrorSide;

template <typename T>
void add_hex(T& out, uint64_t value) {
  out.add("0x");
  int shift = 60;
  while (shift > 0 && (value >> shift & 15) == 0) shift -= 4;
  for (; shift >= 0; shift -= 4) out.add("0123456789abcdef"[value >> shift & 15]);
}

/// As ibv_wc_status calls them.
const char* name_of(WorkStatus status) {
  switch (status) {
    case WorkStatus::kSuccess: return "SUCCESS";
    case WorkStatus::kLocalLength: return "LOC_LEN_ERR";
    case WorkStatus::kLocalQpOperation: return "LOC_QP_OP_ERR";
    case WorkStatus::kLocalProtection: return "LOC_PROT_ERR";
    case WorkStatus::kFlushed: return "WR_FLUSH_ERR";
    case WorkStatus::kWindowBind: return "MW_BIND_ERR";
    case WorkStatus::kLocalAccess: return "LOC_ACCESS_ERR";
    case WorkStatus::kRemoteInvalidRequest: return "REM_INV_REQ_ERR";
    case WorkStatus::kRemoteAccess: return "REM_ACCESS_ERR";
    case WorkStatus::kRemoteOperation: return "REM_OP_ERR";
    case WorkStatus::kRetryExceeded: return "RETRY_EXC_ERR";
    case WorkStatus::kRnrRetryExceeded: return "RNR_RETRY_EXC_ERR";
    case WorkStatus::kGeneral: return "GENERAL_ERR";
  }
  return "error";
}

const char* name_of(WorkOpcode opcode) {
  switch (opcode) {
    case WorkOpcode::kWrite:
    case WorkOpcode::kWriteImm: return "WRITE";
    case WorkOpcode::kSend:
    case WorkOpcode::kSendImm:
    case WorkOpcode::kSendInvalidate: return "SEND";
    case WorkOpcode::kRead: return "READ";
    case WorkOpcode::kCompareSwap:
    case WorkOpcode::kFetchAdd: return "atomic";
    case WorkOpcode::kLocalInvalidate: return "LOCAL_INV";
    case WorkOpcode::kBindWindow: return "BIND_MW";
    case WorkOpcode::kAtomicWrite: return "ATOMIC_WRITE";
  }
  return "work";
}

const char* text_of(attach::NoticeReason reason) {
  switch (reason) {
    case attach::NoticeReason::kFaultDrop: return "a link lost frames on this path";
    case attach::NoticeReason::kNoSuchQpn: return "nobody there owns that QP number";
    case attach::NoticeReason::kNoRoute: return "there is no route to that address";
    case attach::NoticeReason::kBadFrame: return "frames were refused as malformed or corrupt";
    case attach::NoticeReason::kLinkDown: return "a link on this path is down";
    case attach::NoticeReason::kPeerDied: return "the peer's process is gone";
    case attach::NoticeReason::kOverflow: return "it has lost count of what was dropped";
    case attach::NoticeReason::kBufferDrop: return "a full buffer dropped frames on this path";
    case attach::NoticeReason::kNone: break;
  }
  return nullptr;
}

template <typename T>
void add_peer(const ErrorReport& report, T& out) {
  if (gid_is_ipv4(report.peer)) {
    for (int i = 12; i < 16; ++i) {
      if (i != 12) out.add('.');
      out.number(report.peer[static_cast<size_t>(i)]);
    }
  } else {
    for (size_t i = 0; i < 16; ++i) {
      if (i != 0 && i % 2 == 0) out.add(':');
      out.add("0123456789abcdef"[report.peer[i] >> 4]).add("0123456789abcdef"[report.peer[i] & 15]);
    }
  }
}

/// "67.109 ms", from microseconds up.
void add_time(Because& out, Duration time) {
  const auto us = static_cast<uint64_t>(time.count() / 1'000'000);
  const uint64_t whole = us >= 1000 ? us / 1000 : us;
  out.number(whole);
  if (us >= 1000) {
    const uint64_t part = us % 1000;
    out.add('.').add(static_cast<char>('0' + part / 100)).add(static_cast<char>('0' + part / 10 % 10));
    out.add(static_cast<char>('0' + part % 10));
  }
  out.add(us >= 1000 ? " ms" : " us");
}

void add_memory(Because& out, const char* key_name, uint32_t key, uint64_t address, uint64_t length) {
  out.add(key_name);
  add_hex(out, key);
  out.add(" va ");
  add_hex(out, address);
  out.add(" len ").number(length);
}

void of_retries(const RequesterFailure& f, Because& out) {
  out.add("no answer to PSN ").number(f.psn).add(" after ").number(f.transmissions).add(" transmissions");
  if (f.timeouts != 0) {
    out.add(", ").number(f.timeouts).add(f.timeouts == 1 ? " timeout of " : " timeouts of ");
    add_time(out, f.timeout);
  } else {
    out.add(", the peer asked for it again each time");
  }
}

void of_send(const ErrorReport& report, Because& out) {
  const RequesterFailure& f = report.failure;
  switch (report.status) {
    case WorkStatus::kRetryExceeded:
      of_retries(f, out);
      break;
    case WorkStatus::kRnrRetryExceeded:
      out.add("the peer had no receive posted for PSN ").number(f.psn).add(", ").number(f.transmissions);
      out.add(f.transmissions == 1 ? " RNR NAK" : " RNR NAKs");
      break;
    case WorkStatus::kRemoteAccess:
      out.add("the peer refused ");
      add_memory(out, "rkey ", f.rkey, f.remote_addr, f.length);
      out.add("; its own QP says why");
      break;
    case WorkStatus::kRemoteInvalidRequest:
      out.add("the peer refused PSN ").number(f.psn).add(" as invalid: too long, or not allowed on its QP");
      break;
    case WorkStatus::kRemoteOperation:
      out.add("the peer's own receive request failed");
      break;
    case WorkStatus::kLocalProtection:
      if (report.refusal == nullptr) break;
      add_memory(out, "lkey ", report.key, report.address, report.length);
      out.add(": ").add(report.refusal);
      break;
    case WorkStatus::kLocalLength:
      out.add("a message of ").number(report.length).add(" bytes is longer than this QP can send");
      break;
    case WorkStatus::kLocalQpOperation:
      out.add("this QP cannot carry such a work, or its address handle is not of its protection domain");
      break;
    case WorkStatus::kWindowBind:
      out.add("the window cannot be bound like that");
      break;
    default:
      break;
  }
  if (const char* why = text_of(report.notice); why != nullptr && report.status == WorkStatus::kRetryExceeded) {
    out.add("; the fabric says: ").add(why);
  }
}

}  // namespace

void because(const ErrorReport& report, Because& out) {
  switch (report.side) {
    case ErrorSide::kSend:
      of_send(report, out);
      break;
    case ErrorSide::kReceive:
      if (report.status == WorkStatus::kLocalLength) {
        out.add("the peer's message is longer than the receive request of ").number(report.length).add(" bytes");
      } else if (report.refusal != nullptr) {
        add_memory(out, "lkey ", report.key, report.address, report.length);
        out.add(": ").add(report.refusal);
      }
      break;
    case ErrorSide::kResponder:
      out.add("refused the peer's ").add(report.action == nullptr ? "request" : report.action);
      if (report.key != 0) {
        out.add(" of ");
        add_memory(out, "rkey ", report.key, report.address, report.length);
      }
      if (report.refusal != nullptr) out.add(": ").add(report.refusal);
      break;
  }
}

void headline(const ErrorReport& report, Because& out) {
  out.add("QP ").number(report.qpn);
  out.add(report.type == nic::QpType::kRc ? " (RC" : report.type == nic::QpType::kUc ? " (UC" : " (UD");
  if (report.peer != GidBytes{}) {
    out.add(" to ");
    add_peer(report, out);
    out.add(" QP ").number(report.peer_qpn);
  }
  out.add(')');
  if (report.side != ErrorSide::kResponder) {
    out.add(", ").add(report.side == ErrorSide::kReceive ? "receive" : name_of(report.opcode));
    out.add(" wr_id ").number(report.wr_id);
  }
  out.add(": ").add(name_of(report.status));
}

}  // namespace weft::preload
