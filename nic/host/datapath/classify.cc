// SPDX-License-Identifier: Apache-2.0
#include "nic/host/datapath/classify.h"

#include "protocols/wire/opcode.h"
#include "protocols/wire/roce_frame.h"

namespace weft::nic {
namespace {

// The first reasons are the parser's, in its order.
static_assert(static_cast<int>(DropReason::kTruncated) == static_cast<int>(ParseError::kTruncated));
static_assert(static_cast<int>(DropReason::kNotRoce) == static_cast<int>(ParseError::kNotRoce));
static_assert(static_cast<int>(DropReason::kBadPad) == static_cast<int>(ParseError::kBadPad));
static_assert(static_cast<int>(DropReason::kForeignSource) == static_cast<int>(ParseError::kCount));

/// The 5-tuple of a RoCE v2 frame, whose ports and protocol are fixed but for the source port. Nonlinear on purpose: a
/// CRC under another seed would not decorrelate the choices of two switches.
uint32_t flow_hash(uint32_t source, uint32_t destination, uint16_t sport) {
  uint64_t x = (static_cast<uint64_t>(source) << 32 | destination) ^ static_cast<uint64_t>(sport) << 16;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>(x ^ (x >> 31));
}

bool own_address(const RoceFrame& frame, const NicIdentity& self) {
  if (frame.source_mac != self.address.mac) return false;
  if (frame.ipv4) return frame.source_ipv4 == self.address.ipv4;
  return frame.source_gid == link_local_gid(self.address.mac) || frame.source_gid == gid_of_ipv4(self.address.ipv4);
}

}  // namespace

DropReason classify(const attach::TakenFrame& taken, const NicIdentity& self, const AddressMap& map,
                    PacketDescriptor& d) {
  d.wire_bytes = taken.header_bytes + taken.payload_bytes + kIcrcBytes;
  d.source = self.endpoint;
  d.source_address = self.address.ipv4;
  if (taken.header_bytes > attach::kMaxFrameHeaderBytes) return DropReason::kBadLength;
  RoceFrame frame;
  const ParseError error = parse_headers({taken.headers, taken.header_bytes}, taken.payload_bytes, frame);
  d.dest_qpn = frame.transport.dest_qpn;
  d.psn = frame.transport.psn;
  if (error != ParseError::kOk) return static_cast<DropReason>(error);
  d.destination = frame.ipv4 ? map.find(frame.destination_ipv4) : map.find(frame.destination_gid);
  d.destination_address = d.destination != kNoEndpoint ? map.ipv4(d.destination) : frame.destination_ipv4;
  d.opcode = static_cast<uint8_t>(frame.transport.opcode);
  d.ecn = frame.traffic_class & 3;
  d.header_bytes = frame.header_bytes;
  d.flow_hash = flow_hash(d.source_address, d.destination_address, frame.udp_sport);
  if (!frame.ipv4) d.flags |= kPacketIpv6;
  if (opcode_info(d.opcode).response) d.flags |= kPacketAnswer;
  if (!own_address(frame, self)) return DropReason::kForeignSource;
  return DropReason::kNone;
}

}  // namespace weft::nic
