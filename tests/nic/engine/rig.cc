// SPDX-License-Identifier: Apache-2.0
#include "tests/nic/engine/rig.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "nic/engine/copy.h"

// Without Catch, so that programs that are no Catch tests use the rig too: rig_failed() is theirs.
#define REQUIRE(...) ((__VA_ARGS__) ? void() : ::weft::test::rig_failed(__FILE__, __LINE__, #__VA_ARGS__))

namespace weft::test {
namespace {

struct sigaction g_previous[2];  // whoever came first hears of faults that are not ours: a sanitizer, a fuzzer

/// What nic/preload does in a program: a fault inside the copy routine continues at its fix-up.
void on_fault(int signal, siginfo_t*, void* context) {
#if defined(__x86_64__)
  auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const uintptr_t at = nic::copy_fixup(static_cast<uintptr_t>(registers[REG_RIP]));
  if (at != 0) {
    registers[REG_RIP] = static_cast<greg_t>(at);
    return;
  }
#endif
  sigaction(signal, &g_previous[signal == SIGBUS], nullptr);  // and the instruction faults again
}

/// In every Rig: Catch puts its own handler in front for each test case.
void install_fixup() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  for (const int signal : {SIGSEGV, SIGBUS}) {
    struct sigaction before;
    sigaction(signal, &action, &before);
    if (before.sa_sigaction != on_fault) g_previous[signal == SIGBUS] = before;
  }
#if !defined(__x86_64__)
  nic::copy_use_system_calls(true);
#endif
}

void fill_welcome(uint32_t index, const RigOptions& options, attach::Welcome& w) {
  w.nic = 0;
  w.qpn_base = (index + 1) << options.qpn_log2;
  w.qpn_log2 = options.qpn_log2;
  w.tx_slots = options.tx_slots;
  w.rx_slots = options.rx_slots;
  w.slot_payload = 4096;
  w.flags = options.flags;
  const uint8_t mac[6] = {0x02, 0x57, 0x00, 0x00, 0x00, static_cast<uint8_t>(index)};
  memcpy(w.mac, mac, sizeof mac);
  w.active_mtu = options.active_mtu;
  w.gid_count = 2;
  w.ipv4 = 0xC6120001u + index;
  w.node_guid = eui64_of_mac(std::to_array(mac));
  const GidBytes link = link_local_gid(std::to_array(mac));
  const GidBytes v4 = gid_of_ipv4(w.ipv4);
  memcpy(w.gids[0], link.data(), 16);
  memcpy(w.gids[1], v4.data(), 16);
  w.rate_bps = 100'000'000'000u;
}

}  // namespace

// --- daemon --------------------------------------------------------------------------------------------------

