// SPDX-License-Identifier: Apache-2.0
//
// RC through the whole NIC: uverbs commands, rxe rings, engine, machines, port.
#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

std::vector<uint32_t> sizes_around(uint32_t mtu) {
  return {0, 1, 2, 3, 4, 7, 8, 64, mtu - 1, mtu, mtu + 1, 2 * mtu - 1, 2 * mtu, 5 * mtu + 3, 65536, 1u << 20};
}

}  // namespace

TEST_CASE("RC SEND, WRITE and READ carry every size at every MTU", "[nic][rc]") {
  for (uint8_t mtu = 1; mtu <= 5; ++mtu) {
    Rig rig(2);
    ConnectOptions options;
    options.mtu = mtu;
    Pair p(rig, {}, options);
    uint64_t id = 1;
    for (const uint32_t size : sizes_around(128u << mtu)) {
      INFO("MTU code " << int{mtu} << ", " << size << " bytes");
      auto source = pattern(size + 16, size + mtu);
      std::vector<uint8_t> target(size + 16, 0xEE);
      const Mr local = p.a.reg_mr(source.data(), source.size());
      const Mr remote = p.b.reg_mr(target.data(), target.size());

      p.b.post_recv(p.b_qp, 1000 + id, {sge(target.data(), size, remote.lkey)});
      REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = id, .sges = {sge(source.data(), size, local.lkey)}}) > 0);
      const auto received = expect_wc(rig, p.b, p.b_cq, 1000 + id);
      CHECK(received.opcode == 128);
      CHECK(received.byte_len == size);
      CHECK(received.qp_num == p.b_qp.qpn);
      CHECK(expect_wc(rig, p.a, p.a_cq, id).opcode == 0);
      CHECK(memcmp(source.data(), target.data(), size) == 0);
      CHECK(target[size] == 0xEE);
      ++id;

      std::fill(target.begin(), target.end(), uint8_t{0xEE});
      REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite,
                                .wr_id = id,
                                .remote_addr = reinterpret_cast<uint64_t>(target.data() + 3),
                                .rkey = remote.rkey,
                                .sges = {sge(source.data() + 1, size, local.lkey)}}) > 0);
      CHECK(expect_wc(rig, p.a, p.a_cq, id).opcode == 1);
      CHECK(memcmp(source.data() + 1, target.data() + 3, size) == 0);
      CHECK(target[2] == 0xEE);
      CHECK(target[size + 3] == 0xEE);
      ++id;

      std::vector<uint8_t> copy(size + 16, 0xDD);
      const Mr into = p.a.reg_mr(copy.data(), copy.size());
      REQUIRE(p.a.post(p.a_qp, {.opcode = kRead,
                                .wr_id = id,
                                .remote_addr = reinterpret_cast<uint64_t>(target.data()),
                                .rkey = remote.rkey,
                                .sges = {sge(copy.data(), size / 3, into.lkey),
                                         sge(copy.data() + size / 3, size - size / 3, into.lkey)}}) > 0);
      CHECK(expect_wc(rig, p.a, p.a_cq, id).opcode == 2);
      CHECK(memcmp(copy.data(), target.data(), size) == 0);
      CHECK(copy[size] == 0xDD);
      ++id;
      CHECK(p.a.dereg_mr(local) > 0);
      CHECK(p.a.dereg_mr(into) > 0);
      CHECK(p.b.dereg_mr(remote) > 0);
    }
  }
}

