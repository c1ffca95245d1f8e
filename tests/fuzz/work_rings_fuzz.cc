// SPDX-License-Identifier: Apache-2.0
//
// A hostile program on one NIC: anything may stand in its send, receive, shared receive and completion rings, indices
// included, and its commands come in any order. The engine must stay inside its memory, hand the daemon well-formed
// frames only, touch no memory that was not registered for it, and go on serving the neighbour.
//
// The input is a list of steps of ten bytes: what, which object, four bytes and four bytes of value.
#include <sys/mman.h>

#include <cstring>

#include "tests/fuzz/fuzz_target.h"
#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace weft::test {
void rig_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
  std::abort();
}
}  // namespace weft::test

namespace {

constexpr uint32_t kQps = 4;  // RC, UC, UD, RC with a shared receive queue
constexpr uint8_t kCanary = 0xC5;
constexpr uint32_t kAreaBytes = 16384, kMrBytes = 8192;

RigOptions rig_options() {
  RigOptions o;
  o.tx_slots = o.rx_slots = 32;
  return o;
}

/// A ring as it was when it was made; its header may say anything later.
struct Target {
  Target() = default;
  explicit Target(const UserRing& r) : ring(r), mask(r.head()->index_mask), shift(r.head()->log2_elem_size) {}
  uint8_t* at(uint32_t index) const { return ring.base + 384 + (static_cast<size_t>(index & mask) << shift); }
  UserRing ring;
  uint32_t mask = 0, shift = 0;
};

/// Registered memory with an unregistered page's worth of canary on both sides.
struct Area {
  Area() : bytes(kAreaBytes, kCanary) { std::memset(mr(), 0, kMrBytes); }
  uint8_t* mr() { return bytes.data() + (kAreaBytes - kMrBytes) / 2; }
  bool intact() {
    const uint8_t* end = mr() + kMrBytes;
    for (const uint8_t& b : bytes) {
      if ((&b < mr() || &b >= end) && b != kCanary) return false;
    }
    return true;
  }
  std::vector<uint8_t> bytes;
};

// A Device keeps its memory as long as a process lives, so a rig serves some inputs before the next one is made.
constexpr uint32_t kInputsPerRig = 64;
Rig& current_rig() {
  static std::unique_ptr<Rig> rig;
  static uint32_t inputs = 0;
  if (inputs++ % kInputsPerRig == 0) rig = std::make_unique<Rig>(2, rig_options());
  return *rig;
}

class Hostile {
 public:
  Hostile() : rig_(current_rig()), client_(rig_, 0), peer_(rig_, 1), neighbours_{Client(rig_, 1), Client(rig_, 1)} {
    mr_ = client_.reg_mr(area_.mr(), kMrBytes);
    peer_mr_ = peer_.reg_mr(peer_area_.mr(), kMrBytes);
    hole_ = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    hole_mr_ = client_.reg_mr(hole_, 4096);
    mprotect(hole_, 4096, PROT_NONE);  // could not be registered like this
    cq_ = client_.create_cq(31);
    completions_ = Target(cq_.ring);
    peer_cq_ = peer_.create_cq(255);
    ah_ = client_.create_ah(1);
    srq_object_ = client_.create_srq({.max_wr = 7, .max_sge = 3});
    srq_ = Target(srq_object_.ring);
    for (uint32_t q = 0; q < kQps; ++q) make_qp(q);
  }
  ~Hostile() { munmap(hole_, 4096); }

  void step(const uint8_t* s) {
    uint32_t x, y;
    std::memcpy(&x, s + 2, 4);
    std::memcpy(&y, s + 6, 4);
    Qp& qp = qps_[s[1] % kQps];
    switch (s[0] % 15) {
      case 0:
        scribble(ring_of(s[1]), x, y);
        break;
      case 1:
        index(ring_of(s[1]), x, y);
        break;
      case 2:
        send_work(qp, send_[s[1] % kQps], s[1], x, y);
        break;
      case 3:
        receive_work(s[1], x, y);
        break;
      case 4:
        client_.ring_doorbell(qp);
        break;
      case 5: {
        Qp other = qp;
        other.handle = x;
        client_.ring_doorbell(other);
        break;
      }
      case 6:
        rig_.settle(1 + x % 64);
        break;
      case 7:
        poll();
        break;
      case 8:
        client_.to_state(qp, static_cast<uint8_t>(x % 8));
        break;
      case 9:
        raw_command(s[1], x, y);
        break;
      case 10:
        client_.destroy_qp(qp);
        make_qp(s[1] % kQps);
        break;
      case 11:
        client_.arm(cq_, (x & 1) != 0);
        break;
      case 12:
        rig_.now += milliseconds(x % 50);
        break;
      case 13:
        client_.modify_srq(srq_object_, 2, 0, x % 16);  // the limit; a resize would move the ring
        break;
      default:
        modify(qp, x, y);
        break;
    }
  }

