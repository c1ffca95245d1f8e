// SPDX-License-Identifier: Apache-2.0
//
// RC through the whole NIC: uverbs commands, rxe rings, engine, machines, port.
#include <sys/mman.h>

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr uint32_t kWrite = 0, kWriteImm = 1, kSend = 2, kSendImm = 3, kRead = 4, kCompareSwap = 5, kFetchAdd = 6;
constexpr uint32_t kSignaled = 2, kSolicited = 4, kInline = 8;

ib_uverbs_wc expect_wc(Rig& rig, Client& client, const Cq& cq, uint64_t wr_id, uint32_t status = 0) {
  ib_uverbs_wc wc = {};
  INFO("waiting for wr_id " << wr_id);
  const bool came = rig.run([&] { return client.poll(cq, wc); });
  REQUIRE(came);
  CHECK(wc.wr_id == wr_id);
  CHECK(wc.status == status);
  return wc;
}

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