TEST_CASE("RC messages with immediate data, solicited, inline, gathered and scattered", "[nic][rc]") {
  Rig rig(2);
  Pair p(rig, {.inline_data = 200});
  auto source = pattern(9000, 7);
  std::vector<uint8_t> target(9000, 0);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  const Mr remote = p.b.reg_mr(target.data(), target.size());

  SECTION("SEND with immediate, three pieces into two") {
    p.b.post_recv(p.b_qp, 1, {sge(target.data(), 3000, remote.lkey), sge(target.data() + 4000, 5000, remote.lkey)});
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSendImm,
                              .wr_id = 2,
                              .flags = kSignaled | kSolicited,
                              .immediate = 0xDEADBEEF,
                              .sges = {sge(source.data(), 1, local.lkey), sge(source.data() + 1, 2500, local.lkey),
                                       sge(source.data() + 2501, 1000, local.lkey)}}) > 0);
    const auto wc = expect_wc(rig, p.b, p.b_cq, 1);
    CHECK(wc.wc_flags == 2);
    CHECK(ntohl(wc.ex.imm_data) == 0xDEADBEEF);
    CHECK(wc.byte_len == 3501);
    CHECK(memcmp(target.data(), source.data(), 3000) == 0);
    CHECK(memcmp(target.data() + 4000, source.data() + 3000, 501) == 0);
    expect_wc(rig, p.a, p.a_cq, 2);
  }
  SECTION("WRITE with immediate takes a receive request, its data goes to the address") {
    p.b.post_recv(p.b_qp, 1, {});
    REQUIRE(p.a.post(p.a_qp, {.opcode = kWriteImm,
                              .wr_id = 2,
                              .immediate = 5,
                              .remote_addr = reinterpret_cast<uint64_t>(target.data() + 100),
                              .rkey = remote.rkey,
                              .sges = {sge(source.data(), 5000, local.lkey)}}) > 0);
    const auto wc = expect_wc(rig, p.b, p.b_cq, 1);
    CHECK(wc.opcode == 129);
    CHECK(wc.byte_len == 5000);
    CHECK(ntohl(wc.ex.imm_data) == 5);
    CHECK(memcmp(target.data() + 100, source.data(), 5000) == 0);
    expect_wc(rig, p.a, p.a_cq, 2);
  }
  SECTION("inline data needs no memory region") {
    REQUIRE(p.a_qp.max_inline >= 200);
    p.b.post_recv(p.b_qp, 1, {sge(target.data(), 500, remote.lkey)});
    const std::string text(199, 'x');
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 2, .flags = kSignaled | kInline, .inline_data = text}) > 0);
    CHECK(expect_wc(rig, p.b, p.b_cq, 1).byte_len == 199);
    CHECK(memcmp(target.data(), text.data(), 199) == 0);
  }
}

TEST_CASE("RC atomics return the old value and change the word once", "[nic][rc]") {
  Rig rig(2);
  Pair p(rig);
  alignas(8) uint64_t word = 40;
  alignas(8) uint64_t old = 0;
  const Mr remote = p.b.reg_mr(&word, sizeof word);
  const Mr local = p.a.reg_mr(&old, sizeof old);
  const auto at = reinterpret_cast<uint64_t>(&word);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kFetchAdd,
                            .wr_id = 1,
                            .remote_addr = at,
                            .rkey = remote.rkey,
                            .compare_add = 2,
                            .sges = {sge(&old, 8, local.lkey)}}) > 0);
  CHECK(expect_wc(rig, p.a, p.a_cq, 1).opcode == 4);
  CHECK(old == 40);
  CHECK(word == 42);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kCompareSwap,
                            .wr_id = 2,
                            .remote_addr = at,
                            .rkey = remote.rkey,
                            .compare_add = 42,
                            .swap = 7,
                            .sges = {sge(&old, 8, local.lkey)}}) > 0);
  CHECK(expect_wc(rig, p.a, p.a_cq, 2).opcode == 3);
  CHECK(old == 42);
  CHECK(word == 7);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kCompareSwap,
                            .wr_id = 3,
                            .remote_addr = at,
                            .rkey = remote.rkey,
                            .compare_add = 42,
                            .swap = 9,
                            .sges = {sge(&old, 8, local.lkey)}}) > 0);
  expect_wc(rig, p.a, p.a_cq, 3);
  CHECK(old == 7);
  CHECK(word == 7);
}

TEST_CASE("A send queue takes as many works as it says, signaled or not, and the ring goes round", "[nic][rc]") {
  const bool all = GENERATE(false, true);
  Rig rig(2);
  Pair p(rig, {.send_wr = 200, .recv_wr = 200, .signal_all = all}, {}, 1024);
  std::vector<uint8_t> source(64, 1), target(64, 0);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  const Mr remote = p.b.reg_mr(target.data(), target.size());
  CHECK(p.a_qp.max_send_wr == 255);
  for (uint64_t round = 0; round < 5; ++round) {
    for (uint64_t i = 0; i < 255; ++i) {
      const Post post = {.opcode = kWrite,
                         .wr_id = i,
                         .flags = i == 254 ? kSignaled : 0,
                         .remote_addr = reinterpret_cast<uint64_t>(target.data()),
                         .rkey = remote.rkey,
                         .sges = {sge(source.data(), 64, local.lkey)}};
      REQUIRE(p.a.post(p.a_qp, post, false) == 0);
    }
    REQUIRE(p.a.post(p.a_qp, {}, false) == -ENOMEM);
    REQUIRE(p.a.ring_doorbell(p.a_qp) > 0);
    ib_uverbs_wc wc = {};
    uint64_t count = 0;
    REQUIRE(rig.run([&] {
      while (p.a.poll(p.a_cq, wc)) {
        CHECK(wc.status == 0);
        CHECK(wc.wr_id == (all ? count : 254));
        ++count;
      }
      return wc.wr_id == 254;
    }));
    CHECK(count == (all ? 255 : 1));
  }
}

