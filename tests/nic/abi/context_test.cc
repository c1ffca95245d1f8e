// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

size_t open_descriptors() {
  size_t count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

}  // namespace

TEST_CASE("Closing a context leaves nothing behind", "[nic][abi]") {
  Rig rig(2);
  const size_t before = open_descriptors();
  for (int round = 0; round < 3; ++round) {
    Pair p(rig);
    p.b.create_channel();
    p.a.create_ah(1);
    std::vector<uint8_t> memory(100);
    p.a.reg_mr(memory.data(), 100);
    p.b.post_recv(p.b_qp, 1, {});
    REQUIRE(p.a.post(p.a_qp, {.opcode = kSend, .wr_id = 1}) > 0);
  }
  CHECK(open_descriptors() == before);
  CHECK(rig.node(0).platform->rings_mapped == 0);
  CHECK(rig.node(1).platform->rings_mapped == 0);
  CHECK(rig.device(0).regions().used() == 0);
  CHECK(rig.device(0).pds().used() == 0);
  CHECK(rig.device(0).ahs().used() == 0);
  rig.settle(20);
  CHECK(rig.device(0).quiet());
  CHECK(rig.device(1).quiet());
}

TEST_CASE("A context closed right after its last completion has acknowledged it", "[nic][abi]") {
  Rig rig(2);
  Client a(rig, 0);
  auto b = std::make_unique<Client>(rig, 1);
  const Cq a_cq = a.create_cq(), b_cq = b->create_cq();
  const Qp qa = a.create_qp(a_cq, a_cq), qb = b->create_qp(b_cq, b_cq);
  connect(a, qa, *b, qb);
  b->post_recv(qb, 1, {});
  REQUIRE(a.post(qa, {.opcode = kSend, .wr_id = 1}) > 0);
  expect_wc(rig, *b, b_cq, 1);
  b.reset();
  expect_wc(rig, a, a_cq, 1);
}

TEST_CASE("Contexts of one device do not see each other's handles", "[nic][abi]") {
  Rig rig(1);
  Client a(rig, 0), b(rig, 0);
  const Cq cq = a.create_cq();
  const Qp qp = a.create_qp(cq, cq);
  CHECK(b.ring_doorbell(qp) == -EINVAL);
  CHECK(b.destroy_cq(cq) == -EINVAL);
}

TEST_CASE("The descriptors we keep are known", "[nic][abi]") {
  Rig rig(1);
  Client c(rig, 0);
  const int channel = c.create_channel();
  CHECK_FALSE(c.context->owns_private_fd(channel));
  CHECK_FALSE(c.context->owns_private_fd(c.async_fd));
  CHECK_FALSE(c.context->owns_private_fd(-1));
  int owned = 0;
  for (int fd = 0; fd < 100000; ++fd) owned += c.context->owns_private_fd(fd) ? 1 : 0;
  CHECK(owned == 2);
}
