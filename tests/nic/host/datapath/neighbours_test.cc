// SPDX-License-Identifier: Apache-2.0
#include "nic/host/datapath/neighbours.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <optional>
#include <vector>

#include "nic/host/datapath/frame_cursor.h"
#include "protocols/base/random.h"
#include "protocols/wire/arp.h"
#include "protocols/wire/icmp.h"
#include "protocols/wire/ipv6.h"

using namespace weft;
using namespace weft::nic;

namespace {

constexpr uint32_t kHost0 = 0xC6120001;
constexpr uint32_t kStranger = 0xC6120064;
constexpr MacAddress kHostMac{2, 0x57, 0, 0, 0, 0};
constexpr MacAddress kStrangerMac{0x52, 0x54, 0, 0, 0, 0x64};
constexpr MacAddress kAll{255, 255, 255, 255, 255, 255};
constexpr uint32_t kIp = 14;

struct Rig {
  explicit Rig(NeighbourSettings settings = {}) {
    REQUIRE(map.build({{kHostMac, kHost0}, {{2, 0x57, 0, 0, 0, 1}, kHost0 + 1}}));
    settings.endpoints = 2;
    settings.ports = 2;
    neighbours.emplace(settings, map);
  }
  NeighbourVerdict give(std::vector<uint8_t> frame, uint32_t port = 0) {
    bytes = static_cast<uint32_t>(frame.size());
    frame.resize(2048);
    buffer = frame;
    return neighbours->on_frame(now, port, buffer, bytes);
  }
  /// Everything that is owed to a port.
  std::vector<std::vector<uint8_t>> questions(uint32_t port) {
    std::vector<std::vector<uint8_t>> all;
    std::array<uint8_t, Neighbours::kMaxQuestionBytes> out;
    for (uint32_t n; (n = neighbours->pull(now, port, out)) != 0;) all.emplace_back(out.begin(), out.begin() + n);
    return all;
  }
  template <typename T>
  T answer_at(size_t at) {
    T value;
    REQUIRE(get(Bytes(buffer).first(bytes), at, value));
    return value;
  }

  AddressMap map;
  std::optional<Neighbours> neighbours;
  Instant now{seconds(1)};
  std::vector<uint8_t> buffer;
  uint32_t bytes = 0;
};

std::vector<uint8_t> arp(uint16_t operation, uint32_t sender, uint32_t target, MacAddress mac = kStrangerMac) {
  ArpPacket packet;
  packet.operation = operation;
  packet.sender_mac = mac;
  packet.sender_ipv4 = sender;
  packet.target_ipv4 = target;
  std::vector<uint8_t> frame(60);
  put(frame, 0, EthernetHeader{kAll, mac, kEtherTypeArp});
  put(frame, kIp, packet);
  return frame;
}

std::vector<uint8_t> echo_request(uint32_t payload, uint32_t source = kStranger, uint32_t destination = kHost0,
                                  MacAddress to = kHostMac) {
  std::vector<uint8_t> frame(kIp + 28);
  for (uint32_t i = 0; i < payload; ++i) frame.push_back(static_cast<uint8_t>(i * 7));
  frame.resize(frame.size() + 3);  // Ethernet's own padding
  IcmpHeader icmp;
  icmp.type = kIcmpEchoRequest;
  icmp.rest = 0x12340001;
  put(frame, kIp + 20, icmp);
  icmp.checksum = checksum_of(checksum_add(0, Bytes(frame).subspan(kIp + 20, 8 + payload)));
  put(frame, kIp + 20, icmp);
  Ipv4Header ip;
  ip.total_length = static_cast<uint16_t>(28 + payload);
  ip.protocol = kIpProtocolIcmp;
  ip.ttl = 5;
  ip.source = source;
  ip.destination = destination;
  ip.checksum = ipv4_checksum(ip);
  put(frame, 0, EthernetHeader{to, kStrangerMac, kEtherTypeIpv4});
  put(frame, kIp, ip);
  return frame;
}

std::vector<uint8_t> solicitation(const GidBytes& source, const GidBytes& target, uint8_t hop_limit = 255) {
  NeighbourMessage message;
  message.icmp.type = kNeighbourSolicitation;
  message.target = target;
  message.option = 1;
  message.mac = kStrangerMac;
  Ipv6Header ip;
  ip.set(0, 0);
  ip.payload_length = sizeof message;
  ip.next_header = kIpProtocolIcmpv6;
  ip.hop_limit = hop_limit;
  ip.source = source;
  ip.destination = solicited_node(target);
  message.icmp.checksum =
      checksum_of(checksum_add(pseudo_header_sum(ip.source, ip.destination, sizeof message, kIpProtocolIcmpv6), bytes_of(message)));
  std::vector<uint8_t> frame(kIp + sizeof ip + sizeof message);
  put(frame, 0, EthernetHeader{{0x33, 0x33, 0xFF, target[13], target[14], target[15]}, kStrangerMac, kEtherTypeIpv6});
  put(frame, kIp, ip);
  put(frame, kIp + sizeof ip, message);
  return frame;
}

}  // namespace

