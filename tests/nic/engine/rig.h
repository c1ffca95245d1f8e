// SPDX-License-Identifier: Apache-2.0
//
// Two (or more) NICs in one process for tests: ports in plain memory, a daemon made of a loop, time that only moves
// when a test moves it, and a client that speaks the uverbs ABI as libibverbs and the rxe provider do.
//
//   Rig rig(2);                         NICs 0 and 1, IPv4 198.18.0.1 and .2
//   Client a(rig, 0), b(rig, 1);
//   rig.run([&] { return ...; });       steps (daemon, every device, 1 us) until true; false after `limit` steps
#pragma once

#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_rxe.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <mutex>
#include <string>
#include <vector>

#include "nic/abi/context.h"
#include "nic/engine/device.h"
#include "protocols/attach/process_port.h"
#include "protocols/wire/roce_frame.h"

namespace weft::test {

class Rig;

/// Something in the rig is not as it must be. Catch tests: the test case fails (rig_catch.cc, in nic_rig_dep). Other
/// programs define it themselves. Does not return.
[[noreturn]] void rig_failed(const char* file, int line, const char* what);

class TestPlatform final : public nic::Platform {
 public:
  explicit TestPlatform(Rig& rig) : rig_(rig) {}
  int resolve(uint32_t nic, const nic::Gid& gid, nic::ResolvedPeer& out) override;
  int multicast(uint32_t nic, uint32_t qpn, const nic::Gid& gid, bool join) override;
  int map_ring(int command_fd, uint64_t bytes, nic::RingMemory& out) override;
  void unmap_ring(const nic::RingMemory& ring) override;
  void object_seen(char kind, uint64_t) override;
  void wake_thread() override { ++wakes; }
  bool qp_state(uint32_t, uint32_t, uint32_t state, uint32_t, uint32_t, const nic::Gid&, uint32_t mtu) override {
    if (deaf) return false;
    last_state = state;
    last_mtu = mtu;
    return true;
  }
  void explain(uint32_t, const nic::ErrorReport& report) override {
    const std::lock_guard guard(mutex_);
    reports.push_back(report);
  }

  void peer_silent(uint32_t, const nic::Gid&, uint32_t qpn) override {
    ++silences;
    silent_qpn = qpn;
  }

  std::atomic<uint32_t> silences{0};
  std::atomic<uint32_t> silent_qpn{0};
  std::vector<nic::ErrorReport> reports;
  std::atomic<bool> deaf{false};  ///< qp_state() cannot be told now
  std::atomic<uint32_t> last_mtu{0};
  std::multiset<GidBytes> groups;  ///< one entry per QP
  int multicast_error = 0;
  /// The engine's mapping of a ring, nullptr when there is none.
  uint8_t* ring_at(int command_fd, uint64_t offset);

  std::string seen;  ///< not in the one_mapping rig, whose commands run in several threads
  std::atomic<uint32_t> wakes{0};
  std::atomic<uint32_t> last_state{99};
  std::atomic<int64_t> rings_mapped{0};

 private:
  struct Mapped {
    int fd;
    nic::RingMemory ring;
  };
  Rig& rig_;
  std::mutex mutex_;
  std::vector<Mapped> mapped_;
};

struct RigOptions {
  uint32_t tx_slots = 256;
  uint32_t rx_slots = 256;
  uint32_t qpn_log2 = 14;
  uint32_t flags = 0;
  uint8_t active_mtu = 5;
  /// Programs use the engine's own mapping of a ring, so that a race detector sees both sides of it at one address.
  bool one_mapping = false;
};

/// A NIC with its port, both ends of it.
struct Node {
  uint32_t index = 0;
  attach::Welcome welcome{};
  attach::PortLayout layout{};
  uint8_t* memory = nullptr;
  std::unique_ptr<attach::StatusPage> status;
  std::unique_ptr<attach::NoticeRing> notices;
  attach::ProcessPort port;
  std::unique_ptr<TestPlatform> platform;
  nic::Device* device = nullptr;
  int kick[2] = {-1, -1};
  // The daemon's end.
  uint32_t tx_consumer[attach::kPriorities] = {};
  uint32_t tx_return_producer = 0;
  uint32_t rx_producer = 0;
  uint32_t rx_return_consumer = 0;
  std::vector<uint32_t> rx_free;
  uint64_t frames_from[attach::kPriorities] = {};

  attach::PortControl* control() { return reinterpret_cast<attach::PortControl*>(memory); }
};

/// The rig's time. Threads may read it while one moves it.
class RigClock {
 public:
  RigClock& operator=(Instant to) {
    value_.store(to.time_since_epoch().count(), std::memory_order_relaxed);
    return *this;
  }
  RigClock& operator+=(Duration by) { return *this = Instant(*this) + by; }
  operator Instant() const { return Instant(Duration(value_.load(std::memory_order_relaxed))); }
  friend Instant operator+(const RigClock& clock, Duration by) { return Instant(clock) + by; }
  friend Duration operator-(const RigClock& clock, Instant from) { return Instant(clock) - from; }

