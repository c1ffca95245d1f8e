// SPDX-License-Identifier: Apache-2.0
//
// The rig's pairs: two QPs connected as the connection manager would.
#include "tests/nic/engine/rig.h"

// As in rig.cc: no Catch here.
#define REQUIRE(...) ((__VA_ARGS__) ? void() : ::weft::test::rig_failed(__FILE__, __LINE__, #__VA_ARGS__))

namespace weft::test {

void connect(Client& a, const Qp& a_qp, Client& b, const Qp& b_qp, const ConnectOptions& o) {
  REQUIRE(a.to_init(a_qp, o.access) > 0);
  REQUIRE(b.to_init(b_qp, o.access) > 0);
  REQUIRE(a.to_rtr(a_qp, b_qp.qpn, b.node, o, o.psn_b) > 0);
  REQUIRE(b.to_rtr(b_qp, a_qp.qpn, a.node, o, o.psn_a) > 0);
  REQUIRE(a.to_rts(a_qp, o, o.psn_a) > 0);
  REQUIRE(b.to_rts(b_qp, o, o.psn_b) > 0);
}

Pair::Pair(Rig& rig, const QpOptions& qp, const ConnectOptions& options, uint32_t cqe)
    : a(rig, 0), b(rig, rig.nodes() > 1 ? 1 : 0) {
  a_cq = a.create_cq(cqe);
  b_cq = b.create_cq(cqe);
  a_qp = a.create_qp(a_cq, a_cq, qp);
  b_qp = b.create_qp(b_cq, b_cq, qp);
  connect(a, a_qp, b, b_qp, options);
}

}  // namespace weft::test
