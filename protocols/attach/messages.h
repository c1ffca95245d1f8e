// SPDX-License-Identifier: Apache-2.0
//
// The attach channel: fixed 256-byte messages over a SOCK_SEQPACKET socket of a host (`<run folder>/hosts/<host>/attach`).
//
//   program                         daemon
//   HELLO {version, nics, pid} ->
//                               <-  WELCOME (one per NIC) + 5 descriptors: port memfd, kick pipe to read, kick pipe to
//                                   write, status memfd (read-only, one per fabric), notice memfd (read-only, per port)
//                               <-  or REFUSED {errno, text}
//   RESOLVE {gid} ->            <-  RESOLVED {errno, mac}          one outstanding per channel; `tag` is echoed
//   MCAST {gid, qpn, join} ->   <-  RESOLVED {errno}
//   QP_STATE {qpn, state, peer} ->                                  no answer; for `weft show qps`
//   QP_ERROR {qpn, status, …} ->                                    no answer; a completion with an error, and why
//   COUNTERS {nic, name} ->     <-  COUNTERS {errno, value}         the value of a sysfs file; also without a HELLO
//                               <-  EVENT {event type, port}        ibv_event_type numbers
//   BYE ->                                                          orderly detach; then close
//
// Integers are host-endian (same machine). Unknown types and wrong sizes end the channel. The daemon treats every field
// as hostile; a program trusts its daemon. Sizes and offsets are asserted; any change raises kAttachVersion.
#pragma once

#include <cstdint>
#include <type_traits>

