// SPDX-License-Identifier: Apache-2.0
//
// What the messages of the attach channel do. Every field is a stranger's word and is checked before it is used.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "nic/host/attach_server.h"
#include "nic/host/port_memory.h"
#include "protocols/base/assert.h"

namespace weft::host {
namespace {

using attach::MessageType;

constexpr uint32_t kQpnMask = 0xFFFFFF;
constexpr uint32_t kQpStateReadyToReceive = 2;
constexpr uint32_t kQpStateError = 6;
constexpr uint32_t kQpStateDestroyed = 7;
constexpr uint32_t kLastQpState = 7;
constexpr size_t kMaxPastQps = 256;
constexpr uint32_t kMaxAsking = 8;  // one at a time is the rule; a late answer may cross the next question
constexpr uint32_t kMaxMemberships = 1u << 18;  // a process has 4096 QPs; a hostile one has a bound

template <typename T>
T message_as(const std::array<uint8_t, attach::kMessageBytes>& bytes) {
  static_assert(attach::kIsMessage<T>);
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// A name for people: printable, ended, at most what the field holds.
std::string printable(const char* text, size_t size) {
  std::string clean;
  for (size_t i = 0; i < size && text[i] != '\0'; ++i) {
    clean += text[i] > ' ' && text[i] < 127 ? text[i] : '?';
  }
  return clean.empty() ? "?" : clean;
}

Gid gid_of(const uint8_t (&raw)[16]) {
  Gid gid;
  std::memcpy(gid.data(), raw, gid.size());
  return gid;
}

/// Which limit a port did not fit into, and whose it is.
std::string why_no_port(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
      return "the daemon has no file descriptors left; raise its limit (ulimit -n) and start it again";
    case EFBIG:
      return "a port is larger than the daemon's limit of file sizes; raise it (ulimit -f) and start it again";
    case ENOMEM:
    case ENOSPC:
      return "the machine, or the daemon's limit (ulimit -v, cgroup), has no memory left for a port";
    default:
      return "the daemon cannot make a port: " + std::string(std::strerror(error));
  }
}

int send_with_descriptors(int socket, const attach::Welcome& welcome, std::span<const int> descriptors) {
  iovec part{const_cast<attach::Welcome*>(&welcome), sizeof welcome};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * static_cast<size_t>(attach::WelcomeDescriptor::kCount))] = {};
  WEFT_ASSERT(CMSG_SPACE(descriptors.size_bytes()) <= sizeof control);
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof welcome) ? 0 : errno;
}

}  // namespace

bool AttachServer::handle(Channel& channel, const Message& message, Instant now) {
  const auto head = [&message] {
    attach::MessageHead h;
    std::memcpy(&h, message.data(), sizeof h);
    return h;
  }();
  if (head.type == MessageType::kHello) return on_hello(channel, message_as<attach::Hello>(message), now);
  if (head.type == MessageType::kCounters) return on_counters(channel, message_as<attach::Counters>(message), now);
  if (!channel.attached) return drop(channel, "did not begin with HELLO", now);
  switch (head.type) {
    case MessageType::kResolve:
      return on_resolve(channel, message_as<attach::Resolve>(message), now);
    case MessageType::kMulticast:
      return on_multicast(channel, message_as<attach::Multicast>(message), now);
    case MessageType::kQpState:
      return on_qp_state(channel, message_as<attach::QpState>(message), now);
    case MessageType::kPeerQuery:
      return on_peer_query(channel, message_as<attach::PeerQuery>(message), now);
    case MessageType::kQpError:
      return on_qp_error(channel, message_as<attach::QpError>(message), now);
    case MessageType::kBye:
      end(channel, false, now);
      return false;
    default:
      return drop(channel, "sent a message of unknown type " + std::to_string(static_cast<uint32_t>(head.type)), now);
  }
}

bool AttachServer::on_hello(Channel& channel, const attach::Hello& hello, Instant now) {
  if (channel.attached) return drop(channel, "said HELLO twice", now);
  if (hello.version != attach::kAttachVersion) {
    return refuse(channel, EPROTO,
                  "libweft.so speaks version " + std::to_string(hello.version) + " of the attach protocol, the daemon version " +
                      std::to_string(attach::kAttachVersion) + ": two installations of weft are mixed; weft down, then weft up with the right one",
                  now);
  }
  const uint32_t nics = hello.nic_count == 0 ? plan_.nics() : std::min(hello.nic_count, plan_.nics());
  return give_seat(channel, hello, nics, now);
}

