// SPDX-License-Identifier: Apache-2.0
#include "nic/host/datapath/address_map.h"

#include <algorithm>

namespace weft::nic {

bool AddressMap::build(const std::vector<EndpointAddress>& addresses) {
  constexpr uint32_t kMaxSpan = 1u << 20;
  addresses_ = addresses;
  by_offset_.clear();
  by_interface_id_.clear();
  if (addresses.empty()) return true;
  const auto [low, high] = std::minmax_element(addresses.begin(), addresses.end(),
                                               [](const auto& a, const auto& b) { return a.ipv4 < b.ipv4; });
  first_ = low->ipv4;
  if (high->ipv4 - first_ >= kMaxSpan) return false;
  by_offset_.assign(high->ipv4 - first_ + 1, UINT32_MAX);
  for (uint32_t i = 0; i < addresses.size(); ++i) {
    uint32_t& entry = by_offset_[addresses[i].ipv4 - first_];
    if (entry != UINT32_MAX) return false;
    entry = i;
    by_interface_id_.emplace_back(eui64_of_mac(addresses[i].mac), i);
  }
  std::sort(by_interface_id_.begin(), by_interface_id_.end());
  return std::adjacent_find(by_interface_id_.begin(), by_interface_id_.end(), [](const auto& a, const auto& b) {
           return a.first == b.first;
         }) == by_interface_id_.end();
}

uint32_t AddressMap::find_outside(uint32_t ipv4) const {
  const auto found = outside_.find(ipv4);
  return found != outside_.end() ? found->second : UINT32_MAX;
}

uint32_t AddressMap::find(const GidBytes& gid) const {
  if (gid_is_ipv4(gid)) return find(ipv4_of_gid(gid));
  if (gid[0] == 0xFF) return find_group(gid);
  const uint32_t endpoint = find_inside(gid);
  if (endpoint != UINT32_MAX || outside_gids_.empty()) return endpoint;
  const auto found = outside_gids_.find(gid);
  return found != outside_gids_.end() ? found->second : UINT32_MAX;
}

void AddressMap::set_outside(const GidBytes& gid, uint32_t destination) {
  if (find(gid) < addresses_.size()) return;
  if (gid_is_ipv4(gid)) {
    outside_[ipv4_of_gid(gid)] = destination;
  } else {
    outside_gids_[gid] = destination;
  }
}

void AddressMap::forget_outside(const GidBytes& gid) {
  if (gid_is_ipv4(gid)) {
    outside_.erase(ipv4_of_gid(gid));
  } else {
    outside_gids_.erase(gid);
  }
}

uint32_t AddressMap::find_inside(const GidBytes& gid) const {
  if (gid[0] != 0xFE || gid[1] != 0x80) return UINT32_MAX;
  uint64_t id = 0;
  for (unsigned i = 8; i < 16; ++i) id = id << 8 | gid[i];
  const auto found = std::lower_bound(by_interface_id_.begin(), by_interface_id_.end(), std::pair{id, 0u});
  if (found == by_interface_id_.end() || found->first != id) return UINT32_MAX;
  return gid == link_local_gid(addresses_[found->second].mac) ? found->second : UINT32_MAX;
}

// --- groups ---------------------------------------------------------------------------------------------------------

uint32_t AddressMap::find_group(uint32_t ipv4) const {
  return (ipv4 >> 28) == 0xE ? find_group(gid_of_ipv4(ipv4)) : kNoEndpoint;
}

uint32_t AddressMap::find_group(const GidBytes& gid) const {
  const auto found = groups_.find(gid);
  return found == groups_.end() ? kEmptyGroup : kGroupDestination | found->second.number;
}

uint32_t AddressMap::enter_group(const GidBytes& gid) {
  if (!gid_is_multicast(gid)) return kNoEndpoint;
  const auto [it, is_new] = groups_.try_emplace(gid);
  if (is_new) {
    if (groups_.size() > kMaxGroups) {
      groups_.erase(it);
      return kNoEndpoint;
    }
    if (free_groups_.empty()) free_groups_.push_back(next_group_++);
    it->second.number = free_groups_.back();
    free_groups_.pop_back();
  }
  ++it->second.members;
  return kGroupDestination | it->second.number;
}

void AddressMap::leave_group(const GidBytes& gid) {
  const auto found = groups_.find(gid);
  if (found == groups_.end() || --found->second.members != 0) return;
  free_groups_.push_back(found->second.number);
  groups_.erase(found);
}

}  // namespace weft::nic
