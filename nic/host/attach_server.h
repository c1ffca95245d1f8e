// SPDX-License-Identifier: Apache-2.0
//
// The daemon's end of the attach channel (protocols/attach/messages.h): listens on one SEQPACKET socket per host, gives
// every process a seat and a QPN range, makes its port, and takes both back when the process leaves or dies.
//
//   AttachServer server(plan, sink, settings);
//   if (std::string e = server.listen(host, "h0", path); !e.empty()) …     one line for people
//   poll event_fd() for reading, then    server.on_ready(now)              never blocks
//   at next_deadline()                   server.on_timer(now)
//
// A process is dead when its pidfd is readable or its socket ends (nic_rules 4). Whatever a client sends is hostile: a
// message of the wrong size, an unknown type, a field out of range or an answer that is not fetched ends that client
// with a reason and nobody else notices. `now` is an argument; only the control thread calls.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "nic/host/identity.h"
#include "nic/host/qpn_ranges.h"
#include "nic/host/sysfs_counters.h"
#include "protocols/attach/messages.h"
#include "protocols/attach/port_layout.h"
#include "protocols/base/time.h"

namespace weft::host {

using SeatId = uint32_t;

/// A port as the data plane receives it; mappings and descriptors become its own when attach() returns 0.
struct SeatPort {
  uint32_t host = 0;
  uint32_t nic = 0;
  SeatId seat = 0;
  uint32_t qpn_base = 0;
  uint32_t qpn_log2 = kQpnRangeLog2;
  attach::PortLayout layout{};
  uint8_t* memory = nullptr;
  attach::NoticeRing* notices = nullptr;
  int kick_read = -1;
  int kick_write = -1;
};

/// What the server needs of the data plane.
class PortSink {
 public:
  virtual ~PortSink() = default;
  virtual int attach(const SeatPort& port) = 0;  ///< 0 or errno
  virtual void detach(SeatId seat, uint32_t nic, bool died) = 0;
  /// The port joins or leaves a multicast group; 0 or errno.
  virtual int set_member(SeatId seat, uint32_t nic, const Gid& group, bool join) = 0;
  virtual PortCounters counters(uint32_t host, uint32_t nic) = 0;
  /// Asks outside the fabric who owns an address. 0: the answer comes by AttachServer::on_resolved with the token; else
  /// errno at once, ETIMEDOUT where there is no outside.
  virtual int resolve(uint64_t token, uint32_t host, uint32_t nic, const Gid& gid) = 0;
  virtual int status_memfd() const = 0;
};

/// The last error of a QP.
struct QpErrorRecord {
  uint64_t count = 0;   ///< of errors so far
  uint32_t status = 0;  ///< ibv_wc_status
  uint32_t side = 0;    ///< as in attach::QpError
  std::string because;
};

struct QpRecord {
  uint32_t nic = 0;
  uint32_t state = 0;
  uint32_t type = 0;
  uint32_t peer_qpn = 0;
  uint32_t mtu = 0;
  Gid peer_gid{};
  QpErrorRecord error;
};

/// A QP that had an error and is gone, with its process or without.
struct PastQp {
  uint32_t host = 0;
  uint32_t qpn = 0;
  int32_t pid = 0;
  std::string program;
  QpRecord qp;
};

/// An attached process, for `weft show`.
struct Seat {
  SeatId id = 0;
  uint32_t host = 0;
  int32_t pid = 0;  ///< 0 across pid namespaces
  uint32_t uid = 0;
  uint32_t nics = 0;
  uint32_t range = 0;
  uint64_t run_id = 0;
  std::string program;
  std::map<uint32_t, QpRecord> qps;  ///< by QPN; bounded by the range
  /// Its QPs in multicast groups, by NIC and group; kMaxMemberships in all.
  std::map<std::pair<uint32_t, Gid>, std::set<uint32_t>> groups;
  uint32_t memberships = 0;
};

/// What happened under one `weft run`.
struct RunRecord {
  uint32_t attachments = 0;
  uint64_t qps = 0;
  std::string last_program;
};

struct AttachSettings {
  uint32_t owner_uid = 0;  ///< who may attach, besides root
  bool strict_timers = false;
  uint8_t active_mtu = 5;  ///< ibv_mtu
  uint32_t tx_slots = attach::kDefaultTxSlots;
  uint32_t rx_slots = attach::kDefaultRxSlots;
  uint32_t slot_payload = attach::kDefaultSlotPayload;
  Duration hello_time = seconds(5);  ///< a client that says nothing for this long is dropped
  std::function<void(const std::string&)> log;  ///< one line; may be empty
  std::function<void(uint32_t host)> left;      ///< a process of that host is gone; may be empty
};

struct AttachStatistics {
  uint64_t attached = 0;
  uint64_t refused = 0;
  uint64_t dropped = 0;  ///< broke the protocol
  uint64_t died = 0;     ///< ended without BYE
};

class AttachServer {
 public:
  AttachServer(const AddressPlan& plan, PortSink& sink, AttachSettings settings);
  AttachServer(const AttachServer&) = delete;
  AttachServer& operator=(const AttachServer&) = delete;
  ~AttachServer();

