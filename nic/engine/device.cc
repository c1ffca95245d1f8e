// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/device.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace weft::nic {
namespace {

/// Unsent work is taken up by the thread when no poll has done it for this long: a program that posted and went to
/// sleep. While it polls, its own passes push this on.
constexpr Duration kThreadTakesOver = microseconds(500);
/// post_recv makes no system call: receive rings of QPs in ERR are looked at this often when nobody polls.
constexpr Duration kErrorRescan = milliseconds(5);
/// A full event channel is tried again after this.
constexpr Duration kAnnounceAgain = milliseconds(1);
/// Passes that one caller does on behalf of others before it leaves the rest to the thread.
constexpr int kPassesForOthers = 16;

/// After how many a requester asks who serves its peer. Not at the first: what the peer said of itself, on a channel of
/// its own, may still be on the way.
constexpr uint32_t kSilentTimeouts = 2;

constexpr uint32_t kLingerTurns = 8;
constexpr Duration kTurnTooLong = microseconds(500);
constexpr uint32_t kFirstPenalty = 256;  // sleeps without lingering
constexpr uint32_t kMostPenalty = 1u << 16;

constexpr uint32_t kEventDeviceFatal = 8;  // ibv_event_type
constexpr uint32_t kEventPortActive = 9;
constexpr uint32_t kEventPortError = 10;

uint32_t or_default(uint32_t asked, uint32_t fallback) { return asked == 0 ? fallback : asked; }

DeviceLimits limits_of(const attach::Welcome& welcome) {
  DeviceLimits limits;
  limits.max_qp = std::min(or_default(welcome.max_qp, limits.max_qp), kMaxQps);
  limits.max_qp_wr = std::min(or_default(welcome.max_qp_wr, limits.max_qp_wr), 1u << 16);
  limits.max_cq = std::min(or_default(welcome.max_cq, limits.max_cq), 1u << 16);
  limits.max_cqe = std::min(or_default(welcome.max_cqe, limits.max_cqe), (1u << 22) - 1);
  limits.max_mr = std::min(or_default(welcome.max_mr, limits.max_mr), 1u << 20);
  limits.max_pd = std::min(or_default(welcome.max_pd, limits.max_pd), 1u << 16);
  limits.max_ah = std::min(or_default(welcome.max_ah, limits.max_ah), 1u << 16);
  limits.max_srq = std::min(or_default(welcome.max_srq, limits.max_srq), 1u << 16);
  limits.max_rd_atomic = std::min(or_default(welcome.max_qp_rd_atom, limits.max_rd_atomic), RcResponder::kMaxResources);
  limits.max_multicast_groups = std::min(or_default(welcome.max_mcast_grp, limits.max_multicast_groups), 1u << 16);
  limits.max_qps_of_group = std::min(or_default(welcome.max_mcast_qp_attach, kMaxQpsOfGroup), kMaxQpsOfGroup);
  return limits;
}

}  // namespace

Device::Device(Platform& platform, const attach::Welcome& welcome, attach::ProcessPort& port, int kick_fd)
    : platform_(platform), welcome_(welcome), port_(port), kick_fd_(kick_fd), limits_(limits_of(welcome)) {
  port_up_ = (welcome.flags & attach::kWelcomePortDown) == 0;
  ready_ = open_pools();
}

bool Device::open_pools() {
  const uint32_t qpns = 1u << std::clamp<uint32_t>(welcome_.qpn_log2, 4, 16);
  qpn_mask_ = qpns - 1;
  limits_.max_qp = std::min(limits_.max_qp, qpns / 2);
  qp_of_qpn_ = static_cast<uint16_t*>(map_memory(round_up(qpns * sizeof(uint16_t), 4096)));
  return qp_of_qpn_ != nullptr && timers_.open(limits_.max_qp) && qps_.open(limits_.max_qp) &&
         cqs_.open(limits_.max_cq) && srqs_.open(limits_.max_srq) && pds_.open(limits_.max_pd) &&
         ahs_.open(limits_.max_ah) && regions_.open(limits_.max_mr) && windows_.open(limits_.max_mw) &&
         multicast_.open(limits_.max_multicast_groups, limits_.max_qps_of_group);
}

