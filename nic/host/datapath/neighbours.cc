// SPDX-License-Identifier: Apache-2.0
#include "nic/host/datapath/neighbours.h"

#include <errno.h>

#include <algorithm>

#include "protocols/base/assert.h"
#include "protocols/wire/arp.h"
#include "protocols/wire/icmp.h"
#include "protocols/wire/ipv6.h"
#include "nic/host/datapath/frame_cursor.h"

namespace weft::nic {
namespace {

constexpr uint32_t kIp = sizeof(EthernetHeader);
constexpr MacAddress kBroadcast{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};

/// An address that one machine can have. RFC 1122, 3.2.1.3.
bool unicast(uint32_t ipv4) { return ipv4 >> 24 != 0 && ipv4 >> 24 != 127 && ipv4 < 0xE0000000; }
bool unicast(const MacAddress& mac) { return (mac[0] & 1) == 0 && mac != MacAddress{}; }

uint32_t write_arp_request(const EndpointAddress& from, uint32_t target, MutableBytes out) {
  ArpPacket arp;
  arp.sender_mac = from.mac;
  arp.sender_ipv4 = from.ipv4;
  arp.target_ipv4 = target;
  put(out, 0, EthernetHeader{kBroadcast, from.mac, kEtherTypeArp});
  put(out, kIp, arp);
  return kIp + sizeof arp;
}

/// Ethernet, IPv6 and a neighbour message, checksummed.
uint32_t write_neighbour_message(const MacAddress& to, const EndpointAddress& from, const GidBytes& destination,
                                 NeighbourMessage message, MutableBytes out) {
  Ipv6Header ip;
  ip.set(0, 0);
  ip.payload_length = sizeof message;
  ip.next_header = kIpProtocolIcmpv6;
  ip.hop_limit = 255;  // RFC 4861, 7.1: anything else came from far away
  ip.source = link_local_gid(from.mac);
  ip.destination = destination;
  message.mac = from.mac;
  message.icmp.checksum = 0;
  const uint64_t sum = pseudo_header_sum(ip.source, destination, sizeof message, kIpProtocolIcmpv6);
  message.icmp.checksum = checksum_of(checksum_add(sum, bytes_of(message)));
  put(out, 0, EthernetHeader{to, from.mac, kEtherTypeIpv6});
  put(out, kIp, ip);
  put(out, kIp + sizeof ip, message);
  return kIp + sizeof ip + sizeof message;
}

uint32_t write_solicitation(const EndpointAddress& from, const GidBytes& target, MutableBytes out) {
  NeighbourMessage message;
  message.icmp.type = kNeighbourSolicitation;
  message.target = target;
  message.option = 1;
  const GidBytes group = solicited_node(target);
  const MacAddress mac{0x33, 0x33, group[12], group[13], group[14], group[15]};
  return write_neighbour_message(mac, from, group, message, out);
}

}  // namespace

// --- frames -----------------------------------------------------------------------------------------------------------

NeighbourVerdict Neighbours::on_frame(Instant now, uint32_t port, MutableBytes buffer, uint32_t& bytes) {
  const MutableBytes frame = buffer.first(bytes);
  EthernetHeader ether;
  if (!get(frame, 0, ether)) return NeighbourVerdict::kNotOurs;
  switch (ether.type.get()) {
    case kEtherTypeArp: return on_arp(now, port, frame, bytes);
    case kEtherTypeIpv4: return on_ipv4(frame, bytes);
    case kEtherTypeIpv6: return on_ipv6(now, port, buffer, bytes);
    default: return NeighbourVerdict::kNotOurs;
  }
}

NeighbourVerdict Neighbours::on_arp(Instant now, uint32_t port, MutableBytes frame, uint32_t& bytes) {
  ArpPacket arp;
  if (!get(frame, kIp, arp) || !arp.for_ipv4_over_ethernet()) return NeighbourVerdict::kNotOurs;
  const bool request = arp.operation.get() == kArpRequest;
  if (!request && arp.operation.get() != kArpReply) return NeighbourVerdict::kNotOurs;
  const uint32_t sender = arp.sender_ipv4.get();
  const uint32_t owner = map_.find(arp.target_ipv4.get());
  const bool for_us = is_ours(owner);
  // A probe comes from 0.0.0.0 (RFC 5227): it is answered, and nothing can be learned from it.
  const bool probe = request && sender == 0 && unicast(arp.sender_mac);
  if (!probe) {
    if (!unicast(sender) || !may_learn(gid_of_ipv4(sender), arp.sender_mac)) return NeighbourVerdict::kTaken;
    heard(now, port, gid_of_ipv4(sender), arp.sender_mac, request && for_us);
  }
  if (!request || !for_us) return NeighbourVerdict::kTaken;
  const EndpointAddress& self = map_.address(owner);
  ArpPacket reply;
  reply.operation = kArpReply;
  reply.sender_mac = self.mac;
  reply.sender_ipv4 = self.ipv4;
  reply.target_mac = arp.sender_mac;
  reply.target_ipv4 = sender;
  put(frame, 0, EthernetHeader{arp.sender_mac, self.mac, kEtherTypeArp});
  put(frame, kIp, reply);
  bytes = kIp + sizeof reply;
  ++counters_.arp_answers;
  return NeighbourVerdict::kAnswer;
}

/// Echo requests for a host: turned round in place.
NeighbourVerdict Neighbours::on_ipv4(MutableBytes frame, uint32_t& bytes) {
  EthernetHeader ether;
  Ipv4Header ip;
  IcmpHeader icmp;
  if (!get(frame, 0, ether) || !get(frame, kIp, ip) || ip.protocol != kIpProtocolIcmp) return NeighbourVerdict::kNotOurs;
  const uint32_t total = ip.total_length.get();
  const bool whole = (ip.fragment.get() & (kIpv4MoreFragments | kIpv4FragmentOffset)) == 0;
  if (ip.version_ihl != 0x45 || !whole || !ipv4_checksum_good(ip)) return NeighbourVerdict::kNotOurs;
  if (total < sizeof ip + sizeof icmp || kIp + total > frame.size()) return NeighbourVerdict::kNotOurs;
  const uint32_t owner = map_.find(ip.destination.get());
  if (!is_ours(owner) || ether.destination != map_.address(owner).mac || !unicast(ether.source)) return NeighbourVerdict::kNotOurs;
  const uint32_t sender = ip.source.get();
  if (!unicast(sender) || is_ours(map_.find(sender))) {
    ++counters_.foreign;
    return NeighbourVerdict::kTaken;
  }
  const MutableBytes message = frame.subspan(kIp + sizeof ip, total - sizeof ip);
  get(message, 0, icmp);
  if (icmp.type != kIcmpEchoRequest || icmp.code != 0 || !checksum_good(checksum_add(0, message))) return NeighbourVerdict::kNotOurs;
  icmp.type = kIcmpEchoReply;
  icmp.checksum = 0;
  put(message, 0, icmp);
  icmp.checksum = checksum_of(checksum_add(0, message));
  put(message, 0, icmp);
  std::swap(ip.source, ip.destination);
  ip.ttl = 64;
  ip.checksum = ipv4_checksum(ip);
  put(frame, 0, EthernetHeader{ether.source, map_.address(owner).mac, kEtherTypeIpv4});
  put(frame, kIp, ip);
  bytes = kIp + total;
  ++counters_.echo_answers;
  return NeighbourVerdict::kAnswer;
}

NeighbourVerdict Neighbours::on_ipv6(Instant now, uint32_t port, MutableBytes buffer, uint32_t& bytes) {
  const MutableBytes frame = buffer.first(bytes);
  Ipv6Header ip;
  IcmpHeader icmp;
  if (!get(frame, kIp, ip) || ip.version() != 6 || ip.next_header != kIpProtocolIcmpv6) return NeighbourVerdict::kNotOurs;
  const uint32_t length = ip.payload_length.get();
  if (length < sizeof icmp || kIp + sizeof ip + length > frame.size()) return NeighbourVerdict::kNotOurs;
  const Bytes message = frame.subspan(kIp + sizeof ip, length);
  const uint64_t sum = pseudo_header_sum(ip.source, ip.destination, length, kIpProtocolIcmpv6);
  if (!checksum_good(checksum_add(sum, message))) return NeighbourVerdict::kNotOurs;
  get(message, 0, icmp);
  const MutableBytes exact = buffer.first(kIp + sizeof ip + length);
  switch (icmp.type) {
    case kIcmpv6EchoRequest: return on_echo6(exact, bytes);
    case kNeighbourSolicitation: bytes = static_cast<uint32_t>(exact.size()); return on_solicitation(now, port, buffer, bytes);
    case kNeighbourAdvertisement: return on_advertisement(now, port, exact);
    default: return NeighbourVerdict::kNotOurs;
  }
}

NeighbourVerdict Neighbours::on_echo6(MutableBytes frame, uint32_t& bytes) {
  EthernetHeader ether;
  Ipv6Header ip;
  IcmpHeader icmp;
  get(frame, 0, ether);
  get(frame, kIp, ip);
  const uint32_t owner = map_.find(ip.destination);
  if (!is_ours(owner) || ether.destination != map_.address(owner).mac || !unicast(ether.source)) return NeighbourVerdict::kNotOurs;
  if (ip.source[0] == 0xFF || ip.source == GidBytes{} || is_ours(map_.find(ip.source))) {
    ++counters_.foreign;
    return NeighbourVerdict::kTaken;
  }
  const MutableBytes message = frame.subspan(kIp + sizeof ip);
  get(message, 0, icmp);
  icmp.type = kIcmpv6EchoReply;
  icmp.checksum = 0;
  put(message, 0, icmp);
  std::swap(ip.source, ip.destination);
  ip.hop_limit = 64;
  const uint64_t sum = pseudo_header_sum(ip.source, ip.destination, static_cast<uint32_t>(message.size()), kIpProtocolIcmpv6);
  icmp.checksum = checksum_of(checksum_add(sum, message));
  put(message, 0, icmp);
  put(frame, 0, EthernetHeader{ether.source, map_.address(owner).mac, kEtherTypeIpv6});
  put(frame, kIp, ip);
  bytes = static_cast<uint32_t>(frame.size());
  ++counters_.echo_answers;
  return NeighbourVerdict::kAnswer;
}

NeighbourVerdict Neighbours::on_solicitation(Instant now, uint32_t port, MutableBytes buffer, uint32_t& bytes) {
  const Bytes frame = buffer.first(bytes);
  EthernetHeader ether;
  Ipv6Header ip;
  IcmpHeader icmp;
  GidBytes target;
  constexpr uint32_t kMessage = kIp + sizeof(Ipv6Header);
  get(frame, 0, ether);
  get(frame, kIp, ip);
  if (ip.hop_limit != 255 || !get(frame, kMessage + sizeof icmp, target)) return NeighbourVerdict::kNotOurs;
  const uint32_t owner = map_.find(target);
  const bool probe = ip.source == GidBytes{};
  if (!is_ours(owner) || target[0] == 0xFF || !unicast(ether.source)) return NeighbourVerdict::kTaken;
  if (!probe && !may_learn(ip.source, ether.source)) return NeighbourVerdict::kTaken;
  if (buffer.size() < kMessage + sizeof(NeighbourMessage)) return NeighbourVerdict::kTaken;
  if (!probe) heard(now, port, ip.source, ether.source, true);
  NeighbourMessage message;
  message.icmp.type = kNeighbourAdvertisement;
  message.icmp.rest = kAdvertisementOverride | (probe ? 0 : kAdvertisementSolicited);
  message.target = target;
  message.option = 2;
  // Who probes for a duplicate has no address yet: everybody is told. RFC 4861, 7.2.4.
  constexpr GidBytes kAllNodes{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  const MacAddress to = probe ? MacAddress{0x33, 0x33, 0, 0, 0, 1} : ether.source;
  bytes = write_neighbour_message(to, map_.address(owner), probe ? kAllNodes : ip.source, message, buffer);
  ++counters_.arp_answers;
  return NeighbourVerdict::kAnswer;
}

NeighbourVerdict Neighbours::on_advertisement(Instant now, uint32_t port, Bytes frame) {
  EthernetHeader ether;
  Ipv6Header ip;
  GidBytes target;
  constexpr uint32_t kTarget = kIp + sizeof(Ipv6Header) + sizeof(IcmpHeader);
  get(frame, 0, ether);
  get(frame, kIp, ip);
  if (ip.hop_limit != 255 || !get(frame, kTarget, target)) return NeighbourVerdict::kNotOurs;
  MacAddress mac = ether.source;
  std::array<uint8_t, 2> option{};
  if (get(frame, kTarget + 16, option) && option[0] == 2 && option[1] == 1) get(frame, kTarget + 18, mac);
  if (target[0] == 0xFF || target == GidBytes{} || !may_learn(target, mac)) return NeighbourVerdict::kTaken;
  heard(now, port, target, mac, false);
  return NeighbourVerdict::kTaken;
}

// --- what is known ----------------------------------------------------------------------------------------------------

bool Neighbours::may_learn(const GidBytes& gid, const MacAddress& mac) {
  if (!unicast(mac)) return false;
  if (!is_ours(map_.find(gid))) return true;
  ++counters_.foreign;
  return false;
}

/// overhear: also when nobody asked, because it asked us and an answer will be wanted soon.
void Neighbours::heard(Instant now, uint32_t port, const GidBytes& gid, const MacAddress& mac, bool overhear) {
  const bool asked = std::any_of(questions_.begin(), questions_.end(), [&](const Question& q) { return q.gid == gid; });
  auto it = known_.find(gid);
  if (it == known_.end()) {
    if (!asked && !overhear) return;
    if (!asked && overheard_ >= settings_.max_overheard) forget_oldest_overheard();
    it = known_.emplace(gid, Known{}).first;
    overheard_ += !asked;
  } else if (asked && !it->second.asked) {
    --overheard_;
  }
  Known& known = it->second;
  known.mac = mac;
  known.port = port;
  known.heard = now;
  known.asked = known.asked || asked;
  map_.set_outside(gid, settings_.endpoints + port);
  if (asked) answer_questions(gid, known);
}

void Neighbours::forget_oldest_overheard() {
  auto oldest = known_.end();
  for (auto it = known_.begin(); it != known_.end(); ++it) {
    if (!it->second.asked && (oldest == known_.end() || it->second.heard < oldest->second.heard)) oldest = it;
  }
  if (oldest == known_.end()) return;
  map_.forget_outside(oldest->first);
  known_.erase(oldest);
  --overheard_;
}

void Neighbours::answer_questions(const GidBytes& gid, const Known& known) {
  for (const Question& question : questions_) {
    if (question.gid != gid) continue;
    answers_.push_back({question.token, 0, known.mac});
    ++counters_.resolved;
  }
  std::erase_if(questions_, [&](const Question& question) { return question.gid == gid; });
  find_deadline();
}

// --- questions --------------------------------------------------------------------------------------------------------

void Neighbours::resolve(Instant now, uint64_t token, uint32_t endpoint, const GidBytes& gid) {
  WEFT_ASSERT(is_ours(endpoint));
  const bool possible = gid_is_ipv4(gid) ? unicast(ipv4_of_gid(gid)) : gid[0] != 0xFF && gid != GidBytes{};
  const auto it = known_.find(gid);
  if (it != known_.end() && now - it->second.heard < settings_.valid) {
    if (!it->second.asked && known_.size() - overheard_ < settings_.max_asked) {
      it->second.asked = true;
      --overheard_;
    }
    answers_.push_back({token, 0, it->second.mac});
    return;
  }
  if (!possible || settings_.ports == 0 || is_ours(map_.find(gid))) {
    answers_.push_back({token, ETIMEDOUT, {}});
    return;
  }
  if (questions_.size() >= settings_.max_questions || known_.size() - overheard_ >= settings_.max_asked) {
    answers_.push_back({token, ENOBUFS, {}});
    return;
  }
  questions_.push_back({token, endpoint, gid, settings_.tries, 0, now});
  owe(questions_.back(), now);
  find_deadline();
}

void Neighbours::owe(Question& question, Instant now) {
  --question.tries_left;
  question.ports_owed = (1u << settings_.ports) - 1;
  owed_ports_ |= question.ports_owed;
  question.due = now + settings_.try_time;
}

uint32_t Neighbours::pull(Instant /*now*/, uint32_t port, MutableBytes out) {
  if (!owes(port) || out.size() < kMaxQuestionBytes) return 0;
  for (Question& question : questions_) {
    if ((question.ports_owed >> port & 1) == 0) continue;
    question.ports_owed &= ~(1u << port);
    ++counters_.questions;
    const EndpointAddress& from = map_.address(question.endpoint);
    return gid_is_ipv4(question.gid) ? write_arp_request(from, ipv4_of_gid(question.gid), out)
                                     : write_solicitation(from, question.gid, out);
  }
  owed_ports_ &= ~(1u << port);
  return 0;
}

bool Neighbours::take_answer(NeighbourAnswer& out) {
  if (answers_.empty()) return false;
  out = answers_.front();
  answers_.erase(answers_.begin());
  return true;
}

void Neighbours::on_timer(Instant now) {
  for (size_t i = 0; i < questions_.size();) {
    Question& question = questions_[i];
    if (question.due > now) {
      ++i;
    } else if (question.tries_left > 0) {
      owe(question, now);
      ++i;
    } else {
      answers_.push_back({question.token, ETIMEDOUT, {}});
      ++counters_.timeouts;
      questions_.erase(questions_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  find_deadline();
}

void Neighbours::find_deadline() {
  deadline_ = kNever;
  for (const Question& question : questions_) deadline_ = std::min(deadline_, question.due);
}

}  // namespace weft::nic
