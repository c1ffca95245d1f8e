// SPDX-License-Identifier: Apache-2.0
//
// Context: shared receive queues. The limit given at creation is ignored, as ibv_create_srq(3) says.
#include <netinet/in.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>

#include <cerrno>
#include <cstring>

#include "nic/abi/context.h"
#include "nic/engine/copy.h"

namespace weft::abi {
namespace {

struct CreateSrqDriverResponse {
  MapInfo map;
  uint32_t srq_number;
  uint32_t reserved;
};
static_assert(sizeof(CreateSrqDriverResponse) == 24);

// ibv_srq_attr_mask
constexpr uint32_t kMaskMaxWr = 1;
constexpr uint32_t kMaskLimit = 2;

bool size_allowed(const nic::DeviceLimits& limits, uint32_t max_wr) { return max_wr != 0 && max_wr <= limits.max_srq_wr; }

}  // namespace

RxeSrq* Context::find_srq(uint32_t handle) {
  uint32_t index = 0;
  return handles_.find(handle, HandleKind::kSrq, index) ? srqs_.at(index) : nullptr;
}

// --- create and destroy --------------------------------------------------------------------------------------

long Context::create_srq(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_create_srq>();
  return make_srq(c, {in.user_handle, in.pd_handle, in.max_wr, in.max_sge}, now);
}

/// What ibv_create_srq_ex becomes when it asks for more than a PD and a type.
long Context::create_srq_ex(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_create_xsrq>();
  switch (in.srq_type) {
    case IB_UVERBS_SRQT_BASIC:
      return make_srq(c, {in.user_handle, in.pd_handle, in.max_wr, in.max_sge}, now);
    case IB_UVERBS_SRQT_XRC:
    case IB_UVERBS_SRQT_TM:
      return -EOPNOTSUPP;
    default:
      return -EINVAL;
  }
}

long Context::make_srq(const Command& c, const SrqRequest& in, Instant now) {
  SrqRequest wanted = in;
  if (wanted.max_sge == 0) wanted.max_sge = 1;
  if (!size_allowed(device_.limits(), wanted.max_wr) || wanted.max_sge > device_.limits().max_sge) return -EINVAL;
  if (c.response_bytes() < sizeof(ib_uverbs_create_srq_resp) + sizeof(CreateSrqDriverResponse)) return -EINVAL;
  RxeRing ring;
  const uint32_t element = receive_element_bytes(wanted.max_sge);
  if (const int error = ring.map(device_.platform(), memfd_, wanted.max_wr, element); error != 0) return -error;
  const long error = add_srq(c, wanted, ring, now);
  ring.unmap(device_.platform());  // nothing left in it when it was taken over
  if (error == 0) device_.platform().object_seen('s', in.user_handle);
  return error;
}

long Context::add_srq(const Command& c, const SrqRequest& in, RxeRing& ring, Instant now) {
  nic::CommandSection section(device_, now);
  uint32_t pd = 0;
  if (!find_pd(in.pd_handle, pd)) return -EINVAL;
  uint32_t index = 0;
  RxeSrq* srq = srqs_.take(index);
  if (srq == nullptr) return -ENOMEM;
  srq->index = index;
  srq->user_handle = in.user_handle;
  srq->queue.max_sge = in.max_sge;
  srq->engine = device_.create_srq(&srq->queue, pd, &async_, in.user_handle);
  const uint32_t handle = srq->engine == nullptr ? HandleTable::kNone : handles_.add(HandleKind::kSrq, index);
  long error = -ENOMEM;
  if (handle != HandleTable::kNone) {
    ib_uverbs_create_srq_resp out = {};
    out.srq_handle = handle;
    out.max_wr = ring.usable();
    out.max_sge = in.max_sge;
    const CreateSrqDriverResponse driver = {ring.map_info(), srq->engine->index, 0};
    out.srqn = driver.srq_number;
    error = c.respond(&out, sizeof out, &driver, sizeof driver);
    if (error != 0) handles_.remove(handle);
  }
  if (error == 0) {
    srq->queue.ring.swap(ring);
    return 0;
  }
  if (srq->engine != nullptr) device_.destroy_srq(*srq->engine);
  srqs_.give(index);
  return error;
}

void Context::remove_srq(uint32_t handle, RxeSrq& srq, Leftovers& left) {
  nic::SharedReceiveQueue& engine = *srq.engine;
  left.async_events = engine.async_queued;
  if (left.async_events != 0) {
    left.async_events -= async_channel_.purge(srq.user_handle, sizeof(ib_uverbs_async_event_desc));
  }
  device_.destroy_srq(engine);
  handles_.remove(handle);
  left.ring[0].swap(srq.queue.ring);
  srqs_.give(srq.index);
}

long Context::destroy_srq(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_destroy_srq>();
  ib_uverbs_destroy_srq_resp out = {};
  // Before anything is gone: a bad pointer must not lose the count that the library waits for.
  if (const long error = c.respond(&out, sizeof out); error != 0) return error;
  Leftovers left;
  {
    nic::CommandSection section(device_, now);
    RxeSrq* srq = find_srq(in.srq_handle);
    if (srq == nullptr) return -EINVAL;
    if (srq->engine->users != 0) return -EBUSY;
    remove_srq(in.srq_handle, *srq, left);
  }
  left.unmap(device_.platform());
  out.events_reported = left.async_events;
  return c.respond(&out, sizeof out);
}

// --- modify and query ----------------------------------------------------------------------------------------

long Context::modify_srq(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_modify_srq>();
  if ((in.attr_mask & ~(kMaskMaxWr | kMaskLimit)) != 0) return -EINVAL;
  RxeRing fresh;
  if ((in.attr_mask & kMaskMaxWr) != 0) {
    if (!size_allowed(device_.limits(), in.max_wr)) return -EINVAL;
    if (c.driver_bytes(sizeof in) < sizeof(uint64_t)) return -EINVAL;
    uint32_t element = 0;
    {
      nic::CommandSection section(device_, now);
      const RxeSrq* srq = find_srq(in.srq_handle);
      if (srq == nullptr) return -EINVAL;
      element = receive_element_bytes(srq->queue.max_sge);
    }
    if (const int error = fresh.map(device_.platform(), memfd_, in.max_wr, element); error != 0) return -error;
  }
  const long error = change_srq(c, fresh, now);
  fresh.unmap(device_.platform());  // the old ring by now, or the new one that was not wanted
  return error;
}

/// All or nothing: what is refused changes neither size nor limit.
long Context::change_srq(const Command& c, RxeRing& fresh, Instant now) {
  const auto& in = *c.request<ib_uverbs_modify_srq>();
  nic::CommandSection section(device_, now);
  RxeSrq* srq = find_srq(in.srq_handle);
  if (srq == nullptr) return -EINVAL;
  const bool resize = (in.attr_mask & kMaskMaxWr) != 0;
  const uint32_t limit = (in.attr_mask & kMaskLimit) != 0 ? in.srq_limit : srq->engine->limit;
  if (limit > (resize ? fresh.usable() : srq->queue.ring.usable())) return -EINVAL;
  if (resize) {
    if (srq->queue.count() > in.max_wr) return -EINVAL;
    uint64_t pointer = 0;
    memcpy(&pointer, c.driver_data(sizeof in), sizeof pointer);
    const MapInfo map = fresh.map_info();
    if (!nic::copy_to_user(reinterpret_cast<uint8_t*>(pointer), &map, sizeof map)) return -EFAULT;
    if (!srq->queue.move_to(fresh)) return -EINVAL;
  }
  srq->engine->limit = limit;
  return 0;
}

long Context::query_srq(const Command& c, Instant now) {
  ib_uverbs_query_srq_resp out = {};
  {
    nic::CommandSection section(device_, now);
    const RxeSrq* srq = find_srq(c.request<ib_uverbs_query_srq>()->srq_handle);
    if (srq == nullptr) return -EINVAL;
    out.max_wr = srq->queue.ring.usable();
    out.max_sge = srq->queue.max_sge;
    out.srq_limit = srq->engine->limit;
  }
  return c.respond(&out, sizeof out);
}

}  // namespace weft::abi
