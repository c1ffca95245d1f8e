// SPDX-License-Identifier: Apache-2.0
//
// The registry of what a NIC's transport counts (DECISIONS 31): an index, the metric's name (labels host, nic), and the
// files of `hw_counters` that show it, under the names of the kernel's soft-RoCE and of mlx5.
//
// Counters lie in the port memory of each process (protocols/attach/port_layout.h). The process's engine adds, under its
// lock; the daemon reads when somebody asks, and takes the last values when the process is gone, however it went. A sum
// over a NIC is the sum over its processes, the gone ones included.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

enum class NicCounter : uint32_t {
  kSentPackets,
  kReceivedPackets,
  kDuplicateRequest,     ///< responder: a request packet seen before
  kOutOfSequence,        ///< responder: a request packet ahead of the expected one
  kPacketSequenceError,  ///< requester: NAK, sequence error
  kImpliedNak,           ///< requester: a response overtaken by a later acknowledge
  kAckTimeout,           ///< requester: the ACK timer ran out, charged or not (DECISIONS 12)
  kRnrNakReceived,
  kRnrNakSent,
  kOutOfBuffer,          ///< a message met an empty receive queue: RNR NAKs of RC, drops of UC and UD
  kRetries,              ///< requester: went back for a timeout or a lost packet
  kRetryExceeded,
  kRnrRetryExceeded,
  kRequesterError,       ///< completions of send works with an error, flushes apart
  kRequesterFlush,
  kResponderError,       ///< the same of receives
  kResponderFlush,
  kRequesterRemoteAccess,
  kRequesterRemoteInvalid,
  kRequesterRemoteOperation,
  kResponderRemoteAccess,  ///< responder: refused a request for its key, range or rights
  kResponderLocalLength,
  kSends,                  ///< SENDs completed
  kReceives,               ///< receives completed by a SEND
  kWriteRequests,          ///< responder: WRITEs accepted, by their first packet
  kReadRequests,
  kAtomicRequests,
  kWrongQkey,
  kMalformed,
  kCount,
};
inline constexpr uint32_t kNicCounters = static_cast<uint32_t>(NicCounter::kCount);

struct NicCounterInfo {
  const char* metric;
  const char* files[2];  ///< of hw_counters; nullptr: none
};

inline constexpr NicCounterInfo kNicCounterInfo[] = {
    {"sent_pkts", {"sent_pkts", nullptr}},
    {"rcvd_pkts", {"rcvd_pkts", nullptr}},
    {"duplicate_request", {"duplicate_request", nullptr}},
    {"out_of_sequence", {"out_of_seq_request", "out_of_sequence"}},
    {"packet_seq_err", {"rcvd_seq_err", "packet_seq_err"}},
    {"implied_nak_seq_err", {"implied_nak_seq_err", nullptr}},
    {"local_ack_timeout_err", {"local_ack_timeout_err", nullptr}},
    {"rnr_nak_retry_err", {"rcvd_rnr_err", "rnr_nak_retry_err"}},
    {"send_rnr_err", {"send_rnr_err", nullptr}},
    {"out_of_buffer", {"out_of_buffer", nullptr}},
    {"completer_retry_err", {"completer_retry_err", nullptr}},
    {"retry_exceeded_err", {"retry_exceeded_err", "req_transport_retries_exceeded"}},
    {"retry_rnr_exceeded_err", {"retry_rnr_exceeded_err", "req_rnr_retries_exceeded"}},
    {"req_cqe_error", {"req_cqe_error", nullptr}},
    {"req_cqe_flush_error", {"req_cqe_flush_error", nullptr}},
    {"resp_cqe_error", {"resp_cqe_error", nullptr}},
    {"resp_cqe_flush_error", {"resp_cqe_flush_error", nullptr}},
    {"req_remote_access_errors", {"req_remote_access_errors", nullptr}},
    {"req_remote_invalid_request", {"req_remote_invalid_request", nullptr}},
    {"req_remote_operation_errors", {nullptr, nullptr}},
    {"resp_remote_access_errors", {"resp_remote_access_errors", nullptr}},
    {"resp_local_length_error", {"resp_local_length_error", nullptr}},
    {"rdma_sends", {"rdma_sends", nullptr}},
    {"rdma_recvs", {"rdma_recvs", nullptr}},
    {"rx_write_requests", {"rx_write_requests", nullptr}},
    {"rx_read_requests", {"rx_read_requests", nullptr}},
    {"rx_atomic_requests", {"rx_atomic_requests", nullptr}},
    {"rx_wrong_qkey", {nullptr, nullptr}},
    {"rx_malformed", {nullptr, nullptr}},
};
static_assert(sizeof kNicCounterInfo / sizeof kNicCounterInfo[0] == kNicCounters);

constexpr const NicCounterInfo& nic_counter_info(NicCounter counter) {
  return kNicCounterInfo[static_cast<uint32_t>(counter)];
}

/// One process's counters. One writer; readers anywhere.
class CounterBlock {
 public:
  static constexpr uint32_t kRoom = 64;  ///< more may come without moving anything

  void add(NicCounter counter, uint64_t n = 1) { set(counter, get(counter) + n); }
  void set(NicCounter counter, uint64_t value) {
    value_[static_cast<uint32_t>(counter)].store(value, std::memory_order_relaxed);
  }
  uint64_t get(NicCounter counter) const {
    return value_[static_cast<uint32_t>(counter)].load(std::memory_order_relaxed);
  }

 private:
  std::atomic<uint64_t> value_[kRoom];
};
static_assert(kNicCounters <= CounterBlock::kRoom && sizeof(CounterBlock) == 8 * CounterBlock::kRoom);

}  // namespace weft