TEST_CASE("Both sides of many QPs move data at once, READs included, with few slots", "[nic][rc]") {
  // nic_rules 1: two peers that serve each other's READs must not wait for each other's slots.
  Rig rig(2, {.tx_slots = 32, .rx_slots = 32});
  Client a(rig, 0), b(rig, 1);
  constexpr uint32_t kQps = 8, kWorks = 60, kBytes = 20000;
  const Cq a_cq = a.create_cq(2000), b_cq = b.create_cq(2000);
  auto data_a = pattern(kBytes, 1), data_b = pattern(kBytes, 2);
  std::vector<uint8_t> in_a(kBytes), in_b(kBytes);
  const Mr mr_a = a.reg_mr(data_a.data(), kBytes), mr_b = b.reg_mr(data_b.data(), kBytes);
  const Mr into_a = a.reg_mr(in_a.data(), kBytes), into_b = b.reg_mr(in_b.data(), kBytes);
  for (uint32_t q = 0; q < kQps; ++q) {
    const Qp qa = a.create_qp(a_cq, a_cq), qb = b.create_qp(b_cq, b_cq);
    connect(a, qa, b, qb, {.mtu = 5});
    for (uint32_t i = 0; i < kWorks; ++i) {
      const bool read = i % 3 != 0;
      REQUIRE(a.post(qa, {.opcode = read ? kRead : kWrite,
                          .remote_addr = reinterpret_cast<uint64_t>(read ? data_b.data() : in_b.data()),
                          .rkey = read ? mr_b.rkey : into_b.rkey,
                          .sges = {sge(read ? in_a.data() : data_a.data(), kBytes, read ? into_a.lkey : mr_a.lkey)}}) >
              0);
      REQUIRE(b.post(qb, {.opcode = read ? kRead : kWrite,
                          .remote_addr = reinterpret_cast<uint64_t>(read ? data_a.data() : in_a.data()),
                          .rkey = read ? mr_a.rkey : into_a.rkey,
                          .sges = {sge(read ? in_b.data() : data_b.data(), kBytes, read ? into_b.lkey : mr_b.lkey)}}) >
              0);
    }
  }
  uint32_t done_a = 0, done_b = 0;
  ib_uverbs_wc wc = {};
  REQUIRE(rig.run([&] {
    while (a.poll(a_cq, wc)) {
      REQUIRE(wc.status == 0);
      ++done_a;
    }
    while (b.poll(b_cq, wc)) {
      REQUIRE(wc.status == 0);
      ++done_b;
    }
    return done_a == kQps * kWorks && done_b == kQps * kWorks;
  }));
  CHECK(in_a == data_b);
  CHECK(in_b == data_a);
  CHECK(rig.device(0).counters().slots_short > 0);
}

TEST_CASE("The priority of frames follows the DSCP, or the SL when there is no traffic class", "[nic][rc]") {
  struct Case {
    uint8_t traffic_class, sl, priority;
  };
  const auto c = GENERATE(Case{0, 0, 0}, Case{0, 3, 3}, Case{26 << 2, 5, 3}, Case{46 << 2, 0, 5});
  Rig rig(2);
  Pair p(rig, {}, {.traffic_class = c.traffic_class, .sl = c.sl});
  uint8_t seen = 0;
  rig.filter = [&](const RoceFrame& f, uint32_t) {
    seen = f.traffic_class;
    CHECK(f.ttl == 64);
    return true;
  };
  p.b.post_recv(p.b_qp, 1, {});
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  expect_wc(rig, p.b, p.b_cq, 1);
  expect_wc(rig, p.a, p.a_cq, 1);
  CHECK(rig.node(0).frames_from[c.priority] == 1);
  CHECK(rig.node(1).frames_from[c.priority] == 1);
  CHECK(seen == c.traffic_class);
}

TEST_CASE("IPv6 link-local addresses work as the v4-mapped ones do", "[nic][rc]") {
  Rig rig(2);
  Pair p(rig, {}, {.sgid_index = 0});
  bool v6 = false;
  rig.filter = [&](const RoceFrame& f, uint32_t) {
    v6 = !f.ipv4;
    return true;
  };
  p.b.post_recv(p.b_qp, 1, {});
  REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  expect_wc(rig, p.b, p.b_cq, 1);
  expect_wc(rig, p.a, p.a_cq, 1);
  CHECK(v6);
}