TEST_CASE("A host answers ARP, and knows then who asked") {
  Rig rig;
  REQUIRE(rig.give(arp(kArpRequest, kStranger, kHost0)) == NeighbourVerdict::kAnswer);
  CHECK(rig.bytes == 42);
  const auto ether = rig.answer_at<EthernetHeader>(0);
  const auto reply = rig.answer_at<ArpPacket>(kIp);
  CHECK(ether.destination == kStrangerMac);
  CHECK(ether.source == kHostMac);
  CHECK(reply.operation.get() == kArpReply);
  CHECK(reply.sender_mac == kHostMac);
  CHECK(reply.sender_ipv4.get() == kHost0);
  CHECK(reply.target_mac == kStrangerMac);
  CHECK(reply.target_ipv4.get() == kStranger);
  CHECK(rig.map.find(kStranger) == 2);  // outside port 0
  // A probe has no address to learn; requests for others are not ours to answer.
  CHECK(rig.give(arp(kArpRequest, 0, kHost0)) == NeighbourVerdict::kAnswer);
  CHECK(rig.give(arp(kArpRequest, kStranger + 1, kStranger + 2)) == NeighbourVerdict::kTaken);
  CHECK(rig.neighbours->known() == 1);
}

TEST_CASE("Nobody outside becomes a host of the fabric") {
  Rig rig;
  CHECK(rig.give(arp(kArpRequest, kHost0 + 1, kHost0)) == NeighbourVerdict::kTaken);
  CHECK(rig.give(arp(kArpReply, kHost0, kHost0 + 1)) == NeighbourVerdict::kTaken);
  CHECK(rig.map.find(kHost0) == 0);
  CHECK(rig.map.find(kHost0 + 1) == 1);
  CHECK(rig.neighbours->counters().foreign == 2);
  CHECK(rig.give(arp(kArpRequest, 0xE0000001, kHost0)) == NeighbourVerdict::kTaken);
  CHECK(rig.give(arp(kArpRequest, kStranger, kHost0, kAll)) == NeighbourVerdict::kTaken);
  CHECK(rig.give(echo_request(8, kHost0 + 1)) == NeighbourVerdict::kTaken);
  CHECK(rig.neighbours->known() == 0);
}

TEST_CASE("An echo request is turned round with its data") {
  for (const uint32_t payload : {0u, 1u, 56u, 1472u}) {
    Rig rig;
    const std::vector<uint8_t> request = echo_request(payload);
    REQUIRE(rig.give(request) == NeighbourVerdict::kAnswer);
    REQUIRE(rig.bytes == kIp + 28 + payload);
    const auto ip = rig.answer_at<Ipv4Header>(kIp);
    CHECK(ipv4_checksum_good(ip));
    CHECK(ip.source.get() == kHost0);
    CHECK(ip.destination.get() == kStranger);
    CHECK(ip.ttl == 64);
    const auto icmp = rig.answer_at<IcmpHeader>(kIp + 20);
    CHECK(icmp.type == kIcmpEchoReply);
    CHECK(icmp.rest.get() == 0x12340001);
    CHECK(checksum_good(checksum_add(0, Bytes(rig.buffer).subspan(kIp + 20, 8 + payload))));
    CHECK(std::equal(request.begin() + kIp + 28, request.begin() + kIp + 28 + payload, rig.buffer.begin() + kIp + 28));
    CHECK(rig.answer_at<EthernetHeader>(0).destination == kStrangerMac);
  }
}