 private:
  std::atomic<int64_t> value_{0};
};

class Rig {
 public:
  explicit Rig(uint32_t nodes, const RigOptions& options = {});
  ~Rig();

  Node& node(uint32_t i) { return *nodes_[i]; }
  nic::Device& device(uint32_t i) { return *nodes_[i]->device; }
  uint32_t nodes() const { return static_cast<uint32_t>(nodes_.size()); }

  /// One round of the daemon, one pass of every device, one microsecond.
  void step();
  /// The daemon takes frames from this node only.
  void move_only(uint32_t i) { move_frames(*nodes_[i]); }
  bool run(const std::function<bool()>& done, uint32_t limit = 200000);
  void settle(uint32_t steps = 200);
  /// Writes a notice into the node's ring, as the daemon does for a frame it lost.
  void notify(uint32_t node, const attach::Notice& notice);

  RigClock now;
  Duration tick = microseconds(1);
  /// Called for every frame; false drops it. Counts frames in `seen`.
  std::function<bool(const RoceFrame&, uint32_t from)> filter;
  uint64_t frames = 0;
  uint64_t dropped = 0;
  bool daemon_stopped = false;
  const bool one_mapping;
  int resolve_error = 0;
  std::function<void()> while_resolving;

 private:
  void move_frames(Node& from);
  bool deliver(Node& from, const attach::SlotDescriptor& descriptor);
  bool deliver_to_group(const RoceFrame& frame, const uint8_t* payload, const attach::SlotDescriptor& descriptor);
  bool deliver_to(Node& to, const uint8_t* payload, const attach::SlotDescriptor& descriptor);
  void collect_rx(Node& node);

  std::vector<std::unique_ptr<Node>> nodes_;
};

/// A program's view of a ring: mapped through the memfd, indices as the rxe provider keeps them.
struct UserRing {
  uint8_t* base = nullptr;
  uint64_t bytes = 0;
  rxe_queue_buf* head() const { return reinterpret_cast<rxe_queue_buf*>(base); }
  uint8_t* at(uint32_t index) const {
    return base + 384 + (static_cast<uint64_t>(index & head()->index_mask) << head()->log2_elem_size);
  }
};

struct Cq {
  uint32_t handle = 0;
  uint32_t cqe = 0;
  uint64_t user_handle = 0;
  UserRing ring;
};

struct Qp {
  uint32_t handle = 0;
  uint32_t qpn = 0;
  uint32_t max_send_wr = 0, max_recv_wr = 0, max_send_sge = 0, max_recv_sge = 0, max_inline = 0;
  uint64_t user_handle = 0;
  uint8_t type = 2;
  UserRing send, receive;
};

struct Mr {
  uint32_t handle = 0, lkey = 0, rkey = 0;
};

struct Mw {
  uint32_t handle = 0, rkey = 0;
};

struct Srq {
  uint32_t handle = 0, number = 0;
  uint32_t max_wr = 0, max_sge = 0;
  uint64_t user_handle = 0;
  UserRing ring;
};

/// The answer to CREATE_SRQ: the core part and the rxe driver's.
struct CreatedSrq {
  uint32_t handle, max_wr, max_sge, srqn;
  mminfo map;
  uint32_t number, reserved;
};
static_assert(sizeof(CreatedSrq) == 40);

struct SrqOptions {
  uint32_t max_wr = 63, max_sge = 2, limit = 0, pd = 0;  ///< pd 0: the client's own
};

struct QpOptions {
  uint8_t type = 2;  // RC
  uint32_t send_wr = 64, recv_wr = 64, send_sge = 4, recv_sge = 4, inline_data = 0;
  bool signal_all = false;
  const Srq* srq = nullptr;
};

struct ConnectOptions {
  uint8_t mtu = 3;
  uint8_t timeout = 14, retry = 7, rnr_retry = 7, min_rnr_timer = 1;
  uint8_t rd_atomic = 16;
  uint8_t traffic_class = 0, sl = 0;
  uint32_t access = 0xf;
  uint32_t psn_a = 0xFFFFE0, psn_b = 0xFFFFF0;  // both wrap soon
  uint8_t sgid_index = 1;
};

struct Post {           // every member has a default, so that tests name only what matters
  uint32_t opcode = 2;  // SEND
  uint64_t wr_id = 0;
  uint32_t flags = 2;  // signaled
  uint32_t immediate = 0;
  uint64_t remote_addr = 0;
  uint32_t rkey = 0;
  uint64_t compare_add = 0, swap = 0;
  uint32_t remote_qpn = 0, remote_qkey = 0, ah_num = 0;
  nic::WindowBind bind = {};
  std::vector<rxe_sge> sges = {};
  std::string inline_data = {};
};

class Client {
 public:
  Client(Rig& rig, uint32_t node);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// A plain command; returns what write(2) would, or -errno.
  long plain(uint32_t number, const void* body, size_t body_bytes, size_t response_bytes);
  long raw(const void* data, size_t bytes) { return context->command(data, bytes, rig.now); }