namespace weft::attach {

inline constexpr uint32_t kAttachVersion = 2;
inline constexpr uint32_t kMessageBytes = 256;
inline constexpr uint32_t kMaxNicsPerHost = 32;

enum class MessageType : uint32_t {
  kHello = 1,
  kWelcome = 2,
  kRefused = 3,
  kResolve = 4,
  kResolved = 5,
  kMulticast = 6,
  kQpState = 7,
  kCounters = 8,
  kEvent = 9,
  kBye = 10,
  kFaultArm = 11,    // reserved for fault scenarios
  kFaultFired = 12,  // reserved for fault scenarios
  kPeerQuery = 20,
  kPeerGone = 21,
  kQpError = 13,
};

struct MessageHead {
  MessageType type;
  uint32_t tag;  ///< chosen by the asker, echoed by the answer
};

struct Hello {
  MessageHead head;
  uint32_t version;
  uint32_t nic_count;  ///< NICs wanted; 0 = all of the host
  int32_t pid;         ///< informative only: SO_PEERCRED decides
  uint32_t reserved;
  char program[64];    ///< NUL-terminated, for `weft show hosts`
  uint64_t run_id;     ///< WEFT_RUN_ID of the environment, 0 when absent: tells `weft run` that its program attached
  uint8_t unused[160];
};

/// One per NIC. Descriptors ride on the message as SCM_RIGHTS in the order of WelcomeDescriptor.
struct Welcome {
  MessageHead head;
  uint32_t version;
  uint32_t seat;          ///< dense per fabric
  uint32_t nic;           ///< 0 is rxe0
  uint32_t nic_count;     ///< how many WELCOMEs this HELLO gets
  uint32_t qpn_base;      ///< first QPN of the process's range
  uint32_t qpn_log2;      ///< its size; 14
  uint32_t tx_slots;      ///< powers of two
  uint32_t rx_slots;
  uint32_t slot_payload;  ///< 4096
  uint32_t port_bytes;    ///< size of the port memfd; must equal port_layout(…).total
  uint8_t mac[6];
  uint8_t active_mtu;     ///< ibv_mtu: 1..5
  uint8_t gid_count;      ///< entries in use, from gid_first on
  uint32_t ipv4;          ///< host order
  uint64_t node_guid;     ///< host order
  uint8_t gids[4][16];
  uint64_t rate_bps;      ///< of the NIC's link: active speed and width follow
  uint32_t flags;         ///< kWelcome… bits
  uint32_t max_qp;
  uint32_t max_qp_wr;
  uint32_t max_cq;
  uint32_t max_cqe;
  uint32_t max_mr;
  uint32_t max_pd;
  uint32_t max_ah;
  uint32_t max_srq;
  uint32_t max_qp_rd_atom;
  char device[16];        ///< "rxe0"
  uint16_t gid_first;     ///< index of gids[0]; what is before it is empty
  uint16_t gid_table;     ///< entries of the GID table, used or not
  uint32_t max_mcast_grp;
  uint32_t max_mcast_qp_attach;  ///< QPs of one group
  uint8_t unused[44];
};
inline constexpr uint32_t kWelcomeStrictTimers = 1;  ///< `timers: strict`: every timeout is charged
inline constexpr uint32_t kWelcomePortDown = 2;      ///< the port is down; EVENT tells when that changes

enum class WelcomeDescriptor : uint32_t { kPort, kKickRead, kKickWrite, kStatus, kNotices, kCount };

struct Refused {
  MessageHead head;
  int32_t error;  ///< errno
  uint32_t version;  ///< the daemon's
  char text[192];  ///< one line for people, NUL-terminated
  uint8_t unused[48];
};

struct Resolve {
  MessageHead head;
  uint32_t nic;
  uint32_t reserved;
  uint8_t gid[16];
  uint8_t unused[224];
};

struct Resolved {
  MessageHead head;
  int32_t error;  ///< 0 or errno (ETIMEDOUT: nobody owns it)
  uint8_t mac[6];
  uint8_t outside;  ///< 1: the peer is outside the fabric: strict timers
  uint8_t reserved;
  uint32_t ipv4;    ///< the owner's address, host order: what notices name it by, whichever of its GIDs was asked for; or 0
  uint8_t unused[232];
};

/// Process to daemon: a patient requester hears nothing from that QP. PeerGone is the answer when nobody serves it (it
/// never was, was destroyed, is in RESET, INIT or ERR); a peer that is merely slow or stopped gets none.
struct PeerQuery {
  MessageHead head;
  uint32_t nic;
  uint32_t qpn;
  uint8_t gid[16];
  uint8_t unused[224];
};

struct PeerGone {
  MessageHead head;
  uint32_t nic;  ///< as asked
  uint32_t qpn;
  uint8_t gid[16];
  uint8_t unused[224];
};

struct Multicast {
  MessageHead head;
  uint32_t nic;
  uint32_t qpn;
  uint32_t join;  ///< 1 join, 0 leave
  uint32_t reserved;
  uint8_t gid[16];
  uint8_t unused[216];
};

struct QpState {
  MessageHead head;
  uint32_t nic;
  uint32_t qpn;
  uint32_t state;  ///< ibv_qp_state; 7 = destroyed
  uint32_t type;   ///< ibv_qp_type
  uint32_t peer_qpn;
  uint32_t mtu;
  uint8_t peer_gid[16];
  uint8_t unused[208];
};

struct QpError {
  MessageHead head;
  uint32_t nic;
  uint32_t qpn;
  uint32_t status;  ///< ibv_wc_status
  uint32_t side;    ///< 0 a send's completion, 1 a receive's, 2 a refused request of the peer, which is no completion
  char because[200];  ///< one line for people, NUL-terminated
  uint8_t unused[32];
};

struct Counters {
  MessageHead head;
  uint32_t nic;
  uint32_t folder;  ///< 0: ports/1/counters, 1: ports/1/hw_counters
  int32_t error;    ///< of the answer: 0, or ENOENT
  uint32_t reserved;
  uint64_t value;   ///< of the answer
  char name[64];    ///< the file's, NUL-terminated
  uint8_t unused[160];
};

struct Event {
  MessageHead head;
  uint32_t nic;
  uint32_t event;  ///< ibv_event_type
  uint32_t port;
  uint32_t reserved;
  uint8_t unused[232];
};

struct Bye {
  MessageHead head;
  uint8_t unused[248];
};

template <typename T>
inline constexpr bool kIsMessage = sizeof(T) == kMessageBytes && std::is_trivially_copyable_v<T>;
static_assert(kIsMessage<Hello> && kIsMessage<Welcome> && kIsMessage<Refused> && kIsMessage<Resolve>);
static_assert(kIsMessage<Resolved> && kIsMessage<Multicast> && kIsMessage<QpState> && kIsMessage<Counters>);
static_assert(kIsMessage<Event> && kIsMessage<Bye> && kIsMessage<PeerQuery> && kIsMessage<PeerGone>);
static_assert(kIsMessage<QpError>);

}  // namespace weft::attach