// --- passes --------------------------------------------------------------------------------------------------

bool Device::try_progress(Instant now) {
  if (!usable()) return false;
  bool did = false;
  // The mark first, then the lock; the holder unlocks first, then looks for marks: one of the two sees the other.
  pending_.store(1, std::memory_order_seq_cst);
  for (int passes = 0; pending_.load(std::memory_order_seq_cst) != 0; ++passes) {
    if (passes == kPassesForOthers) {
      platform_.wake_thread();
      break;
    }
    if (!lock_.try_lock()) return did;
    pending_.store(0, std::memory_order_seq_cst);
    did |= pass(now);
    const bool wake = wake_wanted_;
    wake_wanted_ = false;
    lock_.unlock();
    if (wake) platform_.wake_thread();
  }
  return did;
}

bool Device::pass(Instant now) {
  if (linger_turn_) {
    if (now - last_pass_ > kTurnTooLong) {
      linger_ban_ = linger_penalty_ = std::min(2 * linger_penalty_ + kFirstPenalty, kMostPenalty);
    } else if (linger_penalty_ != 0) {
      --linger_penalty_;
    }
  }
  linger_turn_ = false;
  last_pass_ = now;
  take_doorbells(now);
  bool did = false;
  if (!dead()) {
    did |= receive_frames(now) != 0;
    take_notices(now);
  }
  run_timers(now);
  if (!dead()) did |= transmit(now) != 0;
  if (error_count_ != 0) flush_errors();
  finish(now);
  return did;
}

/// What a pass and a command end with: frames out, then completions (nic_rules 4), then the next time to look.
void Device::finish(Instant now) {
  if (overrun_seen_) fail_after_overrun(now);
  if (!dead() && port_.flush()) kick();
  show_counters();
  publish_completions();
  if (cqs_owed_ != 0) retry_announcements();
  if (untold_) tell_untold();
  if (events_kept_) retry_events(now);
  set_deadline(now);
}

void Device::set_deadline(Instant now) {
  Instant next = timers_.next();
  if (active_count_ != 0 && !dead()) next = std::min(next, now + kThreadTakesOver);
  if (error_count_ != 0) next = std::min(next, now + kErrorRescan);
  if (cqs_owed_ != 0 || untold_) next = std::min(next, now + kAnnounceAgain);
  if (events_kept_) next = std::min(next, event_retry_at_);
  const int64_t ticks = next.time_since_epoch().count();
  next_deadline_.store(ticks, std::memory_order_relaxed);
  busy_.store(active_count_ + error_count_ + cqs_owed_, std::memory_order_relaxed);
  if (ticks < thread_deadline_.load(std::memory_order_relaxed)) {
    // Once: the thread is on its way from here on.
    thread_deadline_.store(INT64_MIN, std::memory_order_relaxed);
    wake_wanted_ = true;
  }
}

void Device::kick() {
  const int saved = errno;
  const char byte = 1;
  // A full pipe means that the daemon has kicks enough; a broken one is found by the thread.
  (void)!syscall(SYS_write, kick_fd_, &byte, sizeof byte);
  errno = saved;
}

// --- doorbells, timers, notices ------------------------------------------------------------------------------

void Device::ring(uint32_t qp_index) {
  if (qp_index >= kMaxQps) return;
  doorbells_[qp_index / 64].fetch_or(1ull << (qp_index % 64), std::memory_order_relaxed);
  doorbell_summary_.fetch_or(1ull << (qp_index / 64), std::memory_order_release);
}

void Device::take_doorbells(Instant now) {
  if (doorbell_summary_.load(std::memory_order_relaxed) == 0) return;
  uint64_t words = doorbell_summary_.exchange(0, std::memory_order_acquire);
  for (; words != 0; words &= words - 1) {
    const uint32_t word = static_cast<uint32_t>(__builtin_ctzll(words));
    uint64_t bits = doorbells_[word].exchange(0, std::memory_order_acquire);
    for (; bits != 0; bits &= bits - 1) {
      QueuePair* qp = qps_.at(word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)));
      if (qp == nullptr) continue;
      // Before the program polls for what it has just posted.
      qp->send_cq->sink->check();
      if (qp->receive_cq != qp->send_cq) qp->receive_cq->sink->check();
      if (qp->now_state() == QpState::kReadyToSend) activate(*qp);
      if (qp->now_state() >= QpState::kSendError) flush_sends(*qp);
    }
  }
}

