// SPDX-License-Identifier: Apache-2.0
//
// Who owns an address: dense endpoint (NIC) index from an IPv4 address or a link-local GID. Asked once per frame, at its
// ingress; after that only the index travels.
//
// IPv4 is a table over the fabric's address range, link-local addresses (GID 0) are found by the MAC inside. Built once.
// Addresses outside the fabric are added as they are learned (neighbours.h); an address of the fabric never is.
//
// Multicast groups get a number when their first member joins and lose it with the last: enter_group() and leave_group()
// are called once per member. find() of a group's address gives kGroupDestination and its number.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocols/base/packet.h"
#include "protocols/wire/ethernet.h"
#include "protocols/wire/gid.h"

namespace weft::nic {

struct EndpointAddress {
  MacAddress mac{};
  uint32_t ipv4 = 0;  ///< host order
};

class AddressMap {
 public:
  /// Endpoint i has addresses[i]. False: two endpoints share an address, or they span more than 2^20 addresses.
  [[nodiscard]] bool build(const std::vector<EndpointAddress>& addresses);

  /// UINT32_MAX (kNoEndpoint): nobody.
  uint32_t find(uint32_t ipv4) const {
    const uint32_t offset = ipv4 - first_;
    const uint32_t endpoint = offset < by_offset_.size() ? by_offset_[offset] : find_group(ipv4);
    return endpoint != UINT32_MAX || outside_.empty() ? endpoint : find_outside(ipv4);
  }
  uint32_t find(const GidBytes& gid) const;
  uint32_t ipv4(uint32_t endpoint) const { return endpoint < addresses_.size() ? addresses_[endpoint].ipv4 : 0; }
  const EndpointAddress& address(uint32_t endpoint) const { return addresses_[endpoint]; }

  /// `destination`: what find() says from now on. Ignored for an address of the fabric.
  void set_outside(const GidBytes& gid, uint32_t destination);
  void forget_outside(const GidBytes& gid);

  static constexpr uint32_t kMaxGroups = 65536;
  static constexpr uint32_t kEmptyGroup = kNoEndpoint - 1;  ///< of a multicast address that nobody has joined
  /// The destination that stands for the group, which is new or has one member more; kNoEndpoint: not a multicast
  /// address, or too many groups.
  uint32_t enter_group(const GidBytes& gid);
  /// One member less.
  void leave_group(const GidBytes& gid);

 private:
  struct Group {
    uint32_t number = 0;
    uint32_t members = 0;
  };
  uint32_t find_group(uint32_t ipv4) const;
  uint32_t find_group(const GidBytes& gid) const;
  uint32_t find_outside(uint32_t ipv4) const;
  uint32_t find_inside(const GidBytes& gid) const;

  std::vector<EndpointAddress> addresses_;
  std::vector<uint32_t> by_offset_;
  uint32_t first_ = 0;
  std::vector<std::pair<uint64_t, uint32_t>> by_interface_id_;  ///< sorted
  std::map<GidBytes, Group> groups_;
  std::vector<uint32_t> free_groups_;
  uint32_t next_group_ = 0;
  std::unordered_map<uint32_t, uint32_t> outside_;
  std::map<GidBytes, uint32_t> outside_gids_;  ///< those that are no IPv4 address
};

}  // namespace weft::nic
