// SPDX-License-Identifier: Apache-2.0
//
// One emulated NIC in this process: QPs, CQs, MRs and AHs over the transport machines, and the program's end of the
// port.
//
//   Device(platform, welcome, port, kick_fd)  port is open; kick_fd is the pipe to the daemon (non-blocking, written
//                                             by a raw system call when the daemon sleeps)
//   try_progress(now)   one pass if nobody else is in one: receive, timers, answers, requests, completions, kick.
//                       Never blocks; who loses the race leaves a mark that the winner sees. True: something was done.
//   quiet()             no lock, a few loads: a pass would find nothing (timers aside: those are the thread's)
//   next_deadline()     when a timer is due; kNever. No lock.
//   prepare_sleep()     the background thread is about to sleep: true = safe. It then sleeps until a kick, a
//                       Platform::wake_thread(), or next_deadline(); afterwards it calls woke() and try_progress().
//                       False: call try_progress() again first.
//   fatal(now)          the daemon is gone: every QP goes to ERR and flushes, every context hears DEVICE_FATAL
//   detach()            in the child of a fork: touches no lock; every later command answers EIO
//   dispatch_event()    PORT_ACTIVE, PORT_ERR, GID_CHANGE, ... from the daemon, to every context
//   peer_gone()           the answer to Platform::peer_silent(): nobody serves that QP
//   drain(now)          at exit: passes until no answer is owed any more, at most `attempts` of them
//
// Memory for the Device comes from the caller (zero-filled mmap, placement new); what it needs later it maps itself.
// Any thread may call any of these. The rest is for nic/abi, inside a CommandSection. Time: CLOCK_MONOTONIC in
// picoseconds, an argument.
#pragma once

#include <atomic>
#include <cstdint>

#include "nic/engine/arena.h"
#include "nic/engine/completion_queue.h"
#include "nic/engine/deadline_heap.h"
#include "nic/engine/explain.h"
#include "nic/engine/lock.h"
#include "nic/engine/mr_table.h"
#include "nic/engine/multicast.h"
#include "nic/engine/platform.h"
#include "nic/engine/queue_pair.h"
#include "nic/engine/window_table.h"
#include "protocols/attach/messages.h"
#include "protocols/attach/process_port.h"
#include "protocols/base/time.h"
#include "protocols/wire/roce_frame.h"

namespace weft::nic {

inline constexpr uint32_t kMaxQps = 4096;

/// What the device advertises and keeps to. From the WELCOME; 0 there means these.
struct DeviceLimits {
  uint32_t max_qp = kMaxQps;
  uint32_t max_qp_wr = 16384;
  uint32_t max_cq = 4096;
  uint32_t max_cqe = 65535;
  uint32_t max_mr = 8192;
  uint32_t max_mw = 8192;
  uint32_t max_pd = 1024;
  uint32_t max_ah = 4096;
  uint32_t max_srq = 4096;
  uint32_t max_srq_wr = 32767;
  uint32_t max_rd_atomic = 128;
  uint32_t max_multicast_groups = 8192;
  uint32_t max_qps_of_group = kMaxQpsOfGroup;
  uint32_t max_sge = kMaxSges;
  uint32_t max_inline = 512;
};

/// Frames that were received and not delivered, and why; plain counts since the attach.
struct EngineCounters {
  uint64_t frames_in = 0;
  uint64_t frames_out = 0;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t malformed = 0;  ///< ParseError other than kOk
  uint64_t no_such_qpn = 0;
  uint64_t wrong_state = 0;
  uint64_t wrong_source = 0;   ///< not from the QP's peer
  uint64_t wrong_service = 0;  ///< an opcode of another service
  uint64_t wrong_qkey = 0;
  uint64_t no_receive = 0;     ///< UD, UC: no receive request was posted
  uint64_t receive_error = 0;  ///< UD: longer than the receive request, or its memory failed
  uint64_t slots_short = 0;    ///< times a frame waited for a transmit slot
  uint64_t notices = 0;
  uint64_t completions_lost = 0;  ///< their CQ was full
};

struct ProtectionDomain {
  uint32_t users = 0;
};

struct AddressHandle {
  Route route;
  uint32_t pd = 0;
};

struct QpSetup {
  QpType type = QpType::kRc;
  bool signal_all = false;
  uint32_t pd = 0;
  uint64_t user_handle = 0;
  EventTarget* async = nullptr;
  SendQueue* send_queue = nullptr;
  ReceiveQueue* receive_queue = nullptr;
  SharedReceiveQueue* srq = nullptr;  ///< instead of receive_queue
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* receive_cq = nullptr;
};

class Device {
 public:
  Device(Platform& platform, const attach::Welcome& welcome, attach::ProcessPort& port, int kick_fd);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  bool try_progress(Instant now);
  bool quiet() {
    polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return pending_.load(std::memory_order_relaxed) == 0 && busy_.load(std::memory_order_relaxed) == 0 &&
           !port_.receive_pending();
  }
  Instant next_deadline() const { return Instant(Duration(next_deadline_.load(std::memory_order_relaxed))); }
  bool prepare_sleep();
  void woke();
  void fatal(Instant now);
  void detach() { detached_.store(true, std::memory_order_relaxed); }
  void dispatch_event(uint32_t event_type, uint32_t port);
  /// Nobody serves that QP: who waits for it is charged from now on, as for a lost frame.
  void peer_gone(const GidBytes& gid, uint32_t qpn, Instant now);
  bool drain(Instant now, uint32_t attempts = 64);