bool AttachServer::give_seat(Channel& channel, const attach::Hello& hello, uint32_t nics, Instant now) {
  const auto listener = std::find_if(listeners_.begin(), listeners_.end(),
                                     [&channel](const auto& l) { return l->host == channel.host; });
  WEFT_ASSERT(listener != listeners_.end());
  const std::optional<uint32_t> range = (*listener)->ranges.take(now);
  if (!range) {
    return refuse(channel, EAGAIN,
                  "all 1022 QPN ranges of " + (*listener)->name + " are in use: so many programs are attached", now);
  }
  Seat seat;
  seat.id = take_seat_id();
  seat.host = channel.host;
  seat.pid = channel.pid;
  seat.uid = channel.uid;
  seat.nics = nics;
  seat.range = *range;
  seat.run_id = hello.run_id;
  seat.program = printable(hello.program, sizeof hello.program);
  for (uint32_t nic = 0; nic < nics; ++nic) {
    const int error = attach_nic(channel, seat, nic, hello.head.tag);
    if (error == 0) continue;
    for (uint32_t done = 0; done < nic; ++done) sink_.detach(seat.id, done, true);
    (*listener)->ranges.give_back(*range, now);
    free_seats_.push_back(seat.id);
    if (error == EPIPE || error == ECONNRESET) {
      end(channel, true, now);
      return false;
    }
    return refuse(channel, error, why_no_port(error), now);
  }
  channel.attached = true;
  channel.seat = seat.id;
  --silent_[channel.host];
  ++statistics_.attached;
  RunRecord& run = run_of(seat.run_id);
  ++run.attachments;
  run.last_program = seat.program;
  log("attached " + seat.program + " (process " + std::to_string(seat.pid) + ") on " + (*listener)->name + ", seat " +
      std::to_string(seat.id));
  seats_.emplace(seat.id, std::move(seat));
  return true;
}

int AttachServer::attach_nic(Channel& channel, const Seat& seat, uint32_t nic, uint32_t tag) {
  SeatPort port;
  port.host = seat.host;
  port.nic = nic;
  port.seat = seat.id;
  port.qpn_base = seat.range << kQpnRangeLog2;
  port.layout = attach::port_layout(settings_.tx_slots, settings_.rx_slots, settings_.slot_payload);
  PortMemory memory;
  int error = memory.create(port.layout, status_fd_);
  if (error != 0) return error;
  port.memory = memory.ours().memory;
  port.notices = memory.ours().notices;
  port.kick_read = memory.ours().kick_read;
  port.kick_write = memory.ours().kick_write;
  // First into the fabric, then to the process: what it publishes at once must find somebody.
  error = sink_.attach(port);
  if (error != 0) return error;
  memory.release_ours();
  error = send_with_descriptors(channel.fd, welcome_of(seat, nic, tag), memory.client_fds());
  if (error != 0) sink_.detach(seat.id, nic, true);
  return error;
}

attach::Welcome AttachServer::welcome_of(const Seat& seat, uint32_t nic, uint32_t tag) const {
  const NicIdentity id = plan_.nic(seat.host, nic);
  attach::Welcome w{};
  w.head = {MessageType::kWelcome, tag};
  w.version = attach::kAttachVersion;
  w.seat = seat.id;
  w.nic = nic;
  w.nic_count = seat.nics;
  w.qpn_base = seat.range << kQpnRangeLog2;
  w.qpn_log2 = kQpnRangeLog2;
  w.tx_slots = settings_.tx_slots;
  w.rx_slots = settings_.rx_slots;
  w.slot_payload = settings_.slot_payload;
  w.port_bytes = attach::port_layout(settings_.tx_slots, settings_.rx_slots, settings_.slot_payload).total;
  std::copy(id.mac.begin(), id.mac.end(), w.mac);
  w.active_mtu = settings_.active_mtu;
  w.gid_count = kGidCount;
  w.gid_first = static_cast<uint16_t>(id.gid_holes);
  w.gid_table = static_cast<uint16_t>(id.gid_table());
  w.ipv4 = id.ipv4;
  w.node_guid = id.guid;
  for (uint32_t i = 0; i < kGidCount; ++i) std::copy(id.gids[i].begin(), id.gids[i].end(), w.gids[i]);
  w.rate_bps = id.rate_bps;
  w.flags = settings_.strict_timers ? attach::kWelcomeStrictTimers : 0;
  if (ports_down_.count({seat.host, nic}) != 0) w.flags |= attach::kWelcomePortDown;
  // Modest, because test suites allocate up to what is advertised; perftest's UD and UC depths need 16384 (nic_rules 7).
  w.max_qp = 4096;
  w.max_qp_wr = 16384;
  w.max_cq = 4096;
  w.max_cqe = 32767;
  w.max_mr = 8192;
  w.max_pd = 1024;
  w.max_ah = 1024;
  w.max_srq = 1024;
  w.max_qp_rd_atom = 128;
  w.max_mcast_grp = 8192;  // soft-RoCE's figures
  w.max_mcast_qp_attach = 56;
  const std::string device = id.device();
  std::copy_n(device.data(), std::min(device.size(), sizeof w.device - 1), w.device);
  return w;
}