TEST_CASE("Works a NIC cannot carry complete in error before a frame is sent", "[nic][rc]") {
  Rig rig(2);
  Pair p(rig, {.inline_data = 64}, {.rd_atomic = 0});
  std::vector<uint8_t> memory(64);
  const Mr mr = p.a.reg_mr(memory.data(), memory.size());
  Post post = {.wr_id = 5, .sges = {sge(memory.data(), 8, mr.lkey)}};
  uint32_t status = kLocQpOp;
  SECTION("an opcode nobody knows") { post.opcode = 99; }
  SECTION("local invalidate of a key that is no window's") { post.opcode = kLocalInvalidate; }
  SECTION("READ without resources") { post.opcode = kRead; }
  SECTION("ATOMIC WRITE without resources") {
    post = {.opcode = kAtomicWrite, .wr_id = 5, .inline_data = std::string(8, 'x')};
  }
  SECTION("more SGEs than the QP has") { post.sges.assign(p.a_qp.max_send_sge + 1, sge(memory.data(), 1, mr.lkey)); }
  SECTION("more than 2^31 bytes") {
    post.sges.assign(3, sge(memory.data(), 0x7FFFFFFF, mr.lkey));
    status = kLocLen;
  }
  REQUIRE(p.a.post(p.a_qp, post) > 0);
  expect_wc(rig, p.a, p.a_cq, 5, status);
  CHECK(p.a.query_state(p.a_qp) == 6);
  CHECK(rig.frames == 0);
}

TEST_CASE("UC carries SEND and WRITE without acknowledgement", "[nic][uc]") {
  Rig rig(2);
  Pair p(rig, {.type = 3});
  auto source = pattern(70000, 3);
  std::vector<uint8_t> target(70000, 0);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  const Mr remote = p.b.reg_mr(target.data(), target.size());
  for (const uint32_t size : {0u, 1u, 1023u, 1024u, 1025u, 70000u}) {
    std::fill(target.begin(), target.end(), uint8_t{0});
    p.b.post_recv(p.b_qp, 1, {sge(target.data(), 70000, remote.lkey)});
    REQUIRE(
        p.a.post(p.a_qp,
                 {.opcode = kSendImm, .wr_id = 2, .immediate = size, .sges = {sge(source.data(), size, local.lkey)}}) >
        0);
    const auto wc = expect_wc(rig, p.b, p.b_cq, 1);
    CHECK(wc.byte_len == size);
    CHECK(ntohl(wc.ex.imm_data) == size);
    CHECK(memcmp(source.data(), target.data(), size) == 0);
    expect_wc(rig, p.a, p.a_cq, 2);
    std::fill(target.begin(), target.end(), uint8_t{0});
    REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite,
                              .wr_id = 3,
                              .remote_addr = reinterpret_cast<uint64_t>(target.data()),
                              .rkey = remote.rkey,
                              .sges = {sge(source.data(), size, local.lkey)}}) > 0);
    expect_wc(rig, p.a, p.a_cq, 3);
    rig.settle(20);
    CHECK(memcmp(source.data(), target.data(), size) == 0);
  }
  // Deeper than the machine holds at once.
  for (uint64_t i = 0; i < 60; ++i) p.b.post_recv(p.b_qp, i, {sge(target.data(), 70000, remote.lkey)});
  for (uint64_t i = 0; i < 60; ++i) {
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = i, .sges = {sge(source.data(), 3000, local.lkey)}}) > 0);
  }
  for (uint64_t i = 0; i < 60; ++i) expect_wc(rig, p.a, p.a_cq, i);
  for (uint64_t i = 0; i < 60; ++i) expect_wc(rig, p.b, p.b_cq, i);
  REQUIRE(p.a.post(p.a_qp, {.opcode = kRead, .wr_id = 9}) > 0);
  expect_wc(rig, p.a, p.a_cq, 9, kLocQpOp);
}

