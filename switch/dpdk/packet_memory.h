// SPDX-License-Identifier: Apache-2.0
//
// The switch's packet memory: mbufs of two sizes, for the payloads of frames that have to wait (engine_rules 2, 4).
// Frames of up to FrameStore::kInlineBytes never get here. Only registered threads may call.
#pragma once

#include <cstdint>
#include <string>

struct rte_mbuf;
struct rte_mempool;

namespace weft::dpdk {

struct PacketMemorySettings {
  uint32_t small_mbufs = 4096;
  uint32_t large_mbufs = 4096;
  uint32_t small_payload = 1024 + 64;  ///< path MTU 1024 and what programs round up to
  uint32_t large_payload = 4096 + 64;
  /// What EAL must be given for it.
  uint32_t megabytes() const;
};

class PacketMemory {
 public:
  PacketMemory() = default;
  ~PacketMemory();
  PacketMemory(const PacketMemory&) = delete;
  PacketMemory& operator=(const PacketMemory&) = delete;

  bool open(const PacketMemorySettings& settings, std::string& error);

  /// nullptr when that size is used up or too small. The payload room starts at data().
  rte_mbuf* allocate(uint32_t payload_bytes);
  static void release(rte_mbuf* mbuf);
  /// One more who will release it.
  static void hold(rte_mbuf* mbuf);
  static uint8_t* data(rte_mbuf* mbuf);

  uint32_t in_use() const;

 private:
  PacketMemorySettings settings_;
  rte_mempool* small_ = nullptr;
  rte_mempool* large_ = nullptr;
};

}  // namespace weft::dpdk
