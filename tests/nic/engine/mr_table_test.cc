// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/mr_table.h"

#include <catch2/catch.hpp>
#include <set>

using namespace weft::nic;

TEST_CASE("An address is given only for the right key, domain, rights and bounds", "[nic][mr]") {
  MrTable table;
  REQUIRE(table.open(16));
  MemoryRegion* r = table.add();
  REQUIRE(r != nullptr);
  r->start = 0x7000'1000;
  r->length = 0x1000;
  r->iova = 0x5000;
  r->pd = 3;
  r->access = kAccessLocalWrite | kAccessRemoteRead;
  const uint32_t key = r->key;
  auto at = [&](uint64_t va, uint64_t bytes, uint32_t rights = 0, uint32_t pd = 3) {
    return reinterpret_cast<uint64_t>(table.user_address(key, va, bytes, rights, pd));
  };
  CHECK(at(0x5000, 0x1000) == 0x7000'1000);
  CHECK(at(0x5FFF, 1) == 0x7000'1FFF);
  CHECK(at(0x5FFF, 2) == 0);
  CHECK(at(0x4FFF, 1) == 0);
  CHECK(at(0x6000, 1) == 0);
  CHECK(at(0x5001, UINT64_MAX) == 0);
  CHECK(at(UINT64_MAX, 2) == 0);
  CHECK(at(0x5000, 1, kAccessRemoteRead) != 0);
  CHECK(at(0x5000, 1, kAccessRemoteWrite) == 0);
  CHECK(at(0x5000, 1, kAccessRemoteRead, 4) == 0);
  CHECK(table.user_address(key ^ 1, 0x5000, 1, 0, 3) == nullptr);
  CHECK(table.user_address(0, 0x5000, 1, 0, 3) == nullptr);
  CHECK(table.user_address(UINT32_MAX, 0x5000, 1, 0, 3) == nullptr);
  table.remove(key);
  CHECK(at(0x5000, 1) == 0);
}

TEST_CASE("Keys are never 0, are unique while they live and differ from their predecessors", "[nic][mr]") {
  MrTable table;
  REQUIRE(table.open(8));
  std::set<uint32_t> keys;
  for (int i = 0; i < 8; ++i) {
    const MemoryRegion* r = table.add();
    REQUIRE(r != nullptr);
    CHECK(r->key != 0);
    keys.insert(r->key);
  }
  CHECK(keys.size() == 8);
  CHECK(table.add() == nullptr);
  std::set<uint32_t> same_slot;
  uint32_t key = *keys.begin();
  for (int i = 0; i < 255; ++i) {
    same_slot.insert(key);
    table.remove(key);
    key = table.add()->key;
  }
  CHECK(same_slot.size() == 255);
}
