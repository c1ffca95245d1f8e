// SPDX-License-Identifier: Apache-2.0
#include "nic/abi/handle_table.h"

#include <catch2/catch.hpp>

using namespace weft::abi;

TEST_CASE("A handle finds its object by kind, until it is removed, and does not come back at once", "[nic][abi]") {
  HandleTable table;
  REQUIRE(table.open());
  const uint32_t pd = table.add(HandleKind::kPd, 7);
  const uint32_t qp = table.add(HandleKind::kQp, 0);
  uint32_t value = 99;
  CHECK(table.find(pd, HandleKind::kPd, value));
  CHECK(value == 7);
  CHECK_FALSE(table.find(pd, HandleKind::kQp, value));
  CHECK(table.find(qp, HandleKind::kQp, value));
  CHECK_FALSE(table.find(HandleTable::kCapacity, HandleKind::kPd, value));
  table.remove(pd);
  CHECK_FALSE(table.find(pd, HandleKind::kPd, value));
  CHECK(table.add(HandleKind::kPd, 1) != pd);
  uint32_t added = 0;
  while (table.add(HandleKind::kMr, 5) != HandleTable::kNone) ++added;
  CHECK(added == HandleTable::kCapacity - 2);
  uint32_t visited = 0;
  table.for_each(HandleKind::kMr, [&](uint32_t handle, uint32_t) {
    ++visited;
    table.remove(handle);
  });
  CHECK(visited == added);
  table.close();
}
