// SPDX-License-Identifier: Apache-2.0
#include "protocols/wire/roce_frame.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "protocols/base/random.h"
#include "protocols/wire/ipv6.h"
#include "tests/protocols/wire/pcap_file.h"

using namespace weft;
using weft::test::FrameBytes;

namespace {

ParseError parse(const FrameBytes& frame, RoceFrame& out) { return parse_roce(frame, IcrcBytes::kPresent, out); }
ParseError parse(const FrameBytes& frame) {
  RoceFrame ignored;
  return parse(frame, ignored);
}

/// RC SEND only, 6 bytes of payload and 2 of pad, IPv4, with four bytes in place of the ICRC.
FrameBytes good_frame() {
  RoceFrame f;
  f.ipv4 = true;
  f.source_ipv4 = 0xC6120001;
  f.destination_ipv4 = 0xC6120002;
  f.udp_sport = 0xC001;
  f.transport.opcode = Opcode::kRcSendOnly;
  f.transport.dest_qpn = 0x4011;
  f.payload_bytes = 6;
  FrameBytes bytes(14 + 20 + 8 + 12 + 8 + 4);
  REQUIRE(encode_headers(f, bytes.data() + 54) == 54);
  return bytes;
}

void set16(FrameBytes& bytes, size_t at, unsigned value) {
  bytes[at] = static_cast<uint8_t>(value >> 8);
  bytes[at + 1] = static_cast<uint8_t>(value);
}
/// After a change of the IPv4 header at 14.
void fix_checksum(FrameBytes& bytes) {
  Ipv4Header ip;
  std::memcpy(static_cast<void*>(&ip), bytes.data() + 14, sizeof(ip));
  set16(bytes, 24, ipv4_checksum(ip));
}

}  // namespace

TEST_CASE("golden captures: every RoCE frame parses and comes out again byte for byte") {
  size_t roce = 0;
  std::map<ParseError, size_t> others;
  for (const std::string& name : test::golden_captures()) {
    const std::vector<FrameBytes> frames = test::read_pcap(name);
    INFO(name);
    REQUIRE_FALSE(frames.empty());
    for (const FrameBytes& bytes : frames) {
      RoceFrame f;
      const ParseError e = parse(bytes, f);
      if (e != ParseError::kOk) {
        ++others[e];
        continue;
      }
      ++roce;
      const uint32_t body = f.payload_bytes + f.transport.pad;
      REQUIRE(f.header_bytes + body + kIcrcBytes <= bytes.size());
      uint8_t again[kMaxHeaderBytes];
      REQUIRE(encode_headers(f, again + sizeof(again)) == f.header_bytes);
      REQUIRE(std::memcmp(again + sizeof(again) - f.header_bytes, bytes.data(), f.header_bytes) == 0);
      // As a port carries it.
      RoceFrame split;
      REQUIRE(parse_headers(Bytes(bytes).first(f.header_bytes), body, split) == ParseError::kOk);
      REQUIRE(split.transport.psn == f.transport.psn);
      REQUIRE(split.payload_bytes == f.payload_bytes);
    }
  }
  CHECK(roce == 711);
  // What else the files hold is ARP, IGMP and the TCP of the programs; nothing is malformed.
  for (const auto& [error, count] : others) {
    CAPTURE(parse_error_name(error), count);
    CHECK((error == ParseError::kNotIp || error == ParseError::kNotUdp || error == ParseError::kNotRoce));
  }
}

TEST_CASE("golden CNP") {
  RoceFrame f;
  REQUIRE(parse(test::golden_cnp(), f) == ParseError::kOk);
  CHECK(f.transport.opcode == Opcode::kCnp);
  CHECK(f.transport.dest_qpn == 0x118);
  CHECK(f.transport.becn);
  CHECK_FALSE(f.transport.fecn);
  CHECK(f.header_bytes == 14 + 20 + 8 + 12 + 16);
  CHECK(f.payload_bytes == 0);
  CHECK(f.source_ipv4 == 0x0A001101);
  CHECK(f.destination_ipv4 == 0x0A001201);
  CHECK(f.dscp() == 48);
  CHECK(f.ecn() == Ecn::kCapable0);
  CHECK(f.udp_sport == 0);
  uint8_t again[kMaxHeaderBytes];
  REQUIRE(encode_headers(f, again + sizeof(again)) == f.header_bytes);
  CHECK(std::memcmp(again + sizeof(again) - f.header_bytes, test::golden_cnp().data(), f.header_bytes) == 0);
}

