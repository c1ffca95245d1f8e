// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <catch2/catch.hpp>

#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

ib_uverbs_query_port_resp query_port(Client& c, long* error = nullptr, uint8_t port = 1) {
  ib_uverbs_query_port_resp out = {};
  ib_uverbs_query_port in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.port_num = port;
  const long result = c.plain(IB_USER_VERBS_CMD_QUERY_PORT, &in, sizeof in, 40);
  if (error != nullptr) *error = result;
  return out;
}

}  // namespace

TEST_CASE("GET_CONTEXT happens once and hands out a close-on-exec descriptor", "[nic][abi]") {
  Rig rig(1);
  Client c(rig, 0);
  CHECK((fcntl(c.async_fd, F_GETFD) & FD_CLOEXEC) != 0);
  ib_uverbs_get_context in = {};
  ib_uverbs_get_context_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  CHECK(c.plain(IB_USER_VERBS_CMD_GET_CONTEXT, &in, sizeof in, sizeof out) == -EINVAL);
}

TEST_CASE("Before GET_CONTEXT there is nothing; a bad pointer leaves it that way", "[nic][abi]") {
  Rig rig(1);
  abi::Context* context = abi::Context::open(rig.device(0), -1);
  REQUIRE(context != nullptr);
  uint32_t out[2] = {};
  const auto at = reinterpret_cast<uint64_t>(out);
  uint32_t alloc[] = {3, 4 | 1 << 16, static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32)};
  CHECK(context->command(alloc, 16, rig.now) == -EINVAL);
  uint32_t bad[] = {0, 4 | 2 << 16, 8, 0};
  CHECK(context->command(bad, 16, rig.now) == -EFAULT);
  CHECK(context->command(alloc, 16, rig.now) == -EINVAL);
  uint32_t good[] = {0, 4 | 2 << 16, static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32)};
  CHECK(context->command(good, 16, rig.now) == 16);
  CHECK(out[1] == 1);
  CHECK(context->command(alloc, 16, rig.now) == 16);
  context->close(rig.now);
  ::close(static_cast<int>(out[0]));
}

TEST_CASE("The port says what the WELCOME said", "[nic][abi]") {
  Rig rig(1, {.active_mtu = 3});
  Client c(rig, 0);
  const auto port = query_port(c);
  CHECK(port.state == 4);
  CHECK(port.active_mtu == 3);
  CHECK(port.link_layer == 2);
  CHECK(port.gid_tbl_len == 2);
  CHECK(port.max_msg_sz == 1u << 31);
  // 100G: 4x EDR
  CHECK(port.active_width == 2);
  CHECK(port.active_speed == 32);
  for (const uint8_t bad : {0, 2, 255}) {
    long error = 0;
    query_port(c, &error, bad);
    CHECK(error == -EINVAL);
  }
}

TEST_CASE("The device's limits are those it keeps to", "[nic][abi]") {
  Rig rig(1);
  Client c(rig, 0);
  ib_uverbs_query_device_resp out = {};
  ib_uverbs_query_device in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  REQUIRE(c.plain(IB_USER_VERBS_CMD_QUERY_DEVICE, &in, sizeof in, 176) == 16);
  CHECK(out.node_guid == out.sys_image_guid);
  CHECK(reinterpret_cast<const uint8_t*>(&out.node_guid)[0] == 0x00);  // 02:57:00:.. with the local bit inverted
  CHECK(reinterpret_cast<const uint8_t*>(&out.node_guid)[3] == 0xFF);
  CHECK(out.max_qp == 4096);
  CHECK(out.max_qp_wr == 16384);
  CHECK(out.max_cqe >= 16384);
  CHECK(out.max_sge == 32);
  CHECK(out.phys_port_cnt == 1);
  const Cq cq = c.create_cq(out.max_cqe);
  const Qp qp = c.create_qp(cq, cq,
                            {.send_wr = static_cast<uint32_t>(out.max_qp_wr),
                             .recv_wr = static_cast<uint32_t>(out.max_qp_wr),
                             .send_sge = 32,
                             .recv_sge = 32,
                             .inline_data = 512});
  CHECK(qp.max_send_wr >= out.max_qp_wr);
  CHECK(qp.max_send_sge == 32);
  CHECK(qp.max_inline == 512);
}