TEST_CASE("UD datagrams arrive with their GRH, and only where the Q_Key fits", "[nic][ud]") {
  Rig rig(2);
  Client a(rig, 0), b(rig, 1);
  const Cq a_cq = a.create_cq(2000), b_cq = b.create_cq(2000);
  const Qp qa = a.create_qp(a_cq, a_cq, {.type = 4, .send_wr = 500}),
           qb = b.create_qp(b_cq, b_cq, {.type = 4, .recv_wr = 500});
  for (Client* c : {&a, &b}) {
    const Qp& q = c == &a ? qa : qb;
    REQUIRE(c->to_init(q) > 0);
    REQUIRE(c->to_rtr(q, 0, 0, {}, 0) > 0);
    REQUIRE(c->to_rts(q, {}, 77) > 0);
  }
  auto source = pattern(4096, 9);
  std::vector<uint8_t> target(5000, 0);
  const Mr local = a.reg_mr(source.data(), source.size());
  const Mr remote = b.reg_mr(target.data(), target.size());
  const uint8_t gid = GENERATE(uint8_t{0}, uint8_t{1});
  const uint32_t ah = a.create_ah(1, gid);
  REQUIRE(ah != 0);
  const Post good = {.opcode = kSendImm,
                     .wr_id = 3,
                     .immediate = 11,
                     .remote_qpn = qb.qpn,
                     .remote_qkey = 0x11111111,
                     .ah_num = ah,
                     .sges = {sge(source.data(), 4096, local.lkey)}};
  b.post_recv(qb, 1, {sge(target.data(), 5000, remote.lkey)});
  SECTION("a whole MTU") {
    REQUIRE(a.post(qa, good) > 0);
    expect_wc(rig, a, a_cq, 3);
    const auto wc = expect_wc(rig, b, b_cq, 1);
    CHECK(wc.byte_len == 4096 + 40);
    CHECK(wc.wc_flags == 3);
    CHECK(wc.src_qp == qa.qpn);
    CHECK(ntohl(wc.ex.imm_data) == 11);
    CHECK(memcmp(target.data() + 40, source.data(), 4096) == 0);
    if (gid == 1) {
      CHECK(target[20] == 0x45);
      CHECK(memcmp(target.data() + 32, rig.node(0).welcome.gids[1] + 12, 4) == 0);
    } else {
      CHECK(target[0] >> 4 == 6);
      CHECK(memcmp(target.data() + 8, rig.node(0).welcome.gids[0], 16) == 0);
    }
  }
  SECTION("another Q_Key") {
    Post bad = good;
    bad.remote_qkey = 0x22222222;
    REQUIRE(a.post(qa, bad) > 0);
    expect_wc(rig, a, a_cq, 3);
    rig.settle(20);
    ib_uverbs_wc wc;
    CHECK_FALSE(b.poll(b_cq, wc));
    CHECK(rig.device(1).counters().wrong_qkey == 1);
  }
  SECTION("no receive request, or one that is too small") {
    REQUIRE(a.post(qa, good) > 0);
    expect_wc(rig, b, b_cq, 1);
    REQUIRE(a.post(qa, good) > 0);
    rig.settle(20);
    CHECK(rig.device(1).counters().no_receive == 1);
    b.post_recv(qb, 2, {sge(target.data(), 4000, remote.lkey)});
    REQUIRE(a.post(qa, good) > 0);
    rig.settle(20);
    CHECK(rig.device(1).counters().receive_error == 1);
  }
  SECTION("more than the MTU, or an address handle that is gone") {
    Post bad = good;
    bad.sges.push_back(sge(source.data(), 1, local.lkey));
    if (gid == 1) bad = {.opcode = kSend, .wr_id = 3, .remote_qpn = qb.qpn, .ah_num = 4000};
    REQUIRE(a.post(qa, bad) > 0);
    expect_wc(rig, a, a_cq, 3, gid == 1 ? kLocQpOp : kLocLen);
  }
  SECTION("a deep queue") {
    for (uint64_t i = 0; i < 400; ++i) b.post_recv(qb, i, {sge(target.data(), 5000, remote.lkey)});
    for (uint64_t i = 0; i < 400; ++i) {
      Post post = good;
      post.sges[0].length = 8;
      REQUIRE(a.post(qa, post) > 0);
    }
    for (uint64_t i = 0; i < 400; ++i) expect_wc(rig, a, a_cq, 3);
    expect_wc(rig, b, b_cq, 1);
    for (uint64_t i = 0; i < 399; ++i) expect_wc(rig, b, b_cq, i);
  }
}

TEST_CASE("Two processes' QPs on one NIC and a QP connected to itself reach each other", "[nic][rc]") {
  Rig rig(1);
  Pair p(rig);
  std::vector<uint8_t> source = pattern(5000, 5), target(5000, 0);
  const Mr local = p.a.reg_mr(source.data(), source.size());
  const Mr remote = p.b.reg_mr(target.data(), target.size());
  REQUIRE(p.a.post(p.a_qp, {.opcode = kWrite,
                            .wr_id = 1,
                            .remote_addr = reinterpret_cast<uint64_t>(target.data()),
                            .rkey = remote.rkey,
                            .sges = {sge(source.data(), 5000, local.lkey)}}) > 0);
  expect_wc(rig, p.a, p.a_cq, 1);
  CHECK(source == target);
}
