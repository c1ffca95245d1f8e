// SPDX-License-Identifier: Apache-2.0
//
// RC requester: the sending half of a reliable connection, as a pulled machine (IBTA Vol 1, 9.7).
//
//   configure(config)     once per RTS; forgets everything
//   adjust(config)        new timers, retries, READ limit and patience of a QP that is drained (SQD → SQD); the rest of
//                         the configuration stays
//   post(work)            appends one request; allowed while can_post()
//   pull(now, out)        gives the next frame this side wants on the wire, or false. Called only when a transmit slot
//   is
//                         at hand; a frame given is taken to be sent.
//   on_response(...)      ACK, NAK, RNR NAK, READ response, ATOMIC acknowledge; then placed() if the Placement is
//   wanted on_timer(now)         when next_deadline() is reached (or later) next_completion(out)  finished work,
//   strictly in order, one per posted work (signaled or not) fail(now, work, s)    the engine could not read the
//   payload of a frame it pulled: that work ends in `s` once all
//                         earlier work has completed; nothing after it is sent
//   flush()               the QP went to ERR: everything not completed completes as kFlushed
//   on_notice(now, kind)  the fabric knows of a loss or a death on this path since the last progress (patient timers)
//   failed()              a completion other than success was produced: the engine moves the QP to ERR
//
// Work is numbered from 0 since configure(). Time: picoseconds, an argument. No allocation after configure(). Not
// thread-safe.
//
// ACK requests: at the end of a message when it is signaled or the last one posted, every `ack_every` packets, and
// whenever the window closes.
//
// Retries. A timeout, a NAK for a sequence error and a READ response overtaken by a later acknowledge each cost one of
// `retry_count`; progress restores the budget. rnr_retry = n < 7 resends n times and fails at RNR NAK n + 1. A frame
// that is not what it should be (a PSN never sent, a response of the wrong length) is dropped and counted in stats().
//
// Patient (DECISIONS 12): a timeout without on_notice() since the last progress costs nothing and resends one packet as
// a probe, after T, 2T, 4T, then every 8T. A frame that was lost, the oldest or an answer, explains one timeout, but not
// those after it, whose own frames arrived; a death explains them all.
#pragma once

#include <array>
#include <cstdint>

#include "protocols/base/metrics.h"
#include "protocols/base/time.h"
#include "protocols/transport/work.h"

namespace weft {

struct RequesterConfig {
  uint32_t mtu_bytes = 1024;
  uint32_t dest_qpn = 0;
  uint32_t first_psn = 0;
  uint8_t timeout = 14;           ///< 4.096 us · 2^timeout; 0 = never
  uint8_t retry_count = 7;        ///< 1 + retry_count transmissions
  uint8_t rnr_retry = 7;          ///< 7 = for ever
  uint8_t max_rd_atomic = 1;      ///< READs and atomics outstanding; 0 means none may be posted (they never start)
  uint32_t window_packets = 256;  ///< unacknowledged request packets
  uint32_t ack_every = 32;
  bool patient = true;  ///< DECISIONS 12
  CounterBlock* counters = nullptr;  ///< of the NIC; rare events only
};

/// Counters since configure(); they wrap.
struct RequesterStats {
  uint32_t packets_sent = 0;
  uint32_t timeouts = 0;  ///< charged ones
  uint32_t probes = 0;    ///< timeouts that were not charged
  uint32_t sequence_naks = 0;
  uint32_t implied_naks = 0;  ///< a READ response was lost
  uint32_t rnr_naks = 0;
  uint32_t stale = 0;  ///< responses for PSNs that are not outstanding
  uint32_t malformed = 0;
};

/// What the fabric knows of a path.
enum class PathTrouble : uint8_t {
  kLaterFrameLost,  ///< not the oldest request: one that arrived would have been answered all the same
  kFrameLost,       ///< the oldest request that was not acknowledged, or an answer
  kNobodyThere,     ///< there is nobody to answer
};

/// Why failed(): for the people who ask. Meaningful for the statuses that the peer or its silence causes.
struct RequesterFailure {
  WorkStatus status = WorkStatus::kSuccess;
  uint8_t syndrome = 0;  ///< of the NAK, 0: none
  bool noticed = false;  ///< the fabric reported a loss since the last progress
  uint32_t psn = 0;      ///< the oldest that was not acknowledged
  uint32_t transmissions = 0;
  uint32_t timeouts = 0;  ///< of that PSN, charged ones
  Duration timeout = Duration::zero();
  WorkOpcode opcode = WorkOpcode::kSend;
  uint32_t rkey = 0;
  uint32_t length = 0;
  uint64_t remote_addr = 0;
};

class RcRequester {
 public:
  /// Works in flight that are kept here; more stay with the engine.
  static constexpr uint32_t kMaxWorks = 128;

  void configure(const RequesterConfig& config);
  void adjust(const RequesterConfig& config);
  bool can_post() const { return tail_ - reported_ < kMaxWorks; }
  void post(const SendWork& work);
  bool pull(Instant now, OutFrame& out);
  Placement on_response(Instant now, const TransportHeader& header, uint32_t payload_bytes);
  void placed(Instant now, bool ok);
  void on_timer(Instant now);
  void on_notice(Instant now, PathTrouble kind = PathTrouble::kFrameLost);
  void fail(Instant now, WorkNumber work, WorkStatus status);
  void flush();
  bool next_completion(SendCompletion& out);
  Instant next_deadline() const;
  bool failed() const { return failed_; }
  bool idle() const { return reported_ == tail_; }  ///< nothing posted whose completion has not been taken
  bool wants_to_send(Instant now) const;            ///< pull() would give a frame
  bool all_sent() const { return send_ == tail_; }  ///< nothing posted that has not left whole, retransmissions aside
  bool reads_outstanding() const { return reads_out_ != 0; }  ///< READs or atomics: what a fence waits for

