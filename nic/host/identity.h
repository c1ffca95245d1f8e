// SPDX-License-Identifier: Apache-2.0
//
// Who the NICs of a fabric are: addresses by rule, so that nobody has to look them up (DECISIONS 22).
//
//   AddressPlan plan(hosts, nics_per_host);
//   plan.nic(2, 0).ipv4     host 2's first NIC, 198.18.0.3
//   plan.find(gid)          the NIC that owns a GID, or nothing
//
// Host i, NIC k: IPv4 198.18.0.0 + k*S + i + 1 with S the power of two above the number of hosts; MAC 02:57:kk:hh:hh:hh. A
// fabric that is joined to others through the outside starts later: i counts from `first`, in MACs too.
// node GUID the EUI-64 of the MAC. GID table: `gid_holes` empty entries (none unless asked for), link-local, v4-mapped IPv4,
// then empty ones. Plain values; safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace weft::host {

using Mac = std::array<uint8_t, 6>;
using Gid = std::array<uint8_t, 16>;

inline constexpr uint32_t kFabricNet = 0xC6120000;  ///< 198.18.0.0, RFC 2544
inline constexpr uint32_t kMaxHosts = 4094;
inline constexpr uint32_t kMaxNics = 32;  ///< of a host, and of a process
inline constexpr uint32_t kGidCount = 2;
inline constexpr uint32_t kGidTable = 16;      ///< entries of the table, most of them empty, as on every NIC
inline constexpr uint32_t kMaxGidHoles = 64;
inline constexpr uint64_t kDefaultRate = 100'000'000'000;

struct NicIdentity {
  uint32_t host = 0;
  uint32_t nic = 0;
  Mac mac{};
  uint32_t ipv4 = 0;  ///< host order
  uint64_t guid = 0;  ///< host order
  std::array<Gid, kGidCount> gids{};
  uint32_t gid_holes = 0;  ///< gids[i] has index gid_holes + i
  uint64_t rate_bps = kDefaultRate;

  uint32_t gid_table() const { return gid_holes + kGidTable; }
  std::string device() const { return "rxe" + std::to_string(nic); }
  std::string netdev() const { return "weft" + std::to_string(nic); }
};

class AddressPlan {
 public:
  /// hosts in 1..kMaxHosts, nics in 1..32, gid_holes up to kMaxGidHoles; all addresses within 198.18.0.0/15.
  AddressPlan(uint32_t hosts, uint32_t nics, uint32_t gid_holes = 0, uint32_t first = 0);
  static bool fits(uint32_t hosts, uint32_t nics, uint32_t first);

  uint32_t hosts() const { return hosts_; }
  uint32_t nics() const { return nics_; }
  NicIdentity nic(uint32_t host, uint32_t nic) const;
  std::optional<NicIdentity> find(const Gid& gid) const;
  std::optional<NicIdentity> find_ipv4(uint32_t ipv4) const;

 private:
  uint32_t hosts_;
  uint32_t nics_;
  uint32_t gid_holes_;
  uint32_t first_;   ///< of the hosts before this fabric's
  uint32_t stride_;  ///< S of the rule
};

/// The Ethernet address a multicast GID maps to (RFC 1112 6.4 for v4-mapped, RFC 2464 7 else); nothing if it is not multicast.
std::optional<Mac> multicast_mac(const Gid& gid);

std::string text_of_ipv4(uint32_t ipv4);
std::string text_of_mac(const Mac& mac);
std::string text_of_gid(const Gid& gid);    ///< 8 groups of 4 hex digits, as sysfs prints it
std::string text_of_guid(uint64_t guid);    ///< 4 groups of 4 hex digits

}  // namespace weft::host
