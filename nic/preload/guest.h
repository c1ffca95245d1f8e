// SPDX-License-Identifier: Apache-2.0
//
// The emulated hardware inside this process: what one attach brought, a Device per NIC, the Platform they ask, and the
// background thread. Made at the first open of a device, never earlier (kernel_abi G.4).
//
//   Guest::attached(error)   the current guest, attaching if there is none, or the daemon of the last one died
//   current()                the same without attaching; nullptr
//   device(nic)              the NIC's engine
//   at_exit()                flushes what is owed and says BYE
// A guest is never freed: contexts of a dead daemon still answer commands until the program ends.
//
// Fork: the child's copy is detached (every command EIO) and forgotten; a device opened in the child attaches anew.
#pragma once

#include <errno.h>
#include <stdint.h>

#include <atomic>

#include "nic/engine/device.h"
#include "nic/engine/lock.h"
#include "nic/engine/platform.h"
#include "nic/preload/attach_client.h"
#include "nic/preload/descriptors.h"

namespace weft::preload {

class Guest final : public nic::Platform {
 public:
  static Guest* attached(int& error);
  static Guest* current();
  static void at_exit();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  nic::Device& device(uint32_t nic) { return *devices_[nic]; }
  attach::ProcessPort& port(uint32_t nic) { return attachment_.nics[nic].port; }
  uint32_t nic_count() const { return attachment_.nic_count; }
  bool daemon_gone() const { return daemon_gone_.load(std::memory_order_acquire); }
  /// The program closed the last descriptor of `file`; its library's objects are no longer ours to look at.
  void forget_context(const OpenDevice& file);

  int resolve(uint32_t nic, const nic::Gid& gid, nic::ResolvedPeer& out) override;
  int multicast(uint32_t nic, uint32_t qpn, const nic::Gid& gid, bool join) override;
  int map_ring(int command_fd, uint64_t bytes, nic::RingMemory& out) override;
  void unmap_ring(const nic::RingMemory& ring) override;
  void object_seen(char kind, uint64_t user_handle) override;
  void wake_thread() override;
  bool qp_state(uint32_t nic, uint32_t qpn, uint32_t state, uint32_t type, uint32_t peer_qpn, const nic::Gid& peer,
                uint32_t mtu) override;
  void explain(uint32_t nic, const nic::ErrorReport& report) override;
  bool steps_over_withdrawn(uint64_t cq) const override;
  void peer_silent(uint32_t nic, const nic::Gid& gid, uint32_t qpn) override;

  /// Body of the background thread (background.cc); does not return while the process lives.
  void run_background();

 private:
  static Guest* attach_now(int& error);
  bool make_devices();
  void keep_descriptors();
  void drop_descriptors();
  bool start_thread();
  int send(uint32_t channel, const void* message, bool wait);
  /// To the host of that NIC, which knows it by another number.
  template <typename Message>
  int send_about(uint32_t nic, Message& message, bool wait) {
    message.nic = attachment_.nics[nic].number;
    return send(attachment_.nics[nic].channel, &message, wait);
  }
  template <typename Message>
  int ask(uint32_t nic, Message& question) {
    question.head.tag = next_tag_++;
    answered_.store(0);
    awaited_tag_.store(question.head.tag);
    return await_answer(daemon_gone() ? EIO : send_about(nic, question, true));
  }
  int await_answer(int error);

  // background.cc
  void pass();
  bool deadline_passed();
  int64_t prepare_sleep();
  void sleep(int64_t sleep_ns);
  bool drain_kicks();
  void receive_messages();
  void receive_from(const Channel& channel);
  void daemon_died();

  Attachment attachment_;
  nic::Device* devices_[attach::kMaxNicsPerHost] = {};
  std::atomic<int> wake_fd_{-1};
  std::atomic<uint32_t> thread_sleeps_{0};  ///< 1: only a write to wake_fd_ wakes it soon
  std::atomic<uint32_t> wake_missed_{0};    ///< a wake was asked for while it did not need one
  uint32_t linger_ = 0;                     ///< the thread's own: short sleeps still to come
  std::atomic<bool> daemon_gone_{false};

  // One question at a time on the channel; the background thread takes the answer.
  nic::FutexLock ask_lock_;
  uint32_t next_tag_ = 1;
  std::atomic<uint32_t> awaited_tag_{0};
  std::atomic<uint32_t> answered_{0};
  attach::Resolved answer_{};
};

}  // namespace weft::preload