  std::string listen(uint32_t host, const std::string& name, const std::string& socket_path);

  int event_fd() const { return epoll_fd_; }
  void on_ready(Instant now);
  Instant next_deadline() const;
  void on_timer(Instant now);

  /// The data plane shut the port: its process gets IBV_EVENT_DEVICE_FATAL and the end of its channel.
  void drop_seat(SeatId seat, const std::string& reason, Instant now);

  /// A port went down or came up: its processes, and those to come, are told.
  void set_port(uint32_t host, uint32_t nic, bool up);
  /// What PortSink::resolve() came to.
  void on_resolved(uint64_t token, int error, const Mac& mac, Instant now);

  const std::map<SeatId, Seat>& seats() const { return seats_; }
  /// The last kMaxPastQps of them, oldest first.
  const std::deque<PastQp>& past_qps() const { return past_qps_; }
  const AttachStatistics& statistics() const { return statistics_; }
  RunRecord run_record(uint64_t run_id) const;
  std::string host_name(uint32_t host) const;

 private:
  struct Listener {
    int fd = -1;
    uint32_t host = 0;
    std::string name;
    std::string path;
    QpnRanges ranges;
  };
  struct Channel {
    uint64_t id = 0;
    int fd = -1;
    int pidfd = -1;
    uint32_t host = 0;
    int32_t pid = 0;
    uint32_t uid = 0;
    bool attached = false;
    SeatId seat = 0;
    Instant hello_until{};
    uint32_t asking = 0;  ///< questions to the outside that are not answered
  };
  struct Asked {
    uint64_t channel = 0;
    uint32_t tag = 0;
  };
  using Message = std::array<uint8_t, attach::kMessageBytes>;

  void accept_all(Listener& listener, Instant now);
  void admit(Listener& listener, int fd, Instant now);
  void refuse_for_descriptors(Listener& listener);
  void read_channel(uint64_t id, Instant now);
  bool handle(Channel& channel, const Message& message, Instant now);  ///< false: the channel is gone

  bool on_hello(Channel& channel, const attach::Hello& hello, Instant now);
  bool give_seat(Channel& channel, const attach::Hello& hello, uint32_t nics, Instant now);
  int attach_nic(Channel& channel, const Seat& seat, uint32_t nic, uint32_t tag);
  attach::Welcome welcome_of(const Seat& seat, uint32_t nic, uint32_t tag) const;
  bool on_resolve(Channel& channel, const attach::Resolve& resolve, Instant now);
  int ask_outside(Channel& channel, const attach::Resolve& resolve);
  bool on_multicast(Channel& channel, const attach::Multicast& multicast, Instant now);
  int join_group(Seat& seat, uint32_t nic, const Gid& group, uint32_t qpn);
  int leave_group(Seat& seat, uint32_t nic, const Gid& group, uint32_t qpn);
  bool on_qp_error(Channel& channel, const attach::QpError& error, Instant now);
  void remember(const Seat& seat, uint32_t qpn, const QpRecord& qp);
  bool on_qp_state(Channel& channel, const attach::QpState& qp, Instant now);
  bool on_peer_query(Channel& channel, const attach::PeerQuery& query, Instant now);
  bool serves(uint32_t host, uint32_t nic, uint32_t qpn) const;
  bool on_counters(Channel& channel, const attach::Counters& counters, Instant now);

  bool answer(Channel& channel, const void* message, Instant now);
  bool refuse(Channel& channel, int error, const std::string& text, Instant now);
  bool drop(Channel& channel, const std::string& reason, Instant now);
  void end(Channel& channel, bool died, Instant now);
  void leave_seat(Channel& channel, bool died, Instant now);
  RunRecord& run_of(uint64_t run_id);
  SeatId take_seat_id();
  int watch(int fd, uint64_t key);
  void log(const std::string& line) const;

  AddressPlan plan_;
  PortSink& sink_;
  AttachSettings settings_;
  int epoll_fd_ = -1;
  int status_fd_ = -1;   ///< our read-only view of the sink's page
  int reserve_fd_ = -1;  ///< given up for a moment when descriptors run out, to refuse with a reason
  uint64_t next_channel_ = 1;
  uint64_t next_question_ = 1;
  std::unordered_map<uint64_t, Asked> asked_;  ///< by token
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<uint64_t, Channel> channels_;
  std::map<uint32_t, uint32_t> silent_;  ///< per host: connections that have not said HELLO
  std::map<SeatId, Seat> seats_;
  std::vector<SeatId> free_seats_;  ///< oldest first
  SeatId next_seat_ = 0;
  std::set<std::pair<uint32_t, uint32_t>> ports_down_;  ///< host, NIC
  std::deque<PastQp> past_qps_;
  std::unordered_map<uint64_t, RunRecord> runs_;
  std::vector<uint64_t> run_order_;
  AttachStatistics statistics_;
};

}  // namespace weft::host
