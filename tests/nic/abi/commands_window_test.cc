// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr uint32_t kTranslation = 1, kPd = 2, kAccess = 4;

}  // namespace

TEST_CASE("ALLOC_MW: two types, as many as advertised, each holds its domain", "[nic][abi][mw]") {
  Rig rig(1);
  Client c(rig, 0);
  Mw mw;
  CHECK(c.try_alloc_mw(0, mw) == -EINVAL);
  CHECK(c.try_alloc_mw(3, mw) == -EINVAL);
  const Mw first = c.alloc_mw(1);
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &c.pd, 4, 0) == -EBUSY);
  CHECK(c.dealloc_mw(first) == 12);
  CHECK(c.dealloc_mw(first) == -EINVAL);
  ib_uverbs_alloc_mw in = {};
  in.response = 8;
  in.pd_handle = c.pd;
  in.mw_type = 2;
  CHECK(c.plain(IB_USER_VERBS_CMD_ALLOC_MW, &in, sizeof in, 8) == -EFAULT);
  CHECK(rig.device(0).windows().used() == 0);
  std::vector<Mw> all;
  long result = 0;
  while ((result = c.try_alloc_mw(2, mw)) > 0) all.push_back(mw);
  CHECK(result == -ENOMEM);
  CHECK(all.size() == rig.device(0).limits().max_mw);
  REQUIRE(c.dealloc_mw(all.back()) > 0);
  CHECK(c.try_alloc_mw(1, mw) > 0);
  const uint32_t pd = c.pd;
  c.pd = 999;
  CHECK(c.try_alloc_mw(1, mw) == -EINVAL);
  c.pd = pd;
  const Mr no_window = {mw.handle, 0, 0};
  CHECK(c.dereg_mr(no_window) == -EINVAL);
}

TEST_CASE("Windows and their regions end with their context", "[nic][abi][mw]") {
  Rig rig(1);
  alignas(4096) static uint8_t memory[4096];
  {
    Client c(rig, 0);
    const Cq cq = c.create_cq();
    const Qp a = c.create_qp(cq, cq), b = c.create_qp(cq, cq);
    connect(c, a, c, b);
    const Mr mr = c.reg_mr(memory, sizeof memory, 1 | 16);
    const Mw mw = c.alloc_mw(1);
    const auto at = reinterpret_cast<uint64_t>(memory);
    REQUIRE(c.post(a, {.opcode = kBindWindow, .wr_id = 1, .bind = {at, 64, mr.lkey, mw.rkey, mw.rkey + 1, 2}}) > 0);
    expect_wc(rig, c, cq, 1);
    CHECK(c.dereg_mr(mr) == -EBUSY);
  }
  CHECK(rig.device(0).windows().used() == 0);
  CHECK(rig.device(0).regions().used() == 0);
}

TEST_CASE("REREG_MR changes what its flags say and refuses what REG_MR refuses", "[nic][abi][mr]") {
  Rig rig(1);
  Client c(rig, 0);
  alignas(4096) static uint8_t memory[16384];
  const Mr mr = c.reg_mr(memory, 4096, 1);
  const nic::MemoryRegion* region = rig.device(0).regions().find(mr.lkey);
  REQUIRE(region != nullptr);
  const uint32_t other = c.alloc_pd();
  const uint32_t was = region->pd;
  CHECK(c.rereg_mr(mr, 0, memory, 4096, 1, c.pd) == -EINVAL);
  CHECK(c.rereg_mr(mr, 8, memory, 4096, 1, c.pd) == -EOPNOTSUPP);
  CHECK(c.rereg_mr(mr, kAccess, nullptr, 0, 2, 0) == -EINVAL);
  CHECK(c.rereg_mr(mr, kAccess, nullptr, 0, 0x100, 0) == -EOPNOTSUPP);
  CHECK(c.rereg_mr(mr, kPd, nullptr, 0, 0, 999) == -EINVAL);
  CHECK(c.rereg_mr(mr, kTranslation, memory, UINT64_MAX, 0, 0) == -EINVAL);
  CHECK(c.rereg_mr(mr, kTranslation, nullptr, 4097, 0, 0) == -EFAULT);
  CHECK(c.rereg_mr({999, 0, 0}, kAccess, nullptr, 0, 1, 0) == -EINVAL);
  CHECK((region->pd == was && region->access == 1 && region->length == 4096));

  REQUIRE(c.rereg_mr(mr, kAccess, nullptr, 0, 7, 0) == 56);
  CHECK(region->access == 7);
  CHECK(region->length == 4096);
  REQUIRE(c.rereg_mr(mr, kTranslation, memory + 8192, 8192, 0, 0) == 56);
  CHECK(region->start == reinterpret_cast<uint64_t>(memory + 8192));
  CHECK(region->iova == region->start);
  CHECK(region->length == 8192);
  CHECK(region->access == 7);
  REQUIRE(c.rereg_mr(mr, kPd, nullptr, 0, 0, other) == 56);
  CHECK(region->pd != was);
  // The domains' counts went along.
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &c.pd, 4, 0) == 12);
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &other, 4, 0) == -EBUSY);
  REQUIRE(c.dereg_mr(mr) > 0);
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &other, 4, 0) == 12);
}

TEST_CASE("The largest region holds to its end and not beyond; nothing larger is registered", "[nic][abi][mr]") {
  Rig rig(1);
  Client c(rig, 0);
  constexpr uint64_t kMost = 1ull << 40;
  ib_uverbs_query_device in = {};
  ib_uverbs_query_device_resp device = {};
  in.response = reinterpret_cast<uint64_t>(&device);
  REQUIRE(c.plain(IB_USER_VERBS_CMD_QUERY_DEVICE, &in, sizeof in, sizeof device) > 0);
  REQUIRE(device.max_mr_size == kMost);
  auto* at = static_cast<uint8_t*>(
      mmap(nullptr, kMost + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  REQUIRE(at != MAP_FAILED);
  Mr mr;
  const auto start = reinterpret_cast<uint64_t>(at);
  CHECK(c.try_reg_mr(at, kMost + 1, 3, start, mr) == -EINVAL);
  REQUIRE(c.try_reg_mr(at, kMost, 3, start, mr) > 0);
  const Cq cq = c.create_cq();
  const Qp a = c.create_qp(cq, cq), b = c.create_qp(cq, cq);
  connect(c, a, c, b);
  uint8_t source[16] = {1};
  const Mr local = c.reg_mr(source, sizeof source);
  Post post = {.opcode = kWrite, .wr_id = 1, .remote_addr = start + kMost - 16, .rkey = mr.rkey};
  post.sges = {sge(source, 16, local.lkey)};
  REQUIRE(c.post(a, post) > 0);
  expect_wc(rig, c, cq, 1);
  CHECK(at[kMost - 16] == 1);
  ++post.remote_addr;
  REQUIRE(c.post(a, post) > 0);
  expect_wc(rig, c, cq, 1, kRemAccess);
  munmap(at, kMost + 8192);
}
