// SPDX-License-Identifier: Apache-2.0
#include "protocols/wire/roce_frame.h"

#include <cstring>

#include "protocols/wire/bth.h"
#include "protocols/wire/extended_headers.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/udp.h"

namespace weft {
namespace {

/// Copies header values out of bytes, front to back; never past the end.
class Reader {
 public:
  explicit Reader(Bytes bytes) : bytes_(bytes) {}
  template <typename Header>
  bool take(Header& out) {
    if (bytes_.size() - at_ < sizeof(Header)) return false;
    std::memcpy(static_cast<void*>(&out), bytes_.data() + at_, sizeof(Header));
    at_ += sizeof(Header);
    return true;
  }
  uint32_t at() const { return static_cast<uint32_t>(at_); }

 private:
  Bytes bytes_;
  size_t at_ = 0;  ///< <= bytes_.size()
};

/// Ethernet and tags. type: EtherType of what follows.
ParseError take_ethernet(Reader& in, RoceFrame& out, uint16_t& type) {
  EthernetHeader ethernet;
  if (!in.take(ethernet)) return ParseError::kTruncated;
  out.destination_mac = ethernet.destination;
  out.source_mac = ethernet.source;
  type = ethernet.type;
  out.tagged = type == kEtherTypeVlan;
  out.vlan_tci = 0;
  if (out.tagged) {
    VlanTag tag;
    if (!in.take(tag)) return ParseError::kTruncated;
    out.vlan_tci = tag.tci;
    type = tag.type;
  }
  return type == kEtherTypeIpv4 || type == kEtherTypeIpv6 ? ParseError::kOk : ParseError::kNotIp;
}

/// bytes: what IP carries after its header.
ParseError take_ipv4(Reader& in, RoceFrame& out, uint32_t& bytes) {
  Ipv4Header ip;
  if (!in.take(ip)) return ParseError::kTruncated;
  if (ip.version() != 4 || ip.header_bytes() < sizeof(ip)) return ParseError::kBadIpHeader;
  // Options: ordinary in IGMP, which is not ours; never in RoCE v2.
  if (ip.header_bytes() > sizeof(ip))
    return ip.protocol == kIpProtocolUdp ? ParseError::kBadIpHeader : ParseError::kNotUdp;
  if (!ipv4_checksum_good(ip)) return ParseError::kBadIpChecksum;
  if ((ip.fragment & (kIpv4MoreFragments | kIpv4FragmentOffset)) != 0) return ParseError::kFragment;
  if (ip.protocol != kIpProtocolUdp) return ParseError::kNotUdp;
  out.ipv4 = true;
  out.source_ipv4 = ip.source;
  out.destination_ipv4 = ip.destination;
  out.source_gid = gid_of_ipv4(out.source_ipv4);
  out.destination_gid = gid_of_ipv4(out.destination_ipv4);
  out.traffic_class = ip.tos;
  out.ttl = ip.ttl;
  out.ip_id = ip.id;
  out.ip_fragment = ip.fragment;
  out.flow_label = 0;
  if (ip.total_length < sizeof(Ipv4Header)) return ParseError::kBadLength;
  bytes = ip.total_length - static_cast<uint32_t>(sizeof(Ipv4Header));
  return ParseError::kOk;
}

ParseError take_ipv6(Reader& in, RoceFrame& out, uint32_t& bytes) {
  Ipv6Header ip;
  if (!in.take(ip)) return ParseError::kTruncated;
  if (ip.version() != 6) return ParseError::kBadIpHeader;
  if (ip.next_header != kIpProtocolUdp) return ParseError::kNotUdp;
  out.ipv4 = false;
  out.source_ipv4 = out.destination_ipv4 = 0;
  out.source_gid = ip.source;
  out.destination_gid = ip.destination;
  out.traffic_class = ip.traffic_class();
  out.ttl = ip.hop_limit;
  out.ip_id = 0;
  out.ip_fragment = 0;
  out.flow_label = ip.flow_label();
  bytes = ip.payload_length;
  return ParseError::kOk;
}

bool take_extended(Reader& in, uint16_t extended, TransportHeader& out) {
  bool ok = true;
  const auto take = [&](uint16_t which, auto header, auto store) {
    if (ok && (extended & which) != 0 && (ok = in.take(header))) store(header);
  };
  take(kHasRdeth, RdethHeader{}, [&](const auto& h) { out.ee_context = h.ee_context; });
  take(kHasDeth, DethHeader{}, [&](const auto& h) { out.deth = {h.qkey, h.source_qpn}; });
  take(kHasXrceth, XrcethHeader{}, [&](const auto& h) { out.xrc_srqn = h.srqn; });
  take(kHasFeth, FethHeader{}, [&](const auto& h) { out.flush = h.flush; });
  take(kHasReth, RethHeader{}, [&](const auto& h) { out.reth = {h.va, h.rkey, h.length}; });
  take(kHasAtomic, AtomicEthHeader{}, [&](const auto& h) { out.atomic = {h.va, h.rkey, h.swap_add, h.compare}; });
  take(kHasAeth, AethHeader{}, [&](const auto& h) { out.aeth = {h.syndrome, h.msn}; });
  take(kHasAtomicAck, AtomicAckEthHeader{}, [&](const auto& h) { out.atomic_original = h.original; });
  take(kHasImmediate, ImmediateHeader{}, [&](const auto& h) { out.immediate = h.immediate; });
  take(kHasInvalidate, InvalidateHeader{}, [&](const auto& h) { out.invalidate_rkey = h.rkey; });
  take(kHasCnp, CnpReserved{}, [](const auto&) {});
  return ok;
}

/// Field by field: GCC clears the whole value with `rep stos`, which costs more than the rest of the parser.
void clear_extended(TransportHeader& out) {
  out.immediate = 0;
  out.invalidate_rkey = 0;
  out.reth = {};
  out.aeth = {};
  out.atomic = {};
  out.atomic_original = 0;
  out.deth = {};
  out.xrc_srqn = 0;
  out.ee_context = 0;
  out.flush = 0;
}

ParseError take_transport(Reader& in, TransportHeader& out, bool& may_have_payload) {
  BthHeader bth;
  if (!in.take(bth)) return ParseError::kTruncated;
  if (bth.version() != 0) return ParseError::kBadVersion;
  const OpcodeInfo& info = opcode_info(bth.opcode);
  if (!info.known) return ParseError::kUnknownOpcode;
  clear_extended(out);
  out.opcode = static_cast<Opcode>(bth.opcode);
  out.solicited = (bth.flags & BthHeader::kSolicited) != 0;
  out.migration = (bth.flags & BthHeader::kMigration) != 0;
  out.pad = bth.pad();
  out.pkey = bth.pkey;
  out.fecn = (bth.reserved & BthHeader::kFecn) != 0;
  out.becn = (bth.reserved & BthHeader::kBecn) != 0;
  out.reserved6 = bth.reserved & 0x3F;
  out.dest_qpn = bth.dest_qpn;
  out.ack_request = (bth.ack & BthHeader::kAckRequest) != 0;
  out.psn = bth.psn;
  may_have_payload = info.payload;
  if (info.extended != 0 && !take_extended(in, info.extended, out)) return ParseError::kTruncated;
  return ParseError::kOk;
}

/// Everything up to the last extended header. body: bytes that the lengths promise after it, ICRC excluded.
ParseError take_all_headers(Bytes bytes, RoceFrame& out, uint32_t& body) {
  Reader in(bytes);
  uint16_t type = 0;
  if (const ParseError e = take_ethernet(in, out, type); e != ParseError::kOk) return e;
  out.ip_offset = static_cast<uint16_t>(in.at());
  uint32_t ip_bytes = 0;
  const ParseError ip = type == kEtherTypeIpv4 ? take_ipv4(in, out, ip_bytes) : take_ipv6(in, out, ip_bytes);
  if (ip != ParseError::kOk) return ip;
  UdpHeader udp;
  if (!in.take(udp)) return ParseError::kTruncated;
  if (udp.destination_port != kRocePort) return ParseError::kNotRoce;
  if (udp.length != ip_bytes) return ParseError::kBadLength;
  out.udp_sport = udp.source_port;
  out.udp_checksum = udp.checksum;
  out.transport_offset = static_cast<uint16_t>(in.at());
  bool may_have_payload = false;
  if (const ParseError e = take_transport(in, out.transport, may_have_payload); e != ParseError::kOk) return e;
  out.header_bytes = static_cast<uint16_t>(in.at());
  const uint32_t used = static_cast<uint32_t>(sizeof(UdpHeader)) + out.header_bytes - out.transport_offset + kIcrcBytes;
  if (ip_bytes < used) return ParseError::kBadLength;
  body = ip_bytes - used;
  if (body != 0 && !may_have_payload) return ParseError::kBadLength;
  if (body % 4 != 0 || out.transport.pad > body) return ParseError::kBadPad;
  out.payload_bytes = body - out.transport.pad;
  return ParseError::kOk;
}

struct IpPlace {
  size_t offset = 0;
  uint16_t type = 0;  ///< 0: not a whole IP header
};

IpPlace find_ip(Bytes frame) {
  Reader in(frame);
  EthernetHeader ethernet;
  if (!in.take(ethernet)) return {};
  uint16_t type = ethernet.type;
  if (type == kEtherTypeVlan) {
    VlanTag tag;
    if (!in.take(tag)) return {};
    type = tag.type;
  }
  const size_t need = type == kEtherTypeIpv4 ? sizeof(Ipv4Header) : type == kEtherTypeIpv6 ? sizeof(Ipv6Header) : 0;
  if (need == 0 || frame.size() - in.at() < need) return {};
  return {in.at(), type};
}

}  // namespace

const char* parse_error_name(ParseError error) {
  switch (error) {
    case ParseError::kOk:
      return "ok";
    case ParseError::kTruncated:
      return "truncated";
    case ParseError::kNotIp:
      return "not-ip";
    case ParseError::kBadIpHeader:
      return "bad-ip-header";
    case ParseError::kBadIpChecksum:
      return "bad-ip-checksum";
    case ParseError::kFragment:
      return "fragment";
    case ParseError::kNotUdp:
      return "not-udp";
    case ParseError::kNotRoce:
      return "not-roce";
    case ParseError::kBadLength:
      return "bad-length";
    case ParseError::kBadVersion:
      return "bad-version";
    case ParseError::kUnknownOpcode:
      return "unknown-opcode";
    case ParseError::kBadPad:
      return "bad-pad";
    case ParseError::kCount:
      break;
  }
  return "?";
}

ParseError parse_headers(Bytes headers, uint32_t payload_bytes, RoceFrame& out) {
  uint32_t body = 0;
  if (const ParseError e = take_all_headers(headers, out, body); e != ParseError::kOk) return e;
  if (headers.size() != out.header_bytes || payload_bytes != body) return ParseError::kBadLength;
  return ParseError::kOk;
}

ParseError parse_roce(Bytes frame, IcrcBytes icrc, RoceFrame& out) {
  uint32_t body = 0;
  if (const ParseError e = take_all_headers(frame, out, body); e != ParseError::kOk) return e;
  const uint32_t after = body + (icrc == IcrcBytes::kPresent ? kIcrcBytes : 0);
  return frame.size() - out.header_bytes < after ? ParseError::kTruncated : ParseError::kOk;
}

uint32_t encode_headers(const RoceFrame& f, uint8_t* end) {
  const OpcodeInfo& info = opcode_info(static_cast<uint8_t>(f.transport.opcode));
  if (!info.known) return 0;
  uint8_t bytes[kMaxHeaderBytes];
  uint8_t* at = bytes;
  const auto put = [&at](const auto& header) {
    std::memcpy(at, &header, sizeof(header));
    at += sizeof(header);
  };
  const uint16_t type = f.ipv4 ? kEtherTypeIpv4 : kEtherTypeIpv6;
  put(EthernetHeader{f.destination_mac, f.source_mac, f.tagged ? kEtherTypeVlan : type});
  if (f.tagged) put(VlanTag{f.vlan_tci, type});
  TransportHeader transport = f.transport;
  transport.pad = static_cast<uint8_t>(pad_of(f.payload_bytes));
  const uint32_t udp_bytes =
      static_cast<uint32_t>(sizeof(UdpHeader)) + info.header_bytes + f.payload_bytes + transport.pad + kIcrcBytes;
  if (f.ipv4) {
    Ipv4Header ip;
    ip.tos = f.traffic_class;
    ip.total_length = static_cast<uint16_t>(sizeof(ip) + udp_bytes);
    ip.id = f.ip_id;
    ip.fragment = f.ip_fragment;
    ip.ttl = f.ttl;
    ip.source = f.source_ipv4;
    ip.destination = f.destination_ipv4;
    ip.checksum = ipv4_checksum(ip);
    put(ip);
  } else {
    Ipv6Header ip;
    ip.set(f.traffic_class, f.flow_label);
    ip.payload_length = static_cast<uint16_t>(udp_bytes);
    ip.hop_limit = f.ttl;
    ip.source = f.source_gid;
    ip.destination = f.destination_gid;
    put(ip);
  }
  put(UdpHeader{f.udp_sport, kRocePort, static_cast<uint16_t>(udp_bytes), f.udp_checksum});
  at += write_transport(transport, at);
  const uint32_t total = static_cast<uint32_t>(at - bytes);
  std::memcpy(end - total, bytes, total);
  return total;
}

bool rewrite_ecn(MutableBytes frame, Ecn ecn) {
  const IpPlace place = find_ip(frame);
  if (place.type == kEtherTypeIpv4) {
    Ipv4Header ip;
    std::memcpy(static_cast<void*>(&ip), frame.data() + place.offset, sizeof(ip));
    const uint16_t before = static_cast<uint16_t>(ip.version_ihl << 8 | ip.tos);
    ip.tos = static_cast<uint8_t>((ip.tos & 0xFC) | static_cast<uint8_t>(ecn));
    const uint16_t after = static_cast<uint16_t>(ip.version_ihl << 8 | ip.tos);
    ip.checksum = ipv4_checksum_update(ip.checksum, before, after);
    std::memcpy(frame.data() + place.offset, &ip, sizeof(ip));
  } else if (place.type == kEtherTypeIpv6) {
    Ipv6Header ip;
    std::memcpy(static_cast<void*>(&ip), frame.data() + place.offset, sizeof(ip));
    ip.set(static_cast<uint8_t>((ip.traffic_class() & 0xFC) | static_cast<uint8_t>(ecn)), ip.flow_label());
    std::memcpy(frame.data() + place.offset, &ip, sizeof(ip));
  }
  return place.type != 0;
}

bool decrement_ttl(MutableBytes frame) {
  const IpPlace place = find_ip(frame);
  if (place.type == kEtherTypeIpv4) {
    Ipv4Header ip;
    std::memcpy(static_cast<void*>(&ip), frame.data() + place.offset, sizeof(ip));
    if (ip.ttl <= 1) return false;
    const uint16_t before = static_cast<uint16_t>(ip.ttl << 8 | ip.protocol);
    ip.ttl = static_cast<uint8_t>(ip.ttl - 1);
    const uint16_t after = static_cast<uint16_t>(ip.ttl << 8 | ip.protocol);
    ip.checksum = ipv4_checksum_update(ip.checksum, before, after);
    std::memcpy(frame.data() + place.offset, &ip, sizeof(ip));
  } else if (place.type == kEtherTypeIpv6) {
    uint8_t& hop_limit = frame[place.offset + offsetof(Ipv6Header, hop_limit)];
    if (hop_limit <= 1) return false;
    hop_limit = static_cast<uint8_t>(hop_limit - 1);
  }
  return place.type != 0;
}

}  // namespace weft