TEST_CASE("where the headers lie") {
  const FrameBytes bytes = good_frame();
  RoceFrame f;
  REQUIRE(parse(bytes, f) == ParseError::kOk);
  CHECK(f.ip_offset == 14);
  CHECK(f.transport_offset == 42);
  CHECK(f.header_bytes == 54);
  CHECK(f.payload_bytes == 6);
  CHECK(f.transport.pad == 2);
  CHECK(parse_roce(Bytes(bytes).first(62), IcrcBytes::kAbsent, f) == ParseError::kOk);
  FrameBytes padded = bytes;  // Ethernet's own padding is no error
  padded.resize(80);
  CHECK(parse(padded, f) == ParseError::kOk);
}

TEST_CASE("every way to be bad has its reason") {
  const FrameBytes good = good_frame();
  REQUIRE(parse(good) == ParseError::kOk);
  FrameBytes bad;

  for (size_t n = 0; n < good.size(); ++n) {
    CAPTURE(n);
    CHECK(parse(FrameBytes(good.begin(), good.begin() + static_cast<long>(n))) == ParseError::kTruncated);
  }
  set16(bad = good, 12, 0x0806);
  CHECK(parse(bad) == ParseError::kNotIp);
  (bad = good)[14] = 0x46;
  CHECK(parse(bad) == ParseError::kBadIpHeader);
  bad[23] = 2;  // IGMP with a router alert is just something else
  CHECK(parse(bad) == ParseError::kNotUdp);
  (bad = good)[14] = 0x44;
  CHECK(parse(bad) == ParseError::kBadIpHeader);
  (bad = good)[14] = 0x65;
  CHECK(parse(bad) == ParseError::kBadIpHeader);
  (bad = good)[22] = 63;
  CHECK(parse(bad) == ParseError::kBadIpChecksum);
  set16(bad = good, 20, kIpv4MoreFragments);
  fix_checksum(bad);
  CHECK(parse(bad) == ParseError::kFragment);
  set16(bad = good, 20, 1);
  fix_checksum(bad);
  CHECK(parse(bad) == ParseError::kFragment);
  (bad = good)[23] = 6;
  fix_checksum(bad);
  CHECK(parse(bad) == ParseError::kNotUdp);
  set16(bad = good, 36, 53);
  CHECK(parse(bad) == ParseError::kNotRoce);
  set16(bad = good, 38, 8 + 12 + 8);
  CHECK(parse(bad) == ParseError::kBadLength);
  for (const unsigned total : {0u, 19u, 51u, 53u, 65535u}) {
    set16(bad = good, 16, total);
    fix_checksum(bad);
    CHECK(parse(bad) == ParseError::kBadLength);
  }
  (bad = good)[43] |= 1;
  CHECK(parse(bad) == ParseError::kBadVersion);
  (bad = good)[42] = 0x1F;
  CHECK(parse(bad) == ParseError::kUnknownOpcode);
  set16(bad = good, 16, 20 + 8 + 12 + 7 + 4);  // payload and pad not a multiple of four
  set16(bad, 38, 8 + 12 + 7 + 4);
  fix_checksum(bad);
  CHECK(parse(bad) == ParseError::kBadPad);
  set16(bad = good, 16, 20 + 8 + 12 + 4);  // pad of two without payload
  set16(bad, 38, 8 + 12 + 4);
  fix_checksum(bad);
  CHECK(parse(bad) == ParseError::kBadPad);
  (bad = good)[42] = 0x11;  // an ACK with 4 bytes after its AETH
  CHECK(parse(bad) == ParseError::kBadLength);
  (bad = good)[42] = 0x06;  // no room for a RETH
  CHECK(parse(bad) == ParseError::kTruncated);

  RoceFrame f;
  CHECK(parse_headers(Bytes(good).first(54), 8, f) == ParseError::kOk);
  CHECK(parse_headers(Bytes(good).first(54), 7, f) == ParseError::kBadLength);
  CHECK(parse_headers(Bytes(good).first(54), 0xFFFFFFF8, f) == ParseError::kBadLength);
  CHECK(parse_headers(Bytes(good).first(55), 8, f) == ParseError::kBadLength);
  CHECK(parse_headers(Bytes(good).first(53), 8, f) == ParseError::kTruncated);
  CHECK(parse_headers({}, 0, f) == ParseError::kTruncated);
  for (unsigned e = 0; e < static_cast<unsigned>(ParseError::kCount); ++e) {
    CHECK(std::string(parse_error_name(static_cast<ParseError>(e))) != "?");
  }
}