  uint32_t alloc_pd();
  Mr reg_mr(const void* start, uint64_t length, uint32_t access = 0xf);
  long try_reg_mr(const void* start, uint64_t length, uint32_t access, uint64_t iova, Mr& out);
  long dereg_mr(const Mr& mr);
  long try_alloc_mw(uint8_t type, Mw& out);
  Mw alloc_mw(uint8_t type);
  long dealloc_mw(const Mw& mw);
  long rereg_mr(const Mr& mr, uint32_t flags, const void* start, uint64_t length, uint32_t access, uint32_t new_pd);
  int create_channel();
  Cq create_cq(uint32_t cqe = 256, int channel = -1);
  long destroy_cq(const Cq& cq, uint32_t* completion_events = nullptr, uint32_t* async_events = nullptr);
  long arm(const Cq& cq, bool solicited = false);
  Qp create_qp(const Cq& send, const Cq& receive, const QpOptions& options = {});
  long destroy_qp(const Qp& qp, uint32_t* events = nullptr);
  long modify(const Qp& qp, uint32_t mask, ib_uverbs_modify_qp& values);
  long to_state(const Qp& qp, uint8_t state);
  uint8_t query_state(const Qp& qp);
  long to_init(const Qp& qp, uint32_t access = 0xf, uint32_t qkey = 0x11111111);
  long to_rtr(const Qp& qp, uint32_t dest_qpn, uint32_t node, const ConnectOptions& options, uint32_t rq_psn);
  long to_rts(const Qp& qp, const ConnectOptions& options, uint32_t sq_psn);
  /// ATTACH_MCAST or DETACH_MCAST; what write(2) returns.
  long multicast(const Qp& qp, const GidBytes& group, bool attach);
  uint32_t create_group_ah(const GidBytes& group, uint8_t sgid_index = 1);
  uint32_t create_ah(uint32_t node, uint8_t sgid_index = 1, long* error = nullptr);

  /// As ibv_post_send: fills the ring and rings the doorbell.
  long post(const Qp& qp, const Post& post, bool doorbell = true);
  long ring_doorbell(const Qp& qp);
  /// The same without assertions, for threads.
  long post_quietly(const Qp& qp, const Post& post);
  void post_recv(const Qp& qp, uint64_t wr_id, const std::vector<rxe_sge>& sges);
  bool poll(const Cq& cq, ib_uverbs_wc& out);
  /// The next event of the async fd, without waiting; event_type 99: none.
  ib_uverbs_async_event_desc next_async();

  // rig_srq.cc
  long try_create_srq(const SrqOptions& options, Srq& out);
  Srq create_srq(const SrqOptions& options = {});
  /// mask: 1 max_wr, 2 limit. After a resize srq.ring is the new mapping.
  long modify_srq(Srq& srq, uint32_t mask, uint32_t max_wr, uint32_t limit);
  ib_uverbs_query_srq_resp query_srq(const Srq& srq);
  long destroy_srq(const Srq& srq, uint32_t* events = nullptr);
  void post_srq_recv(const Srq& srq, uint64_t wr_id, const std::vector<rxe_sge>& sges);

  UserRing map(const mminfo& info);
  void fill_address(uint32_t node, uint8_t sgid_index, ib_uverbs_qp_dest& out) const;

  Rig& rig;
  uint32_t node;
  int memfd = -1;
  int async_fd = -1;
  abi::Context* context = nullptr;
  uint32_t pd = 0;
  std::vector<int> fds;
  std::vector<UserRing> rings;

 private:
  uint64_t next_handle_ = 0x5500'0000'0000;
};

/// A connected pair of RC (or UC) QPs with their CQs.
struct Pair {
  Pair(Rig& rig, const QpOptions& qp = {}, const ConnectOptions& connect = {}, uint32_t cqe = 256);
  Client a, b;
  Cq a_cq, b_cq;
  Qp a_qp, b_qp;
};

void connect(Client& a, const Qp& a_qp, Client& b, const Qp& b_qp, const ConnectOptions& options = {});

/// The next completion of `cq`, which must be for that wr_id with that status.
ib_uverbs_wc expect_wc(Rig& rig, Client& client, const Cq& cq, uint64_t wr_id, uint32_t status = 0);

// ibv_wr_opcode, ibv_send_flags, ibv_wc_status
inline constexpr uint32_t kWrite = 0, kWriteImm = 1, kSend = 2, kSendImm = 3, kRead = 4, kCompareSwap = 5,
                          kFetchAdd = 6, kLocalInvalidate = 7, kBindWindow = 8, kSendInvalidate = 9, kAtomicWrite = 15;
inline constexpr uint32_t kFence = 1, kSignaled = 2, kSolicited = 4, kInline = 8;
inline constexpr uint32_t kLocLen = 1, kLocQpOp = 2, kLocProt = 4, kFlushErr = 5, kMwBindErr = 6, kRemInvReq = 9,
                          kRemAccess = 10, kRemOp = 11, kRetryExc = 12, kRnrRetryExc = 13;

inline rxe_sge sge(const void* address, uint32_t length, uint32_t lkey) {
  return {reinterpret_cast<uint64_t>(address), length, lkey};
}
inline std::vector<uint8_t> pattern(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> out(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out[i] = static_cast<uint8_t>(seed >> 24);
  }
  return out;
}

}  // namespace weft::test
