// SPDX-License-Identifier: Apache-2.0
//
// Frames of Linux's soft-RoCE as they come in by a port to the outside.
#include "nic/host/datapath/classify_outside.h"

#include <catch2/catch.hpp>

#include "protocols/icrc/icrc.h"
#include "protocols/wire/roce_frame.h"
#include "tests/protocols/wire/pcap_file.h"

using namespace weft;
using namespace weft::nic;

namespace {

// The captures' machines: 10.0.0.1 and 10.0.0.2, 52:54:00:00:00:01 and :02.
constexpr MacAddress kServer{0x52, 0x54, 0, 0, 0, 1};
constexpr uint32_t kServerIp = 0x0A000001;

struct Rig {
  Rig() { REQUIRE(map.build({{kServer, kServerIp}})); }
  DropReason give(Bytes frame) { return classify_outside(frame, 1, map, 1, descriptor, split); }
  AddressMap map;
  PacketDescriptor descriptor;
  OutsideFrame split;
};

bool is_for_server(Bytes frame) {
  RoceFrame parsed;
  return parse_roce(frame, IcrcBytes::kPresent, parsed) == ParseError::kOk && parsed.destination_ipv4 == kServerIp;
}

std::vector<uint8_t> a_write() {
  for (const auto& frame : test::read_pcap("rc_write")) {
    if (is_for_server(frame)) return frame;
  }
  return {};
}

/// With an ICRC that is right again.
std::vector<uint8_t> resealed(std::vector<uint8_t> frame) {
  const size_t body = frame.size() - kIcrcBytes;
  store_icrc(icrc(Bytes(frame).first(54), Bytes(frame).subspan(54, body - 54)), frame.data() + body);
  return frame;
}

}  // namespace

TEST_CASE("What soft-RoCE sends to a host of the fabric goes on, the rest has no route") {
  size_t good = 0;
  for (const std::string& name : test::golden_captures()) {
    for (const auto& frame : test::read_pcap(name)) {
      Rig rig;
      RoceFrame parsed;
      if (parse_roce(frame, IcrcBytes::kPresent, parsed) != ParseError::kOk) continue;
      const DropReason reason = rig.give(frame);
      if (parsed.destination_ipv4 != kServerIp) {
        if (gid_is_multicast(parsed.destination_gid) && parsed.source_ipv4 != kServerIp) {
          CHECK(is_group(rig.descriptor.destination));  // the switch knows whether it has members
          continue;
        }
        // Its source is one of ours then: refused before anything else.
        CHECK(reason == (parsed.source_ipv4 == kServerIp ? DropReason::kForeignSource : DropReason::kNoRoute));
        continue;
      }
      ++good;
      REQUIRE(reason == DropReason::kNone);
      CHECK(rig.split.header_bytes == parsed.header_bytes);
      CHECK(rig.split.payload_bytes == parsed.payload_bytes + parsed.transport.pad);
      CHECK(rig.descriptor.destination == 0);
      CHECK(rig.descriptor.source == 1);
      CHECK(rig.descriptor.source_address == parsed.source_ipv4);
      CHECK(rig.descriptor.dest_qpn == parsed.transport.dest_qpn);
      CHECK(rig.descriptor.wire_bytes == rig.split.header_bytes + rig.split.payload_bytes + 4);
    }
  }
  CHECK(good > 300);
}

TEST_CASE("Every changed byte that the ICRC covers is seen") {
  const std::vector<uint8_t> frame = a_write();
  REQUIRE_FALSE(frame.empty());
  Rig rig;
  REQUIRE(rig.give(frame) == DropReason::kNone);
  for (size_t at = 43; at < frame.size(); ++at) {  // from the BTH's flags on
    if (at == 46) continue;                        // resv8a: switches may mark it
    std::vector<uint8_t> broken = frame;
    broken[at] ^= 0x40;
    INFO("byte " << at);
    CHECK(rig.give(broken) != DropReason::kNone);
  }
  std::vector<uint8_t> marked = frame;
  marked[46] ^= 0x40;
  CHECK(rig.give(marked) == DropReason::kNone);
}

TEST_CASE("Frames that must not go on are dropped with their reason") {
  const std::vector<uint8_t> frame = a_write();
  Rig rig;
  const auto given = [&](size_t at, uint8_t value) {
    std::vector<uint8_t> changed = frame;
    changed[at] = value;
    return rig.give(changed);
  };
  CHECK(given(5, 9) == DropReason::kNoRoute);          // another NIC's MAC
  CHECK(given(6, 0x53) == DropReason::kForeignSource);  // a group as sender
  CHECK(given(12, 0x09) == DropReason::kNotIp);
  CHECK(given(24, 99) == DropReason::kBadIpChecksum);
  CHECK(rig.give(Bytes(frame).first(frame.size() - 1)) == DropReason::kTruncated);
  CHECK(rig.give({}) == DropReason::kTruncated);

  const auto with_header = [&](size_t at, uint8_t value) {
    std::vector<uint8_t> changed = frame;
    changed[at] = value;
    Ipv4Header ip;
    memcpy(&ip, changed.data() + 14, sizeof ip);
    ip.checksum = ipv4_checksum(ip);
    memcpy(changed.data() + 14, &ip, sizeof ip);
    return rig.give(resealed(changed));
  };
  CHECK(with_header(20, 0x20) == DropReason::kFragment);     // more fragments
  CHECK(with_header(29, 1) == DropReason::kForeignSource);   // 10.0.0.1, the host's own
  CHECK(with_header(33, 7) == DropReason::kNoRoute);         // 10.0.0.7, nobody's
  CHECK(with_header(23, 6) == DropReason::kNotUdp);
  CHECK(with_header(15, 0x68) == DropReason::kNone);         // a traffic class
  CHECK(rig.descriptor.priority == 3);                       // DSCP 26
}

TEST_CASE("More payload than the largest path MTU is no frame of ours") {
  std::vector<uint8_t> frame = a_write();
  // A WRITE middle has no extended header, so that its payload can be anything.
  frame.resize(54 + 4100 + 4);
  frame[42] = 0x07;
  const uint16_t udp = 8 + 12 + 4100 + 4;
  frame[38] = udp >> 8, frame[39] = udp & 255;
  frame[16] = (udp + 20) >> 8, frame[17] = (udp + 20) & 255;
  Ipv4Header ip;
  memcpy(&ip, frame.data() + 14, sizeof ip);
  ip.checksum = ipv4_checksum(ip);
  memcpy(frame.data() + 14, &ip, sizeof ip);
  Rig rig;
  CHECK(rig.give(resealed(frame)) == DropReason::kBadLength);
}
