// SPDX-License-Identifier: Apache-2.0
//
// Context: memory windows, and regions that are registered anew.
#include <netinet/in.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>

#include <cerrno>

#include "nic/abi/context.h"
#include "nic/abi/region_checks.h"

namespace weft::abi {
namespace {

// ib_mr_rereg_flags
constexpr uint32_t kReregTranslation = 1;
constexpr uint32_t kReregPd = 2;
constexpr uint32_t kReregAccess = 4;
constexpr uint32_t kReregKnown = kReregTranslation | kReregPd | kReregAccess;

/// What does not depend on the region.
long check_rereg(const ib_uverbs_rereg_mr& in) {
  if (in.flags == 0) return -EINVAL;
  if ((in.flags & ~kReregKnown) != 0) return -EOPNOTSUPP;
  if ((in.flags & kReregTranslation) != 0) {
    if (const long error = check_range(in.start, in.length, in.hca_va); error != 0) return error;
    const uint32_t access = (in.flags & kReregAccess) != 0 ? in.access_flags : 0;
    if (const long error = check_rights(in.start, in.length, access); error != 0) return error;
  }
  return (in.flags & kReregAccess) != 0 ? check_access(in.access_flags) : 0;
}

}  // namespace

// --- windows -------------------------------------------------------------------------------------------------

long Context::alloc_mw(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_alloc_mw>();
  const auto type = static_cast<nic::WindowType>(in.mw_type);
  if (type != nic::WindowType::kType1 && type != nic::WindowType::kType2) return -EINVAL;
  nic::CommandSection section(device_, now);
  uint32_t pd = 0;
  if (!find_pd(in.pd_handle, pd)) return -EINVAL;
  nic::MemoryWindow* window = device_.windows().add(pd, type);
  if (window == nullptr) return -ENOMEM;
  ib_uverbs_alloc_mw_resp out = {};
  out.rkey = window->key;
  out.mw_handle = handles_.add(HandleKind::kMw, window->index);
  const long error = out.mw_handle == HandleTable::kNone ? -ENOMEM : c.respond(&out, sizeof out);
  if (error == 0) {
    ++device_.pds().at(pd)->users;
    return 0;
  }
  if (out.mw_handle != HandleTable::kNone) handles_.remove(out.mw_handle);
  device_.windows().remove(device_.regions(), *window);
  return error;
}

/// A bound window may go: its region is free of it then.
long Context::dealloc_mw(const Command& c, Instant now) {
  nic::CommandSection section(device_, now);
  const uint32_t handle = c.request<ib_uverbs_dealloc_mw>()->mw_handle;
  uint32_t index = 0;
  if (!handles_.find(handle, HandleKind::kMw, index)) return -EINVAL;
  nic::MemoryWindow& window = *device_.windows().at(index);
  --device_.pds().at(window.pd)->users;
  device_.windows().remove(device_.regions(), window);
  handles_.remove(handle);
  return 0;
}

// --- regions -------------------------------------------------------------------------------------------------

/// The keys stay: requests under way see the old region or the new one, whole. IBTA Vol 1, 10.6.3.3.
long Context::reregister_mr(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_rereg_mr>();
  if (const long error = check_rereg(in); error != 0) return error;
  nic::CommandSection section(device_, now);
  uint32_t key = 0;
  if (!handles_.find(in.mr_handle, HandleKind::kMr, key)) return -EINVAL;
  nic::MemoryRegion& region = *device_.regions().find(key);
  uint32_t pd = region.pd;
  if ((in.flags & kReregPd) != 0 && !find_pd(in.pd_handle, pd)) return -EINVAL;
  if (region.windows != 0) return -EBUSY;
  const ib_uverbs_rereg_mr_resp out = {.lkey = key, .rkey = key};
  // Before anything changes: a bad pointer leaves the region as it was.
  if (const long error = c.respond(&out, sizeof out); error != 0) return error;
  --device_.pds().at(region.pd)->users;
  ++device_.pds().at(pd)->users;
  region.pd = pd;
  if ((in.flags & kReregAccess) != 0) region.access = in.access_flags & kAccessKnown;
  if ((in.flags & kReregTranslation) != 0) {
    region.start = in.start;
    region.length = in.length;
    region.iova = (region.access & nic::kAccessZeroBased) != 0 ? 0 : in.hca_va;
  }
  return 0;
}

}  // namespace weft::abi
