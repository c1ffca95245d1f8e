// SPDX-License-Identifier: Apache-2.0
#include "protocols/wire/frame_template.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "protocols/base/random.h"
#include "protocols/wire/roce_frame.h"

using namespace weft;

namespace {

FrameAddress address(bool ipv4, bool tagged) {
  FrameAddress a;
  a.destination_mac = {0x02, 0x57, 0, 0, 0, 1};
  a.source_mac = {0x02, 0x57, 0, 0, 0, 2};
  a.source_gid = ipv4 ? gid_of_ipv4(0xC6120001) : link_local_gid(a.source_mac);
  a.destination_gid = ipv4 ? gid_of_ipv4(0xC6120002) : link_local_gid(a.destination_mac);
  a.tagged = tagged;
  a.vlan_tci = 0x6005;
  a.traffic_class = 0x6A;
  a.flow_label = 0xABCDE;
  a.udp_sport = 0xD123;
  return a;
}

TransportHeader random_transport(Random& random, uint8_t opcode) {
  TransportHeader t;
  t.opcode = static_cast<Opcode>(opcode);
  t.solicited = random.below(2) != 0;
  t.migration = random.below(2) != 0;
  t.ack_request = random.below(2) != 0;
  t.fecn = random.below(2) != 0;
  t.becn = random.below(2) != 0;
  t.pkey = static_cast<uint16_t>(random.next());
  t.dest_qpn = static_cast<uint32_t>(random.next()) & kQpnMask;
  t.psn = static_cast<uint32_t>(random.next()) & kPsnMask;
  const uint16_t has = opcode_info(opcode).extended;
  const auto word = [&](uint16_t which) { return (has & which) != 0 ? static_cast<uint32_t>(random.next()) : 0; };
  const auto wide = [&](uint16_t which) { return (has & which) != 0 ? random.next() : 0; };
  t.immediate = word(kHasImmediate);
  t.invalidate_rkey = word(kHasInvalidate);
  t.reth = {wide(kHasReth), word(kHasReth), word(kHasReth)};
  t.aeth = {static_cast<uint8_t>(word(kHasAeth)), word(kHasAeth) & 0xFFFFFF};
  t.atomic = {wide(kHasAtomic), word(kHasAtomic), wide(kHasAtomic), wide(kHasAtomic)};
  t.atomic_original = wide(kHasAtomicAck);
  t.deth = {word(kHasDeth), word(kHasDeth) & 0xFFFFFF};
  t.xrc_srqn = word(kHasXrceth) & 0xFFFFFF;
  t.ee_context = word(kHasRdeth) & 0xFFFFFF;
  t.flush = word(kHasFeth);
  return t;
}

void check_same(const TransportHeader& a, const TransportHeader& b) {
  CHECK(a.opcode == b.opcode);
  CHECK(a.solicited == b.solicited);
  CHECK(a.migration == b.migration);
  CHECK(a.ack_request == b.ack_request);
  CHECK(a.fecn == b.fecn);
  CHECK(a.becn == b.becn);
  CHECK(a.pkey == b.pkey);
  CHECK(a.dest_qpn == b.dest_qpn);
  CHECK(a.psn == b.psn);
  CHECK(a.immediate == b.immediate);
  CHECK(a.invalidate_rkey == b.invalidate_rkey);
  CHECK((a.reth.va == b.reth.va && a.reth.rkey == b.reth.rkey && a.reth.length == b.reth.length));
  CHECK((a.aeth.syndrome == b.aeth.syndrome && a.aeth.msn == b.aeth.msn));
  CHECK((a.atomic.va == b.atomic.va && a.atomic.rkey == b.atomic.rkey));
  CHECK((a.atomic.swap_add == b.atomic.swap_add && a.atomic.compare == b.atomic.compare));
  CHECK(a.atomic_original == b.atomic_original);
  CHECK((a.deth.qkey == b.deth.qkey && a.deth.source_qpn == b.deth.source_qpn));
  CHECK((a.xrc_srqn == b.xrc_srqn && a.ee_context == b.ee_context && a.flush == b.flush));
}

}  // namespace