TEST_CASE("A bad echo request is not ours") {
  Rig rig;
  const std::vector<uint8_t> good = echo_request(56);
  const auto broken = [&](size_t at, uint8_t value) {
    std::vector<uint8_t> frame = good;
    frame[at] = value;
    return rig.give(frame);
  };
  CHECK(broken(kIp + 40, 99) == NeighbourVerdict::kNotOurs);  // data: the checksum is wrong
  CHECK(broken(kIp + 8, 99) == NeighbourVerdict::kNotOurs);   // TTL: the header's
  CHECK(broken(kIp + 3, 255) == NeighbourVerdict::kNotOurs);  // longer than the frame
  CHECK(rig.give(echo_request(56, kStranger, kHost0, {2, 0x57, 0, 0, 0, 1})) == NeighbourVerdict::kNotOurs);
  CHECK(rig.give(echo_request(56, kStranger, kStranger + 1)) == NeighbourVerdict::kNotOurs);
  CHECK(rig.neighbours->counters().echo_answers == 0);
}

TEST_CASE("An address outside is asked for on every port until somebody answers") {
  Rig rig;
  rig.neighbours->resolve(rig.now, 7, 1, gid_of_ipv4(kStranger));
  for (const uint32_t port : {0u, 1u}) {
    const auto asked = rig.questions(port);
    REQUIRE(asked.size() == 1);
    ArpPacket question;
    REQUIRE(get(asked[0], kIp, question));
    CHECK(question.operation.get() == kArpRequest);
    CHECK(question.sender_ipv4.get() == kHost0 + 1);
    CHECK(question.target_ipv4.get() == kStranger);
    CHECK(rig.questions(port).empty());
  }
  NeighbourAnswer answer;
  CHECK_FALSE(rig.neighbours->take_answer(answer));
  CHECK(rig.give(arp(kArpReply, kStranger, kHost0 + 1), 1) == NeighbourVerdict::kTaken);
  REQUIRE(rig.neighbours->take_answer(answer));
  CHECK(answer.token == 7);
  CHECK(answer.error == 0);
  CHECK(answer.mac == kStrangerMac);
  CHECK(rig.map.find(kStranger) == 3);  // outside port 1
  CHECK(rig.neighbours->next_deadline() == kNever);
  // The next one has it at once, until it is old.
  rig.neighbours->resolve(rig.now, 8, 0, gid_of_ipv4(kStranger));
  REQUIRE(rig.neighbours->take_answer(answer));
  CHECK(answer.token == 8);
  rig.now += seconds(31);
  rig.neighbours->resolve(rig.now, 9, 0, gid_of_ipv4(kStranger));
  CHECK_FALSE(rig.neighbours->take_answer(answer));
  CHECK(rig.questions(0).size() == 1);
}

TEST_CASE("Nobody answers: four tries, then ETIMEDOUT within two seconds") {
  Rig rig;
  const Instant began = rig.now;
  rig.neighbours->resolve(rig.now, 1, 0, gid_of_ipv4(kStranger));
  size_t asked = rig.questions(0).size();
  NeighbourAnswer answer;
  while (!rig.neighbours->take_answer(answer)) {
    REQUIRE(rig.neighbours->next_deadline() != kNever);
    rig.now = rig.neighbours->next_deadline();
    rig.neighbours->on_timer(rig.now);
    asked += rig.questions(0).size();
  }
  CHECK(answer.error == ETIMEDOUT);
  CHECK(asked == 4);
  CHECK(rig.now - began == seconds(2));
  CHECK(rig.neighbours->next_deadline() == kNever);
}

TEST_CASE("What cannot be asked for is refused at once") {
  Rig rig;
  NeighbourAnswer answer;
  for (const GidBytes& gid : {gid_of_ipv4(0), gid_of_ipv4(0xE1000001), gid_of_ipv4(0x7F000001), gid_of_ipv4(kHost0), GidBytes{},
                              GidBytes{0xFF, 2}}) {
    rig.neighbours->resolve(rig.now, 1, 0, gid);
    REQUIRE(rig.neighbours->take_answer(answer));
    CHECK(answer.error == ETIMEDOUT);
  }
  for (uint32_t i = 0; i < 300; ++i) rig.neighbours->resolve(rig.now, i, 0, gid_of_ipv4(kStranger + i));
  uint32_t refused = 0;
  while (rig.neighbours->take_answer(answer)) refused += answer.error == ENOBUFS;
  CHECK(refused == 44);
}

