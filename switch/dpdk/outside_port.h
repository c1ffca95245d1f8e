// SPDX-License-Identifier: Apache-2.0
//
// A port to the outside: one of DPDK's virtual devices (tap, af_packet, pcap, memif, vhost) as a FramePort.
//
//   std::string error;
//   auto port = OutsidePort::open(store, {"net_tap", "iface=tap0", ...}, error);     nullptr and one line
//
//   take       whole frames, as they came: no headers yet, the frame as payload. adopt() splits one that goes on,
//              raw() is its bytes, to be looked at and rewritten in place, send_raw() sends it back
//   deliver    puts headers, payload and ICRC (computed here unless the frame carries one) into the device
//   send       a frame of the switch's own
//   wake_fd    readable when there is something to take; -1: the device has none and must be polled
//
// DPDK 22.11's tap driver refuses frames of more than 1522 bytes, to send them and to be told of a larger MTU. Frames for a
// tap are therefore written to the descriptor that the driver made, and the MTU is set here; everything else is the driver's.
//
// A device that takes nothing back-pressures: deliver() accepts fewer. Only the data-plane thread may call, after open().
// The far side is on the wire: what it sends is data. (memif shares memory with a process that DPDK's driver trusts.)
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "protocols/attach/frame_port.h"
#include "switch/dpdk/frame_store.h"

struct rte_mempool;

namespace weft::dpdk {

struct OutsideDevice {
  std::string driver;     ///< "net_tap"
  std::string arguments;  ///< of the driver
  std::string tap;        ///< a tap's interface: else empty
  std::string stale_socket;  ///< removed first, when not empty
};

struct OutsideCounters {
  uint64_t rx_frames = 0;
  uint64_t rx_bytes = 0;
  uint64_t tx_frames = 0;
  uint64_t tx_bytes = 0;
  uint64_t tx_refused = 0;  ///< times the device had no room
  uint64_t no_memory = 0;
  uint64_t too_long = 0;
};

class OutsidePort final : public attach::FramePort {
 public:
  static constexpr uint32_t kMegabytes = 16;  ///< of DPDK's memory per port
  static constexpr uint32_t kMaxFrame = 9216;

  static std::unique_ptr<OutsidePort> open(FrameStore& store, const OutsideDevice& device, std::string& error);
  ~OutsidePort();
  OutsidePort(const OutsidePort&) = delete;
  OutsidePort& operator=(const OutsidePort&) = delete;

  uint32_t take(uint8_t priority, std::span<attach::TakenFrame> out) override;
  uint32_t deliver(std::span<const PacketRef> packets) override;
  bool collect() override { return false; }
  void notice(const attach::Notice& /*entry*/) override {}

  /// The bytes of a packet that take() gave, with the room behind them.
  std::span<uint8_t> raw(PacketRef packet);
  void adopt(PacketRef packet, uint32_t header_bytes, uint32_t payload_bytes);
  /// Sends the first `bytes` of raw(packet); the packet is released either way.
  void send_raw(PacketRef packet, uint32_t bytes);
  void send(std::span<const uint8_t> frame);

  int wake_fd() const { return wake_fd_; }
  bool link_up() const;
  const OutsideCounters& counters() const { return counters_; }

 private:
  explicit OutsidePort(FrameStore& store) : store_(store) {}
  bool start(const OutsideDevice& device, std::string& error);
  uint32_t icrc_of(PacketRef packet) const;
  rte_mbuf* build(PacketRef packet);
  uint32_t deliver_to_device(std::span<const PacketRef> packets);
  uint32_t deliver_to_tap(std::span<const PacketRef> packets);
  void count_sent(uint32_t frames, uint64_t bytes);

  FrameStore& store_;
  std::string name_;  ///< DPDK's, unique in the process
  uint16_t port_ = UINT16_MAX;
  bool probed_ = false;
  bool started_ = false;
  rte_mempool* pool_ = nullptr;
  int wake_fd_ = -1;
  bool is_tap_ = false;
  OutsideCounters counters_;
};

}  // namespace weft::dpdk
