// SPDX-License-Identifier: Apache-2.0
#include "nic/host/datapath/classify_outside.h"

#include "nic/host/datapath/classify.h"
#include "protocols/icrc/icrc.h"
#include "protocols/wire/opcode.h"
#include "protocols/wire/roce_frame.h"

namespace weft::nic {
namespace {

constexpr uint32_t kMaxPayload = 4096;  // the largest path MTU. IBTA Vol 1, 9.7.2

/// From the DSCP if it is set, else from a tag's priority, like the NICs' own frames (DECISIONS 25).
uint8_t priority_of(const RoceFrame& frame) {
  if (frame.traffic_class != 0) return static_cast<uint8_t>(frame.dscp() >> 3);
  return frame.tagged ? static_cast<uint8_t>(frame.vlan_tci >> 13) : 0;
}

/// Who may have sent it: one machine, and none of the fabric's.
bool foreign_source(const RoceFrame& frame, const AddressMap& map, uint32_t endpoints) {
  if ((frame.source_mac[0] & 1) != 0 || gid_is_multicast(frame.source_gid) || frame.source_gid == GidBytes{}) return true;
  return map.find(frame.source_gid) < endpoints;
}

}  // namespace

DropReason classify_outside(Bytes bytes, uint32_t source, const AddressMap& map, uint32_t endpoints, PacketDescriptor& d,
                            OutsideFrame& out) {
  RoceFrame frame;
  const ParseError error = parse_roce(bytes, IcrcBytes::kPresent, frame);
  d.source = source;
  d.dest_qpn = frame.transport.dest_qpn;
  d.psn = frame.transport.psn;
  if (error != ParseError::kOk) return static_cast<DropReason>(error);
  out.header_bytes = frame.header_bytes;
  out.payload_bytes = frame.payload_bytes + frame.transport.pad;
  if (out.payload_bytes > kMaxPayload || out.header_bytes > attach::kMaxFrameHeaderBytes) return DropReason::kBadLength;
  if (foreign_source(frame, map, endpoints)) return DropReason::kForeignSource;
  if (!icrc_good(frame, bytes)) return DropReason::kBadIcrc;
  d.destination = map.find(frame.destination_gid);
  // A NIC takes what is for its own MAC; what goes from outside to outside is not ours to carry.
  const bool own = d.destination < endpoints && frame.destination_mac == map.address(d.destination).mac;
  if (!own && !is_group(d.destination)) return DropReason::kNoRoute;
  d.wire_bytes = out.header_bytes + out.payload_bytes + kIcrcBytes;
  d.source_address = frame.source_ipv4;
  d.destination_address = own ? map.ipv4(d.destination) : frame.destination_ipv4;
  d.opcode = static_cast<uint8_t>(frame.transport.opcode);
  d.priority = priority_of(frame);
  d.ecn = frame.traffic_class & 3;
  d.header_bytes = frame.header_bytes;
  d.flow_hash = flow_hash(d.source_address, d.destination_address, frame.udp_sport);
  d.flags = static_cast<uint8_t>((frame.ipv4 ? 0 : kPacketIpv6) | (opcode_info(d.opcode).response ? kPacketAnswer : 0));
  return DropReason::kNone;
}

}  // namespace weft::nic