  // ---- without the lock
  bool usable() const { return ready_ && !detached_.load(std::memory_order_relaxed); }
  bool detached() const { return detached_.load(std::memory_order_relaxed); }
  bool port_up() const { return port_up_.load(std::memory_order_relaxed); }
  bool dead() const { return dead_.load(std::memory_order_relaxed); }
  Platform& platform() { return platform_; }
  const attach::Welcome& identity() const { return welcome_; }
  const DeviceLimits& limits() const { return limits_; }
  /// The doorbell of POST_SEND: marks the QP; try_progress() looks at it.
  void ring(uint32_t qp_index);

  /// Completions marked as withdrawn that nobody has come across yet.
  uint32_t withdrawn() const { return withdrawn_.load(std::memory_order_relaxed); }
  void found_withdrawn(uint32_t count) { withdrawn_.fetch_sub(count, std::memory_order_relaxed); }

  // ---- in a CommandSection
  void add_listener(EventTarget& target);
  void remove_listener(EventTarget& target);
  void raise(EventTarget* target, uint64_t element, uint32_t event_type, uint32_t& queued);

  Pool<ProtectionDomain>& pds() { return pds_; }
  Pool<AddressHandle>& ahs() { return ahs_; }
  MrTable& regions() { return regions_; }
  WindowTable& windows() { return windows_; }

  CompletionQueue* create_cq(CompletionSink* sink, EventChannel* channel, EventTarget* async, uint64_t user_handle);
  void destroy_cq(CompletionQueue& cq);
  void arm(CompletionQueue& cq, bool solicited_only);

  SharedReceiveQueue* create_srq(ReceiveQueue* queue, uint32_t pd, EventTarget* async, uint64_t user_handle);
  /// No QP uses it any more.
  void destroy_srq(SharedReceiveQueue& srq);

  QueuePair* create_qp(const QpSetup& setup);
  /// peer: the resolved address when mask has kMaskAddress. 0 or errno; the table of qp_rules.h has been asked already.
  int modify_qp(QueuePair& qp, QpState to, uint32_t mask, const QpAttributes& values, const ResolvedPeer* peer,
                Instant now);
  /// In SQD, with works under way.
  static bool draining(QueuePair& qp);
  void destroy_qp(QueuePair& qp, Instant now);

  // multicast.cc
  int join_group(QueuePair& qp, const GidBytes& gid, bool& fresh);
  bool leave_group(QueuePair& qp, const GidBytes& gid);
  /// Some group the QP is in; false: none.
  bool group_of(const QueuePair& qp, GidBytes& out) const;

  /// For `weft show qps`.
  void tell_state(QueuePair& qp);

  const EngineCounters& counters() const { return counters_; }

 private:
  friend class CommandSection;

  // device.cc
  bool open_pools();
  bool pass(Instant now);
  bool linger_on();
  void finish(Instant now);
  void take_doorbells(Instant now);
  void take_notices(Instant now);
  void apply_notice(const attach::Notice& notice, Instant now);
  void run_timers(Instant now);
  void ask_for_peer(const QueuePair& qp);
  void set_deadline(Instant now);
  void wake_if_needed();
  void kick();