bool AttachServer::on_resolve(Channel& channel, const attach::Resolve& resolve, Instant now) {
  if (resolve.nic >= seats_.at(channel.seat).nics) return drop(channel, "named a NIC that it does not have", now);
  attach::Resolved resolved{};
  resolved.head = {MessageType::kResolved, resolve.head.tag};
  const Gid gid = gid_of(resolve.gid);
  if (const auto owner = plan_.find(gid)) {
    std::copy(owner->mac.begin(), owner->mac.end(), resolved.mac);
    resolved.ipv4 = owner->ipv4;
  } else if (const auto group = multicast_mac(gid)) {
    std::copy(group->begin(), group->end(), resolved.mac);
  } else {
    resolved.error = ask_outside(channel, resolve);
    if (resolved.error == 0) return true;  // answered when it is known
  }
  return answer(channel, &resolved, now);
}

int AttachServer::ask_outside(Channel& channel, const attach::Resolve& resolve) {
  if (channel.asking >= kMaxAsking) return EBUSY;
  const uint64_t token = next_question_++;
  const int error = sink_.resolve(token, channel.host, resolve.nic, gid_of(resolve.gid));
  if (error != 0) return error;
  asked_.emplace(token, Asked{channel.id, resolve.head.tag});
  ++channel.asking;
  return 0;
}

void AttachServer::on_resolved(uint64_t token, int error, const Mac& mac, Instant now) {
  const auto asked = asked_.find(token);
  if (asked == asked_.end()) return;
  const Asked question = asked->second;
  asked_.erase(asked);
  const auto it = channels_.find(question.channel);
  if (it == channels_.end()) return;  // gone meanwhile
  --it->second.asking;
  attach::Resolved resolved{};
  resolved.head = {MessageType::kResolved, question.tag};
  resolved.error = error;
  resolved.outside = 1;
  std::copy(mac.begin(), mac.end(), resolved.mac);
  answer(it->second, &resolved, now);
}

bool AttachServer::on_multicast(Channel& channel, const attach::Multicast& multicast, Instant now) {
  Seat& seat = seats_.at(channel.seat);
  if (multicast.nic >= seat.nics || multicast.join > 1 || ((multicast.qpn & kQpnMask) >> kQpnRangeLog2) != seat.range) {
    return drop(channel, "sent a malformed MCAST message", now);
  }
  attach::Resolved resolved{};
  resolved.head = {MessageType::kResolved, multicast.head.tag};
  const Gid group = gid_of(multicast.gid);
  resolved.error = multicast.join != 0 ? join_group(seat, multicast.nic, group, multicast.qpn)
                                       : leave_group(seat, multicast.nic, group, multicast.qpn);
  return answer(channel, &resolved, now);
}

/// The port joins with its first QP in the group and leaves with the last; QPs are the process's own business.
int AttachServer::join_group(Seat& seat, uint32_t nic, const Gid& group, uint32_t qpn) {
  if (!multicast_mac(group)) return EINVAL;
  if (seat.memberships >= kMaxMemberships) return ENOMEM;
  const auto [it, is_new] = seat.groups.try_emplace({nic, group});
  if (is_new) {
    if (const int error = sink_.set_member(seat.id, nic, group, true); error != 0) {
      seat.groups.erase(it);
      return error;
    }
  }
  if (it->second.insert(qpn).second) ++seat.memberships;
  return 0;
}

