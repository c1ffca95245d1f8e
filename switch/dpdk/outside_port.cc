// SPDX-License-Identifier: Apache-2.0
#include "switch/dpdk/outside_port.h"

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <errno.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "protocols/icrc/icrc.h"
#include "switch/dpdk/eal.h"

namespace weft::dpdk {

using attach::kBurst;
using attach::TakenFrame;

namespace {

constexpr uint16_t kRing = 256;      // descriptors each way
constexpr uint32_t kMbufs = 1024;
constexpr int kMtu = 9000;

std::string unique_name(const std::string& driver) {
  static std::atomic<uint32_t> serial{0};  // names are global to the process, fabrics in tests are not
  return driver + std::to_string(serial.fetch_add(1));
}

bool set_mtu(const std::string& interface) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  ifreq request{};
  interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
  request.ifr_mtu = kMtu;
  const bool set = ioctl(fd, SIOCSIFMTU, &request) == 0;
  close(fd);
  return set;
}

/// One frame, behind the four bytes of packet information that the driver asked the kernel for. False: no room.
bool write_tap(int fd, std::span<const uint8_t> first, std::span<const uint8_t> second, std::span<const uint8_t> third) {
  tun_pi information{};
  const auto part = [](std::span<const uint8_t> bytes) { return iovec{const_cast<uint8_t*>(bytes.data()), bytes.size()}; };
  const iovec parts[] = {{&information, sizeof information}, part(first), part(second), part(third)};
  ssize_t written;
  do {
    written = writev(fd, parts, 4);
  } while (written < 0 && errno == EINTR);
  return written >= 0 || (errno != EAGAIN && errno != ENOBUFS);  // an interface that is down loses frames, as a cable does
}

}  // namespace

std::unique_ptr<OutsidePort> OutsidePort::open(FrameStore& store, const OutsideDevice& device, std::string& error) {
  std::unique_ptr<OutsidePort> port(new OutsidePort(store));
  EalLog log;
  if (port->start(device, error)) return port;
  const std::string detail = log.last_line();
  if (!detail.empty()) error += " (" + detail + ")";
  port.reset();  // while its last words are still kept
  return nullptr;
}

OutsidePort::~OutsidePort() {
  if (started_) rte_eth_dev_stop(port_);
  if (port_ != UINT16_MAX) rte_eth_dev_close(port_);
  if (probed_) rte_eal_hotplug_remove("vdev", name_.c_str());
  rte_mempool_free(pool_);
}

bool OutsidePort::start(const OutsideDevice& device, std::string& error) {
  name_ = unique_name(device.driver);
  if (!device.stale_socket.empty()) unlink(device.stale_socket.c_str());
  const auto failed = [&](const char* what, int code) {
    error = std::string(what) + ": " + strerror(code < 0 ? -code : code);
    return false;
  };
  int result = rte_eal_hotplug_add("vdev", name_.c_str(), device.arguments.c_str());
  if (result != 0) return failed("DPDK cannot open it", result == -1 ? rte_errno : result);
  probed_ = true;
  if (rte_eth_dev_get_port_by_name(name_.c_str(), &port_) != 0) return failed("DPDK made no port of it", ENODEV);
  pool_ = rte_pktmbuf_pool_create_by_ops((name_ + "_mbufs").c_str(), kMbufs, 64, 0,
                                         static_cast<uint16_t>(RTE_PKTMBUF_HEADROOM + kMaxFrame), SOCKET_ID_ANY, "ring_mt_rts");
  if (pool_ == nullptr) return failed("no packet memory for it", rte_errno);
  rte_eth_conf conf{};
  conf.intr_conf.rxq = 1;
  result = rte_eth_dev_configure(port_, 1, 1, &conf);
  if (result != 0) {
    conf.intr_conf.rxq = 0;
    result = rte_eth_dev_configure(port_, 1, 1, &conf);
  }
  if (result != 0) return failed("it cannot be configured", result);
  result = rte_eth_rx_queue_setup(port_, 0, kRing, SOCKET_ID_ANY, nullptr, pool_);
  if (result == 0) result = rte_eth_tx_queue_setup(port_, 0, kRing, SOCKET_ID_ANY, nullptr);
  if (result != 0) return failed("it gets no queues", result);
  result = rte_eth_dev_start(port_);
  if (result != 0) return failed("it does not start", result);
  started_ = true;
  rte_eth_promiscuous_enable(port_);  // frames are for the hosts' addresses
  is_tap_ = !device.tap.empty();
  // A tap's descriptor is readable by itself; elsewhere an interrupt has to be asked for.
  const bool interrupts = conf.intr_conf.rxq != 0 && (is_tap_ || rte_eth_dev_rx_intr_enable(port_, 0) == 0);
  if (interrupts) wake_fd_ = rte_eth_dev_rx_intr_ctl_q_get_fd(port_, 0);
  if (is_tap_ && wake_fd_ < 0) return failed("the driver does not tell its descriptor", ENOTSUP);
  if (is_tap_ && !set_mtu(device.tap)) return failed("its MTU cannot be raised to 9000", errno);
  return true;
}