void Device::run_timers(Instant now) {
  for (uint32_t i = 0; i < kMaxQps; ++i) {
    const uint32_t id = timers_.due(now);
    if (id == DeadlineHeap::kNone) return;
    QueuePair* qp = qps_.at(id);
    RcMachines* rc = qp != nullptr ? qp->rc() : nullptr;
    if (rc == nullptr || qp->now_state() < QpState::kReadyToSend || qp->now_state() == QpState::kError) continue;
    if (rc->requester.next_deadline() <= now) {
      rc->requester.on_timer(now);
      if (rc->requester.silent_timeouts() >= kSilentTimeouts) ask_for_peer(*qp);
      reap_sends(*qp, now);
      if (has_more(*qp, now)) activate(*qp);
    }
    if (qp->now_state() == QpState::kError) continue;
    // A machine that stays due is asked again in the next pass, not in this loop.
    timers_.schedule(id, std::max(rc->requester.next_deadline(), now + nanoseconds(1)));
  }
}

/// The fabric tells of frames that it lost, but not of a QP that its process does not serve: that is asked.
void Device::ask_for_peer(const QueuePair& qp) {
  Gid gid;
  std::copy_n(qp.route.dgid.begin(), sizeof gid, gid);
  platform_.peer_silent(welcome_.nic, gid, qp.attributes.dest_qpn);
}

void Device::peer_gone(const GidBytes& gid, uint32_t qpn, Instant now) {
  if (!usable()) return;
  CommandSection section(*this, now);
  const uint32_t scan = qps_.high_water();
  for (uint32_t i = 0; i < scan; ++i) {
    QueuePair* qp = qps_.at(i);
    RcMachines* rc = qp != nullptr ? qp->rc() : nullptr;
    if (rc == nullptr || qp->now_state() < QpState::kReadyToSend || qp->now_state() == QpState::kError) continue;
    if (qp->attributes.dest_qpn != qpn || qp->route.dgid != gid) continue;
    rc->requester.on_notice(now, PathTrouble::kNobodyThere);
    if (qp->last_notice != attach::NoticeReason::kPeerDied) qp->last_notice = attach::NoticeReason::kNoSuchQpn;
    timers_.schedule(i, rc->requester.next_deadline());
  }
}

void Device::take_notices(Instant now) {
  attach::Notice notice;
  while (port_.next_notice(notice)) {
    ++counters_.notices;
    apply_notice(notice, now);
  }
}

void Device::apply_notice(const attach::Notice& notice, Instant now) {
  const bool everybody = notice.reason == attach::NoticeReason::kOverflow;
  const bool nobody_there =
      notice.reason == attach::NoticeReason::kPeerDied || notice.reason == attach::NoticeReason::kNoSuchQpn;
  // A process that dies takes its whole range of QPNs along.
  const uint32_t mask = notice.reason == attach::NoticeReason::kPeerDied ? ~qpn_mask_ : ~0u;
  const uint32_t scan = qps_.high_water();
  for (uint32_t i = 0; i < scan; ++i) {
    QueuePair* qp = qps_.at(i);
    RcMachines* rc = qp != nullptr ? qp->rc() : nullptr;
    if (rc == nullptr || qp->now_state() < QpState::kReadyToSend || qp->now_state() == QpState::kError) continue;
    const bool to_peer =
        qp->route.peer_ipv4 == notice.address && ((qp->attributes.dest_qpn ^ notice.qpn) & mask & kQpnMask) == 0;
    if (!everybody && !to_peer && notice.qpn != qp->qpn) continue;
    const bool later = to_peer && !everybody && notice.psn_first != rc->requester.oldest_psn();
    rc->requester.on_notice(now, nobody_there ? PathTrouble::kNobodyThere
                                 : later      ? PathTrouble::kLaterFrameLost
                                              : PathTrouble::kFrameLost);
    qp->last_notice = notice.reason;
    timers_.schedule(i, rc->requester.next_deadline());
  }
}

// --- the background thread -----------------------------------------------------------------------------------

