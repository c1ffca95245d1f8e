// SPDX-License-Identifier: Apache-2.0
//
// Context: queue pairs and the doorbell.
#include <netinet/in.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nic/abi/context.h"
#include "nic/engine/qp_rules.h"

namespace weft::abi {
namespace {

constexpr uint8_t kPorts = 1;
constexpr uint8_t kMaxTimeout = 31;
constexpr uint8_t kMaxThreeBits = 7;
constexpr uint8_t kLastState = static_cast<uint8_t>(nic::QpState::kError);

struct CreateQpDriverResponse {
  MapInfo receive;
  MapInfo send;
};
static_assert(sizeof(CreateQpDriverResponse) == 32);

uint32_t inline_room(const ib_uverbs_create_qp& in) {
  return std::max(in.max_send_sge * static_cast<uint32_t>(sizeof(nic::Sge)), (in.max_inline_data + 15u) & ~15u);
}

long check_create(const nic::DeviceLimits& limits, const ib_uverbs_create_qp& in) {
  switch (in.qp_type) {
    case IB_UVERBS_QPT_RC:
    case IB_UVERBS_QPT_UC:
    case IB_UVERBS_QPT_UD:
      break;
    case IB_UVERBS_QPT_RAW_PACKET:
    case IB_UVERBS_QPT_XRC_INI:
    case IB_UVERBS_QPT_XRC_TGT:
    case IB_UVERBS_QPT_DRIVER:
      return -EOPNOTSUPP;
    default:
      return -EINVAL;
  }
  // With an SRQ the QP has no receive queue, whatever was asked for.
  const uint32_t receive_wr = in.is_srq != 0 ? 0 : in.max_recv_wr;
  const uint32_t receive_sge = in.is_srq != 0 ? 0 : in.max_recv_sge;
  if (in.max_send_wr > limits.max_qp_wr || receive_wr > limits.max_qp_wr) return -EINVAL;
  if (in.max_send_sge > limits.max_sge || receive_sge > limits.max_sge) return -EINVAL;
  if (in.max_inline_data > limits.max_inline) return -EINVAL;
  return 0;
}

/// CREATE_QP in its plain form, whichever form it came in. libibverbs takes the extended one when ibv_create_qp_ex was
/// given creation flags, even if none is set.
long create_request(const Command& c, ib_uverbs_create_qp& out) {
  if (!c.extended()) {
    out = *c.request<ib_uverbs_create_qp>();
    return 0;
  }
  const auto& in = *c.request<ib_uverbs_ex_create_qp>();
  // Indirection tables and every flag need what soft-RoCE's provider has no queues for.
  if (in.comp_mask != 0 || in.create_flags != 0 || in.source_qpn != 0) return -EOPNOTSUPP;
  if (in.reserved != 0) return -EINVAL;
  out = {};
  out.user_handle = in.user_handle;
  out.pd_handle = in.pd_handle;
  out.send_cq_handle = in.send_cq_handle;
  out.recv_cq_handle = in.recv_cq_handle;
  out.srq_handle = in.srq_handle;
  out.max_send_wr = in.max_send_wr;
  out.max_recv_wr = in.max_recv_wr;
  out.max_send_sge = in.max_send_sge;
  out.max_recv_sge = in.max_recv_sge;
  out.max_inline_data = in.max_inline_data;
  out.sq_sig_all = in.sq_sig_all;
  out.qp_type = in.qp_type;
  out.is_srq = in.is_srq;
  return 0;
}

long respond_created(const Command& c, const ib_uverbs_create_qp_resp& out, const CreateQpDriverResponse& driver) {
  if (!c.extended()) return c.respond(&out, sizeof out, &driver, sizeof driver);
  ib_uverbs_ex_create_qp_resp extended = {};
  extended.base = out;
  extended.response_length = sizeof extended;
  return c.respond(&extended, sizeof extended, &driver, sizeof driver);
}

nic::AddressAttributes attributes_of(const ib_uverbs_qp_dest& in) {
  nic::AddressAttributes out;
  std::copy_n(in.dgid, out.dgid.size(), out.dgid.begin());
  out.flow_label = in.flow_label;
  out.dlid = in.dlid;
  out.sgid_index = in.sgid_index;
  out.hop_limit = in.hop_limit;
  out.traffic_class = in.traffic_class;
  out.sl = in.sl;
  out.src_path_bits = in.src_path_bits;
  out.static_rate = in.static_rate;
  out.is_global = in.is_global;
  out.port_num = in.port_num;
  return out;
}

void fill_dest(const nic::AddressAttributes& in, ib_uverbs_qp_dest& out) {
  std::copy_n(in.dgid.begin(), in.dgid.size(), out.dgid);
  out.flow_label = in.flow_label;
  out.dlid = in.dlid;
  out.sgid_index = in.sgid_index;
  out.hop_limit = in.hop_limit;
  out.traffic_class = in.traffic_class;
  out.sl = in.sl;
  out.src_path_bits = in.src_path_bits;
  out.static_rate = in.static_rate;
  out.is_global = in.is_global;
  out.port_num = in.port_num;
}

nic::QpAttributes attributes_of(const ib_uverbs_modify_qp& in) {
  nic::QpAttributes out;
  out.address = attributes_of(in.dest);
  out.qkey = in.qkey;
  out.rq_psn = in.rq_psn;
  out.sq_psn = in.sq_psn;
  out.dest_qpn = in.dest_qp_num;
  out.access = in.qp_access_flags;
  out.pkey_index = in.pkey_index;
  out.path_mtu = in.path_mtu;
  out.path_mig_state = in.path_mig_state;
  out.max_rd_atomic = in.max_rd_atomic;
  out.max_dest_rd_atomic = in.max_dest_rd_atomic;
  out.min_rnr_timer = in.min_rnr_timer;
  out.port_num = in.port_num;
  out.timeout = in.timeout;
  out.retry_count = in.retry_cnt;
  out.rnr_retry = in.rnr_retry;
  out.drain_event = in.en_sqd_async_notify != 0;
  return out;
}

/// The checks of ib_uverbs modify_qp() and rxe_qp_chk_attr() that need no state.
long check_values(const ib_uverbs_modify_qp& in, uint32_t mask) {
  if ((mask & ~nic::kMaskLegacy) != 0) return -EOPNOTSUPP;
  if ((mask & (nic::kMaskAlternatePath | nic::kMaskCapabilities)) != 0) return -EINVAL;
  if ((mask & nic::kMaskPort) != 0 && in.port_num != kPorts) return -EINVAL;
  if ((mask & nic::kMaskState) != 0 && in.qp_state > kLastState) return -EINVAL;
  if ((mask & nic::kMaskCurrentState) != 0 && in.cur_qp_state > kLastState) return -EINVAL;
  if ((mask & nic::kMaskTimeout) != 0 && in.timeout > kMaxTimeout) return -EINVAL;
  if ((mask & nic::kMaskRetryCount) != 0 && in.retry_cnt > kMaxThreeBits) return -EINVAL;
  if ((mask & nic::kMaskRnrRetry) != 0 && in.rnr_retry > kMaxThreeBits) return -EINVAL;
  if ((mask & nic::kMaskMinRnrTimer) != 0 && in.min_rnr_timer > 31) return -EINVAL;
  return 0;
}

}  // namespace

// --- create and destroy --------------------------------------------------------------------------------------

long Context::create_qp(const Command& c, Instant now) {
  ib_uverbs_create_qp in;
  if (const long error = create_request(c, in); error != 0) return error;
  if (const long error = check_create(device_.limits(), in); error != 0) return error;
  if (c.response_bytes() < sizeof(ib_uverbs_create_qp_resp) + sizeof(CreateQpDriverResponse)) return -EINVAL;
  const uint32_t room = inline_room(in);
  RxeRing send;
  RxeRing receive;
  long error = -send.map(device_.platform(), memfd_, in.max_send_wr,
                         send_element_bytes(room / static_cast<uint32_t>(sizeof(nic::Sge)), room));
  if (error == 0 && in.is_srq == 0) {
    error = -receive.map(device_.platform(), memfd_, in.max_recv_wr, receive_element_bytes(in.max_recv_sge));
  }
  if (error == 0) error = add_qp(c, in, send, receive, now);
  send.unmap(device_.platform());  // empty when they were taken over
  receive.unmap(device_.platform());
  return error;
}

long Context::add_qp(const Command& c, const ib_uverbs_create_qp& in, RxeRing& send, RxeRing& receive, Instant now) {
  uint64_t seen[3] = {};
  {
    nic::CommandSection section(device_, now);
    uint32_t pd = 0;
    RxeCq* send_cq = find_cq(in.send_cq_handle);
    RxeCq* receive_cq = find_cq(in.recv_cq_handle);
    if (!find_pd(in.pd_handle, pd) || send_cq == nullptr || receive_cq == nullptr) return -EINVAL;
    RxeSrq* srq = in.is_srq != 0 ? find_srq(in.srq_handle) : nullptr;
    if (in.is_srq != 0 && srq == nullptr) return -EINVAL;
    uint32_t index = 0;
    RxeQp* qp = qps_.take(index);
    if (qp == nullptr) return -ENOMEM;
    qp->index = index;
    qp->user_handle = in.user_handle;
    qp->send.max_inline = inline_room(in);
    qp->send.max_sge = std::min<uint32_t>(qp->send.max_inline / sizeof(nic::Sge), nic::kMaxSges);
    qp->receive.max_sge = srq != nullptr ? 0 : in.max_recv_sge;
    nic::QpSetup setup;
    setup.type = static_cast<nic::QpType>(in.qp_type);
    setup.signal_all = in.sq_sig_all != 0;
    setup.pd = pd;
    setup.user_handle = in.user_handle;
    setup.async = &async_;
    setup.send_queue = &qp->send;
    setup.receive_queue = srq != nullptr ? nullptr : &qp->receive;
    setup.srq = srq != nullptr ? srq->engine : nullptr;
    setup.send_cq = send_cq->engine;
    setup.receive_cq = receive_cq->engine;
    qp->send.ring.swap(send);
    qp->receive.ring.swap(receive);
    qp->engine = device_.create_qp(setup);
    const uint32_t handle = qp->engine == nullptr ? HandleTable::kNone : handles_.add(HandleKind::kQp, index);
    long error = -ENOMEM;
    if (handle != HandleTable::kNone) {
      ib_uverbs_create_qp_resp out = {};
      out.qp_handle = handle;
      out.qpn = qp->engine->qpn;
      out.max_send_wr = qp->send.ring.usable();
      out.max_recv_wr = qp->receive.ring.usable();
      out.max_send_sge = qp->send.max_sge;
      out.max_recv_sge = qp->receive.max_sge;
      out.max_inline_data = qp->send.max_inline;
      const CreateQpDriverResponse driver = {qp->receive.ring.map_info(), qp->send.ring.map_info()};
      error = respond_created(c, out, driver);
      if (error != 0) handles_.remove(handle);
    }
    if (error != 0) {
      if (qp->engine != nullptr) device_.destroy_qp(*qp->engine, now);
      qp->send.ring.swap(send);
      qp->receive.ring.swap(receive);
      qps_.give(index);
      return error;
    }
    device_.tell_state(*qp->engine);
    seen[0] = send_cq->user_handle;
    seen[1] = receive_cq->user_handle;
    seen[2] = in.user_handle;
  }
  device_.platform().object_seen('c', seen[0]);
  if (seen[1] != seen[0]) device_.platform().object_seen('c', seen[1]);
  device_.platform().object_seen('q', seen[2]);
  return 0;
}

void Context::remove_qp(uint32_t handle, RxeQp& qp, Leftovers& left, Instant now) {
  nic::QueuePair& engine = *qp.engine;
  left.async_events = engine.async_queued;
  if (left.async_events != 0) {
    left.async_events -= async_channel_.purge(qp.user_handle, sizeof(ib_uverbs_async_event_desc));
  }
  device_.destroy_qp(engine, now);
  handles_.remove(handle);
  left.ring[0].swap(qp.send.ring);
  left.ring[1].swap(qp.receive.ring);
  qps_.give(qp.index);
}

long Context::destroy_qp(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_destroy_qp>();
  ib_uverbs_destroy_qp_resp out = {};
  // Before anything is gone: a bad pointer must not lose the count that the library waits for.
  if (const long error = c.respond(&out, sizeof out); error != 0) return error;
  Leftovers left;
  uint32_t qpn = 0;
  uint32_t type = 0;
  {
    nic::CommandSection section(device_, now);
    RxeQp* qp = find_qp(in.qp_handle);
    if (qp == nullptr) return -EINVAL;
    if (qp->engine->groups != 0) return -EBUSY;
    qpn = qp->engine->qpn;
    type = static_cast<uint32_t>(qp->engine->type);
    remove_qp(in.qp_handle, *qp, left, now);
  }
  left.unmap(device_.platform());
  nic::Gid nobody = {};
  (void)device_.platform().qp_state(device_.identity().nic, qpn, nic::kQpDestroyed, type, 0, nobody, 0);
  out.events_reported = left.async_events;
  return c.respond(&out, sizeof out);
}

// --- modify and query ----------------------------------------------------------------------------------------

/// Everything that can be refused, with the lock held. The engine index tells a QP from a later one of the same handle.
long Context::check_modify(const ib_uverbs_modify_qp& in, uint32_t& qpn, nic::QpState& from, nic::QpState& to) {
  RxeQp* qp = find_qp(in.qp_handle);
  if (qp == nullptr) return -EINVAL;
  const nic::QueuePair& engine = *qp->engine;
  const uint32_t mask = in.attr_mask;
  qpn = engine.qpn;
  from = engine.now_state();
  // What the caller believes the state to be must be right where it says so.
  if ((mask & nic::kMaskCurrentState) != 0 && in.cur_qp_state != static_cast<uint8_t>(from)) return -EINVAL;
  to = (mask & nic::kMaskState) != 0 ? static_cast<nic::QpState>(in.qp_state) : from;
  if (!nic::transition_allowed(engine.type, from, to, mask)) return -EINVAL;
  if ((mask & nic::kMaskAddress) != 0) {
    const uint8_t port = (mask & nic::kMaskPort) != 0 ? in.port_num : engine.attributes.port_num;
    if (in.dest.port_num != port) return -EINVAL;
    if (const int error = nic::check_address(device_.identity(), attributes_of(in.dest)); error != 0) return -error;
  }
  return 0;
}

long Context::modify_qp(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_modify_qp>();
  const uint32_t mask = in.attr_mask;
  if (const long error = check_values(in, mask); error != 0) return error;
  uint32_t qpn = 0;
  nic::QpState from{};
  nic::QpState to{};
  {
    nic::CommandSection section(device_, now);
    if (const long error = check_modify(in, qpn, from, to); error != 0) return error;
  }
  nic::ResolvedPeer peer;
  if ((mask & nic::kMaskAddress) != 0) {
    nic::Gid gid;
    std::copy_n(in.dest.dgid, sizeof gid, gid);
    if (const int error = device_.platform().resolve(device_.identity().nic, gid, peer); error != 0) return -error;
  }
  uint64_t user_handle = 0;
  {
    // The answer may have taken seconds: the QP is looked at again.
    nic::CommandSection section(device_, now);
    uint32_t same_qpn = 0;
    if (const long error = check_modify(in, same_qpn, from, to); error != 0) return error;
    if (same_qpn != qpn) return -EINVAL;
    RxeQp* qp = find_qp(in.qp_handle);
    if (const int error = device_.modify_qp(*qp->engine, to, mask, attributes_of(in), &peer, now); error != 0) {
      return -error;
    }
    user_handle = qp->user_handle;
    if (to != from) device_.tell_state(*qp->engine);
  }
  device_.platform().object_seen('q', user_handle);
  return 0;
}

long Context::query_qp(const Command& c, Instant now) {
  ib_uverbs_query_qp_resp out;
  memset(&out, 0, sizeof out);
  {
    nic::CommandSection section(device_, now);
    RxeQp* qp = find_qp(c.request<ib_uverbs_query_qp>()->qp_handle);
    if (qp == nullptr) return -EINVAL;
    const nic::QueuePair& engine = *qp->engine;
    const nic::QpAttributes& a = engine.attributes;
    fill_dest(a.address, out.dest);
    out.max_send_wr = qp->send.ring.usable();
    out.max_recv_wr = qp->receive.ring.usable();
    out.max_send_sge = qp->send.max_sge;
    out.max_recv_sge = qp->receive.max_sge;
    out.max_inline_data = qp->send.max_inline;
    out.qkey = a.qkey;
    out.rq_psn = a.rq_psn;
    out.sq_psn = a.sq_psn;
    out.dest_qp_num = a.dest_qpn;
    out.qp_access_flags = a.access;
    out.pkey_index = a.pkey_index;
    out.qp_state = out.cur_qp_state = static_cast<uint8_t>(engine.now_state());
    out.path_mtu = a.path_mtu;
    out.path_mig_state = a.path_mig_state;
    out.sq_draining = nic::Device::draining(*qp->engine) ? 1 : 0;
    out.max_rd_atomic = a.max_rd_atomic;
    out.max_dest_rd_atomic = a.max_dest_rd_atomic;
    out.min_rnr_timer = a.min_rnr_timer;
    out.port_num = a.port_num;
    out.timeout = a.timeout;
    out.retry_cnt = a.retry_count;
    out.rnr_retry = a.rnr_retry;
    out.sq_sig_all = engine.signal_all ? 1 : 0;
  }
  return c.respond(&out, sizeof out);
}

// --- doorbell ------------------------------------------------------------------------------------------------

long Context::post_send(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_post_send>();
  if (in.wr_count != 0) return -EINVAL;  // the works are in the ring; nobody who maps it sends them here
  // Without the lock: pools are never unmapped while the context lives, so the worst a race with DESTROY_QP can do is
  // ring for a QP that is gone.
  RxeQp* qp = find_qp(in.qp_handle);
  if (qp == nullptr) return -EINVAL;
  const nic::QueuePair& engine = *qp->engine;
  const nic::QpState state = engine.now_state();
  if (state < nic::QpState::kReadyToSend) return -EINVAL;
  const ib_uverbs_post_send_resp out = {.bad_wr = 0};
  if (const long error = c.respond(&out, sizeof out); error != 0) return error;
  device_.ring(engine.index);
  device_.try_progress(now);
  return 0;
}

}  // namespace weft::abi
