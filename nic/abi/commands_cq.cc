// SPDX-License-Identifier: Apache-2.0
//
// Context: completion channels and completion queues.
#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "nic/abi/context.h"

namespace weft::abi {
namespace {

constexpr uint32_t kWcBytes = sizeof(ib_uverbs_wc);

}  // namespace

// --- channels ------------------------------------------------------------------------------------------------

long Context::create_channel(const Command& c, Instant now) {
  nic::CommandSection section(device_, now);
  sweep_channels();
  uint32_t index = 0;
  nic::EventChannel* channel = channels_.take(index);
  if (channel == nullptr) return -EMFILE;
  int fd = -1;
  long error = -channel->open(fd);
  if (error == 0) {
    ib_uverbs_create_comp_channel_resp out = {};
    out.fd = static_cast<uint32_t>(fd);
    error = c.respond(&out, sizeof out);
    if (error != 0) syscall(SYS_close, fd);
  }
  if (error != 0) channels_.give(index);
  return error;
}

/// Destroying a channel is only a close() by the program, of which we hear nothing; its end is noticed here.
void Context::sweep_channels() {
  for (uint32_t i = 0; i < channels_.high_water(); ++i) {
    const nic::EventChannel* channel = channels_.at(i);
    if (channel != nullptr && channel->users == 0 && channel->abandoned()) channels_.give(i);
  }
}

nic::EventChannel* Context::find_channel(int fd) {
  for (uint32_t i = 0; i < channels_.high_water(); ++i) {
    nic::EventChannel* channel = channels_.at(i);
    if (channel != nullptr && channel->is_program_fd(fd)) return channel;
  }
  return nullptr;
}

// --- completion queues ---------------------------------------------------------------------------------------

long Context::create_cq(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_create_cq>();
  if (in.comp_vector != 0) return -EINVAL;
  if (in.cqe == 0 || in.cqe > device_.limits().max_cqe) return -EINVAL;
  if (c.response_bytes() < sizeof(ib_uverbs_create_cq_resp) + sizeof(MapInfo)) return -EINVAL;
  RxeRing ring;
  if (const int error = ring.map(device_.platform(), memfd_, in.cqe, kWcBytes); error != 0) return -error;
  const long error = add_cq(c, ring, now);
  ring.unmap(device_.platform());  // nothing left in it when it was taken over
  if (error == 0) device_.platform().object_seen('c', in.user_handle);
  return error;
}

long Context::add_cq(const Command& c, RxeRing& ring, Instant now) {
  const auto& in = *c.request<ib_uverbs_create_cq>();
  nic::CommandSection section(device_, now);
  nic::EventChannel* channel = nullptr;
  if (in.comp_channel >= 0) {
    channel = find_channel(in.comp_channel);
    if (channel == nullptr) return -EBADF;
  }
  uint32_t index = 0;
  RxeCq* cq = cqs_.take(index);
  if (cq == nullptr) return -ENOMEM;
  cq->index = index;
  cq->user_handle = in.user_handle;
  cq->engine = device_.create_cq(&cq->ring, channel, &async_, in.user_handle);
  const uint32_t handle = cq->engine == nullptr ? HandleTable::kNone : handles_.add(HandleKind::kCq, index);
  long error = -ENOMEM;
  if (handle != HandleTable::kNone) {
    ib_uverbs_create_cq_resp out = {};
    out.cq_handle = handle;
    out.cqe = ring.usable();
    const MapInfo map = ring.map_info();
    error = c.respond(&out, sizeof out, &map, sizeof map);
    if (error != 0) handles_.remove(handle);
  }
  if (error == 0) {
    cq->ring.ring.swap(ring);
    return 0;
  }
  if (cq->engine != nullptr) device_.destroy_cq(*cq->engine);
  cqs_.give(index);
  return error;
}

long Context::resize_cq(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_resize_cq>();
  if (in.cqe == 0 || in.cqe > device_.limits().max_cqe) return -EINVAL;
  if (c.response_bytes() < sizeof(ib_uverbs_resize_cq_resp) + sizeof(MapInfo)) return -EINVAL;
  RxeRing fresh;
  if (const int error = fresh.map(device_.platform(), memfd_, in.cqe, kWcBytes); error != 0) return -error;
  const long error = replace_cq_ring(c, fresh, now);
  fresh.unmap(device_.platform());  // the old ring by now, or the new one that was not wanted
  return error;
}

long Context::replace_cq_ring(const Command& c, RxeRing& fresh, Instant now) {
  const auto& in = *c.request<ib_uverbs_resize_cq>();
  nic::CommandSection section(device_, now);
  RxeCq* cq = find_cq(in.cq_handle);
  if (cq == nullptr || cq->ring.pending() > in.cqe) return -EINVAL;
  ib_uverbs_resize_cq_resp out = {};
  out.cqe = fresh.usable();
  const MapInfo map = fresh.map_info();
  const long error = c.respond(&out, sizeof out, &map, sizeof map);
  if (error == 0) cq->ring.move_to(fresh);
  return error;
}

void Context::remove_cq(uint32_t handle, RxeCq& cq, Leftovers& left) {
  nic::CompletionQueue& engine = *cq.engine;
  left.completion_events = engine.events_queued;
  if (engine.channel != nullptr && engine.events_queued != 0) {
    left.completion_events -= engine.channel->purge(cq.user_handle, sizeof(ib_uverbs_comp_event_desc));
  }
  left.async_events = engine.async_queued;
  if (left.async_events != 0)
    left.async_events -= async_channel_.purge(cq.user_handle, sizeof(ib_uverbs_async_event_desc));
  device_.destroy_cq(engine);
  handles_.remove(handle);
  left.ring[0].swap(cq.ring.ring);
  cqs_.give(cq.index);
}

long Context::destroy_cq(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_destroy_cq>();
  ib_uverbs_destroy_cq_resp out = {};
  // Before anything is gone: a bad pointer must not lose the counts that the library waits for.
  if (const long error = c.respond(&out, sizeof out); error != 0) return error;
  Leftovers left;
  {
    nic::CommandSection section(device_, now);
    RxeCq* cq = find_cq(in.cq_handle);
    if (cq == nullptr) return -EINVAL;
    if (cq->engine->users != 0) return -EBUSY;
    remove_cq(in.cq_handle, *cq, left);
  }
  left.unmap(device_.platform());
  out.comp_events_reported = left.completion_events;
  out.async_events_reported = left.async_events;
  return c.respond(&out, sizeof out);
}

bool Context::end_drained_poll(uint64_t user_handle, void (*end_poll)(void*), void* object, Instant now) {
  nic::CommandSection section(device_, now);
  for (uint32_t i = 0; i < cqs_.high_water(); ++i) {
    RxeCq* cq = cqs_.at(i);
    if (cq == nullptr || cq->user_handle != user_handle || !cq->ring.ring.mapped()) continue;
    const uint32_t before = cq->ring.ring.consumer().load(std::memory_order_acquire);
    end_poll(object);
    return cq->ring.step_back(before);
  }
  end_poll(object);
  return false;
}

long Context::request_notify(const Command& c, Instant now) {
  const auto& in = *c.request<ib_uverbs_req_notify_cq>();
  uint64_t user_handle = 0;
  {
    nic::CommandSection section(device_, now);
    RxeCq* cq = find_cq(in.cq_handle);
    if (cq == nullptr) return -EINVAL;
    cq->ring.check();
    device_.arm(*cq->engine, in.solicited_only != 0);
    user_handle = cq->user_handle;
  }
  device_.platform().object_seen('c', user_handle);
  return 0;
}

}  // namespace weft::abi