  /// Timeouts in a row that were not charged; 0 after progress, or when timeouts are charged.
  uint32_t silent_timeouts() const { return backoff_; }
  const RequesterStats& stats() const { return stats_; }
  const RequesterFailure& failure() const { return failure_; }
  uint32_t oldest_psn() const { return una_ & kPsnMask; }  ///< the oldest PSN not acknowledged

 private:
  /// PSNs are kept modulo 2^32, so that all posted works lie within half of the circle (128 works of 2^23 packets are
  /// 2^30); their low 24 bits are what the wire carries.
  using LinearPsn = uint32_t;

  struct Entry {
    uint64_t remote_addr = 0;
    uint64_t compare_add = 0;
    uint64_t swap = 0;
    uint32_t length = 0;
    uint32_t immediate = 0;
    uint32_t rkey = 0;
    LinearPsn first_psn = 0;
    uint32_t packets = 0;  ///< PSNs; 0 for local works
    WorkOpcode opcode = WorkOpcode::kSend;
    bool signaled = false;
    bool solicited = false;
    bool fence = false;
  };
  static_assert(sizeof(Entry) <= 64);

  const Entry& entry(WorkNumber work) const { return works_[work % kMaxWorks]; }
  bool stopped() const { return failed_ || flushed_ || !configured_; }
  bool outstanding() const { return next_ != una_; }
  void skip_sent_works();
  void fill_message(const Entry& work, uint32_t index, OutFrame& out) const;
  void fill_read_or_atomic(const Entry& work, uint32_t index, OutFrame& out) const;

  bool acknowledge(LinearPsn to, Instant now);
  void complete_head();
  void made_progress(Instant now);
  Placement on_read_response(Instant now, LinearPsn psn, const TransportHeader& header, uint32_t payload_bytes);
  Placement on_atomic_acknowledge(Instant now, LinearPsn psn);
  void on_acknowledge(Instant now, LinearPsn psn, uint8_t syndrome);
  void on_nak(Instant now, LinearPsn psn, uint8_t syndrome);
  void on_rnr_nak(Instant now, LinearPsn psn, uint8_t timer);
  void accept_data(Instant now);
  void implied_nak();
  void retry();
  void rewind();
  void stop_at(WorkNumber work, WorkStatus status);
  void fail_head(WorkStatus status, uint8_t syndrome = 0);
  void count(NicCounter counter) {
    if (config_.counters != nullptr) config_.counters->add(counter);
  }
  Duration interval() const;

  // Hot: all of it fits three cache lines.
  WorkNumber reported_ = 0;     ///< completions given out
  WorkNumber done_ = 0;         ///< acknowledged whole; the work that una_ belongs to
  WorkNumber send_ = 0;         ///< the work that next_ belongs to
  WorkNumber tail_ = 0;         ///< works posted
  LinearPsn una_ = 0;           ///< oldest PSN not acknowledged
  LinearPsn next_ = 0;          ///< next PSN to send
  LinearPsn max_sent_ = 0;      ///< one past the newest PSN ever sent: what a valid response may name
  LinearPsn post_psn_ = 0;      ///< first PSN of the next work posted
  uint32_t in_flight_ = 0;      ///< request packets in [una_, next_); a READ counts as one
  uint32_t window_ = 0;         ///< packets that may be in flight now; 1 while probing
  uint32_t since_request_ = 0;  ///< packets since the last AckReq
  uint32_t mtu_shift_ = 10;
  uint8_t reads_out_ = 0;  ///< READs and atomics in flight
  uint8_t retries_left_ = 0;
  uint8_t rnr_left_ = 0;
  uint8_t backoff_ = 0;  ///< doublings of the probe interval
  bool configured_ = false;
  bool failed_ = false;
  bool flushed_ = false;
  bool error_taken_ = false;
  bool stop_ = false;       ///< nothing from stop_work_ on is sent; it ends in stop_status_
  bool noticed_ = false;    ///< the fabric reported a loss since the last progress
  bool charge_ = false;     ///< patient: the next timeout counts
  bool lasting_ = false;    ///< patient: all of them do
  bool nak_counts_ = true;  ///< a NAK for una_ has not caused a retry yet
  bool placing_ = false;    ///< a Placement is with the engine
  WorkStatus stop_status_ = WorkStatus::kSuccess;
  WorkNumber stop_work_ = 0;
  Duration timeout_ = Duration::max();
  Instant deadline_ = kNever;           ///< of the acknowledge; meaningful while outstanding()
  Instant rnr_until_ = Instant::min();  ///< nothing is sent before
  RequesterConfig config_;
  RequesterStats stats_;
  LinearPsn timed_out_psn_ = 0;  ///< the timeouts counted are of this one
  uint32_t timeouts_of_psn_ = 0;
  RequesterFailure failure_;
  std::array<Entry, kMaxWorks> works_{};
};

}  // namespace weft