  void check() {
    rig_.settle(300);
    FUZZ_CHECK(area_.intact() && peer_area_.intact());
    // The neighbours' own QPs on the NIC that was attacked still work.
    std::vector<uint8_t> from = pattern(5000, 3), to(5000);
    Client &a = neighbours_[0], &b = neighbours_[1];
    const Mr from_mr = a.reg_mr(from.data(), from.size()), to_mr = b.reg_mr(to.data(), to.size());
    const Cq a_cq = a.create_cq(16), b_cq = b.create_cq(16);
    const Qp a_qp = a.create_qp(a_cq, a_cq), b_qp = b.create_qp(b_cq, b_cq);
    connect(a, a_qp, b, b_qp);
    Post p;
    p.opcode = kWrite;
    p.wr_id = 77;
    p.sges = {sge(from.data(), 5000, from_mr.lkey)};
    p.remote_addr = reinterpret_cast<uint64_t>(to.data());
    p.rkey = to_mr.rkey;
    a.post(a_qp, p);
    expect_wc(rig_, a, a_cq, 77);
    FUZZ_CHECK(from == to);
  }

 private:
  void make_qp(uint32_t q) {
    static constexpr uint8_t kTypes[kQps] = {2, 3, 4, 2};
    QpOptions o;
    o.type = kTypes[q];
    o.send_wr = o.recv_wr = 7;
    o.send_sge = o.recv_sge = 3;
    o.inline_data = q == 0 ? 64 : 0;
    o.srq = q == 3 ? &srq_object_ : nullptr;
    qps_[q] = client_.create_qp(cq_, cq_, o);
    send_[q] = Target(qps_[q].send);
    receive_[q] = q == 3 ? srq_ : Target(qps_[q].receive);
    o.srq = nullptr;
    const Qp other = peer_.create_qp(peer_cq_, peer_cq_, o);
    ConnectOptions c;
    c.timeout = 4;
    c.retry = 1;
    connect(client_, qps_[q], peer_, other, c);
    for (uint64_t i = 0; i < 4; ++i) peer_.post_recv(other, i, {sge(peer_area_.mr(), 2000, peer_mr_.lkey)});
  }

  Target& ring_of(uint8_t which) {
    if (which % 8 >= 6) return which % 8 == 7 ? srq_ : completions_;
    return (which & 1) == 0 ? send_[which % kQps] : receive_[which % kQps];
  }

  void scribble(const Target& target, uint32_t at, uint32_t value) {
    std::memcpy(target.ring.base + (at % (target.ring.bytes / 4)) * 4, &value, sizeof value);
  }
  void index(const Target& target, uint32_t which, uint32_t value) {
    rxe_queue_buf* head = target.ring.head();
    uint32_t& word = (which & 1) != 0 ? head->producer_index : head->consumer_index;
    __atomic_store_n(&word, (which & 2) != 0 ? word + value % 4 : value, __ATOMIC_RELEASE);
  }

  rxe_sge entry(uint32_t x, uint32_t y) {
    static constexpr uint32_t kLengths[8] = {0, 1, 8, 2048, kMrBytes, kMrBytes + 1, 0x80000000u, 0xFFFFFFFFu};
    const uint32_t length = (x & 8) != 0 ? x : kLengths[x & 7];
    switch ((x >> 4) & 7) {
      case 0:
        return {reinterpret_cast<uint64_t>(hole_), length, hole_mr_.lkey};
      case 1:
        return {reinterpret_cast<uint64_t>(area_.mr()) + y, length, mr_.lkey};
      case 2:
        return {reinterpret_cast<uint64_t>(area_.mr()) - y % 64, length, mr_.lkey};
      case 3:
        return {UINT64_MAX - y % 64, length, mr_.lkey};
      case 4:
        return {reinterpret_cast<uint64_t>(area_.mr()), length, mr_.lkey ^ (1u << (y % 32))};
      default:
        return {reinterpret_cast<uint64_t>(area_.mr()) + y % kMrBytes, length, mr_.lkey};
    }
  }

  void fill(const Target& target, size_t sges_at, uint32_t x, uint32_t y) {
    rxe_queue_buf* head = target.ring.head();
    const uint32_t producer = head->producer_index;
    for (uint32_t i = 0; i < 3; ++i) {
      const rxe_sge one = entry(x + i, y >> i);
      std::memcpy(target.at(producer) + sges_at + i * sizeof one, &one, sizeof one);
    }
    __atomic_store_n(&head->producer_index, (producer + 1) & target.mask, __ATOMIC_RELEASE);
  }

