// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

long try_create_cq(Client& c, uint32_t cqe, uint32_t vector, int channel, size_t response_bytes = 24) {
  uint64_t out[8] = {};
  ib_uverbs_create_cq in = {};
  in.response = reinterpret_cast<uint64_t>(out);
  in.cqe = cqe;
  in.comp_vector = vector;
  in.comp_channel = channel;
  return c.plain(IB_USER_VERBS_CMD_CREATE_CQ, &in, sizeof in, response_bytes);
}

/// RESIZE_CQ; on success `cq.ring` is the new mapping.
long resize(Client& c, Cq& cq, uint32_t cqe) {
  struct {
    uint32_t cqe, reserved;
    mminfo map;
  } out = {};
  ib_uverbs_resize_cq in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.cq_handle = cq.handle;
  in.cqe = cqe;
  const long result = c.plain(IB_USER_VERBS_CMD_RESIZE_CQ, &in, sizeof in, 24);
  if (result > 0) {
    cq.cqe = out.cqe;
    cq.ring = c.map(out.map);
  }
  return result;
}

}  // namespace

TEST_CASE("CREATE_CQ refuses what the kernel refuses and maps nothing then", "[nic][abi][cq]") {
  Rig rig(1);
  Client c(rig, 0);
  CHECK(try_create_cq(c, 0, 0, -1) == -EINVAL);
  CHECK(try_create_cq(c, 65536, 0, -1) == -EINVAL);
  CHECK(try_create_cq(c, 16, 1, -1) == -EINVAL);
  CHECK(try_create_cq(c, 16, 0, 0) == -EBADF);
  CHECK(try_create_cq(c, 16, 0, c.async_fd) == -EBADF);
  CHECK(try_create_cq(c, 16, 0, -1, 8) == -EINVAL);
  CHECK(rig.node(0).platform->rings_mapped == 0);
  CHECK(try_create_cq(c, 16, 0, c.create_channel()) == 40);
  CHECK(rig.node(0).platform->rings_mapped == 1);
  const Cq cq = c.create_cq(100);
  CHECK(cq.cqe == 127);
  CHECK(cq.ring.head()->log2_elem_size == 6);
  CHECK(cq.ring.head()->index_mask == 127);
  CHECK(rig.node(0).platform->seen.back() == 'c');
  REQUIRE(c.destroy_cq(cq) > 0);
  CHECK(rig.node(0).platform->rings_mapped == 1);
}

TEST_CASE("RESIZE_CQ keeps what is pending and the order of what follows", "[nic][abi][cq]") {
  Rig rig(1);
  Client c(rig, 0);
  Cq cq = c.create_cq(31);
  const Qp qp = c.create_qp(cq, cq, {.recv_wr = 200});
  REQUIRE(c.to_init(qp) > 0);
  REQUIRE(c.to_state(qp, 6) > 0);
  uint64_t posted = 0, polled = 0;
  ib_uverbs_wc wc;
  auto add = [&](uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) c.post_recv(qp, posted++, {});
    rig.step();
  };
  auto take = [&](uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
      REQUIRE(c.poll(cq, wc));
      REQUIRE(wc.wr_id == polled++);
    }
  };
  for (const uint32_t size : {31u, 63u, 31u, 127u, 20u}) {
    add(25);
    take(10);
    CHECK(resize(c, cq, 14) == -EINVAL);
    REQUIRE(resize(c, cq, size) > 0);
    CHECK(cq.cqe >= size);
    add(10);
    take(25);
    CHECK_FALSE(c.poll(cq, wc));
    add(3);
    take(3);
  }
  CHECK(resize(c, cq, 0) == -EINVAL);
  CHECK(rig.node(0).platform->rings_mapped == 3);
}

TEST_CASE("Channels the program has closed are given up", "[nic][abi][cq]") {
  Rig rig(1);
  Client c(rig, 0);
  // Far more than there could be at once.
  for (int i = 0; i < 3000; ++i) {
    const int fd = c.create_channel();
    c.fds.pop_back();
    close(fd);
  }
  SUCCEED();
}
