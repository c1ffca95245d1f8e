// SPDX-License-Identifier: Apache-2.0
//
// Reads the golden captures of tests/data/pcap: classic pcap, little-endian, Ethernet.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace weft::test {

using FrameBytes = std::vector<uint8_t>;

inline const std::vector<std::string>& golden_captures() {
  static const std::vector<std::string> names{
      "cm_rping",         "cm_ucmatose",     "cm_udaddy", "mcast_mckey", "rc_cmp_swap",           "rc_fetch_add",
      "rc_pingpong",      "rc_read",         "rc_send",   "rc_write",    "rc_reject_no_listener", "uc_write",
      "rc_write_mtu4096", "rsocket_rstream", "ud_send"};
  return names;
}

/// Empty when the file is missing or not what it should be.
inline std::vector<FrameBytes> read_pcap(const std::string& name) {
  std::vector<FrameBytes> frames;
  FILE* file = std::fopen((std::string(WEFT_TEST_DATA) + "/pcap/" + name + ".pcap").c_str(), "rb");
  if (file == nullptr) return frames;
  uint32_t head[6];
  if (std::fread(head, sizeof(head), 1, file) == 1 && head[0] == 0xA1B2C3D4 && head[5] == 1) {
    uint32_t record[4];
    while (std::fread(record, sizeof(record), 1, file) == 1 && record[2] <= 65536) {
      FrameBytes frame(record[2]);
      if (std::fread(frame.data(), 1, frame.size(), file) != frame.size()) break;
      frames.push_back(std::move(frame));
    }
  }
  std::fclose(file);
  return frames;
}

inline FrameBytes from_hex(const std::string& hex) {
  FrameBytes bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

/// A CNP of a ConnectX-4 Lx as it was on the wire: Ethernet to ICRC.
inline FrameBytes golden_cnp() {
  FrameBytes frame =
      from_hex("e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118");
  frame.resize(frame.size() + 20);
  for (const uint8_t byte : {0x82, 0xfd, 0x00, 0x2a}) frame.push_back(byte);
  return frame;
}

}  // namespace weft::test
