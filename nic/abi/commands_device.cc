// SPDX-License-Identifier: Apache-2.0
//
// Context: GET_CONTEXT, QUERY_DEVICE (plain and extended), QUERY_PORT. What is advertised is what works.
#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nic/abi/context.h"
#include "nic/abi/region_checks.h"
#include "protocols/base/bytes.h"

namespace weft::abi {
namespace {

constexpr uint32_t kPortCmSupported = 1u << 16;
constexpr uint8_t kPortDown = 1;
constexpr uint8_t kPortActive = 4;
constexpr uint8_t kPhysDisabled = 3;
constexpr uint8_t kPhysLinkUp = 5;
constexpr uint8_t kLinkEthernet = 2;
constexpr uint8_t kGrhRequired = 1;
constexpr uint8_t kMtu4096 = 5;

// ib_device_cap_flags
constexpr uint32_t kCapUdAvPortEnforce = 1u << 6;
constexpr uint32_t kCapPortActiveEvent = 1u << 10;
constexpr uint32_t kCapSysImageGuid = 1u << 11;
constexpr uint32_t kCapRnrNak = 1u << 12;
constexpr uint32_t kCapMemWindow = 1u << 17;
constexpr uint32_t kCapMemMgtExtensions = 1u << 21;
constexpr uint32_t kCapMemWindowType2B = 1u << 24;
// ib_uverbs_device_cap_flags that only the extended query has room for
constexpr uint64_t kCapAtomicWrite = 1ull << 40;

constexpr uint32_t kCompletionVectors = 1;
constexpr uint32_t kMaxMessage = 1u << 31;
constexpr uint32_t kAtomicHca = 1;
constexpr uint8_t kAckDelay = 15;

uint64_t network_order(uint64_t value) {
  const Be64 bytes{value};
  uint64_t out = 0;
  memcpy(&out, bytes.raw.data(), sizeof out);
  return out;
}

struct Lane {
  uint64_t gigabits;  ///< of one lane
  uint8_t speed;      ///< ib_port_speed
};
struct Width {
  uint32_t lanes;
  uint8_t width;  ///< ib_port_width
};

/// The pair of width and speed with the highest rate that is not above the link's.
void speed_and_width(uint64_t bits_per_second, uint8_t& speed, uint8_t& width) {
  constexpr Lane kLanes[] = {{2, 1}, {5, 2}, {10, 4}, {14, 16}, {25, 32}, {50, 64}, {100, 128}};
  constexpr Width kWidths[] = {{4, 2}, {1, 1}, {8, 4}, {2, 16}, {12, 8}};  // the usual one first among equals
  uint64_t best = 0;
  speed = kLanes[0].speed;
  width = 1;
  for (const Width& w : kWidths) {
    for (const Lane& lane : kLanes) {
      const uint64_t rate = lane.gigabits * w.lanes;
      if (rate * 1'000'000'000u > bits_per_second || rate <= best) continue;
      best = rate;
      speed = lane.speed;
      width = w.width;
    }
  }
}

void fill_device(const nic::Device& device, ib_uverbs_query_device_resp& out) {
  const nic::DeviceLimits& limits = device.limits();
  memset(&out, 0, sizeof out);
  const uint64_t guid = network_order(device.identity().node_guid);
  out.node_guid = guid;
  out.sys_image_guid = guid;
  out.max_mr_size = kMaxMrBytes;
  out.page_size_cap = 0xfffff000;
  out.vendor_id = 0xffffff;  // soft-RoCE's
  out.max_qp = limits.max_qp;
  out.max_qp_wr = limits.max_qp_wr;
  out.device_cap_flags = kCapUdAvPortEnforce | kCapPortActiveEvent | kCapSysImageGuid | kCapRnrNak | kCapMemWindow |
                         kCapMemMgtExtensions | kCapMemWindowType2B;
  out.max_sge = limits.max_sge;
  out.max_sge_rd = limits.max_sge;
  out.max_cq = limits.max_cq;
  out.max_cqe = limits.max_cqe;
  out.max_mr = limits.max_mr;
  out.max_mw = limits.max_mw;
  out.max_pd = limits.max_pd;
  out.max_qp_rd_atom = limits.max_rd_atomic;
  out.max_res_rd_atom = limits.max_rd_atomic * limits.max_qp;
  out.max_qp_init_rd_atom = limits.max_rd_atomic;
  out.atomic_cap = kAtomicHca;
  out.max_ah = limits.max_ah;
  out.max_srq = limits.max_srq;
  out.max_srq_wr = limits.max_srq_wr;
  out.max_srq_sge = limits.max_sge;
  out.max_mcast_grp = limits.max_multicast_groups;
  out.max_mcast_qp_attach = limits.max_qps_of_group;
  out.max_total_mcast_qp_attach = limits.max_multicast_groups * limits.max_qps_of_group;
  out.max_pkeys = 1;
  out.local_ca_ack_delay = kAckDelay;
  out.phys_port_cnt = 1;
}

}  // namespace

long Context::get_context(const Command& c, Instant now) {
  int fd = -1;
  {
    nic::CommandSection section(device_, now);
    if (has_context_) return -EINVAL;
    if (const int error = async_channel_.open(fd); error != 0) return -error;
    async_.channel = &async_channel_;
    device_.add_listener(async_);
    has_context_.store(true, std::memory_order_release);
  }
  ib_uverbs_get_context_resp out = {};
  out.async_fd = static_cast<uint32_t>(fd);
  out.num_comp_vectors = kCompletionVectors;
  const long error = c.respond(&out, sizeof out);
  if (error != 0) {
    // As if it had never been: a second attempt finds a fresh file.
    nic::CommandSection section(device_, now);
    has_context_ = false;
    device_.remove_listener(async_);
    async_channel_.close();
    async_.channel = nullptr;
    syscall(SYS_close, fd);
  }
  return error;
}

long Context::query_device(const Command& c) {
  ib_uverbs_ex_query_device_resp out;
  memset(&out, 0, sizeof out);
  fill_device(device_, out.base);
  if (!c.extended()) {
    if (c.driver_bytes(sizeof(ib_uverbs_query_device)) != 0) return -EINVAL;
    return c.respond(&out.base, sizeof out.base);
  }
  const auto* in = c.request<ib_uverbs_ex_query_device>();
  if (in->comp_mask != 0 || in->reserved != 0) return -EINVAL;
  out.device_cap_flags_ex = out.base.device_cap_flags | kCapAtomicWrite;
  out.response_length = static_cast<uint32_t>(c.response_bytes() < sizeof out ? c.response_bytes() : sizeof out);
  return c.respond(&out, sizeof out);
}

long Context::query_port(const Command& c) {
  if (c.request<ib_uverbs_query_port>()->port_num != 1) return -EINVAL;
  const attach::Welcome& nic = device_.identity();
  ib_uverbs_query_port_resp out;
  memset(&out, 0, sizeof out);
  out.port_cap_flags = kPortCmSupported;
  out.max_msg_sz = kMaxMessage;
  out.gid_tbl_len = std::max<uint32_t>(nic.gid_table, nic.gid_first + nic.gid_count);
  out.pkey_tbl_len = 1;
  const bool up = device_.port_up() && !device_.dead();
  out.state = up ? kPortActive : kPortDown;
  out.max_mtu = kMtu4096;
  out.active_mtu = nic.active_mtu;
  out.max_vl_num = 1;
  out.phys_state = up ? kPhysLinkUp : kPhysDisabled;
  out.link_layer = kLinkEthernet;
  out.flags = kGrhRequired;
  speed_and_width(nic.rate_bps, out.active_speed, out.active_width);
  return c.respond(&out, sizeof out);
}

}  // namespace weft::abi