/// Whether the thread had better give up the processor a few times than sleep. While frames keep coming and nobody
/// polls, a sleep and a kick each way cost more than the frames do. But beside a program that spins on memory a thread
/// that yields waits for the end of a time slice, where one that sleeps is let in at once (nic_rules 3): a turn that
/// took long bans this for a while.
bool Device::linger_on() {
  const uint32_t polls = polls_.load(std::memory_order_relaxed);
  const bool polled = polls != seen_polls_;
  const bool frames = counters_.frames_in != seen_frames_;
  seen_polls_ = polls;
  seen_frames_ = counters_.frames_in;
  if (linger_ban_ != 0) {
    --linger_ban_;
    return false;
  }
  if (polled) {
    linger_left_ = 0;
  } else if (frames) {
    linger_left_ = kLingerTurns;
  }
  if (linger_left_ == 0) return false;
  --linger_left_;
  linger_turn_ = true;
  return true;
}

bool Device::prepare_sleep() {
  if (!usable()) return true;
  bool linger = false;
  {
    LockGuard guard(lock_);
    if (active_count_ != 0 && !starved_ && !dead()) return false;
    linger = !dead() && linger_on();
    if (!linger && !dead() && !port_.prepare_sleep(starved_)) return false;
    if (!linger) thread_deadline_.store(next_deadline_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  if (linger) {
    port_.note_poll();
    sched_yield();
    return false;
  }
  if (pending_.load(std::memory_order_seq_cst) == 0) return true;
  // Somebody met our lock and left a mark.
  woke();
  return false;
}

void Device::woke() {
  if (!usable()) return;
  thread_deadline_.store(INT64_MIN, std::memory_order_relaxed);
  port_.awake();
}

// --- events and the end --------------------------------------------------------------------------------------

void Device::add_listener(EventTarget& target) {
  target.next = listeners_;
  listeners_ = &target;
}

void Device::remove_listener(EventTarget& target) {
  for (EventTarget** link = &listeners_; *link != nullptr; link = &(*link)->next) {
    if (*link != &target) continue;
    *link = target.next;
    return;
  }
}

void Device::dispatch_event(uint32_t event_type, uint32_t port) {
  if (!usable()) return;
  if (event_type == kEventPortActive) port_up_.store(true, std::memory_order_relaxed);
  if (event_type == kEventPortError) port_up_.store(false, std::memory_order_relaxed);
  LockGuard guard(lock_);
  uint32_t ignored = 0;
  for (EventTarget* target = listeners_; target != nullptr; target = target->next)
    raise(target, port, event_type, ignored);
}

void Device::fatal(Instant now) {
  if (!usable()) return;
  {
    CommandSection section(*this, now);
    if (dead_.exchange(true)) return;
    for (uint32_t i = 0; i < qps_.high_water(); ++i) {
      QueuePair* qp = qps_.at(i);
      if (qp != nullptr && qp->now_state() != QpState::kReset && qp->now_state() != QpState::kError) to_error(*qp, now);
    }
    // Nothing is sent any more.
    for (QueuePair* qp = active_first_; qp != nullptr; qp = qp->next_active) qp->active = false;
    active_first_ = active_last_ = nullptr;
    active_count_ = 0;
  }
  dispatch_event(kEventDeviceFatal, 0);
}

bool Device::drain(Instant now, uint32_t attempts) {
  if (!usable() || dead()) return true;
  for (uint32_t i = 0; i < attempts; ++i) {
    try_progress(now);
    bool owed = false;
    if (lock_.try_lock()) {
      for (QueuePair* qp = active_first_; qp != nullptr && !owed; qp = qp->next_active) {
        owed = qp->rc() != nullptr && qp->rc()->responder.owes();
      }
      lock_.unlock();
      if (!owed) return true;
    }
    sched_yield();
  }
  return false;
}

CommandSection::~CommandSection() {
  device_.finish(now_);
  const bool wake = device_.wake_wanted_;
  device_.wake_wanted_ = false;
  device_.lock_.unlock();
  if (wake) device_.platform_.wake_thread();
  if (device_.pending_.load(std::memory_order_seq_cst) != 0) device_.try_progress(now_);
}

}  // namespace weft::nic
