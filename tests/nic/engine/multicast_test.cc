// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/multicast.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <set>

#include "protocols/base/random.h"
#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::nic;
using namespace weft::test;

namespace {

const GidBytes kGroup = gid_of_ipv4(0xEF010203);
const GidBytes kGroup6{0xFF, 0x1E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7};

struct Member {
  Member(Rig& rig, uint32_t node, uint32_t qkey = 0x11111111) : client(rig, node), cq(client.create_cq()) {
    QpOptions options;
    options.type = 4;
    qp = client.create_qp(cq, cq, options);
    REQUIRE(client.to_init(qp, 0, qkey) > 0);
    REQUIRE(client.to_rtr(qp, 0, 0, {}, 0) > 0);
    REQUIRE(client.to_rts(qp, {}, 0) > 0);
    mr = client.reg_mr(buffer.data(), buffer.size());
  }
  void expect_receive() { client.post_recv(qp, 1, {sge(buffer.data(), 2048, mr.lkey)}); }
  bool got() {
    ib_uverbs_wc wc = {};
    return client.poll(cq, wc) && wc.opcode == 128;
  }
  void send(const GidBytes& group, uint8_t sgid_index) {
    Post post;
    post.flags = 0;
    post.remote_qpn = 0xFFFFFF;
    post.remote_qkey = 0x11111111;
    post.ah_num = client.create_group_ah(group, sgid_index);
    post.sges = {sge(buffer.data() + 2048, 100, mr.lkey)};
    REQUIRE(client.post(qp, post) > 0);
  }
  Client client;
  Cq cq;
  Qp qp;
  std::vector<uint8_t> buffer = std::vector<uint8_t>(4096);
  Mr mr;
};

}  // namespace

TEST_CASE("The table against a model", "[nic][multicast]") {
  auto table = std::make_unique<MulticastTable>();
  REQUIRE(table->open(8, 3));
  std::set<std::pair<GidBytes, uint32_t>> model;
  Random random(7, 0);
  for (int i = 0; i < 20000; ++i) {
    GidBytes gid = gid_of_ipv4(0xE0000000 + static_cast<uint32_t>(random.below(12)));
    const auto qp = static_cast<uint32_t>(random.below(5));
    const auto members = [&] {
      uint32_t n = 0;
      for (const auto& [g, q] : model) n += g == gid;
      return n;
    };
    std::set<GidBytes> groups;
    for (const auto& entry : model) groups.insert(entry.first);
    const bool in = model.count({gid, qp}) != 0;
    if (random.below(2) == 0) {
      bool fresh = false;
      const int error = table->attach(gid, qp, fresh);
      const bool fits = in || (members() != 0 ? members() < 3 : groups.size() < 8);
      CHECK(error == (fits ? 0 : ENOMEM));
      CHECK(fresh == (fits && !in));
      if (fits) model.insert({gid, qp});
    } else {
      CHECK(table->detach(gid, qp) == in);
      model.erase({gid, qp});
    }
    const MulticastGroup* group = table->find(gid);
    CHECK((group == nullptr) == (members() == 0));
    if (group != nullptr) CHECK(group->count == members());
  }
}

TEST_CASE("A datagram for a group reaches every attached QP of every member, and nobody else", "[nic][multicast]") {
  const bool ipv6 = GENERATE(false, true);
  const GidBytes group = ipv6 ? kGroup6 : kGroup;
  Rig rig(3);
  Member a(rig, 0), b(rig, 1), b2(rig, 1), out(rig, 1), c(rig, 2), wrong_key(rig, 2, 0x22222222);
  for (Member* m : {&a, &b, &b2, &c, &wrong_key}) REQUIRE(m->client.multicast(m->qp, group, true) > 0);
  REQUIRE(out.client.multicast(out.qp, kGroup6 == group ? kGroup : kGroup6, true) > 0);
  for (Member* m : {&a, &b, &b2, &c, &out, &wrong_key}) m->expect_receive();
  a.send(group, ipv6 ? 0 : 1);
  rig.settle();
  CHECK(a.got());  // the sender is a member too
  CHECK(b.got());
  CHECK(b2.got());
  CHECK(c.got());
  CHECK_FALSE(out.got());
  CHECK_FALSE(wrong_key.got());
  CHECK(rig.device(2).counters().wrong_qkey == 1);

  REQUIRE(b.client.multicast(b.qp, group, false) > 0);
  for (Member* m : {&b, &b2}) m->expect_receive();
  a.send(group, ipv6 ? 0 : 1);
  rig.settle();
  CHECK_FALSE(b.got());
  CHECK(b2.got());
}