TEST_CASE("A flood of strangers displaces strangers, not who was asked for") {
  NeighbourSettings settings;
  settings.max_overheard = 16;
  Rig rig(settings);
  rig.neighbours->resolve(rig.now, 1, 0, gid_of_ipv4(kStranger));
  rig.give(arp(kArpReply, kStranger, kHost0));
  for (uint32_t i = 1; i < 1000; ++i) {
    rig.now += microseconds(1);
    rig.give(arp(kArpRequest, 0x0A000000 + i, kHost0));
  }
  CHECK(rig.neighbours->known() == 17);
  CHECK(rig.map.find(kStranger) == 2);
  CHECK(rig.map.find(0x0A000000u + 999) == 2);
  CHECK(rig.map.find(0x0A000000u + 1) == UINT32_MAX);
}

TEST_CASE("IPv6: solicitations are answered, sent, and their answers heard") {
  Rig rig;
  const GidBytes host = link_local_gid(kHostMac);
  const GidBytes stranger = link_local_gid(kStrangerMac);
  REQUIRE(rig.give(solicitation(stranger, host)) == NeighbourVerdict::kAnswer);
  const auto ip = rig.answer_at<Ipv6Header>(kIp);
  const auto message = rig.answer_at<NeighbourMessage>(kIp + 40);
  CHECK(ip.hop_limit == 255);
  CHECK(ip.destination == stranger);
  CHECK(message.icmp.type == kNeighbourAdvertisement);
  CHECK(message.icmp.rest.get() == (kAdvertisementSolicited | kAdvertisementOverride));
  CHECK(message.option == 2);
  CHECK(message.mac == kHostMac);
  CHECK(checksum_good(checksum_add(pseudo_header_sum(ip.source, ip.destination, 32, kIpProtocolIcmpv6), bytes_of(message))));
  CHECK(rig.map.find(stranger) == 2);
  CHECK(rig.give(solicitation(stranger, host, 64)) == NeighbourVerdict::kNotOurs);  // from far away
  CHECK(rig.give(solicitation({}, host)) == NeighbourVerdict::kAnswer);             // duplicate address detection
  CHECK(rig.give(solicitation(stranger, stranger)) == NeighbourVerdict::kTaken);

  Rig asker;
  asker.neighbours->resolve(asker.now, 5, 0, stranger);
  const auto asked = asker.questions(0);
  REQUIRE(asked.size() == 1);
  NeighbourMessage question;
  REQUIRE(get(asked[0], kIp + 40, question));
  CHECK(question.target == stranger);
  // Turned round by a rig that owns the address.
  Rig other;
  REQUIRE(other.map.build({{kStrangerMac, kStranger}, {{2}, kStranger + 1}}));
  REQUIRE(other.give(asked[0]) == NeighbourVerdict::kAnswer);
  other.buffer.resize(other.bytes);
  CHECK(asker.give(other.buffer) == NeighbourVerdict::kTaken);
  NeighbourAnswer answer;
  REQUIRE(asker.neighbours->take_answer(answer));
  CHECK(answer.mac == kStrangerMac);
}

TEST_CASE("Whatever comes in, the answer stays inside the buffer", "[property]") {
  const uint64_t seed = 20240607;
  INFO("seed " << seed);
  Random random(seed, 1);
  const std::vector<std::vector<uint8_t>> seeds = {arp(kArpRequest, kStranger, kHost0), echo_request(56), echo_request(0),
                                                   solicitation(link_local_gid(kStrangerMac), link_local_gid(kHostMac))};
  Rig rig;
  for (int i = 0; i < 200'000; ++i) {
    std::vector<uint8_t> frame = seeds[random.below(seeds.size())];
    for (uint64_t n = random.below(4); n > 0; --n) frame[random.below(frame.size())] = static_cast<uint8_t>(random.below(256));
    if (random.below(4) == 0) frame.resize(random.below(frame.size() + 1));
    std::vector<uint8_t> exact = frame;  // no room behind it
    uint32_t bytes = static_cast<uint32_t>(exact.size());
    rig.neighbours->on_frame(rig.now, 0, exact, bytes);
    REQUIRE(bytes <= exact.size());
  }
  CHECK(rig.neighbours->known() <= 1024);
  CHECK(rig.map.find(kHost0) == 0);
}