TEST_CASE("IPv6: version, next header and lengths") {
  RoceFrame f;
  f.udp_sport = 0xC001;
  f.source_gid = link_local_gid({2, 0, 0, 0, 0, 1});
  f.destination_gid = link_local_gid({2, 0, 0, 0, 0, 2});
  f.traffic_class = 0x88;
  f.flow_label = 0x12345;
  f.transport.opcode = Opcode::kUdSendOnly;
  FrameBytes good(14 + 40 + 8 + 20 + 4);
  REQUIRE(encode_headers(f, good.data() + 82) == 82);
  RoceFrame out;
  REQUIRE(parse(good, out) == ParseError::kOk);
  CHECK_FALSE(out.ipv4);
  CHECK(out.traffic_class == 0x88);
  CHECK(out.flow_label == 0x12345);
  CHECK(out.source_gid == f.source_gid);
  CHECK(out.source_ipv4 == 0);
  FrameBytes bad;
  (bad = good)[14] = 0x40;
  CHECK(parse(bad) == ParseError::kBadIpHeader);
  (bad = good)[20] = 44;  // a fragment header
  CHECK(parse(bad) == ParseError::kNotUdp);
  set16(bad = good, 18, 1000);
  CHECK(parse(bad) == ParseError::kBadLength);
}

TEST_CASE("random bytes and random damage never get past the spans") {
  // Exact-size heap copies, so that a sanitizer or valgrind sees every byte read too far.
  Random random(99, 1);
  const FrameBytes good = good_frame();
  size_t parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    FrameBytes bytes = good;
    for (uint64_t hits = random.below(4); hits > 0; --hits)
      bytes[random.below(bytes.size())] = static_cast<uint8_t>(random.next());
    bytes.resize(random.below(bytes.size() + 8));
    bytes.shrink_to_fit();
    RoceFrame f;
    if (parse(bytes, f) == ParseError::kOk) {
      ++parsed;
      REQUIRE(f.header_bytes + f.payload_bytes + f.transport.pad + kIcrcBytes <= bytes.size());
    }
    (void)parse_headers(bytes, static_cast<uint32_t>(random.below(16)), f);
    (void)rewrite_ecn(bytes, Ecn::kCongestion);
    (void)decrement_ttl(bytes);
  }
  CHECK(parsed > 100);
}

TEST_CASE("rewrites keep the checksum and say what they could not do") {
  FrameBytes bytes = good_frame();
  RoceFrame f;
  for (const Ecn ecn : {Ecn::kCongestion, Ecn::kNotCapable, Ecn::kCapable0}) {
    REQUIRE(rewrite_ecn(bytes, ecn));
    REQUIRE(parse(bytes, f) == ParseError::kOk);
    CHECK(f.ecn() == ecn);
  }
  for (unsigned ttl = 64; ttl > 1; --ttl) {
    REQUIRE(parse(bytes, f) == ParseError::kOk);
    CHECK(f.ttl == ttl);
    REQUIRE(decrement_ttl(bytes));
  }
  const FrameBytes last = bytes;
  CHECK_FALSE(decrement_ttl(bytes));
  CHECK(bytes == last);
  set16(bytes, 12, 0x0806);
  CHECK_FALSE(rewrite_ecn(bytes, Ecn::kCongestion));
  CHECK_FALSE(decrement_ttl(bytes));
}
