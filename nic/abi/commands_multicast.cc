// SPDX-License-Identifier: Apache-2.0
//
// Context: ATTACH_MCAST and DETACH_MCAST. UD only; the switch is told with the first QP and after the last.
#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>

#include <algorithm>
#include <cerrno>

#include "nic/abi/context.h"

namespace weft::abi {
namespace {

int tell_fabric(nic::Device& device, uint32_t qpn, const GidBytes& group, bool join) {
  nic::Gid gid;
  std::copy_n(group.begin(), sizeof gid, gid);
  return device.platform().multicast(device.identity().nic, qpn, gid, join);
}

}  // namespace

/// The kernel's checks: core/verbs.c, ib_attach_mcast(). The LID means nothing on Ethernet.
nic::QueuePair* Context::find_multicast_qp(uint32_t handle, const GidBytes& group) {
  RxeQp* const qp = find_qp(handle);
  if (qp == nullptr || qp->engine->type != nic::QpType::kUd || !gid_is_multicast(group)) return nullptr;
  return qp->engine;
}

long Context::attach_multicast(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_attach_mcast>();
  GidBytes group;
  std::copy_n(in.gid, group.size(), group.begin());
  // One at a time, so that the fabric hears of joins and leaves in their order.
  nic::LockGuard order(multicast_lock_);
  uint32_t qpn = 0;
  bool fresh = false;
  {
    nic::CommandSection section(device_, now);
    nic::QueuePair* const qp = find_multicast_qp(in.qp_handle, group);
    if (qp == nullptr) return -EINVAL;
    if (const int error = device_.join_group(*qp, group, fresh); error != 0) return -error;
    qpn = qp->qpn;
  }
  // Attaching twice is allowed and changes nothing.
  const int error = fresh ? tell_fabric(device_, qpn, group, true) : 0;
  if (error == 0) return 0;
  nic::CommandSection section(device_, now);
  if (nic::QueuePair* const qp = find_multicast_qp(in.qp_handle, group)) device_.leave_group(*qp, group);
  return -error;
}

long Context::detach_multicast(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_detach_mcast>();
  GidBytes group;
  std::copy_n(in.gid, group.size(), group.begin());
  nic::LockGuard order(multicast_lock_);
  uint32_t qpn = 0;
  {
    nic::CommandSection section(device_, now);
    nic::QueuePair* const qp = find_multicast_qp(in.qp_handle, group);
    if (qp == nullptr || !device_.leave_group(*qp, group)) return -EINVAL;
    qpn = qp->qpn;
  }
  // It gets nothing any more; a daemon that is gone changes nothing about that.
  (void)tell_fabric(device_, qpn, group, false);
  return 0;
}

/// A context that ends takes its QPs out of their groups, as the kernel does for a program that just stops.
void Context::leave_groups(nic::QueuePair& qp, Instant now) {
  nic::LockGuard order(multicast_lock_);
  for (;;) {
    GidBytes group;
    {
      nic::CommandSection section(device_, now);
      if (qp.groups == 0 || !device_.group_of(qp, group)) return;
      device_.leave_group(qp, group);
    }
    if (!device_.dead()) (void)tell_fabric(device_, qp.qpn, group, false);
  }
}

}  // namespace weft::abi
