// SPDX-License-Identifier: Apache-2.0
#include "switch/dpdk/packet_memory.h"

#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include <atomic>

namespace weft::dpdk {
namespace {

constexpr uint32_t kCache = 128;
/// Room before the payload, so that headers can be put in front when a frame leaves for a poll-mode driver.
constexpr uint32_t kHeadroom = RTE_PKTMBUF_HEADROOM;

rte_mempool* make_pool(const char* kind, uint32_t count, uint32_t payload) {
  static std::atomic<uint32_t> serial{0};  // names are global to the process, fabrics in tests are not
  char name[RTE_MEMPOOL_NAMESIZE];
  snprintf(name, sizeof name, "weft_%s_%u", kind, serial.fetch_add(1));
  // A preempted thread must not block the others in the pool's ring, hence relaxed tail synchronisation.
  return rte_pktmbuf_pool_create_by_ops(name, count, kCache, 0, static_cast<uint16_t>(kHeadroom + payload),
                                        SOCKET_ID_ANY, "ring_mt_rts");
}

}  // namespace

uint32_t PacketMemorySettings::megabytes() const {
  constexpr uint64_t kOverhead = 128 + 128 + 64 + kHeadroom;  // mbuf, mempool header and trailer, alignment
  const uint64_t bytes = static_cast<uint64_t>(small_mbufs) * (small_payload + kOverhead) +
                         static_cast<uint64_t>(large_mbufs) * (large_payload + kOverhead);
  return static_cast<uint32_t>(bytes * 5 / 4 >> 20) + 16;
}

PacketMemory::~PacketMemory() {
  rte_mempool_free(small_);
  rte_mempool_free(large_);
}

bool PacketMemory::open(const PacketMemorySettings& settings, std::string& error) {
  settings_ = settings;
  small_ = make_pool("small", settings.small_mbufs, settings.small_payload);
  large_ = small_ != nullptr ? make_pool("large", settings.large_mbufs, settings.large_payload) : nullptr;
  if (large_ != nullptr) return true;
  error = std::string("no packet memory: ") + rte_strerror(rte_errno) + "; lower the number of hosts";
  return false;
}

rte_mbuf* PacketMemory::allocate(uint32_t payload_bytes) {
  if (payload_bytes > settings_.large_payload) return nullptr;
  rte_mbuf* mbuf = payload_bytes <= settings_.small_payload ? rte_pktmbuf_alloc(small_) : nullptr;
  return mbuf != nullptr ? mbuf : rte_pktmbuf_alloc(large_);
}

void PacketMemory::release(rte_mbuf* mbuf) { rte_pktmbuf_free(mbuf); }

void PacketMemory::hold(rte_mbuf* mbuf) { rte_mbuf_refcnt_update(mbuf, 1); }

uint8_t* PacketMemory::data(rte_mbuf* mbuf) { return rte_pktmbuf_mtod(mbuf, uint8_t*); }

uint32_t PacketMemory::in_use() const { return rte_mempool_in_use_count(small_) + rte_mempool_in_use_count(large_); }

}  // namespace weft::dpdk
