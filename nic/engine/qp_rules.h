// SPDX-License-Identifier: Apache-2.0
//
// Which MODIFY_QP is legal: the state table of the verbs (IBTA Vol 1, 11.2.5.3; the kernel's ib_modify_qp_is_ok).
#pragma once

#include <cstdint>

#include "nic/engine/queue_pair.h"

namespace weft::nic {

/// Numbered as ibv_qp_attr_mask.
enum QpMask : uint32_t {
  kMaskState = 1u << 0,
  kMaskCurrentState = 1u << 1,
  kMaskDrainNotify = 1u << 2,
  kMaskAccess = 1u << 3,
  kMaskPkeyIndex = 1u << 4,
  kMaskPort = 1u << 5,
  kMaskQkey = 1u << 6,
  kMaskAddress = 1u << 7,
  kMaskPathMtu = 1u << 8,
  kMaskTimeout = 1u << 9,
  kMaskRetryCount = 1u << 10,
  kMaskRnrRetry = 1u << 11,
  kMaskRqPsn = 1u << 12,
  kMaskMaxRdAtomic = 1u << 13,
  kMaskAlternatePath = 1u << 14,
  kMaskMinRnrTimer = 1u << 15,
  kMaskSqPsn = 1u << 16,
  kMaskMaxDestRdAtomic = 1u << 17,
  kMaskMigrationState = 1u << 18,
  kMaskCapabilities = 1u << 19,
  kMaskDestQpn = 1u << 20,
};
inline constexpr uint32_t kMaskLegacy = (1u << 21) - 1;

/// True when going `from` → `to` with exactly these attributes is in the table.
bool transition_allowed(QpType type, QpState from, QpState to, uint32_t mask);

}  // namespace weft::nic