  // completion.cc
  void complete(CompletionQueue& cq, const Completion& completion);
  void complete_receive(QueuePair& qp, Completion& completion);
  void fail_after_overrun(Instant now);
  bool solicited_published(CompletionQueue& cq);
  void withdraw_completions(const QueuePair& qp);
  void count_send(WorkOpcode opcode, WorkStatus status);
  void count_receive(const Completion& completion);
  void show_counters();
  void publish_completions();
  void announce(CompletionQueue& cq);
  bool retry_announcements();
  void retry_events(Instant now);

  // queue_pair.cc
  int check_values(QueuePair& qp, QpState to, uint32_t mask, const QpAttributes& values) const;
  void take_values(QueuePair& qp, uint32_t mask, const QpAttributes& values);
  void adjust(QueuePair& qp);
  void enter(QueuePair& qp, QpState from, QpState to, Instant now);
  void configure_receive(QueuePair& qp);
  RequesterConfig requester_config(const QueuePair& qp) const;
  void configure_send(QueuePair& qp);
  void resume_sends(QueuePair& qp);
  void forget_refused_sends(QueuePair& qp);
  void reset(QueuePair& qp);
  void to_error(QueuePair& qp, Instant now);
  void to_send_error(QueuePair& qp);
  void sends_failed(QueuePair& qp, Instant now);
  void flush_sends(QueuePair& qp);
  void flush_receives(QueuePair& qp);
  void flush_errors();
  void link_error(QueuePair& qp);
  void unlink(QueuePair& qp);

  // local_work.cc
  WorkStatus execute_local(QueuePair& qp, const SendRequest& request);
  bool invalidate_for_peer(QueuePair& qp, uint32_t rkey);

  // receive.cc
  uint32_t receive_frames(Instant now);
  void handle_frame(const attach::ReceivedFrame& frame, Instant now);
  QueuePair* destination(uint32_t qpn) const;
  void handle_rc(QueuePair& qp, const RoceFrame& frame, const uint8_t* payload, Instant now);
  void handle_uc(QueuePair& qp, const RoceFrame& frame, const uint8_t* payload, Instant now);
  void handle_ud(QueuePair& qp, const RoceFrame& frame, const attach::ReceivedFrame& raw, Instant now);
  void handle_multicast(const RoceFrame& frame, const attach::ReceivedFrame& raw, Instant now);
  void note_established(QueuePair& qp);
  void end_refused(QueuePair& qp, const Demand& demand);
  void end_failed_read(QueuePair& qp, const OutFrame& frame, Instant now);
  void count_request(Need need);
  Outcome perform(QueuePair& qp, const Demand& demand, const uint8_t* payload, uint64_t& original);
  Outcome place_send(QueuePair& qp, const Demand& demand, const uint8_t* payload);
  Outcome place_write(QueuePair& qp, const Demand& demand, const uint8_t* payload);
  Outcome execute_atomic(QueuePair& qp, const Demand& demand, uint64_t& original);
  Outcome write_atomically(QueuePair& qp, const Demand& demand, const uint8_t* payload);
  /// The program's address of what a peer names, through a region or a window; nullptr when any check fails.
  uint8_t* remote_address(const QueuePair& qp, uint32_t rkey, uint64_t va, uint64_t bytes, uint32_t rights) const {
    if (!is_window_key(rkey)) return regions_.user_address(rkey, va, bytes, rights, qp.pd);
    return windows_.user_address(regions_, rkey, va, bytes, rights, {qp.pd, qp.qpn});
  }
  void finish_receive(QueuePair& qp, const Demand& demand);
  bool scatter(const Sge* sges, uint32_t count, uint64_t offset, const uint8_t* from, uint32_t bytes, uint32_t pd);

  // shared_receive.cc
  bool take_receive(QueuePair& qp);
  void taken_from(SharedReceiveQueue& srq, const ReceiveRequest& request);
  void complete_malformed(QueuePair& qp);
  void tell_last_request(QueuePair& qp);

  // explain.cc
  const char* refusal(uint32_t key, uint64_t va, uint64_t bytes, uint32_t rights, const QueuePair& qp) const;
  void fill_report(const QueuePair& qp, ErrorReport& report) const;
  void blame_sges(const Sge* sges, uint32_t count, uint32_t rights, const QueuePair& qp, ErrorReport& report) const;
  void explain_send(QueuePair& qp, const WorkRecord& work, WorkStatus status);
  void explain_receive(QueuePair& qp, const Completion& completion);
  void explain_refusal(QueuePair& qp, const Demand& demand);
  void tell_untold();

