// SPDX-License-Identifier: Apache-2.0
//
// RC responder: the receiving half of a reliable connection, as a pulled machine (IBTA Vol 1, 9.7.4, 9.7.5).
//
//   adjust(...)           what MODIFY_QP may change of a QP that receives; resources beyond the new limit are dropped
//   on_request(now, ...)  a request packet. The Demand says what the engine has to do; it then calls settle() at once,
//                         unless need is kNothing (duplicates, out of sequence, malformed: handled inside).
//   settle(now, outcome)  accepts the packet (kDone) or records the NAK
//   pull(now, out)        answers owed: ACK, NAK, RNR NAK, READ responses, ATOMIC acknowledges. Never called from
//   inside
//                         on_request: receiving never waits for sending (nic_rules 1). What is owed is bounded by
//                         max_dest_rd_atomic resources + one acknowledge.
//   read_failed(now)      the engine could not read the memory of a READ response it pulled: a NAK is owed instead
//   fatal()               a NAK other than sequence or RNR was settled: the engine moves the QP to ERR after pulling it
//
// No allocation after configure(). Not thread-safe.
//
// Owed answers go out in the order of their requests: READ responses and ATOMIC acknowledges by PSN, then one ACK or
// NAK for everything up to now. A READ response acknowledges what came before it, so the ACK behind it may fall away.
//
// Duplicates (IBTA Vol 1, 9.7.5.1.4): SEND and WRITE are acknowledged again, once for any number; an atomic's result is
// sent again while one of the last max_dest_rd_atomic requests (an ATOMIC WRITE's answer likewise); a READ is checked and executed again, from any packet
// of the original to its end. Deviation: a duplicate READ that stops short of the original's end is dropped.
#pragma once

#include <array>
#include <cstdint>

#include "protocols/base/metrics.h"
#include "protocols/base/time.h"
#include "protocols/transport/segment.h"
#include "protocols/transport/work.h"

namespace weft {

struct ResponderConfig {
  uint32_t mtu_bytes = 1024;
  uint32_t dest_qpn = 0;   ///< the peer's, for answers
  uint32_t first_psn = 0;  ///< expected
  uint8_t max_dest_rd_atomic = 1;
  uint8_t min_rnr_timer = 12;  ///< code sent in RNR NAKs
  CounterBlock* counters = nullptr;  ///< of the NIC; rare events only
};

/// Counters since configure(); they wrap.
struct ResponderStats {
  uint32_t accepted = 0;
  uint32_t duplicates = 0;
  uint32_t out_of_sequence = 0;
  uint32_t rnr_naks = 0;
  uint32_t sequence_naks = 0;
  uint32_t malformed = 0;  ///< not a request, or a duplicate that cannot be repeated
};

class RcResponder {
 public:
  static constexpr uint32_t kMaxResources = 128;  ///< upper bound of max_dest_rd_atomic

  void configure(const ResponderConfig& config);
  void adjust(uint8_t max_dest_rd_atomic, uint8_t min_rnr_timer);
  Demand on_request(Instant now, const TransportHeader& header, uint32_t payload_bytes);
  void settle(Instant now, Outcome outcome, uint64_t atomic_original = 0);
  bool pull(Instant now, OutFrame& out);
  void read_failed(Instant now);
  bool owes() const { return answers_ != 0 || acknowledge_owed_ || nak_ != 0; }  ///< pull() would give a frame
  /// An ACK for a delivered message is still unsent (completions wait for it).
  bool owes_acknowledge() const { return acknowledge_owed_; }
  bool fatal() const { return fatal_; }

  const ResponderStats& stats() const { return stats_; }
  uint32_t expected_psn() const { return expected_; }

 private:
  /// A READ or atomic: what is still to be answered, and what a duplicate would ask for again.
  struct Resource {
    uint64_t va = 0;        ///< READ: of packet 0
    uint64_t original = 0;  ///< atomic: the value before
    uint32_t rkey = 0;
    uint32_t length = 0;
    uint32_t first_psn = 0;
    uint32_t packets = 0;
    uint32_t start = 0;   ///< packet that the answer under way began with: FIRST again after a re-request
    uint32_t cursor = 0;  ///< next packet to answer
    uint32_t msn = 0;
    bool atomic = false;        ///< answered by one packet, never executed again; ATOMIC WRITE too
    bool atomic_write = false;  ///< answered as a READ of nothing
    bool owed = false;      ///< cursor < packets is to be sent
    bool answered = false;  ///< was sent whole once; a newer request may take its place
  };

  enum class Pending : uint8_t { kNone, kMessage, kRead, kAtomic, kAtomicWrite, kReadAgain };

  Resource& resource(uint32_t number) { return resources_[number % kMaxResources]; }
  void count(NicCounter counter) {
    if (config_.counters != nullptr) config_.counters->add(counter);
  }
  Demand refuse(uint8_t syndrome);
  Demand on_message(const TransportHeader& header, uint32_t payload_bytes);
  Demand on_read(const TransportHeader& header, uint32_t payload_bytes);
  Demand on_atomic(const TransportHeader& header, uint32_t payload_bytes);
  Demand on_atomic_write(const TransportHeader& header, uint32_t payload_bytes);
  Demand on_duplicate(const TransportHeader& header, uint32_t payload_bytes);
  Demand read_again(const TransportHeader& header);
  Demand describe_message(const TransportHeader& header, uint32_t payload_bytes) const;
  bool resource_free() const;
  uint32_t find_resource(uint32_t psn) const;
  void owe(uint32_t number, uint32_t from);
  void add_resource(const Resource& r);
  void drop_oldest();
  void accept(uint32_t psns);
  void accept_message();
  void owe_acknowledge();
  void pull_read(Resource& r, OutFrame& out);
  void finish_answer(Resource& r);

  // Hot.
  uint32_t expected_ = 0;       ///< 24 bits
  uint32_t msn_ = 0;            ///< 24 bits
  uint32_t offset_ = 0;         ///< bytes of the current message accepted
  uint32_t message_bytes_ = 0;  ///< WRITE: from its RETH
  uint64_t message_va_ = 0;
  uint32_t message_rkey_ = 0;
  uint32_t acknowledge_psn_ = 0;  ///< the newest PSN that asked
  uint32_t answers_ = 0;          ///< resources that are owed
  uint32_t answer_ = 0;           ///< no resource before this number is owed
  uint32_t newest_ = 0;           ///< number of the next resource
  uint32_t oldest_ = 0;           ///< resources kept: [oldest_, newest_)
  uint32_t capacity_ = 1;
  uint32_t last_read_psn_ = 0;  ///< of the READ response pulled last
  uint32_t nak_psn_ = 0;
  uint8_t nak_ = 0;  ///< syndrome of the NAK that is owed, 0: none
  bool configured_ = false;
  bool in_message_ = false;
  bool message_is_write_ = false;
  bool gap_reported_ = false;  ///< a NAK was recorded and the expected packet has not come since
  bool acknowledge_owed_ = false;
  bool fatal_ = false;
  bool last_was_read_ = false;
  Pending pending_ = Pending::kNone;
  uint32_t pending_resource_ = 0;
  uint32_t pending_start_ = 0;
  MessagePacket pending_kind_{};
  TransportHeader pending_header_{};
  uint32_t pending_bytes_ = 0;
  ResponderConfig config_;
  ResponderStats stats_;
  std::array<Resource, kMaxResources> resources_{};
};

}  // namespace weft
