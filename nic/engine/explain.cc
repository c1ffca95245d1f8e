// SPDX-License-Identifier: Apache-2.0
//
// Device: what is told about errors and states, to the platform.
#include "nic/engine/explain.h"

#include <algorithm>
#include <cstring>

#include "nic/engine/device.h"

namespace weft::nic {
namespace {

bool of_requester(WorkStatus status) {
  return status == WorkStatus::kRetryExceeded || status == WorkStatus::kRnrRetryExceeded ||
         status == WorkStatus::kRemoteAccess || status == WorkStatus::kRemoteInvalidRequest ||
         status == WorkStatus::kRemoteOperation;
}

bool writes_local(WorkOpcode opcode) {
  return opcode == WorkOpcode::kRead || opcode == WorkOpcode::kCompareSwap || opcode == WorkOpcode::kFetchAdd;
}

uint32_t rights_for(Need need) {
  switch (need) {
    case Need::kPlaceWrite:
    case Need::kAtomicWrite:
      return kAccessRemoteWrite;
    case Need::kStartRead:
      return kAccessRemoteRead;
    case Need::kAtomic:
      return kAccessRemoteAtomic;
    default:
      return 0;
  }
}

const char* action_of(Need need) {
  switch (need) {
    case Need::kPlaceWrite:
      return "WRITE";
    case Need::kStartRead:
      return "READ";
    case Need::kAtomic:
      return "atomic";
    case Need::kAtomicWrite:
      return "ATOMIC_WRITE";
    case Need::kPlaceSend:
      return "SEND";
    default:
      return "request";
  }
}

}  // namespace

/// Asked again once an access has failed, by those who want words for it.
const char* Device::refusal(uint32_t key, uint64_t va, uint64_t bytes, uint32_t rights, const QueuePair& qp) const {
  uint64_t first = 0;
  uint64_t length = 0;
  if (is_window_key(key)) {
    const MemoryWindow* window = windows_.find(key);
    if (window == nullptr) return "no such key";
    if (window->region == 0) return "the memory window is not bound";
    if (window->pd != qp.pd) return "the memory window is of another protection domain";
    if (window->type == WindowType::kType2 && window->qpn != qp.qpn) return "another QP bound the memory window";
    if ((window->access & rights) != rights) return "the memory window does not give that right";
    first = (window->access & kAccessZeroBased) != 0 ? 0 : window->addr;
    length = window->length;
  } else {
    const MemoryRegion* region = regions_.find(key);
    if (region == nullptr) return "no such key";
    if (region->pd != qp.pd) return "the key is of another protection domain";
    if ((region->access & rights) != rights) return "the key does not give that right";
    first = region->iova;
    length = region->length;
  }
  if (va < first || va - first > length || bytes > length - (va - first)) {
    return is_window_key(key) ? "outside the memory window" : "outside the MR";
  }
  return "the memory is not mapped";
}

void Device::fill_report(const QueuePair& qp, ErrorReport& report) const {
  report.qpn = qp.qpn;
  report.type = qp.type;
  if (qp.type == QpType::kUd) return;
  report.peer_qpn = qp.attributes.dest_qpn;
  report.peer = qp.attributes.address.dgid;
}

/// The first entry of a scatter list that would not be let through, or all of them were and the memory is gone.
void Device::blame_sges(const Sge* sges, uint32_t count, uint32_t rights, const QueuePair& qp, ErrorReport& report) const {
  for (uint32_t i = 0; i < count; ++i) {
    Sge sge;
    memcpy(&sge, &sges[i], sizeof sge);
    if (sge.length == 0) continue;
    const bool refused = regions_.user_address(sge.lkey, sge.addr, sge.length, rights, qp.pd) == nullptr;
    if (!refused && i + 1 != count) continue;
    report.refusal = refusal(sge.lkey, sge.addr, sge.length, rights, qp);
    report.key = sge.lkey;
    report.address = sge.addr;
    report.length = sge.length;
    return;
  }
}

void Device::explain_send(QueuePair& qp, const WorkRecord& work, WorkStatus status) {
  if (status == WorkStatus::kSuccess || status == WorkStatus::kFlushed) return;
  ErrorReport report;
  fill_report(qp, report);
  report.side = ErrorSide::kSend;
  report.status = status;
  report.opcode = work.opcode;
  report.wr_id = work.wr_id;
  report.length = work.length;
  if (RcMachines* rc = qp.rc(); rc != nullptr && of_requester(status)) {
    report.failure = rc->requester.failure();
    if (report.failure.noticed) report.notice = qp.last_notice;
  }
  if (status == WorkStatus::kLocalProtection && work.inline_data == nullptr) {
    blame_sges(work.sges, work.sge_count, writes_local(work.opcode) ? uint32_t{kAccessLocalWrite} : 0, qp, report);
  }
  platform_.explain(welcome_.nic, report);
}

void Device::explain_receive(QueuePair& qp, const Completion& completion) {
  if (completion.status == WorkStatus::kSuccess || completion.status == WorkStatus::kFlushed) return;
  ErrorReport report;
  fill_report(qp, report);
  report.side = ErrorSide::kReceive;
  report.status = completion.status;
  report.wr_id = completion.wr_id;
  report.length = qp.receive.bytes;
  if (completion.status == WorkStatus::kLocalProtection) {
    blame_sges(qp.receive.sges, qp.receive.sge_count, kAccessLocalWrite, qp, report);
  }
  platform_.explain(welcome_.nic, report);
}

void Device::explain_refusal(QueuePair& qp, const Demand& demand) {
  ErrorReport report;
  fill_report(qp, report);
  report.side = ErrorSide::kResponder;
  report.status = qp.access_error ? WorkStatus::kRemoteAccess : WorkStatus::kRemoteInvalidRequest;
  report.action = action_of(demand.need);
  const uint32_t rights = rights_for(demand.need);
  if (demand.need == Need::kNothing) {
    report.refusal = "malformed, out of order, or more READs and atomics at once than agreed";
  } else if ((qp.attributes.access & rights) != rights) {
    report.refusal = "the QP's access flags do not allow it";
  } else if (rights != 0) {
    // The first packet is judged for the whole message; one after it was let in, and fails by itself.
    const uint64_t bytes = demand.first ? demand.message_bytes : demand.length;
    report.refusal = qp.access_error ? refusal(demand.rkey, demand.va, bytes, rights, qp) : "misaligned";
    report.key = demand.rkey;
    report.address = demand.va - (demand.first ? 0 : demand.offset);
    report.length = demand.message_bytes;
  } else {
    report.refusal = "no receive request could take it";
  }
  platform_.explain(welcome_.nic, report);
}

// --- states --------------------------------------------------------------------------------------------------

/// What the platform cannot say now is said again later; a state that changed meanwhile is said once.
void Device::tell_state(QueuePair& qp) {
  Gid peer;
  std::copy_n(qp.attributes.address.dgid.begin(), sizeof peer, peer);
  const uint32_t mtu = qp.type == QpType::kUd ? welcome_.active_mtu : qp.attributes.path_mtu;
  qp.untold = !platform_.qp_state(welcome_.nic, qp.qpn, static_cast<uint32_t>(qp.now_state()),
                                  static_cast<uint32_t>(qp.type), qp.attributes.dest_qpn, peer, mtu);
  untold_ = untold_ || qp.untold;
}

void Device::tell_untold() {
  untold_ = false;
  for (uint32_t i = 0; i < qps_.high_water(); ++i) {
    QueuePair* const qp = qps_.at(i);
    if (qp != nullptr && qp->untold) tell_state(*qp);
    if (untold_) return;  // no room yet: the others would not find any either
  }
}

}  // namespace weft::nic