  // transmit.cc
  void activate(QueuePair& qp);
  uint32_t transmit(Instant now);
  uint32_t serve(QueuePair& qp, Instant now, uint32_t budget);
  uint32_t serve_answers(QueuePair& qp, Instant now, uint32_t budget);
  template <typename Machines>
  uint32_t serve_requests(QueuePair& qp, Machines& machines, Instant now, uint32_t budget);
  template <typename Machines>
  void refill(QueuePair& qp, Machines& machines, Instant now);
  template <typename Machines>
  void reap(QueuePair& qp, Machines& machines);
  void tell_drained(QueuePair& qp);
  bool has_more(QueuePair& qp, Instant now);
  void reap_sends(QueuePair& qp, Instant now);
  void complete_send(QueuePair& qp, const SendCompletion& done);
  WorkStatus check_request(const QueuePair& qp, const SendRequest& request) const;
  bool emit(QueuePair& qp, Route& route, const OutFrame& frame, uint32_t slot);
  bool gather(const WorkRecord& work, uint32_t offset, uint8_t* to, uint32_t bytes, uint32_t pd);
  Route* route_of(QueuePair& qp, const OutFrame& frame);

  Platform& platform_;
  attach::Welcome welcome_;
  attach::ProcessPort& port_;
  const int kick_fd_;
  bool ready_ = false;
  DeviceLimits limits_;

  FutexLock lock_;
  alignas(64) std::atomic<uint32_t> pending_{0};  ///< somebody could not get the lock, or rang a doorbell
  std::atomic<uint32_t> busy_{0};                 ///< QPs that want the next pass: active ones and those in ERR
  std::atomic<uint32_t> polls_{0};                ///< calls of quiet(): somebody polls inline
  std::atomic<int64_t> next_deadline_{INT64_MAX};
  std::atomic<int64_t> thread_deadline_{INT64_MIN};  ///< what the sleeping thread will wake for; MIN while it is awake
  std::atomic<uint32_t> withdrawn_{0};
  std::atomic<bool> detached_{false};
  std::atomic<bool> dead_{false};
  std::atomic<bool> port_up_{true};
  std::atomic<uint64_t> doorbell_summary_{0};
  std::atomic<uint64_t> doorbells_[kMaxQps / 64] = {};

  // Everything below: with the lock.
  alignas(64) bool untold_ = false;  ///< some QP's state has not been told
  bool starved_ = false;  ///< some frame waits for a transmit slot
  bool wake_wanted_ = false;
  bool overrun_seen_ = false;  ///< some CQ lost a completion, its QPs have not been told
  bool linger_turn_ = false;   ///< the thread gave up the processor instead of sleeping
  Instant last_pass_{};
  uint32_t linger_left_ = 0;
  uint32_t linger_ban_ = 0;
  uint32_t linger_penalty_ = 0;
  uint32_t seen_polls_ = 0;
  uint64_t seen_frames_ = 0;
  uint32_t active_count_ = 0;
  uint32_t error_count_ = 0;
  QueuePair* active_first_ = nullptr;
  QueuePair* active_last_ = nullptr;
  QueuePair* holding_ = nullptr;
  QueuePair* errors_ = nullptr;
  CompletionQueue* dirty_ = nullptr;
  uint32_t cqs_owed_ = 0;  ///< CQs with events that found no room in their channel
  EventTarget* listeners_ = nullptr;
  bool events_kept_ = false;  ///< some asynchronous event waits for room in its channel
  Instant event_retry_at_{};
  Duration event_retry_after_{};
  uint32_t next_qpn_ = 0;
  uint32_t qpn_mask_ = 0;
  uint16_t* qp_of_qpn_ = nullptr;  ///< by low bits of the QPN: QP index + 1
  DeadlineHeap timers_;
  Pool<QueuePair> qps_;
  Pool<CompletionQueue> cqs_;
  Pool<SharedReceiveQueue> srqs_;
  Pool<ProtectionDomain> pds_;
  Pool<AddressHandle> ahs_;
  MrTable regions_;
  WindowTable windows_;
  MulticastTable multicast_;
  EngineCounters counters_;
};

/// A command's stay in the engine: the lock, and at the end whatever the command left to publish, send or time.
class CommandSection {
 public:
  CommandSection(Device& device, Instant now) : device_(device), now_(now) { device_.lock_.lock(); }
  ~CommandSection();
  CommandSection(const CommandSection&) = delete;
  CommandSection& operator=(const CommandSection&) = delete;

 private:
  Device& device_;
  Instant now_;
};

}  // namespace weft::nic
