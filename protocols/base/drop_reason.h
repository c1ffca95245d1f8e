// SPDX-License-Identifier: Apache-2.0
//
// Why a frame went no further. Every drop anywhere in the fabric has one of these, is counted under it (the metric label
// `reason`), and where it matters to a QP becomes a notice.
#pragma once

#include <cstdint>

namespace weft {

enum class DropReason : uint8_t {
  kNone,
  // What a process sent is no RoCE v2 frame. In the order of ParseError (protocols/wire/roce_frame.h).
  kTruncated,
  kNotIp,
  kBadIpHeader,
  kBadIpChecksum,
  kFragment,
  kNotUdp,
  kNotRoce,
  kBadLength,
  kBadVersion,
  kUnknownOpcode,
  kBadPad,
  kForeignSource,  ///< a frame, but under another host's MAC or address
  // On the way.
  kNoRoute,
  kLinkDrop,       ///< the link's seeded drop stage
  kLinkDown,       ///< the port at one end is down
  kBufferFull,
  kNoMember,       ///< to a multicast group that nobody has joined
  // At the receiving NIC.
  kBadIcrc,
  kNoSuchQpn,
  kReceiverStalled,
  kReceiverGone,   ///< its process detached or was shut while the frame waited
  kCount,
};
inline constexpr uint32_t kDropReasons = static_cast<uint32_t>(DropReason::kCount);

constexpr const char* drop_reason_name(DropReason reason) {
  constexpr const char* kNames[] = {
      "none", "truncated", "not_ip", "bad_ip_header", "bad_ip_checksum", "fragment",
      "not_udp", "not_roce", "bad_length", "bad_version", "unknown_opcode", "bad_pad",
      "foreign_source", "no_route", "link_drop", "link_down", "buffer_full", "no_member", "bad_icrc", "no_such_qpn",
      "receiver_stalled", "receiver_gone"};
  static_assert(sizeof kNames / sizeof kNames[0] == kDropReasons);
  return reason < DropReason::kCount ? kNames[static_cast<uint8_t>(reason)] : "?";
}

}  // namespace weft