  void send_work(const Qp& qp, const Target& target, uint8_t which, uint32_t x, uint32_t y) {
    auto* wqe = reinterpret_cast<rxe_send_wqe*>(target.at(target.ring.head()->producer_index));
    const rxe_sge remote = entry(y, x);
    std::memset(static_cast<void*>(wqe), static_cast<int>(y), kSendHeader);
    wqe->wr.wr_id = x;
    wqe->wr.opcode = (x >> 8) % 16;
    wqe->wr.send_flags = which >> 3;
    wqe->wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(peer_area_.mr()) + (remote.addr & 0xFFFF);
    wqe->wr.wr.rdma.rkey = (y & 1) != 0 ? peer_mr_.rkey : y;
    if (qp.type == 4) {
      wqe->wr.wr.ud.remote_qpn = y;
      wqe->wr.wr.ud.remote_qkey = 0x11111111;
      wqe->wr.wr.ud.ah_num = (y & 2) != 0 ? ah_ : y;
    } else if (wqe->wr.opcode == kFetchAdd || wqe->wr.opcode == kCompareSwap) {
      wqe->wr.wr.atomic.rkey = peer_mr_.rkey;
    } else if (wqe->wr.opcode == 8) {
      wqe->wr.wr.mw = {reinterpret_cast<uint64_t>(area_.mr()), y, mr_.lkey, x, x + 1, y >> 8};
    }
    wqe->dma.length = x;
    wqe->dma.num_sge = (y & 4) != 0 ? (y >> 3) % 4 : y;
    fill(target, kSendHeader, x, y);
  }

  void receive_work(uint8_t which, uint32_t x, uint32_t y) {
    const Target& target = receive_[which % kQps];
    auto* wqe = reinterpret_cast<rxe_recv_wqe*>(target.at(target.ring.head()->producer_index));
    wqe->wr_id = x;
    wqe->dma.num_sge = (y & 4) != 0 ? (y >> 3) % 4 : y;
    fill(target, kReceiveHeader, x, y);
  }

  void poll() {
    for (int i = 0; i < 4; ++i) {
      rxe_queue_buf* head = cq_.ring.head();
      __atomic_store_n(&head->consumer_index, head->consumer_index + 1, __ATOMIC_RELEASE);
    }
  }

  void modify(Qp& qp, uint32_t x, uint32_t y) {
    ib_uverbs_modify_qp in = {};
    std::memset(&in, static_cast<int>(y), sizeof in);
    in.qp_state = static_cast<uint8_t>(x % 9);
    client_.modify(qp, x >> 4, in);
  }

  /// Commands whose response pointer is good or null and whose other words are anything. Not those that would register
  /// the fuzzer's own memory, or take away what the other steps need.
  void raw_command(uint32_t number, uint32_t x, uint32_t y) {
    number %= 64;
    for (const uint32_t without :
         {IB_USER_VERBS_CMD_REG_MR, IB_USER_VERBS_CMD_REREG_MR, IB_USER_VERBS_CMD_DESTROY_QP,
          IB_USER_VERBS_CMD_DESTROY_CQ, IB_USER_VERBS_CMD_DESTROY_SRQ, IB_USER_VERBS_CMD_DEALLOC_PD}) {
      if (number == without) return;
    }
    alignas(8) uint8_t response[512] = {};
    uint32_t body[32];
    for (uint32_t i = 0; i < 32; ++i) body[i] = (x >> (i % 16)) & ((y & (1u << (i % 32))) != 0 ? 0xFFFFFFFFu : 0x3u);
    const uint64_t pointer = (y & 1) != 0 ? reinterpret_cast<uint64_t>(response) : 0;
    std::memcpy(body, &pointer, sizeof pointer);
    const long result = client_.plain(number, body, 8 + (x % 31) * 4, (y >> 4) % 400);
    int fd;
    std::memcpy(&fd, response, sizeof fd);
    if (number == IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL && result > 0 && fd > 2) client_.fds.push_back(fd);
  }

  static constexpr uint32_t kSendHeader = 208, kReceiveHeader = 40;
  Rig& rig_;
  Area area_, peer_area_;
  Client client_, peer_;
  Client neighbours_[2];
  Mr mr_, peer_mr_, hole_mr_;
  void* hole_ = nullptr;
  Cq cq_, peer_cq_;
  Qp qps_[kQps];
  Target send_[kQps], receive_[kQps], completions_, srq_;
  Srq srq_object_;
  uint32_t ah_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  Hostile hostile;
  for (size_t at = 0; at + 10 <= bytes && at < 640; at += 10) hostile.step(data + at);
  hostile.check();
  return 0;
}
