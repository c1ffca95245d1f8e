// SPDX-License-Identifier: Apache-2.0
//
// Inline progress (nic_rules 8): the program's own poll loop drives its NIC.
//
// CREATE_CQ's user_handle is the library's ibv_cq, whose first word is the ibv_context; its ops table is patched there,
// without naming libibverbs. The pointers of an ibv_cq_ex are set after that command, so they are patched at the next
// command that names the CQ. post_recv is patched to flush what is posted to a QP in ERR, and for nothing else
// (DECISIONS 20). Polling steps over what was withdrawn with its QP (nic/engine/work_queue.h). end_poll is patched for a defect of rdma-core before 55: see end_poll_hook.
//
//   completion_queue_seen(handle)  a CREATE_CQ, or a command that named the CQ, succeeded
//   polled_here(handle)            the CQ is polled through these hooks
//   forget(file)                   an open device was closed: its context's memory is the library's again
//   forget_all()                   in the child of a fork
// What a handle points to is checked before it is believed; a handle of something else is left alone.
#pragma once

#include <stdint.h>

#include "nic/preload/descriptors.h"

namespace weft::preload::inline_progress {

// Offsets in libibverbs' public structures, the same from rdma-core 44 to 64; the tests compare them with verbs.h.
inline constexpr uint32_t kContextOps = 8;
inline constexpr uint32_t kOpsPollCq = 88;
inline constexpr uint32_t kOpsPostRecv = 208;
inline constexpr uint32_t kContextCommandFd = 264;
inline constexpr uint32_t kExtendedStartPoll = 144;
inline constexpr uint32_t kExtendedNextPoll = 152;
inline constexpr uint32_t kExtendedEndPoll = 160;
inline constexpr uint32_t kExtendedStatus = 132;
inline constexpr uint32_t kWcBytes = 48;
inline constexpr uint32_t kWcStatus = 8;
inline constexpr uint32_t kQpState = 56;  // as the library last set it
inline constexpr int kErrorState = 6;     // IBV_QPS_ERR

void completion_queue_seen(uint64_t user_handle);
void forget(const OpenDevice& file);
void forget_all();
/// The program polls this CQ through the hooks.
bool polled_here(uint64_t user_handle);

}  // namespace weft::preload::inline_progress
