// SPDX-License-Identifier: Apache-2.0
#include "protocols/wire/frame_template.h"

#include <cstring>

#include "protocols/wire/bth.h"
#include "protocols/wire/extended_headers.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/udp.h"

namespace weft {
namespace {

template <typename Header>
uint8_t* put(uint8_t* at, const Header& header) {
  std::memcpy(at, &header, sizeof(header));
  return at + sizeof(header);
}

uint8_t* put_extended(const TransportHeader& h, uint16_t extended, uint8_t* at) {
  // In wire order. RC middle and last packets, the most frequent, have none and do not come here.
  if ((extended & kHasRdeth) != 0) at = put(at, RdethHeader{0, h.ee_context});
  if ((extended & kHasDeth) != 0) at = put(at, DethHeader{h.deth.qkey, 0, h.deth.source_qpn});
  if ((extended & kHasXrceth) != 0) at = put(at, XrcethHeader{0, h.xrc_srqn});
  if ((extended & kHasFeth) != 0) at = put(at, FethHeader{h.flush});
  if ((extended & kHasReth) != 0) at = put(at, RethHeader{h.reth.va, h.reth.rkey, h.reth.length});
  if ((extended & kHasAtomic) != 0) {
    at = put(at, AtomicEthHeader{h.atomic.va, h.atomic.rkey, h.atomic.swap_add, h.atomic.compare});
  }
  if ((extended & kHasAeth) != 0) at = put(at, AethHeader{h.aeth.syndrome, h.aeth.msn});
  if ((extended & kHasAtomicAck) != 0) at = put(at, AtomicAckEthHeader{h.atomic_original});
  if ((extended & kHasImmediate) != 0) at = put(at, ImmediateHeader{h.immediate});
  if ((extended & kHasInvalidate) != 0) at = put(at, InvalidateHeader{h.invalidate_rkey});
  if ((extended & kHasCnp) != 0) at = put(at, CnpReserved{});
  return at;
}

uint8_t* put_transport(const TransportHeader& h, const OpcodeInfo& info, uint8_t pad, uint8_t* at) {
  BthHeader bth;
  bth.opcode = static_cast<uint8_t>(h.opcode);
  bth.flags = static_cast<uint8_t>((h.solicited ? BthHeader::kSolicited : 0) |
                                   (h.migration ? BthHeader::kMigration : 0) | (pad & 3u) << BthHeader::kPadShift);
  bth.pkey = h.pkey;
  bth.reserved =
      static_cast<uint8_t>((h.fecn ? BthHeader::kFecn : 0) | (h.becn ? BthHeader::kBecn : 0) | (h.reserved6 & 0x3F));
  bth.dest_qpn = h.dest_qpn & kQpnMask;
  bth.ack = h.ack_request ? BthHeader::kAckRequest : 0;
  bth.psn = h.psn & kPsnMask;
  at = put(at, bth);
  return info.extended == 0 ? at : put_extended(h, info.extended, at);
}

}  // namespace

uint32_t write_transport(const TransportHeader& header, uint8_t* out) {
  const OpcodeInfo& info = opcode_info(static_cast<uint8_t>(header.opcode));
  if (!info.known) return 0;
  return static_cast<uint32_t>(put_transport(header, info, header.pad, out) - out);
}

void FrameTemplate::prepare(const FrameAddress& a) {
  ipv4_ = gid_is_ipv4(a.source_gid) && gid_is_ipv4(a.destination_gid);
  const uint16_t type = ipv4_ ? kEtherTypeIpv4 : kEtherTypeIpv6;
  prefix_bytes_ = static_cast<uint8_t>(sizeof(EthernetHeader) + (a.tagged ? sizeof(VlanTag) : 0) +
                                       (ipv4_ ? sizeof(Ipv4Header) : sizeof(Ipv6Header)) + sizeof(UdpHeader));
  uint8_t* at = prefix_.data() + prefix_.size() - prefix_bytes_;
  at = put(at, EthernetHeader{a.destination_mac, a.source_mac, a.tagged ? kEtherTypeVlan : type});
  if (a.tagged) at = put(at, VlanTag{a.vlan_tci, type});
  if (ipv4_) {
    Ipv4Header ip;
    ip.tos = a.traffic_class;
    ip.fragment = kIpv4DontFragment;
    ip.ttl = a.ttl;
    ip.source = ipv4_of_gid(a.source_gid);
    ip.destination = ipv4_of_gid(a.destination_gid);
    header_sum_ = ipv4_header_sum(ip);  // length, id and checksum are still 0
    at = put(at, ip);
  } else {
    Ipv6Header ip;
    ip.set(a.traffic_class, a.flow_label);
    ip.hop_limit = a.ttl;
    ip.source = a.source_gid;
    ip.destination = a.destination_gid;
    at = put(at, ip);
  }
  UdpHeader udp;
  udp.source_port = a.udp_sport;
  put(at, udp);
}

uint32_t FrameTemplate::encode(const TransportHeader& header, uint32_t payload_bytes, uint8_t* end) {
  const OpcodeInfo& info = opcode_info(static_cast<uint8_t>(header.opcode));
  if (!info.known || prefix_bytes_ == 0) return 0;
  const uint32_t pad = pad_of(payload_bytes);
  const uint32_t udp_bytes =
      static_cast<uint32_t>(sizeof(UdpHeader)) + info.header_bytes + payload_bytes + pad + kIcrcBytes;
  const Be16 udp_length = static_cast<uint16_t>(udp_bytes);
  uint8_t* transport = end - info.header_bytes;
  std::memcpy(transport - prefix_.size(), prefix_.data(), prefix_.size());
  uint8_t* udp = transport - sizeof(UdpHeader);
  put(udp + offsetof(UdpHeader, length), udp_length);
  if (ipv4_) {
    uint8_t* ip = udp - sizeof(Ipv4Header);
    const uint16_t length = static_cast<uint16_t>(sizeof(Ipv4Header) + udp_bytes);
    const uint16_t id = next_id_++;
    const uint16_t checksum = static_cast<uint16_t>(~fold_checksum(header_sum_ + length + id));
    put(ip + offsetof(Ipv4Header, total_length), Be16{length});
    put(ip + offsetof(Ipv4Header, id), Be16{id});
    put(ip + offsetof(Ipv4Header, checksum), Be16{checksum});
  } else {
    put(udp - sizeof(Ipv6Header) + offsetof(Ipv6Header, payload_length), udp_length);
  }
  put_transport(header, info, static_cast<uint8_t>(pad), transport);
  return prefix_bytes_ + static_cast<uint32_t>(info.header_bytes);
}

}  // namespace weft
