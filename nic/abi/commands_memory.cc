// SPDX-License-Identifier: Apache-2.0
//
// Context: protection domains, memory regions, address handles.
#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_rxe.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nic/abi/context.h"
#include "nic/abi/region_checks.h"

namespace weft::abi {
namespace {

/// Multicast needs no owner: the MAC follows from the group. RFC 1112, 6.4; RFC 2464, 7.
bool multicast_mac(const GidBytes& gid, uint8_t (&mac)[6]) {
  if (!gid_is_multicast(gid)) return false;
  if (gid_is_ipv4(gid)) {
    const uint8_t group[6] = {0x01, 0x00, 0x5E, static_cast<uint8_t>(gid[13] & 0x7F), gid[14], gid[15]};
    memcpy(mac, group, sizeof group);
  } else {
    const uint8_t group[6] = {0x33, 0x33, gid[12], gid[13], gid[14], gid[15]};
    memcpy(mac, group, sizeof group);
  }
  return true;
}

nic::AddressAttributes attributes_of(const ib_uverbs_ah_attr& in) {
  nic::AddressAttributes out;
  std::copy_n(in.grh.dgid, out.dgid.size(), out.dgid.begin());
  out.flow_label = in.grh.flow_label;
  out.dlid = in.dlid;
  out.sgid_index = in.grh.sgid_index;
  out.hop_limit = in.grh.hop_limit;
  out.traffic_class = in.grh.traffic_class;
  out.sl = in.sl;
  out.src_path_bits = in.src_path_bits;
  out.static_rate = in.static_rate;
  out.is_global = in.is_global;
  out.port_num = in.port_num;
  return out;
}

}  // namespace

// --- protection domains --------------------------------------------------------------------------------------

long Context::alloc_pd(const Command& c, Instant now) {
  nic::CommandSection section(device_, now);
  uint32_t pd = 0;
  if (device_.pds().take(pd) == nullptr) return -ENOMEM;
  ib_uverbs_alloc_pd_resp out = {};
  out.pd_handle = handles_.add(HandleKind::kPd, pd);
  long error = out.pd_handle == HandleTable::kNone ? -ENOMEM : c.respond(&out, sizeof out);
  if (error == 0) return 0;
  if (out.pd_handle != HandleTable::kNone) handles_.remove(out.pd_handle);
  device_.pds().give(pd);
  return error;
}

long Context::dealloc_pd(const Command& c, Instant now) {
  nic::CommandSection section(device_, now);
  const uint32_t handle = c.request<ib_uverbs_dealloc_pd>()->pd_handle;
  uint32_t pd = 0;
  if (!find_pd(handle, pd)) return -EINVAL;
  if (device_.pds().at(pd)->users != 0) return -EBUSY;
  handles_.remove(handle);
  device_.pds().give(pd);
  return 0;
}

// --- memory regions ------------------------------------------------------------------------------------------

long Context::register_mr(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_reg_mr>();
  if (const long error = check_access(in.access_flags); error != 0) return error;
  if (const long error = check_range(in.start, in.length, in.hca_va); error != 0) return error;
  if (const long error = check_rights(in.start, in.length, in.access_flags); error != 0) return error;
  nic::CommandSection section(device_, now);
  uint32_t pd = 0;
  if (!find_pd(in.pd_handle, pd)) return -EINVAL;
  nic::MemoryRegion* region = device_.regions().add();
  if (region == nullptr) return -ENOMEM;
  region->start = in.start;
  region->length = in.length;
  region->iova = (in.access_flags & nic::kAccessZeroBased) != 0 ? 0 : in.hca_va;
  region->pd = pd;
  region->access = in.access_flags & kAccessKnown;
  ib_uverbs_reg_mr_resp out = {};
  out.lkey = out.rkey = region->key;
  out.mr_handle = handles_.add(HandleKind::kMr, region->key);
  const long error = out.mr_handle == HandleTable::kNone ? -ENOMEM : c.respond(&out, sizeof out);
  if (error == 0) {
    ++device_.pds().at(pd)->users;
    return 0;
  }
  if (out.mr_handle != HandleTable::kNone) handles_.remove(out.mr_handle);
  device_.regions().remove(region->key);
  return error;
}

long Context::deregister_mr(const Command& c, Instant now) {
  nic::CommandSection section(device_, now);
  const uint32_t handle = c.request<ib_uverbs_dereg_mr>()->mr_handle;
  uint32_t key = 0;
  if (!handles_.find(handle, HandleKind::kMr, key)) return -EINVAL;
  const nic::MemoryRegion* region = device_.regions().find(key);
  if (region->windows != 0) return -EBUSY;  // IBTA Vol 1, 10.6.7.2.6
  --device_.pds().at(region->pd)->users;
  device_.regions().remove(key);
  handles_.remove(handle);
  return 0;
}

// --- address handles -----------------------------------------------------------------------------------------

long Context::create_ah(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_create_ah>();
  if (c.response_bytes() < sizeof(ib_uverbs_create_ah_resp) + sizeof(rxe_create_ah_resp)) return -EINVAL;
  const nic::AddressAttributes attributes = attributes_of(in.attr);
  if (const int error = nic::check_address(device_.identity(), attributes); error != 0) return -error;
  nic::ResolvedPeer peer;
  if (!multicast_mac(attributes.dgid, peer.mac)) {
    nic::Gid gid;
    std::copy_n(attributes.dgid.begin(), sizeof gid, gid);
    if (const int error = device_.platform().resolve(device_.identity().nic, gid, peer); error != 0) return -error;
  }

  nic::CommandSection section(device_, now);
  uint32_t pd = 0;
  if (!find_pd(in.pd_handle, pd)) return -EINVAL;
  uint32_t index = 0;
  nic::AddressHandle* ah = device_.ahs().take(index);
  if (ah == nullptr) return -ENOMEM;
  ah->pd = pd;
  nic::make_route(device_.identity(), attributes, std::to_array(peer.mac), peer.outside, 0, ah->route);
  ib_uverbs_create_ah_resp out = {};
  out.ah_handle = handles_.add(HandleKind::kAh, index);
  // 0 would tell the provider to look the neighbour up itself.
  const rxe_create_ah_resp driver = {.ah_num = index + 1, .reserved = 0};
  const long error =
      out.ah_handle == HandleTable::kNone ? -ENOMEM : c.respond(&out, sizeof out, &driver, sizeof driver);
  if (error == 0) {
    ++device_.pds().at(pd)->users;
    return 0;
  }
  if (out.ah_handle != HandleTable::kNone) handles_.remove(out.ah_handle);
  device_.ahs().give(index);
  return error;
}

long Context::destroy_ah(const Command& c, Instant now) {
  nic::CommandSection section(device_, now);
  const uint32_t handle = c.request<ib_uverbs_destroy_ah>()->ah_handle;
  uint32_t index = 0;
  if (!handles_.find(handle, HandleKind::kAh, index)) return -EINVAL;
  --device_.pds().at(device_.ahs().at(index)->pd)->users;
  device_.ahs().give(index);
  handles_.remove(handle);
  return 0;
}

}  // namespace weft::abi