int AttachServer::leave_group(Seat& seat, uint32_t nic, const Gid& group, uint32_t qpn) {
  const auto it = seat.groups.find({nic, group});
  if (it == seat.groups.end() || it->second.erase(qpn) == 0) return EINVAL;
  --seat.memberships;
  if (!it->second.empty()) return 0;
  seat.groups.erase(it);
  return sink_.set_member(seat.id, nic, group, false);
}

bool AttachServer::on_qp_state(Channel& channel, const attach::QpState& qp, Instant now) {
  Seat& seat = seats_.at(channel.seat);
  if (qp.nic >= seat.nics || qp.state > kLastQpState || qp.qpn > kQpnMask || (qp.qpn >> kQpnRangeLog2) != seat.range) {
    return drop(channel, "told the state of a QP that it cannot have", now);
  }
  if (qp.state == kQpStateDestroyed) {
    const auto gone = seat.qps.find(qp.qpn);
    if (gone == seat.qps.end()) return true;
    remember(seat, qp.qpn, gone->second);
    seat.qps.erase(gone);
    return true;
  }
  const auto [it, is_new] = seat.qps.try_emplace(qp.qpn);
  if (is_new) ++run_of(seat.run_id).qps;
  QpErrorRecord error = std::move(it->second.error);
  if (qp.state == 0) error = {};  // RESET: what was is over
  it->second = QpRecord{qp.nic, qp.state, qp.type, qp.peer_qpn & kQpnMask, qp.mtu, gid_of(qp.peer_gid), std::move(error)};
  return true;
}

bool AttachServer::on_peer_query(Channel& channel, const attach::PeerQuery& query, Instant now) {
  if (query.nic >= seats_.at(channel.seat).nics) return drop(channel, "named a NIC that it does not have", now);
  const auto owner = plan_.find(gid_of(query.gid));
  if (!owner || serves(owner->host, owner->nic, query.qpn)) return true;
  attach::PeerGone gone{};
  gone.head = {MessageType::kPeerGone, query.head.tag};
  gone.nic = query.nic;
  gone.qpn = query.qpn;
  std::copy(std::begin(query.gid), std::end(query.gid), gone.gid);
  return answer(channel, &gone, now);
}

/// Whether some process of the host receives frames for that QP.
bool AttachServer::serves(uint32_t host, uint32_t nic, uint32_t qpn) const {
  for (const auto& [id, seat] : seats_) {
    if (seat.host != host || (qpn >> kQpnRangeLog2) != seat.range) continue;
    const auto qp = seat.qps.find(qpn);
    if (qp == seat.qps.end() || qp->second.nic != nic) return false;
    return qp->second.state >= kQpStateReadyToReceive && qp->second.state < kQpStateError;
  }
  return false;
}

bool AttachServer::on_qp_error(Channel& channel, const attach::QpError& error, Instant now) {
  Seat& seat = seats_.at(channel.seat);
  const auto qp = seat.qps.find(error.qpn);
  if (error.nic >= seat.nics || error.side > 2 || error.status > 64) {
    return drop(channel, "sent a malformed QP_ERROR message", now);
  }
  if (qp == seat.qps.end()) return true;  // its state could not be told either
  QpErrorRecord& record = qp->second.error;
  ++record.count;
  record.status = error.status;
  record.side = error.side;
  record.because.assign(error.because, strnlen(error.because, sizeof error.because));
  for (char& c : record.because) c = c >= ' ' && c < 127 ? c : '?';
  return true;
}

void AttachServer::remember(const Seat& seat, uint32_t qpn, const QpRecord& qp) {
  if (qp.error.count == 0) return;
  past_qps_.push_back({seat.host, qpn, seat.pid, seat.program, qp});
  if (past_qps_.size() > kMaxPastQps) past_qps_.pop_front();
}

/// Anybody who may attach may read, attached or not: these are the files of the host's sysfs.
bool AttachServer::on_counters(Channel& channel, const attach::Counters& question, Instant now) {
  const size_t length = strnlen(question.name, sizeof question.name);
  if (question.nic >= plan_.nics() || question.folder > 1 || length == sizeof question.name) {
    return drop(channel, "sent a malformed COUNTERS message", now);
  }
  attach::Counters answered = question;
  const auto value = port_counter(static_cast<CounterFolder>(question.folder), {question.name, length},
                                  sink_.counters(channel.host, question.nic));
  answered.error = value ? 0 : ENOENT;
  answered.value = value.value_or(0);
  return answer(channel, &answered, now);
}

}  // namespace weft::host
