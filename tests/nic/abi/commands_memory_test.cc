// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

TEST_CASE("REG_MR refuses what the kernel refuses", "[nic][abi][mr]") {
  Rig rig(1);
  Client c(rig, 0);
  alignas(4096) static uint8_t memory[8192];
  const auto at = reinterpret_cast<uint64_t>(memory);
  Mr mr;
  CHECK(c.try_reg_mr(memory, 8192, 1, at, mr) == 48);
  CHECK(mr.lkey == mr.rkey);
  CHECK(c.try_reg_mr(memory, 8192, 1, at + 8, mr) == -EINVAL);  // in-page bits differ
  CHECK(c.try_reg_mr(memory, 8192, 1, at + 4096, mr) == 48);    // pages may differ
  CHECK(c.try_reg_mr(memory, 8192, 2, at, mr) == -EINVAL);      // remote write without local write
  CHECK(c.try_reg_mr(memory, 8192, 8, at, mr) == -EINVAL);
  CHECK(c.try_reg_mr(memory, 8192, 4, at, mr) == 48);
  CHECK(c.try_reg_mr(memory, 8192, 0x41, at, mr) == -EINVAL);  // on demand
  CHECK(c.try_reg_mr(memory, 8192, 0x100, at, mr) == -EOPNOTSUPP);
  CHECK(c.try_reg_mr(memory, 8192, 0x100001, at, mr) == 48);  // relaxed ordering is a hint
  CHECK(c.try_reg_mr(memory, 0, 1, at, mr) == -EINVAL);
  CHECK(c.try_reg_mr(memory, UINT64_MAX, 1, at, mr) == -EINVAL);
  CHECK(c.try_reg_mr(memory, UINT64_MAX - at - 100, 1, at, mr) == -EINVAL);
  c.pd = 999;
  CHECK(c.try_reg_mr(memory, 8192, 1, at, mr) == -EINVAL);
}

TEST_CASE("REG_MR of memory that is not mapped is EFAULT, holes included", "[nic][abi][mr]") {
  Rig rig(1);
  Client c(rig, 0);
  auto* at = static_cast<uint8_t*>(mmap(nullptr, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  Mr mr;
  CHECK(c.try_reg_mr(at, 12288, 1, reinterpret_cast<uint64_t>(at), mr) == 48);
  munmap(at + 4096, 4096);
  CHECK(c.try_reg_mr(at, 12288, 1, reinterpret_cast<uint64_t>(at), mr) == -EFAULT);
  CHECK(c.try_reg_mr(at, 4097, 1, reinterpret_cast<uint64_t>(at), mr) == -EFAULT);
  CHECK(c.try_reg_mr(at, 4096, 1, reinterpret_cast<uint64_t>(at), mr) == 48);
  munmap(at, 4096);
  munmap(at + 8192, 4096);
}

TEST_CASE("REG_MR with rights that the memory does not give is EFAULT", "[nic][abi][mr]") {
  Rig rig(1);
  Client c(rig, 0);
  auto* at = static_cast<uint8_t*>(mmap(nullptr, 12288, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const auto va = reinterpret_cast<uint64_t>(at);
  Mr mr;
  CHECK(c.try_reg_mr(at, 12288, 0, va, mr) == 48);
  CHECK(c.try_reg_mr(at, 12288, 4, va, mr) == 48);  // remote read
  for (const uint32_t writes : {1u, 1u | 2u, 1u | 8u, 16u}) CHECK(c.try_reg_mr(at, 12288, writes, va, mr) == -EFAULT);
  mprotect(at, 8192, PROT_READ | PROT_WRITE);
  CHECK(c.try_reg_mr(at, 8192, 1, va, mr) == 48);
  CHECK(c.try_reg_mr(at, 8193, 1, va, mr) == -EFAULT);  // the last page
  mprotect(at, 4096, PROT_NONE);
  CHECK(c.try_reg_mr(at, 4096, 0, va, mr) == -EFAULT);
  CHECK(c.try_reg_mr(at + 4096, 4096, 1, va + 4096, mr) == 48);
  munmap(at, 12288);
}

TEST_CASE("A table full of regions says so and recovers", "[nic][abi][mr]") {
  Rig rig(1);
  Client c(rig, 0);
  static uint8_t memory[4096];
  std::vector<Mr> regions;
  Mr mr;
  long result = 0;
  while ((result = c.try_reg_mr(memory, 100, 1, reinterpret_cast<uint64_t>(memory), mr)) > 0) regions.push_back(mr);
  CHECK(result == -ENOMEM);
  CHECK(regions.size() == rig.device(0).limits().max_mr);
  REQUIRE(c.dereg_mr(regions.back()) > 0);
  CHECK(c.try_reg_mr(memory, 100, 1, reinterpret_cast<uint64_t>(memory), mr) > 0);
}

TEST_CASE("A bad response pointer takes back what the command made", "[nic][abi][mr]") {
  Rig rig(1);
  Client c(rig, 0);
  static uint8_t memory[4096];
  ib_uverbs_reg_mr in = {};
  in.response = 8;
  in.start = in.hca_va = reinterpret_cast<uint64_t>(memory);
  in.length = 100;
  in.pd_handle = c.pd;
  const uint32_t before = rig.device(0).regions().used();
  CHECK(c.plain(IB_USER_VERBS_CMD_REG_MR, &in, sizeof in, 12) == -EFAULT);
  CHECK(rig.device(0).regions().used() == before);
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &c.pd, 4, 0) == 12);
}

TEST_CASE("CREATE_AH resolves its destination", "[nic][abi][ah]") {
  Rig rig(2);
  Client c(rig, 0);
  long error = 0;
  CHECK(c.create_ah(1) == 1);
  CHECK(c.create_ah(0) == 2);
  c.create_ah(1, 7, &error);
  CHECK(error == -EINVAL);
  rig.resolve_error = ETIMEDOUT;
  c.create_ah(1, 1, &error);
  CHECK(error == -ETIMEDOUT);
}