TEST_CASE("every opcode goes to bytes and back, over IPv4 and IPv6, tagged or not") {
  Random random(7, 7);
  for (const bool ipv4 : {true, false}) {
    for (const bool tagged : {true, false}) {
      FrameTemplate frames;
      CHECK_FALSE(frames.prepared());
      frames.prepare(address(ipv4, tagged));
      CHECK(frames.prepared());
      uint16_t id = 0;
      for (unsigned opcode = 0; opcode < 256; ++opcode) {
        const OpcodeInfo& info = opcode_info(static_cast<uint8_t>(opcode));
        const TransportHeader t = random_transport(random, static_cast<uint8_t>(opcode));
        const uint32_t payload = info.payload ? static_cast<uint32_t>(random.below(4097)) : 0;
        CAPTURE(opcode, payload);
        std::vector<uint8_t> bytes(256, 0xEE);
        const uint32_t n = frames.encode(t, payload, bytes.data() + 256);
        CHECK(n == frames.header_bytes(t.opcode));
        if (!info.known) {
          CHECK(n == 0);
          continue;
        }
        const uint32_t prefix = 14u + (tagged ? 4 : 0) + (ipv4 ? 20 : 40) + 8;
        REQUIRE(n == prefix + info.header_bytes);
        CHECK(n <= kMaxHeaderBytes);
        CHECK(bytes[256 - kMaxHeaderBytes - 1] == 0xEE);
        RoceFrame f;
        REQUIRE(parse_headers(Bytes(bytes).last(n), payload + pad_of(payload), f) == ParseError::kOk);
        check_same(f.transport, t);
        CHECK(f.transport.pad == pad_of(payload));
        CHECK(f.payload_bytes == payload);
        CHECK(f.tagged == tagged);
        CHECK(f.ipv4 == ipv4);
        CHECK(f.traffic_class == 0x6A);
        CHECK(f.ttl == 64);
        CHECK(f.udp_sport == 0xD123);
        CHECK(f.udp_checksum == 0);
        CHECK(f.destination_mac == address(ipv4, tagged).destination_mac);
        CHECK(f.source_mac == address(ipv4, tagged).source_mac);
        CHECK(f.source_gid == address(ipv4, tagged).source_gid);
        CHECK(f.destination_gid == address(ipv4, tagged).destination_gid);
        if (tagged) CHECK(f.vlan_tci == 0x6005);
        if (ipv4) {
          CHECK(f.ip_id == id++);
          CHECK(f.ip_fragment == kIpv4DontFragment);
        } else {
          CHECK(f.flow_label == 0xABCDE);
        }
        // The slow way from the value gives the same bytes.
        std::vector<uint8_t> again(256, 0xEE);
        REQUIRE(encode_headers(f, again.data() + 256) == n);
        CHECK(std::memcmp(again.data() + 256 - n, bytes.data() + 256 - n, n) == 0);
        CHECK(again[256 - n - 1] == 0xEE);
      }
    }
  }
}

TEST_CASE("the id wraps and the checksum stays right over its whole range") {
  FrameTemplate frames;
  frames.prepare(address(true, false));
  TransportHeader t;
  t.opcode = Opcode::kRcSendMiddle;
  uint8_t bytes[256];
  for (uint32_t i = 0; i < 0x10010; ++i) {
    const uint32_t n = frames.encode(t, i % 4097, bytes + 256);
    RoceFrame f;
    REQUIRE(parse_headers(Bytes(bytes + 256 - n, n), (i % 4097) + pad_of(i % 4097), f) == ParseError::kOk);
    REQUIRE(f.ip_id == (i & 0xFFFF));
  }
}

TEST_CASE("a template that was not prepared writes nothing") {
  FrameTemplate frames;
  uint8_t bytes[256];
  CHECK(frames.encode(TransportHeader{}, 0, bytes + 256) == 0);
}

TEST_CASE("lengths include pad and ICRC") {
  FrameTemplate frames;
  frames.prepare(address(true, false));
  TransportHeader t;
  t.opcode = Opcode::kRcSendOnly;
  uint8_t bytes[256];
  const uint32_t n = frames.encode(t, 5, bytes + 256);
  const uint8_t* ip = bytes + 256 - n + 14;
  CHECK((ip[2] << 8 | ip[3]) == 20 + 8 + 12 + 8 + 4);
  CHECK((ip[24] << 8 | ip[25]) == 8 + 12 + 8 + 4);
  CHECK((bytes[256 - 12 + 1] >> 4 & 3) == 3);
  CHECK(pad_of(0) == 0);
  CHECK(pad_of(1) == 3);
  CHECK(pad_of(4) == 0);
}
