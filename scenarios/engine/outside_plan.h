// SPDX-License-Identifier: Apache-2.0
//
// What a fabric is told of a port to the outside: a name, how DPDK reaches the other side, and where it is plugged in
// (DECISIONS 29).
//
//   tap        a tap device of the machine, made when it is not there; needs CAP_NET_ADMIN
//   af_packet  an interface of the machine; needs CAP_NET_RAW
//   pcap       frames out of one file, answers into another
//   memif      shared memory with another process on this machine: whoever comes first listens at the path
//   vhost      a virtual machine's network card (vhost-user): we listen at the path
#pragma once

#include <cstdint>
#include <string>

namespace weft {

enum class OutsideKind : uint8_t { kTap, kAfPacket, kPcap, kMemif, kVhost };
inline constexpr const char* kOutsideKindNames[] = {"tap", "af_packet", "pcap", "memif", "vhost"};
constexpr const char* outside_kind_name(OutsideKind kind) { return kOutsideKindNames[static_cast<uint8_t>(kind)]; }

struct OutsidePlan {
  std::string name;  ///< "vm0"
  OutsideKind kind = OutsideKind::kTap;
  std::string device;   ///< interface or path
  std::string write_to; ///< pcap: where frames to the outside are written; empty: nowhere
  uint64_t rate_bps = 100'000'000'000;
};

}  // namespace weft
