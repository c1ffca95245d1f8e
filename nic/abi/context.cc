// SPDX-License-Identifier: Apache-2.0
#include "nic/abi/context.h"

#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>

#include <cerrno>
#include <new>

namespace weft::abi {
namespace {

constexpr uint32_t kMaxChannels = 1024;
constexpr size_t kContextBytes = nic::round_up(sizeof(Context), 4096);

/// The kernel counts pending completion events per CQ; this many objects of a kind is more than a device has.
constexpr uint32_t kMaxPerContext = HandleTable::kCapacity;

/// Nothing new comes into being on a NIC whose daemon is gone; what there is can be looked at and destroyed.
bool creates(uint32_t number) {
  switch (number) {
    case IB_USER_VERBS_CMD_GET_CONTEXT:
    case IB_USER_VERBS_CMD_ALLOC_PD:
    case IB_USER_VERBS_CMD_CREATE_AH:
    case IB_USER_VERBS_CMD_REG_MR:
    case IB_USER_VERBS_CMD_ALLOC_MW:
    case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
    case IB_USER_VERBS_CMD_CREATE_CQ:
    case IB_USER_VERBS_CMD_CREATE_QP:
    case IB_USER_VERBS_CMD_CREATE_SRQ:
    case IB_USER_VERBS_CMD_CREATE_XSRQ:
      return true;
    default:
      return false;
  }
}

}  // namespace

Context* Context::open(nic::Device& device, int memfd) {
  void* memory = nic::map_memory(kContextBytes);
  if (memory == nullptr) return nullptr;
  auto* context = new (memory) Context(device, memfd);
  if (context->open_tables()) return context;
  context->close(Instant{});
  return nullptr;
}

bool Context::open_tables() {
  return device_.usable() && handles_.open() && channels_.open(kMaxChannels) && cqs_.open(kMaxPerContext) &&
         qps_.open(nic::kMaxQps) && srqs_.open(kMaxPerContext);
}

long Context::command(const void* data, size_t bytes, Instant now) {
  if (!device_.usable()) return -EIO;
  Command c;
  if (const long error = c.parse(data, bytes); error != 0) return error;
  const long result = dispatch(c, now);
  return result == 0 ? static_cast<long>(bytes) : result;
}

long Context::dispatch(const Command& c, Instant now) {
  if (device_.dead() && creates(c.number())) return -EIO;
  if (c.extended()) return has_context_.load(std::memory_order_acquire) ? dispatch_extended(c, now) : -EINVAL;
  if (c.number() == IB_USER_VERBS_CMD_GET_CONTEXT) return get_context(c, now);
  if (!has_context_.load(std::memory_order_acquire)) return -EINVAL;
  switch (c.number()) {
    case IB_USER_VERBS_CMD_POST_SEND:
      return post_send(c, now);
    case IB_USER_VERBS_CMD_REQ_NOTIFY_CQ:
      return request_notify(c, now);
    case IB_USER_VERBS_CMD_QUERY_DEVICE:
      return query_device(c);
    case IB_USER_VERBS_CMD_QUERY_PORT:
      return query_port(c);
    case IB_USER_VERBS_CMD_ALLOC_PD:
      return alloc_pd(c, now);
    case IB_USER_VERBS_CMD_DEALLOC_PD:
      return dealloc_pd(c, now);
    case IB_USER_VERBS_CMD_CREATE_AH:
      return create_ah(c, now);
    case IB_USER_VERBS_CMD_DESTROY_AH:
      return destroy_ah(c, now);
    case IB_USER_VERBS_CMD_REG_MR:
      return register_mr(c, now);
    case IB_USER_VERBS_CMD_DEREG_MR:
      return deregister_mr(c, now);
    case IB_USER_VERBS_CMD_REREG_MR:
      return reregister_mr(c, now);
    case IB_USER_VERBS_CMD_ALLOC_MW:
      return alloc_mw(c, now);
    case IB_USER_VERBS_CMD_DEALLOC_MW:
      return dealloc_mw(c, now);
    case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
      return create_channel(c, now);
    case IB_USER_VERBS_CMD_CREATE_CQ:
      return create_cq(c, now);
    case IB_USER_VERBS_CMD_RESIZE_CQ:
      return resize_cq(c, now);
    case IB_USER_VERBS_CMD_DESTROY_CQ:
      return destroy_cq(c, now);
    case IB_USER_VERBS_CMD_CREATE_QP:
      return create_qp(c, now);
    case IB_USER_VERBS_CMD_QUERY_QP:
      return query_qp(c, now);
    case IB_USER_VERBS_CMD_MODIFY_QP:
      return modify_qp(c, now);
    case IB_USER_VERBS_CMD_ATTACH_MCAST:
      return attach_multicast(c, now);
    case IB_USER_VERBS_CMD_DETACH_MCAST:
      return detach_multicast(c, now);
    case IB_USER_VERBS_CMD_DESTROY_QP:
      return destroy_qp(c, now);
    case IB_USER_VERBS_CMD_CREATE_SRQ:
      return create_srq(c, now);
    case IB_USER_VERBS_CMD_CREATE_XSRQ:
      return create_srq_ex(c, now);
    case IB_USER_VERBS_CMD_MODIFY_SRQ:
      return modify_srq(c, now);
    case IB_USER_VERBS_CMD_QUERY_SRQ:
      return query_srq(c, now);
    case IB_USER_VERBS_CMD_DESTROY_SRQ:
      return destroy_srq(c, now);
    default:
      return -EOPNOTSUPP;
  }
}

/// Command::parse() lets no other pass.
long Context::dispatch_extended(const Command& c, Instant now) {
  return c.number() == IB_USER_VERBS_EX_CMD_CREATE_QP ? create_qp(c, now) : query_device(c);
}

void Context::close(Instant now) {
  if (device_.usable() && has_context_) destroy_objects(now);
  for (uint32_t i = 0; i < channels_.high_water(); ++i) {
    if (nic::EventChannel* channel = channels_.at(i)) channel->close();
  }
  async_channel_.close();
  channels_.close();
  cqs_.close();
  qps_.close();
  srqs_.close();
  handles_.close();
  this->~Context();
  nic::unmap_memory(this, kContextBytes);
}

void Context::destroy_objects(Instant now) {
  handles_.for_each(HandleKind::kQp, [&](uint32_t handle, uint32_t index) {
    Leftovers left;
    leave_groups(*qps_.at(index)->engine, now);
    uint32_t qpn = 0;
    uint32_t type = 0;
    {
      nic::CommandSection section(device_, now);
      RxeQp& qp = *qps_.at(index);
      qpn = qp.engine->qpn;
      type = static_cast<uint32_t>(qp.engine->type);
      remove_qp(handle, qp, left, now);
    }
    left.unmap(device_.platform());
    const nic::Gid nobody = {};
    (void)device_.platform().qp_state(device_.identity().nic, qpn, nic::kQpDestroyed, type, 0, nobody, 0);
  });
  handles_.for_each(HandleKind::kCq, [&](uint32_t handle, uint32_t index) {
    Leftovers left;
    {
      nic::CommandSection section(device_, now);
      remove_cq(handle, *cqs_.at(index), left);
    }
    left.unmap(device_.platform());
  });
  handles_.for_each(HandleKind::kSrq, [&](uint32_t handle, uint32_t index) {
    Leftovers left;
    {
      nic::CommandSection section(device_, now);
      remove_srq(handle, *srqs_.at(index), left);
    }
    left.unmap(device_.platform());
  });
  nic::CommandSection section(device_, now);
  handles_.for_each(HandleKind::kMw, [&](uint32_t, uint32_t index) {
    device_.windows().remove(device_.regions(), *device_.windows().at(index));
  });
  handles_.for_each(HandleKind::kMr, [&](uint32_t, uint32_t key) { device_.regions().remove(key); });
  handles_.for_each(HandleKind::kAh, [&](uint32_t, uint32_t index) { device_.ahs().give(index); });
  handles_.for_each(HandleKind::kPd, [&](uint32_t, uint32_t index) { device_.pds().give(index); });
  device_.remove_listener(async_);
}

bool Context::owns_private_fd(int fd) {
  if (async_channel_.own_fd() == fd) return true;
  for (uint32_t i = 0; i < channels_.high_water(); ++i) {
    const nic::EventChannel* channel = channels_.at(i);
    if (channel != nullptr && channel->own_fd() == fd) return true;
  }
  return false;
}

RxeCq* Context::find_cq(uint32_t handle) {
  uint32_t index = 0;
  return handles_.find(handle, HandleKind::kCq, index) ? cqs_.at(index) : nullptr;
}

RxeQp* Context::find_qp(uint32_t handle) {
  uint32_t index = 0;
  return handles_.find(handle, HandleKind::kQp, index) ? qps_.at(index) : nullptr;
}

bool Context::find_pd(uint32_t handle, uint32_t& pd) { return handles_.find(handle, HandleKind::kPd, pd); }

}  // namespace weft::abi
