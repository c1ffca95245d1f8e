// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include "scenarios/engine/outside_end.h"

namespace weft::engine {
namespace {

bool is_socket(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
}

/// Of two ends of a memif one listens and one connects, and who comes second connects. A socket that refuses was left by a
/// daemon that was killed. It is not probed: DPDK's listener panics when a connection closes in the middle of its greeting.
std::vector<dpdk::OutsideDevice> memif_devices(const std::string& path) {
  const std::string common = ",id=0,bsize=9216,rsize=8,socket-abstract=no,socket=" + path;
  const dpdk::OutsideDevice listener{"net_memif", "role=server" + common, {}, {}};
  const dpdk::OutsideDevice caller{"net_memif", "role=client" + common, {}, {}};
  if (!is_socket(path)) return {listener, caller};
  dpdk::OutsideDevice after_stale = listener;
  after_stale.stale_socket = path;
  return {caller, after_stale};
}

}  // namespace

std::vector<dpdk::OutsideDevice> devices_of(const OutsidePlan& plan) {
  const std::string& device = plan.device;
  switch (plan.kind) {
    case OutsideKind::kTap: return {{"net_tap", "iface=" + device, device, {}}};
    // Frames of 4096 B of payload fit; 4 MB of the kernel's memory each way.
    case OutsideKind::kAfPacket:
      return {{"net_af_packet", "iface=" + device + ",blocksz=65536,framesz=8192,framecnt=512", {}, {}}};
    case OutsideKind::kPcap:
      return {{"net_pcap", "rx_pcap=" + device + (plan.write_to.empty() ? "" : ",tx_pcap=" + plan.write_to), {}, {}}};
    case OutsideKind::kMemif: return memif_devices(device);
    case OutsideKind::kVhost: return {{"net_vhost", "queues=1,iface=" + device, {}, is_socket(device) ? device : ""}};
  }
  return {};
}

}  // namespace weft::engine