Rig::Rig(uint32_t nodes, const RigOptions& options) : one_mapping(options.one_mapping) {
  install_fixup();
  now = Instant{} + seconds(1);
  for (uint32_t i = 0; i < nodes; ++i) {
    auto n = std::make_unique<Node>();
    n->index = i;
    fill_welcome(i, options, n->welcome);
    n->layout = attach::port_layout(options.tx_slots, options.rx_slots, 4096);
    n->memory = static_cast<uint8_t*>(
        mmap(nullptr, n->layout.total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    n->status = std::make_unique<attach::StatusPage>();
    n->status->daemon_alive = 1;
    n->status->daemon_sleeping = 0;
    n->notices = std::make_unique<attach::NoticeRing>();
    n->notices->producer = 0;
    for (uint32_t s = 0; s < options.rx_slots; ++s) n->rx_free.push_back(s);
    REQUIRE(pipe2(n->kick, O_NONBLOCK | O_CLOEXEC) == 0);
    REQUIRE(n->port.open(n->memory, n->layout, n->status.get(), n->notices.get()));
    n->platform = std::make_unique<TestPlatform>(*this);
    void* memory = mmap(nullptr, sizeof(nic::Device), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    n->device = new (memory) nic::Device(*n->platform, n->welcome, n->port, n->kick[1]);
    REQUIRE(n->device->usable());
    nodes_.push_back(std::move(n));
  }
}

Rig::~Rig() {
  for (auto& n : nodes_) {
    munmap(n->memory, n->layout.total);
    ::close(n->kick[0]);
    ::close(n->kick[1]);
    munmap(n->device, sizeof(nic::Device));
  }
}

void Rig::collect_rx(Node& n) {
  auto& ring = n.control()->rx_return;
  const auto* entries = reinterpret_cast<const uint32_t*>(n.memory + n.layout.rx_return_offset);
  while (n.rx_return_consumer != ring.producer.load(std::memory_order_acquire)) {
    n.rx_free.push_back(entries[n.rx_return_consumer++ & (n.layout.rx_slots - 1)]);
  }
  REQUIRE(n.rx_free.size() <= n.layout.rx_slots);
}

bool Rig::deliver(Node& from, const attach::SlotDescriptor& d) {
  const uint8_t* payload =
      from.memory + from.layout.tx_slot_offset + d.slot * from.layout.slot_bytes + attach::kHeadroom;
  const uint8_t* header = payload - d.header_bytes;
  RoceFrame frame;
  REQUIRE(parse_headers(Bytes(header, d.header_bytes), d.payload_bytes, frame) == ParseError::kOk);
  REQUIRE(memcmp(frame.source_mac.data(), from.welcome.mac, 6) == 0);
  if (gid_is_multicast(frame.destination_gid)) return deliver_to_group(frame, payload, d);
  Node* to = nullptr;
  for (auto& n : nodes_) {
    if (memcmp(frame.destination_gid.data(), n->welcome.gids[0], 16) == 0 ||
        memcmp(frame.destination_gid.data(), n->welcome.gids[1], 16) == 0) {
      to = n.get();
    }
  }
  REQUIRE(to != nullptr);
  if (filter && !filter(frame, from.index)) {
    ++dropped;
    return true;
  }
  return deliver_to(*to, payload, d);
}

bool Rig::deliver_to(Node& node, const uint8_t* payload, const attach::SlotDescriptor& d) {
  Node* const to = &node;
  collect_rx(*to);
  if (to->rx_free.empty()) return false;
  const uint32_t slot = to->rx_free.back();
  to->rx_free.pop_back();
  uint8_t* place = to->memory + to->layout.rx_slot_offset + slot * to->layout.slot_bytes + attach::kHeadroom;
  memcpy(place - d.header_bytes, payload - d.header_bytes, d.header_bytes);
  memcpy(place, payload, d.payload_bytes);
  attach::SlotDescriptor out = d;
  out.slot = slot;
  memcpy(to->memory + to->layout.rx_ring_offset + (to->rx_producer & (to->layout.rx_slots - 1)) * sizeof out, &out,
         sizeof out);
  to->control()->rx.producer.store(++to->rx_producer, std::memory_order_release);
  ++frames;
  return true;
}

void Rig::move_frames(Node& from) {
  for (uint32_t p = 0; p < attach::kPriorities; ++p) {
    auto& ring = from.control()->tx[p];
    while (from.tx_consumer[p] != ring.producer.load(std::memory_order_acquire)) {
      attach::SlotDescriptor d;
      memcpy(&d,
             from.memory + from.layout.tx_ring_offset +
                 (p * from.layout.tx_slots + (from.tx_consumer[p] & (from.layout.tx_slots - 1))) * sizeof d,
             sizeof d);
      if (!deliver(from, d)) return;
      ++from.frames_from[p];
      ring.consumer.store(++from.tx_consumer[p], std::memory_order_release);
      auto* back = reinterpret_cast<uint32_t*>(from.memory + from.layout.tx_return_offset);
      back[from.tx_return_producer & (from.layout.tx_slots - 1)] = d.slot;
      from.control()->tx_return.producer.store(++from.tx_return_producer, std::memory_order_release);
    }
  }
}

void Rig::step() {
  if (!daemon_stopped) {
    for (auto& n : nodes_) move_frames(*n);
  }
  for (auto& n : nodes_) n->device->try_progress(now);
  now += tick;
}

bool Rig::run(const std::function<bool()>& done, uint32_t limit) {
  for (uint32_t i = 0; i < limit; ++i) {
    if (done()) return true;
    step();
  }
  return done();
}

void Rig::settle(uint32_t steps) {
  for (uint32_t i = 0; i < steps; ++i) step();
}

void Rig::notify(uint32_t i, const attach::Notice& notice) {
  attach::NoticeRing& ring = *nodes_[i]->notices;
  const uint32_t at = ring.producer.load();
  ring.entry[at % attach::kNoticeEntries] = notice;
  ring.producer.store(at + 1, std::memory_order_release);
}

// --- client --------------------------------------------------------------------------------------------------

Client::Client(Rig& r, uint32_t n) : rig(r), node(n) {
  memfd = memfd_create("weft-test", MFD_CLOEXEC);
  context = abi::Context::open(rig.device(n), memfd);
  REQUIRE(context != nullptr);
  ib_uverbs_get_context in = {};
  ib_uverbs_get_context_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  REQUIRE(plain(IB_USER_VERBS_CMD_GET_CONTEXT, &in, sizeof in, sizeof out) == 16);
  async_fd = static_cast<int>(out.async_fd);
  fds.push_back(async_fd);
  pd = alloc_pd();
}

Client::~Client() {
  context->close(rig.now);
  for (const UserRing& ring : rings) munmap(ring.base, ring.bytes);
  for (const int fd : fds) ::close(fd);
  ::close(memfd);
}

long Client::plain(uint32_t number, const void* body, size_t body_bytes, size_t response_bytes) {
  std::vector<uint8_t> buffer(8 + body_bytes);
  const ib_uverbs_cmd_hdr head = {number, static_cast<uint16_t>(buffer.size() / 4),
                                  static_cast<uint16_t>(response_bytes / 4)};
  memcpy(buffer.data(), &head, sizeof head);
  memcpy(buffer.data() + 8, body, body_bytes);
  return context->command(buffer.data(), buffer.size(), rig.now);
}

uint32_t Client::alloc_pd() {
  ib_uverbs_alloc_pd in = {};
  ib_uverbs_alloc_pd_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  REQUIRE(plain(IB_USER_VERBS_CMD_ALLOC_PD, &in, sizeof in, 4) == 16);
  return out.pd_handle;
}

long Client::try_reg_mr(const void* start, uint64_t length, uint32_t access, uint64_t iova, Mr& out) {
  ib_uverbs_reg_mr in = {};
  ib_uverbs_reg_mr_resp response = {};
  in.response = reinterpret_cast<uint64_t>(&response);
  in.start = reinterpret_cast<uint64_t>(start);
  in.length = length;
  in.hca_va = iova;
  in.pd_handle = pd;
  in.access_flags = access;
  const long result = plain(IB_USER_VERBS_CMD_REG_MR, &in, sizeof in, 12);
  out = {response.mr_handle, response.lkey, response.rkey};
  return result;
}

Mr Client::reg_mr(const void* start, uint64_t length, uint32_t access) {
  Mr mr;
  REQUIRE(try_reg_mr(start, length, access, reinterpret_cast<uint64_t>(start), mr) == 48);
  return mr;
}

int Client::create_channel() {
  ib_uverbs_create_comp_channel in = {};
  ib_uverbs_create_comp_channel_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  REQUIRE(plain(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, &in, sizeof in, 4) == 16);
  fds.push_back(static_cast<int>(out.fd));
  return static_cast<int>(out.fd);
}

UserRing Client::map(const mminfo& info) {
  UserRing ring;
  ring.bytes = info.size;
  if (rig.one_mapping) {
    ring.base = rig.node(node).platform->ring_at(memfd, info.offset);
    REQUIRE(ring.base != nullptr);
    return ring;  // the engine unmaps it
  }
  void* at = mmap(nullptr, info.size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, static_cast<off_t>(info.offset));
  REQUIRE(at != MAP_FAILED);
  ring.base = static_cast<uint8_t*>(at);
  rings.push_back(ring);
  return ring;
}

Cq Client::create_cq(uint32_t cqe, int channel) {
  struct {
    ib_uverbs_create_cq_resp core;
    mminfo map;
  } out = {};
  ib_uverbs_create_cq in = {};
  Cq cq;
  cq.user_handle = next_handle_ += 0x100;
  in.response = reinterpret_cast<uint64_t>(&out);
  in.user_handle = cq.user_handle;
  in.cqe = cqe;
  in.comp_channel = channel;
  REQUIRE(plain(IB_USER_VERBS_CMD_CREATE_CQ, &in, sizeof in, 24) == 40);
  cq.handle = out.core.cq_handle;
  cq.cqe = out.core.cqe;
  cq.ring = map(out.map);
  return cq;
}

long Client::destroy_cq(const Cq& cq, uint32_t* completion_events, uint32_t* async_events) {
  ib_uverbs_destroy_cq in = {};
  ib_uverbs_destroy_cq_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.cq_handle = cq.handle;
  const long result = plain(IB_USER_VERBS_CMD_DESTROY_CQ, &in, sizeof in, 8);
  if (completion_events != nullptr) *completion_events = out.comp_events_reported;
  if (async_events != nullptr) *async_events = out.async_events_reported;
  return result;
}

long Client::arm(const Cq& cq, bool solicited) {
  const ib_uverbs_req_notify_cq in = {cq.handle, solicited ? 1u : 0u};
  return plain(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, &in, sizeof in, 0);
}

Qp Client::create_qp(const Cq& send, const Cq& receive, const QpOptions& options) {
  struct {
    ib_uverbs_create_qp_resp core;
    mminfo rq, sq;
  } out = {};
  ib_uverbs_create_qp in = {};
  Qp qp;
  qp.user_handle = next_handle_ += 0x100;
  qp.type = options.type;
  in.response = reinterpret_cast<uint64_t>(&out);
  in.user_handle = qp.user_handle;
  in.pd_handle = pd;
  in.send_cq_handle = send.handle;
  in.recv_cq_handle = receive.handle;
  in.max_send_wr = options.send_wr;
  in.max_recv_wr = options.recv_wr;
  in.max_send_sge = options.send_sge;
  in.max_recv_sge = options.recv_sge;
  in.max_inline_data = options.inline_data;
  in.sq_sig_all = options.signal_all ? 1 : 0;
  in.qp_type = options.type;
  if (options.srq != nullptr) {
    in.is_srq = 1;
    in.srq_handle = options.srq->handle;
  }
  REQUIRE(plain(IB_USER_VERBS_CMD_CREATE_QP, &in, sizeof in, 64) == 64);
  qp.handle = out.core.qp_handle;
  qp.qpn = out.core.qpn;
  qp.max_send_wr = out.core.max_send_wr;
  qp.max_recv_wr = out.core.max_recv_wr;
  qp.max_send_sge = out.core.max_send_sge;
  qp.max_recv_sge = out.core.max_recv_sge;
  qp.max_inline = out.core.max_inline_data;
  if (options.srq == nullptr) qp.receive = map(out.rq);
  qp.send = map(out.sq);
  return qp;
}

long Client::destroy_qp(const Qp& qp, uint32_t* events) {
  ib_uverbs_destroy_qp in = {};
  ib_uverbs_destroy_qp_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.qp_handle = qp.handle;
  const long result = plain(IB_USER_VERBS_CMD_DESTROY_QP, &in, sizeof in, 4);
  if (events != nullptr) *events = out.events_reported;
  return result;
}

long Client::modify(const Qp& qp, uint32_t mask, ib_uverbs_modify_qp& values) {
  values.qp_handle = qp.handle;
  values.attr_mask = mask;
  return plain(IB_USER_VERBS_CMD_MODIFY_QP, &values, sizeof values, 0);
}

long Client::to_state(const Qp& qp, uint8_t state) {
  ib_uverbs_modify_qp in = {};
  in.qp_state = state;
  return modify(qp, 1, in);
}

uint8_t Client::query_state(const Qp& qp) {
  ib_uverbs_query_qp in = {};
  ib_uverbs_query_qp_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.qp_handle = qp.handle;
  REQUIRE(plain(IB_USER_VERBS_CMD_QUERY_QP, &in, sizeof in, 128) == 24);
  REQUIRE(out.max_send_wr == qp.max_send_wr);
  REQUIRE(out.max_send_sge == qp.max_send_sge);
  return out.qp_state;
}

void Client::fill_address(uint32_t to, uint8_t sgid_index, ib_uverbs_qp_dest& out) const {
  memcpy(out.dgid, rig.node(to).welcome.gids[sgid_index < 2 ? sgid_index : 1], 16);
  out.sgid_index = sgid_index;
  out.is_global = 1;
  out.port_num = 1;
  out.hop_limit = 1;
}

long Client::to_init(const Qp& qp, uint32_t access, uint32_t qkey) {
  ib_uverbs_modify_qp in = {};
  in.qp_state = 1;
  in.port_num = 1;
  in.qp_access_flags = access;
  in.qkey = qkey;
  return modify(qp, qp.type == 4 ? 0x71 : 0x39, in);
}

long Client::to_rtr(const Qp& qp, uint32_t dest_qpn, uint32_t to, const ConnectOptions& o, uint32_t rq_psn) {
  ib_uverbs_modify_qp in = {};
  in.qp_state = 2;
  if (qp.type == 4) return modify(qp, 1, in);
  fill_address(to, o.sgid_index, in.dest);
  in.dest.traffic_class = o.traffic_class;
  in.dest.sl = o.sl;
  in.path_mtu = o.mtu;
  in.dest_qp_num = dest_qpn;
  in.rq_psn = rq_psn;
  in.max_dest_rd_atomic = o.rd_atomic;
  in.min_rnr_timer = o.min_rnr_timer;
  return modify(qp, qp.type == 2 ? 0x129181 : 0x101181, in);
}

long Client::to_rts(const Qp& qp, const ConnectOptions& o, uint32_t sq_psn) {
  ib_uverbs_modify_qp in = {};
  in.qp_state = 3;
  in.sq_psn = sq_psn;
  in.timeout = o.timeout;
  in.retry_cnt = o.retry;
  in.rnr_retry = o.rnr_retry;
  in.max_rd_atomic = o.rd_atomic;
  return modify(qp, qp.type == 2 ? 0x12e01 : 0x10001, in);
}

uint32_t Client::create_ah(uint32_t to, uint8_t sgid_index, long* error) {
  struct {
    uint32_t handle, ah_num, reserved;
  } out = {};
  ib_uverbs_create_ah in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.pd_handle = pd;
  memcpy(in.attr.grh.dgid, rig.node(to).welcome.gids[sgid_index < 2 ? sgid_index : 1], 16);
  in.attr.grh.sgid_index = sgid_index;
  in.attr.is_global = 1;
  in.attr.port_num = 1;
  const long result = plain(IB_USER_VERBS_CMD_CREATE_AH, &in, sizeof in, 12);
  if (error != nullptr) {
    *error = result;
  } else {
    REQUIRE(result == 64);
  }
  return out.ah_num;
}

// --- posting and polling, as the rxe provider does -----------------------------------------------------------

long Client::post(const Qp& qp, const Post& p, bool doorbell) {
  rxe_queue_buf* head = qp.send.head();
  const uint32_t producer = head->producer_index;
  auto* wqe = reinterpret_cast<rxe_send_wqe*>(qp.send.at(producer));
  if (((producer + 1) & head->index_mask) == __atomic_load_n(&head->consumer_index, __ATOMIC_ACQUIRE)) return -ENOMEM;
  memset(static_cast<void*>(wqe), 0xA5, 208);  // the provider leaves what it does not need
  memset(static_cast<void*>(&wqe->wr), 0, sizeof wqe->wr);
  wqe->wr.wr_id = p.wr_id;
  wqe->wr.opcode = p.opcode;
  wqe->wr.send_flags = p.flags;
  wqe->wr.ex.imm_data = p.opcode == 9 || p.opcode == 7 ? p.immediate : htonl(p.immediate);
  switch (p.opcode) {
    case 5:
    case 6:
      wqe->wr.wr.atomic.remote_addr = p.remote_addr;
      wqe->wr.wr.atomic.rkey = p.rkey;
      wqe->wr.wr.atomic.compare_add = p.compare_add;
      wqe->wr.wr.atomic.swap = p.swap;
      break;
    case 8:
      static_assert(sizeof wqe->wr.wr.mw == sizeof p.bind);  // the same order of the same fields
      memcpy(&wqe->wr.wr.mw, &p.bind, sizeof p.bind);
      break;
    case 2:
    case 3:
      if (qp.type == 4) {
        wqe->wr.wr.ud.remote_qpn = p.remote_qpn;
        wqe->wr.wr.ud.remote_qkey = p.remote_qkey;
        wqe->wr.wr.ud.ah_num = p.ah_num;
        break;
      }
      [[fallthrough]];
    default:
      wqe->wr.wr.rdma.remote_addr = p.remote_addr;
      wqe->wr.wr.rdma.rkey = p.rkey;
      break;
  }
  auto* data = reinterpret_cast<uint8_t*>(wqe) + 208;
  uint32_t length = 0;
  if ((p.flags & 8) != 0 || p.opcode == 15) {
    memcpy(data, p.inline_data.data(), p.inline_data.size());
    length = static_cast<uint32_t>(p.inline_data.size());
  } else {
    std::copy(p.sges.begin(), p.sges.end(), reinterpret_cast<rxe_sge*>(data));
    length = p.sges.empty() ? 0 : 0xDEAD;  // the builder's wrong sum
  }
  wqe->dma.length = length;
  wqe->dma.num_sge = static_cast<uint32_t>(p.sges.size());
  __atomic_store_n(&head->producer_index, (producer + 1) & head->index_mask, __ATOMIC_RELEASE);
  return doorbell ? ring_doorbell(qp) : 0;
}

long Client::ring_doorbell(const Qp& qp) {
  ib_uverbs_post_send_resp out = {0};
  ib_uverbs_post_send in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.qp_handle = qp.handle;
  in.wqe_size = 128;
  return plain(IB_USER_VERBS_CMD_POST_SEND, &in, sizeof in, 4);
}

long Client::post_quietly(const Qp& qp, const Post& p) { return post(qp, p, true); }

void Client::post_recv(const Qp& qp, uint64_t wr_id, const std::vector<rxe_sge>& sges) {
  rxe_queue_buf* head = qp.receive.head();
  const uint32_t producer = head->producer_index;
  REQUIRE(((producer + 1) & head->index_mask) != __atomic_load_n(&head->consumer_index, __ATOMIC_ACQUIRE));
  auto* wqe = reinterpret_cast<rxe_recv_wqe*>(qp.receive.at(producer));
  wqe->wr_id = wr_id;
  wqe->dma.num_sge = static_cast<uint32_t>(sges.size());
  std::copy(sges.begin(), sges.end(), reinterpret_cast<rxe_sge*>(reinterpret_cast<uint8_t*>(wqe) + 40));
  __atomic_store_n(&head->producer_index, (producer + 1) & head->index_mask, __ATOMIC_RELEASE);
}

bool Client::poll(const Cq& cq, ib_uverbs_wc& out) {
  rxe_queue_buf* head = cq.ring.head();
  const uint32_t consumer = head->consumer_index;
  if (consumer == __atomic_load_n(&head->producer_index, __ATOMIC_ACQUIRE)) return false;
  memcpy(&out, cq.ring.at(consumer), sizeof out);
  __atomic_store_n(&head->consumer_index, (consumer + 1) & head->index_mask, __ATOMIC_RELEASE);
  return true;
}

ib_uverbs_wc expect_wc(Rig& rig, Client& client, const Cq& cq, uint64_t wr_id, uint32_t status) {
  ib_uverbs_wc wc = {};
  const bool came = rig.run([&] { return client.poll(cq, wc); });
  if (!came || wc.wr_id != wr_id || wc.status != status) {
    const std::string wanted = "wr_id " + std::to_string(wr_id) + " with status " + std::to_string(status);
    const std::string got = came ? std::to_string(wc.wr_id) + " with " + std::to_string(wc.status) : "nothing";
    rig_failed(__FILE__, __LINE__, ("expected " + wanted + ", got " + got).c_str());
  }
  return wc;
}

}  // namespace weft::test