bool OutsidePort::link_up() const {
  rte_eth_link link{};
  return rte_eth_link_get_nowait(port_, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

// --- in ---------------------------------------------------------------------------------------------------------------

uint32_t OutsidePort::take(uint8_t /*priority*/, std::span<TakenFrame> out) {
  PacketArena& arena = store_.arena();
  std::array<rte_mbuf*, kBurst> mbufs;
  const uint32_t wanted = std::min({static_cast<uint32_t>(out.size()), static_cast<uint32_t>(kBurst), arena.available()});
  const uint32_t got = rte_eth_rx_burst(port_, 0, mbufs.data(), static_cast<uint16_t>(wanted));
  uint32_t count = 0;
  for (uint32_t i = 0; i < got; ++i) {
    rte_mbuf* const mbuf = mbufs[i];
    ++counters_.rx_frames;
    counters_.rx_bytes += rte_pktmbuf_pkt_len(mbuf);
    if (mbuf->nb_segs != 1 && rte_pktmbuf_linearize(mbuf) != 0) {
      ++counters_.too_long;
      rte_pktmbuf_free(mbuf);
      continue;
    }
    const PacketRef packet = arena.allocate();
    arena[packet] = PacketDescriptor{};
    LiveFrame& frame = store_.at(packet);
    frame.where = Where::kMbuf;
    frame.mbuf = mbuf;
    frame.payload = rte_pktmbuf_mtod(mbuf, const uint8_t*);
    frame.payload_bytes = rte_pktmbuf_pkt_len(mbuf);
    frame.header_bytes = 0;
    out[count++] = {packet, 0, frame.payload_bytes, frame.bytes};
  }
  return count;
}

std::span<uint8_t> OutsidePort::raw(PacketRef packet) {
  rte_mbuf* const mbuf = store_.at(packet).mbuf;
  return {rte_pktmbuf_mtod(mbuf, uint8_t*), rte_pktmbuf_data_len(mbuf) + static_cast<size_t>(rte_pktmbuf_tailroom(mbuf))};
}

void OutsidePort::adopt(PacketRef packet, uint32_t header_bytes, uint32_t payload_bytes) {
  LiveFrame& frame = store_.at(packet);
  rte_mbuf* const mbuf = frame.mbuf;
  const uint8_t* const start = frame.payload;
  WEFT_ASSERT(header_bytes <= attach::kMaxFrameHeaderBytes && header_bytes + payload_bytes <= frame.payload_bytes);
  frame.header_bytes = static_cast<uint16_t>(header_bytes);
  frame.payload_bytes = payload_bytes;
  if (header_bytes + payload_bytes <= FrameStore::kInlineBytes) {
    memcpy(frame.bytes, start, header_bytes + payload_bytes);
    frame.payload = frame.bytes + header_bytes;
    frame.where = Where::kInline;
    rte_pktmbuf_free(mbuf);
    return;
  }
  memcpy(frame.bytes, start, header_bytes);
  frame.payload = start + header_bytes;
}

// --- out --------------------------------------------------------------------------------------------------------------

uint32_t OutsidePort::icrc_of(PacketRef packet) const {
  const bool carried = (store_.arena()[packet].flags & kPacketIcrcChecked) != 0;
  return carried ? store_.at(packet).icrc : icrc(store_.headers(packet), store_.payload(packet));
}

void OutsidePort::count_sent(uint32_t frames, uint64_t bytes) {
  counters_.tx_frames += frames;
  counters_.tx_bytes += bytes;
}

/// A frame as it is on the wire, ICRC included; nullptr: no memory.
rte_mbuf* OutsidePort::build(PacketRef packet) {
  const LiveFrame& frame = store_.at(packet);
  const uint32_t bytes = frame.header_bytes + frame.payload_bytes + kIcrcBytes;
  rte_mbuf* const mbuf = rte_pktmbuf_alloc(pool_);
  if (mbuf == nullptr) {
    ++counters_.no_memory;
    return nullptr;
  }
  uint8_t* const at = reinterpret_cast<uint8_t*>(rte_pktmbuf_append(mbuf, static_cast<uint16_t>(bytes)));
  WEFT_ASSERT(at != nullptr);  // slots and headers are bounded far below kMaxFrame
  memcpy(at, frame.bytes, frame.header_bytes);
  memcpy(at + frame.header_bytes, frame.payload, frame.payload_bytes);
  store_icrc(icrc_of(packet), at + frame.header_bytes + frame.payload_bytes);
  return mbuf;
}

uint32_t OutsidePort::deliver(std::span<const PacketRef> packets) {
  const uint32_t sent = is_tap_ ? deliver_to_tap(packets) : deliver_to_device(packets);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < sent; ++i) {
    bytes += store_.arena()[packets[i]].wire_bytes;
    store_.release(packets[i]);
  }
  count_sent(sent, bytes);
  if (sent < packets.size()) ++counters_.tx_refused;
  return sent;
}

uint32_t OutsidePort::deliver_to_device(std::span<const PacketRef> packets) {
  std::array<rte_mbuf*, kBurst> mbufs;
  const uint32_t wanted = static_cast<uint32_t>(std::min<size_t>(packets.size(), kBurst));
  uint32_t built = 0;
  while (built < wanted && (mbufs[built] = build(packets[built])) != nullptr) ++built;
  const uint32_t sent = built > 0 ? rte_eth_tx_burst(port_, 0, mbufs.data(), static_cast<uint16_t>(built)) : 0;
  if (sent < built) rte_pktmbuf_free_bulk(mbufs.data() + sent, built - sent);
  return sent;
}

uint32_t OutsidePort::deliver_to_tap(std::span<const PacketRef> packets) {
  for (uint32_t i = 0; i < packets.size(); ++i) {
    uint8_t trailer[kIcrcBytes];
    store_icrc(icrc_of(packets[i]), trailer);
    if (!write_tap(wake_fd_, store_.headers(packets[i]), store_.payload(packets[i]), trailer)) return i;
  }
  return static_cast<uint32_t>(packets.size());
}

void OutsidePort::send_raw(PacketRef packet, uint32_t bytes) {
  send(raw(packet).first(bytes));
  store_.release(packet);
}

void OutsidePort::send(std::span<const uint8_t> frame) {
  if (is_tap_) {
    const bool sent = write_tap(wake_fd_, frame, {}, {});
    sent ? count_sent(1, frame.size()) : void(++counters_.tx_refused);
    return;
  }
  rte_mbuf* mbuf = rte_pktmbuf_alloc(pool_);
  if (mbuf == nullptr) {
    ++counters_.no_memory;
    return;
  }
  char* const at = rte_pktmbuf_append(mbuf, static_cast<uint16_t>(frame.size()));
  WEFT_ASSERT(at != nullptr);
  memcpy(at, frame.data(), frame.size());
  if (rte_eth_tx_burst(port_, 0, &mbuf, 1) == 1) {
    count_sent(1, frame.size());
  } else {
    ++counters_.tx_refused;
    rte_pktmbuf_free(mbuf);
  }
}

}  // namespace weft::dpdk
