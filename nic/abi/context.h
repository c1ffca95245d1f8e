// SPDX-License-Identifier: Apache-2.0
//
// One open of /dev/infiniband/uverbsN: the kernel's uverbs write() ABI over a Device.
//
//   Context::open(device, memfd)   memfd is the command fd the program holds (rings are offsets in it). nullptr when
//                                  memory is short. The memfd stays the caller's.
//   command(data, bytes, now)      what write(2) on the command fd gets: returns `bytes`, or -errno. Responses go to
//                                  the pointers inside (a bad one is -EFAULT). POST_SEND takes no blocking lock and
//                                  allocates nothing; other commands take the Device's lock, and may wait for
//                                  Platform::resolve without it.
//   close(now)                     the last descriptor of the open file is gone: every object of this context is
//                                  destroyed, what is owed is flushed; the pointer is dead afterwards. Not while a
//                                  command is running.
//   owns_private_fd(fd)            true for the private descriptors behind its event channels, which the program
//                                  must not close (close_range and dup2 wrappers ask)
//
//   end_drained_poll(...)          calls the provider's end_poll after a next_poll that found nothing, with the engine's
//                                  lock held, and undoes the step over the next completion that old providers make;
//                                  true: it did that
//
// Any thread may call command(). One file per group of commands: commands_*.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nic/abi/command.h"
#include "nic/abi/handle_table.h"
#include "nic/abi/rxe_ring.h"
#include "nic/engine/device.h"
#include "protocols/base/time.h"

struct ib_uverbs_create_qp;
struct ib_uverbs_modify_qp;

namespace weft::abi {

struct RxeCq {
  RxeCompletionRing ring;
  nic::CompletionQueue* engine = nullptr;
  uint64_t user_handle = 0;
  uint32_t index = 0;
};

struct RxeQp {
  RxeSendQueue send;
  RxeReceiveQueue receive;
  nic::QueuePair* engine = nullptr;
  uint64_t user_handle = 0;
  uint32_t index = 0;
};

struct RxeSrq {
  RxeReceiveQueue queue;
  nic::SharedReceiveQueue* engine = nullptr;
  uint64_t user_handle = 0;
  uint32_t index = 0;
};

/// What an object leaves behind when it is destroyed: rings to unmap once the lock is free, and events to report.
struct Leftovers {
  RxeRing ring[2];
  uint32_t completion_events = 0;
  uint32_t async_events = 0;

  void unmap(nic::Platform& platform) {
    for (RxeRing& r : ring) r.unmap(platform);
  }
};

class Context {
 public:
  static Context* open(nic::Device& device, int memfd);
  long command(const void* data, size_t bytes, Instant now);
  void close(Instant now);
  bool owns_private_fd(int fd);
  bool end_drained_poll(uint64_t user_handle, void (*end_poll)(void*), void* cq, Instant now);

  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

 private:
  Context(nic::Device& device, int memfd) : device_(device), memfd_(memfd) {}
  ~Context() = default;
  bool open_tables();
  long dispatch(const Command& c, Instant now);
  long dispatch_extended(const Command& c, Instant now);
  void destroy_objects(Instant now);

  // commands_device.cc
  long get_context(const Command& c, Instant now);
  long query_device(const Command& c);
  long query_port(const Command& c);

  // commands_memory.cc
  long alloc_pd(const Command& c, Instant now);
  long dealloc_pd(const Command& c, Instant now);
  long register_mr(const Command& c, Instant now);
  long deregister_mr(const Command& c, Instant now);
  long create_ah(const Command& c, Instant now);
  long destroy_ah(const Command& c, Instant now);

  // commands_window.cc
  long alloc_mw(const Command& c, Instant now);
  long dealloc_mw(const Command& c, Instant now);
  long reregister_mr(const Command& c, Instant now);

  // commands_cq.cc
  long create_channel(const Command& c, Instant now);
  long create_cq(const Command& c, Instant now);
  long resize_cq(const Command& c, Instant now);
  long destroy_cq(const Command& c, Instant now);
  long request_notify(const Command& c, Instant now);
  nic::EventChannel* find_channel(int fd);
  void sweep_channels();
  long add_cq(const Command& c, RxeRing& ring, Instant now);
  long replace_cq_ring(const Command& c, RxeRing& fresh, Instant now);
  void remove_cq(uint32_t handle, RxeCq& cq, Leftovers& left);

  // commands_qp.cc
  long create_qp(const Command& c, Instant now);
  long modify_qp(const Command& c, Instant now);
  long query_qp(const Command& c, Instant now);
  long destroy_qp(const Command& c, Instant now);
  long post_send(const Command& c, Instant now);
  long check_modify(const ib_uverbs_modify_qp& in, uint32_t& qp_index, nic::QpState& from, nic::QpState& to);
  long add_qp(const Command& c, const ib_uverbs_create_qp& in, RxeRing& send, RxeRing& receive, Instant now);
  void remove_qp(uint32_t handle, RxeQp& qp, Leftovers& left, Instant now);

  // commands_srq.cc
  struct SrqRequest {
    uint64_t user_handle;
    uint32_t pd_handle;
    uint32_t max_wr;
    uint32_t max_sge;
  };
  long create_srq(const Command& c, Instant now);
  long create_srq_ex(const Command& c, Instant now);
  long modify_srq(const Command& c, Instant now);
  long query_srq(const Command& c, Instant now);
  long destroy_srq(const Command& c, Instant now);
  long make_srq(const Command& c, const SrqRequest& in, Instant now);
  long add_srq(const Command& c, const SrqRequest& in, RxeRing& ring, Instant now);
  long change_srq(const Command& c, RxeRing& fresh, Instant now);
  void remove_srq(uint32_t handle, RxeSrq& srq, Leftovers& left);
  RxeSrq* find_srq(uint32_t handle);

  // commands_multicast.cc
  long attach_multicast(const Command& c, Instant now);
  long detach_multicast(const Command& c, Instant now);
  nic::QueuePair* find_multicast_qp(uint32_t handle, const GidBytes& group);
  void leave_groups(nic::QueuePair& qp, Instant now);

  RxeCq* find_cq(uint32_t handle);
  RxeQp* find_qp(uint32_t handle);
  bool find_pd(uint32_t handle, uint32_t& pd);

  nic::Device& device_;
  const int memfd_;
  std::atomic<bool> has_context_{false};
  nic::FutexLock multicast_lock_;  ///< around a membership and the daemon's answer to it
  HandleTable handles_;
  nic::EventChannel async_channel_;
  nic::EventTarget async_;
  nic::Pool<nic::EventChannel> channels_;
  nic::Pool<RxeCq> cqs_;
  nic::Pool<RxeQp> qps_;
  nic::Pool<RxeSrq> srqs_;
};

}  // namespace weft::abi
