// SPDX-License-Identifier: Apache-2.0
//
// The table, and Device: frames for groups.
#include "nic/engine/multicast.h"

#include <algorithm>
#include <cerrno>

#include "nic/engine/device.h"

namespace weft::nic {

bool MulticastTable::open(uint32_t groups, uint32_t qps_of_group) {
  qps_of_group_ = std::min(qps_of_group, kMaxQpsOfGroup);
  return groups_.open(groups);
}

uint32_t MulticastTable::bucket_of(const GidBytes& gid) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const uint8_t byte : gid) hash = (hash ^ byte) * 16777619u;
  return (hash ^ hash >> 16) % kBuckets;
}

MulticastGroup* MulticastTable::find_group(const GidBytes& gid) const {
  for (uint32_t at = buckets_[bucket_of(gid)]; at != 0;) {
    MulticastGroup* const group = groups_.at(at - 1);
    if (group->gid == gid) return group;
    at = group->next;
  }
  return nullptr;
}

const MulticastGroup* MulticastTable::find(const GidBytes& gid) const { return find_group(gid); }

const MulticastGroup* MulticastTable::any_of(uint32_t qp) const {
  for (uint32_t i = 0; i < groups_.high_water(); ++i) {
    const MulticastGroup* const group = groups_.at(i);
    if (group == nullptr) continue;
    if (std::find(group->qps, group->qps + group->count, qp) != group->qps + group->count) return group;
  }
  return nullptr;
}

int MulticastTable::attach(const GidBytes& gid, uint32_t qp, bool& fresh) {
  fresh = false;
  MulticastGroup* group = find_group(gid);
  if (group == nullptr) {
    uint32_t index = 0;
    group = groups_.take(index);
    if (group == nullptr) return ENOMEM;
    uint32_t& bucket = buckets_[bucket_of(gid)];
    group->gid = gid;
    group->index = index;
    group->next = bucket;
    bucket = index + 1;
  }
  if (std::find(group->qps, group->qps + group->count, qp) != group->qps + group->count) return 0;
  if (group->count == qps_of_group_) return ENOMEM;
  group->qps[group->count++] = static_cast<uint16_t>(qp);
  fresh = true;
  return 0;
}

bool MulticastTable::detach(const GidBytes& gid, uint32_t qp) {
  MulticastGroup* const group = find_group(gid);
  if (group == nullptr) return false;
  uint16_t* const end = group->qps + group->count;
  uint16_t* const at = std::find(group->qps, end, qp);
  if (at == end) return false;
  std::copy(at + 1, end, at);
  if (--group->count != 0) return true;
  for (uint32_t* link = &buckets_[bucket_of(gid)]; *link != 0; link = &groups_.at(*link - 1)->next) {
    if (*link != group->index + 1) continue;
    *link = group->next;
    break;
  }
  groups_.give(group->index);
  return true;
}

// --- device --------------------------------------------------------------------------------------------------

int Device::join_group(QueuePair& qp, const GidBytes& gid, bool& fresh) {
  const int error = multicast_.attach(gid, qp.index, fresh);
  if (error == 0 && fresh) ++qp.groups;
  return error;
}

bool Device::leave_group(QueuePair& qp, const GidBytes& gid) {
  if (!multicast_.detach(gid, qp.index)) return false;
  --qp.groups;
  return true;
}

bool Device::group_of(const QueuePair& qp, GidBytes& out) const {
  const MulticastGroup* const group = multicast_.any_of(qp.index);
  if (group != nullptr) out = group->gid;
  return group != nullptr;
}

/// Every attached QP gets a copy, the sender's own too, if its Q_Key fits and it has a receive request. As NICs with
/// multicast loopback do; the consumer can tell its own by the source QPN.
void Device::handle_multicast(const RoceFrame& frame, const attach::ReceivedFrame& raw, Instant now) {
  const MulticastGroup* const group = multicast_.find(frame.destination_gid);
  if (group == nullptr) {
    ++counters_.no_such_qpn;
    return;
  }
  for (uint32_t i = 0; i < group->count; ++i) {
    QueuePair* const qp = qps_.at(group->qps[i]);
    if (qp == nullptr || qp->now_state() < QpState::kReadyToReceive || qp->now_state() > QpState::kSendError) {
      ++counters_.wrong_state;
    } else if ((static_cast<uint8_t>(frame.transport.opcode) & 0xE0) == 0x60) {  // UD
      handle_ud(*qp, frame, raw, now);
    } else {
      ++counters_.wrong_service;
    }
  }
}

}  // namespace weft::nic
