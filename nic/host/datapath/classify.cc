// SPDX-License-Identifier: Apache-2.0
#include "nic/host/datapath/classify.h"

#include <string.h>

#include "protocols/wire/ipv4.h"
#include "protocols/wire/opcode.h"
#include "protocols/wire/roce_frame.h"
#include "protocols/wire/udp.h"

namespace weft::nic {
namespace {

// The first reasons are the parser's, in its order.
static_assert(static_cast<int>(DropReason::kTruncated) == static_cast<int>(ParseError::kTruncated));
static_assert(static_cast<int>(DropReason::kNotRoce) == static_cast<int>(ParseError::kNotRoce));
static_assert(static_cast<int>(DropReason::kBadPad) == static_cast<int>(ParseError::kBadPad));
static_assert(static_cast<int>(DropReason::kForeignSource) == static_cast<int>(ParseError::kCount));

uint32_t big16(const uint8_t* at) { return static_cast<uint32_t>(at[0]) << 8 | at[1]; }
uint32_t big24(const uint8_t* at) { return big16(at) << 8 | at[2]; }
uint32_t big32(const uint8_t* at) { return big16(at) << 16 | big16(at + 2); }

constexpr uint32_t kIp = 14;
constexpr uint32_t kUdp = kIp + 20;
constexpr uint32_t kBth = kUdp + 8;

/// RFC 1071 over the 20 bytes of an IPv4 header; byte order does not matter to a check for zero.
bool checksum_good(const uint8_t* ip) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < 5; ++i) {
    uint32_t word;
    memcpy(&word, ip + 4 * i, 4);
    sum += word;
  }
  sum = (sum & 0xFFFFFFFF) + (sum >> 32);
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  return (sum & 0xFFFF) + (sum >> 16) == 0xFFFF;
}

/// The frame that nearly all frames are: untagged IPv4 of this host, without anything unusual. True: the descriptor is
/// complete. False says nothing; the parser decides. A third of the data path's time was spent on parsing everything.
bool classify_common(const attach::TakenFrame& taken, const NicIdentity& self, const AddressMap& map,
                     PacketDescriptor& d) {
  const uint8_t* const h = taken.headers;
  if (taken.header_bytes < kBth + kBthBytes || taken.header_bytes > attach::kMaxFrameHeaderBytes) return false;
  const OpcodeInfo& info = opcode_info(h[kBth]);
  const uint32_t udp_bytes = 8 + info.header_bytes + taken.payload_bytes + kIcrcBytes;
  const uint32_t pad = h[kBth + 1] >> 4 & 3;
  const bool shape = info.known && taken.header_bytes == kBth + info.header_bytes && taken.payload_bytes % 4 == 0 &&
                     pad <= taken.payload_bytes && (info.payload || taken.payload_bytes == 0);
  const bool network = big16(h + 12) == kEtherTypeIpv4 && h[kIp] == 0x45 && h[kIp + 9] == kIpProtocolUdp &&
                       (big16(h + kIp + 6) & (kIpv4MoreFragments | kIpv4FragmentOffset)) == 0 &&
                       big16(h + kIp + 2) == 20 + udp_bytes && big16(h + kUdp + 4) == udp_bytes &&
                       big16(h + kUdp + 2) == kRocePort && (h[kBth + 1] & 0x0F) == 0;
  const bool own = memcmp(h + 6, self.address.mac.data(), 6) == 0 && big32(h + kIp + 12) == self.address.ipv4;
  if (!shape || !network || !own || !checksum_good(h + kIp)) return false;
  d.destination_address = big32(h + kIp + 16);
  d.destination = map.find(d.destination_address);
  d.dest_qpn = big24(h + kBth + 5);
  d.psn = big24(h + kBth + 9);
  d.opcode = h[kBth];
  d.ecn = h[kIp + 1] & 3;
  d.header_bytes = static_cast<uint16_t>(taken.header_bytes);
  d.flow_hash = flow_hash(self.address.ipv4, d.destination_address, static_cast<uint16_t>(big16(h + kUdp)));
  if (info.response) d.flags |= kPacketAnswer;
  return true;
}

bool own_address(const RoceFrame& frame, const NicIdentity& self) {
  if (frame.source_mac != self.address.mac) return false;
  if (frame.ipv4) return frame.source_ipv4 == self.address.ipv4;
  return frame.source_gid == link_local_gid(self.address.mac) || frame.source_gid == gid_of_ipv4(self.address.ipv4);
}

}  // namespace

// The 5-tuple of a RoCE v2 frame, whose ports and protocol are fixed but for the source port. Nonlinear on purpose: a
// CRC under another seed would not decorrelate the choices of two switches.
uint32_t flow_hash(uint32_t source, uint32_t destination, uint16_t sport) {
  uint64_t x = (static_cast<uint64_t>(source) << 32 | destination) ^ static_cast<uint64_t>(sport) << 16;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>(x ^ (x >> 31));
}

DropReason classify(const attach::TakenFrame& taken, const NicIdentity& self, const AddressMap& map,
                    PacketDescriptor& d) {
  d.wire_bytes = taken.header_bytes + taken.payload_bytes + kIcrcBytes;
  d.source = self.endpoint;
  d.source_address = self.address.ipv4;
  if (classify_common(taken, self, map, d)) return DropReason::kNone;
  if (taken.header_bytes > attach::kMaxFrameHeaderBytes) return DropReason::kBadLength;
  RoceFrame frame;
  const ParseError error = parse_headers({taken.headers, taken.header_bytes}, taken.payload_bytes, frame);
  d.dest_qpn = frame.transport.dest_qpn;
  d.psn = frame.transport.psn;
  if (error != ParseError::kOk) return static_cast<DropReason>(error);
  d.destination = frame.ipv4 ? map.find(frame.destination_ipv4) : map.find(frame.destination_gid);
  const uint32_t owner_ipv4 = map.ipv4(d.destination);  // none for a group and outside the fabric
  d.destination_address = owner_ipv4 != 0 ? owner_ipv4 : frame.destination_ipv4;
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
