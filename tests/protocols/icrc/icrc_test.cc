// SPDX-License-Identifier: Apache-2.0
#include "protocols/icrc/icrc.h"

#include <catch2/catch.hpp>

#include "tests/protocols/wire/pcap_file.h"

using namespace weft;
using weft::test::FrameBytes;

namespace {

/// Bit by bit, over the fields as the standard names them; shares nothing with the code under test.
uint32_t slow_icrc(FrameBytes ip, bool ipv4) {
  if (ipv4) {
    ip[1] = ip[8] = ip[10] = ip[11] = 0xFF;
    ip[26] = ip[27] = 0xFF;
    ip[32] = 0xFF;
  } else {
    ip[0] |= 0x0F;
    ip[1] = ip[2] = ip[3] = ip[7] = 0xFF;
    ip[46] = ip[47] = 0xFF;
    ip[52] = 0xFF;
  }
  ip.insert(ip.begin(), 8, 0xFF);
  uint32_t crc = 0xFFFFFFFF;
  for (const uint8_t byte : ip) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

FrameBytes with_icrc(const RoceFrame& value, const FrameBytes& payload_and_pad) {
  uint8_t headers[kMaxHeaderBytes];
  const uint32_t n = encode_headers(value, headers + sizeof(headers));
  FrameBytes frame(headers + sizeof(headers) - n, headers + sizeof(headers));
  frame.insert(frame.end(), payload_and_pad.begin(), payload_and_pad.end());
  frame.resize(frame.size() + 4);
  store_icrc(icrc(Bytes(frame).first(n), payload_and_pad), frame.data() + frame.size() - 4);
  return frame;
}

}  // namespace

TEST_CASE("ICRC of a CNP that a ConnectX-4 Lx sent") {
  const FrameBytes frame = test::golden_cnp();
  const uint32_t value = icrc(Bytes(frame).first(frame.size() - 4), {});
  uint8_t trailer[4];
  store_icrc(value, trailer);
  CHECK(FrameBytes(trailer, trailer + 4) == test::from_hex("82fd002a"));
  CHECK(load_icrc(trailer) == value);
  CHECK(slow_icrc(FrameBytes(frame.begin() + 14, frame.end() - 4), true) == value);
}

TEST_CASE("ICRC of a UC SEND with pad, header and payload apart") {
  RoceFrame f;
  f.ipv4 = true;
  f.source_ipv4 = f.destination_ipv4 = 0xC0A80007;
  f.traffic_class = 1;
  f.ip_id = 1144;
  f.udp_sport = 49152;
  f.transport.opcode = Opcode::kUcSendOnly;
  f.transport.dest_qpn = 211;
  f.transport.psn = 13571856;
  f.payload_bytes = 18;
  const FrameBytes payload = test::from_hex("4630818be28935d90e9a95505401be885e500000");
  REQUIRE(payload.size() == 20);
  const FrameBytes frame = with_icrc(f, payload);
  CHECK((frame[24] == 0xb4 && frame[25] == 0xd5));  // IP checksum
  CHECK(FrameBytes(frame.end() - 4, frame.end()) == test::from_hex("78f353f3"));
}

TEST_CASE("all 711 RoCE frames of the golden captures carry a valid ICRC") {
  size_t good = 0;
  for (const std::string& name : test::golden_captures()) {
    for (const FrameBytes& bytes : test::read_pcap(name)) {
      RoceFrame f;
      if (parse_roce(bytes, IcrcBytes::kPresent, f) != ParseError::kOk) continue;
      INFO(name);
      CHECK(icrc_good(f, bytes));
      ++good;
      FrameBytes damaged = bytes;  // any covered bit counts
      damaged[f.header_bytes - 1u] ^= 1;
      CHECK_FALSE(icrc_good(f, damaged));
    }
  }
  CHECK(good == 711);
}

TEST_CASE("what a switch may change leaves the ICRC valid; anything else does not") {
  for (const bool ipv4 : {true, false}) {
    RoceFrame f;
    f.ipv4 = ipv4;
    f.source_ipv4 = 0x0A000001;
    f.destination_ipv4 = 0x0A000002;
    f.source_gid = link_local_gid({2, 0, 0, 0, 0, 1});
    f.destination_gid = link_local_gid({2, 0, 0, 0, 0, 2});
    f.traffic_class = 0x6A;
    f.flow_label = ipv4 ? 0 : 0x12345;
    f.udp_sport = 0xC123;
    f.transport.opcode = Opcode::kRcWriteOnly;
    f.transport.dest_qpn = 77;
    f.payload_bytes = 8;
    const FrameBytes original = with_icrc(f, FrameBytes(8, 0x5A));
    CHECK(slow_icrc(FrameBytes(original.begin() + 14, original.end() - 4), ipv4) ==
          load_icrc(original.data() + original.size() - 4));

    RoceFrame out;
    FrameBytes frame = original;
    REQUIRE(rewrite_ecn(frame, Ecn::kCongestion));
    REQUIRE(decrement_ttl(frame));
    REQUIRE(frame != original);
    REQUIRE(parse_roce(frame, IcrcBytes::kPresent, out) == ParseError::kOk);
    CHECK(icrc_good(out, frame));
    const size_t bth = out.transport_offset;
    frame[bth + 4] |= 0xC0;  // FECN, BECN
    CHECK(icrc_good(out, frame));

    const size_t ip = 14;
    for (size_t at = ip; at < original.size(); ++at) {
      const size_t in_ip = at - ip;
      const bool masked = ipv4 ? in_ip == 1 || in_ip == 8 || in_ip == 10 || in_ip == 11
                               : in_ip >= 1 && in_ip <= 7 && in_ip != 4 && in_ip != 5 && in_ip != 6;
      const bool masked_later = at == bth - 2 || at == bth - 1 || at == bth + 4;
      frame = original;
      frame[at] ^= 0x10;
      CAPTURE(ipv4, at);
      // Lengths stay those of the original parse: the ICRC is judged, not the parser.
      RoceFrame same;
      REQUIRE(parse_roce(original, IcrcBytes::kPresent, same) == ParseError::kOk);
      CHECK(icrc_good(same, frame) == (masked || masked_later));
    }
  }
}

TEST_CASE("the 802.1Q tag is not covered") {
  RoceFrame f;
  f.ipv4 = true;
  f.transport.opcode = Opcode::kRcSendOnly;
  f.payload_bytes = 4;
  const FrameBytes plain = with_icrc(f, FrameBytes(4, 9));
  f.tagged = true;
  f.vlan_tci = 0xA123;
  const FrameBytes tagged = with_icrc(f, FrameBytes(4, 9));
  CHECK(tagged.size() == plain.size() + 4);
  CHECK(load_icrc(tagged.data() + tagged.size() - 4) == load_icrc(plain.data() + plain.size() - 4));
  RoceFrame out;
  REQUIRE(parse_roce(tagged, IcrcBytes::kPresent, out) == ParseError::kOk);
  CHECK(icrc_good(out, tagged));
}

TEST_CASE("spans that hold no frame are read no further than they go") {
  const FrameBytes frame = test::golden_cnp();
  for (size_t n = 0; n <= frame.size(); ++n) {
    const FrameBytes part(frame.begin(), frame.begin() + static_cast<long>(n));
    (void)icrc(part, {});
  }
  RoceFrame f;
  REQUIRE(parse_roce(frame, IcrcBytes::kPresent, f) == ParseError::kOk);
  CHECK_FALSE(icrc_good(f, Bytes(frame).first(frame.size() - 1)));
}
