// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/qp_rules.h"

namespace weft::nic {
namespace {

struct Rule {
  bool exists = false;
  uint32_t required = 0;
  uint32_t optional = 0;
};

constexpr uint32_t kConnectedInit = kMaskPkeyIndex | kMaskPort | kMaskAccess;
constexpr uint32_t kDatagramInit = kMaskPkeyIndex | kMaskPort | kMaskQkey;
constexpr uint32_t kUcReady = kMaskAddress | kMaskPathMtu | kMaskDestQpn | kMaskRqPsn;
constexpr uint32_t kRcSend = kMaskTimeout | kMaskRetryCount | kMaskRnrRetry | kMaskSqPsn | kMaskMaxRdAtomic;

// RTR→RTS, RTS→RTS and SQD→RTS take the same optional attributes.
constexpr uint32_t optional_running(QpType type) {
  switch (type) {
    case QpType::kRc:
      return kMaskCurrentState | kMaskAlternatePath | kMaskAccess | kMaskMinRnrTimer | kMaskMigrationState;
    case QpType::kUc:
      return kMaskCurrentState | kMaskAlternatePath | kMaskAccess | kMaskMigrationState;
    case QpType::kUd:
      return kMaskCurrentState | kMaskQkey;
  }
  return 0;
}

constexpr uint32_t optional_drained(QpType type) {
  constexpr uint32_t kUc = kMaskAddress | kMaskAlternatePath | kMaskAccess | kMaskPkeyIndex | kMaskMigrationState;
  switch (type) {
    case QpType::kRc:
      return kUc | kMaskPort | kMaskTimeout | kMaskRetryCount | kMaskRnrRetry | kMaskMaxRdAtomic |
             kMaskMaxDestRdAtomic | kMaskMinRnrTimer;
    case QpType::kUc:
      return kUc;
    case QpType::kUd:
      return kMaskPkeyIndex | kMaskQkey;
  }
  return 0;
}

constexpr Rule rule_to_init(QpType type, QpState from) {
  const uint32_t set = type == QpType::kUd ? kDatagramInit : kConnectedInit;
  if (from == QpState::kReset) return {true, set, 0};
  if (from == QpState::kInit) return {true, 0, set};
  return {};
}

constexpr Rule rule_to_receive(QpType type) {
  switch (type) {
    case QpType::kRc:
      return {true, kUcReady | kMaskMaxDestRdAtomic | kMaskMinRnrTimer,
              kMaskAlternatePath | kMaskAccess | kMaskPkeyIndex};
    case QpType::kUc:
      return {true, kUcReady, kMaskAlternatePath | kMaskAccess | kMaskPkeyIndex};
    case QpType::kUd:
      return {true, 0, kMaskPkeyIndex | kMaskQkey};
  }
  return {};
}

constexpr Rule rule_to_send(QpType type, QpState from) {
  switch (from) {
    case QpState::kReadyToReceive:
      return {true, type == QpType::kRc ? kRcSend : static_cast<uint32_t>(kMaskSqPsn), optional_running(type)};
    case QpState::kReadyToSend:
    case QpState::kDrained:
      return {true, 0, optional_running(type)};
    case QpState::kSendError:
      if (type == QpType::kUd) return {true, 0, kMaskCurrentState | kMaskQkey};
      if (type == QpType::kUc) return {true, 0, kMaskCurrentState | kMaskAccess};
      return {true, 0, 0};  // RC never gets there
    default:
      return {};
  }
}

constexpr Rule rule_for(QpType type, QpState from, QpState to) {
  switch (to) {
    case QpState::kReset:
      return {true, 0, 0};
    case QpState::kError:
      return {from != QpState::kReset, 0, 0};
    case QpState::kInit:
      return rule_to_init(type, from);
    case QpState::kReadyToReceive:
      return from == QpState::kInit ? rule_to_receive(type) : Rule{};
    case QpState::kReadyToSend:
      return rule_to_send(type, from);
    case QpState::kDrained:
      if (from == QpState::kReadyToSend) return {true, 0, kMaskDrainNotify};
      if (from == QpState::kDrained) return {true, 0, optional_drained(type)};
      return {};
    case QpState::kSendError:
      return {};
  }
  return {};
}

}  // namespace

bool transition_allowed(QpType type, QpState from, QpState to, uint32_t mask) {
  const Rule rule = rule_for(type, from, to);
  if (!rule.exists) return false;
  if ((mask & rule.required) != rule.required) return false;
  if ((mask & ~(rule.required | rule.optional | kMaskState)) != 0) return false;
  // CUR_STATE only makes sense where the QP may have moved by itself.
  return (mask & kMaskCurrentState) == 0 || (from >= QpState::kReadyToReceive && from <= QpState::kSendError);
}

}  // namespace weft::nic
