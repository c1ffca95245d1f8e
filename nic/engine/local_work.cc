// SPDX-License-Identifier: Apache-2.0
//
// Device: what local works, and a peer's SEND with invalidate, do to memory windows.
#include "nic/engine/local_work.h"

#include "nic/engine/device.h"

namespace weft::nic {

WorkStatus Device::execute_local(QueuePair& qp, const SendRequest& request) {
  const WindowUser user{qp.pd, qp.qpn};
  if (request.work.opcode == WorkOpcode::kBindWindow) {
    return windows_.bind(regions_, request.bind, user) ? WorkStatus::kSuccess : WorkStatus::kWindowBind;
  }
  // A region that a program registered is not invalidated, only windows are; as with the kernel's soft-RoCE.
  return windows_.invalidate(regions_, request.work.immediate, user) ? WorkStatus::kSuccess
                                                                     : WorkStatus::kLocalQpOperation;
}

/// The last packet of a SEND with invalidate has come and would be accepted. IBTA Vol 1, 9.4.1.1.3: a key that cannot
/// be invalidated is a remote access error; the receive request ends in error, as the kernel's soft-RoCE ends it.
bool Device::invalidate_for_peer(QueuePair& qp, uint32_t rkey) {
  if (windows_.invalidate(regions_, rkey, {qp.pd, qp.qpn})) return true;
  qp.receive_told = true;
  Completion bad;
  bad.opcode = CompletionOpcode::kReceive;
  bad.status = WorkStatus::kRemoteInvalidRequest;
  complete_receive(qp, bad);
  return false;
}

}  // namespace weft::nic
