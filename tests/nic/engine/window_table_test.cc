// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/window_table.h"

#include <catch2/catch.hpp>
#include <set>

using namespace weft::nic;

namespace {

constexpr WindowUser kUser{3, 0x100};

struct Tables {
  MrTable regions;
  WindowTable windows;
  MemoryRegion* region = nullptr;

  Tables() {
    REQUIRE(regions.open(16));
    REQUIRE(windows.open(8));
    region = regions.add();
    region->start = 0x7000'1000;
    region->length = 0x1000;
    region->iova = 0x5000;
    region->pd = kUser.pd;
    region->access = kAccessLocalWrite | kAccessWindowBind;
  }
  WindowBind request(const MemoryWindow& w, uint64_t addr = 0x5100, uint64_t length = 0x200,
                     uint32_t access = kAccessRemoteWrite | kAccessRemoteRead) const {
    return {addr, length, region->key, w.key, w.key + 1, access};
  }
  uint64_t at(uint32_t key, uint64_t va, uint64_t bytes, uint32_t rights = kAccessRemoteWrite,
              WindowUser user = kUser) const {
    return reinterpret_cast<uint64_t>(windows.user_address(regions, key, va, bytes, rights, user));
  }
};

}  // namespace

TEST_CASE("A window gives its own rights to its own range, and its region counts it", "[nic][mw]") {
  Tables t;
  MemoryWindow* w = t.windows.add(kUser.pd, WindowType::kType1);
  REQUIRE(w != nullptr);
  CHECK(is_window_key(w->key));
  CHECK(t.at(w->key, 0x5100, 1) == 0);
  const uint32_t before = w->key;
  REQUIRE(t.windows.bind(t.regions, t.request(*w), kUser));
  const uint32_t key = w->key;
  CHECK((key ^ before) >> 8 == 0);
  CHECK((key & 0xff) == ((before + 1) & 0xff));
  CHECK(t.region->windows == 1);
  CHECK(t.at(key, 0x5100, 0x200) == 0x7000'1100);
  CHECK(t.at(key, 0x52FF, 1) == 0x7000'12FF);
  CHECK(t.at(key, 0x50FF, 1) == 0);  // inside the region, outside the window
  CHECK(t.at(key, 0x5300, 1) == 0);
  CHECK(t.at(key, 0x5101, 0x200) == 0);
  CHECK(t.at(key, UINT64_MAX, 2) == 0);
  CHECK(t.at(key, 0x5100, 1, kAccessRemoteAtomic) == 0);
  CHECK(t.at(key, 0x5100, 1, kAccessRemoteRead, {4, 0x100}) == 0);
  CHECK(t.at(key, 0x5100, 1, kAccessRemoteRead, {3, 0x200}) != 0);  // type 1: any QP of the domain
  CHECK(t.at(before, 0x5100, 1) == 0);
  CHECK(t.regions.user_address(t.region->key, 0x5100, 1, kAccessRemoteWrite, 3) == nullptr);

  // Bound elsewhere, then taken back.
  REQUIRE(t.windows.bind(t.regions, t.request(*w, 0x5000, 0x1000), kUser));
  CHECK(t.region->windows == 1);
  CHECK(t.at(key, 0x5100, 1) == 0);
  CHECK(t.at(w->key, 0x5000, 0x1000) != 0);
  REQUIRE(t.windows.bind(t.regions, {0, 0, 0, w->key, w->key + 1, 0}, kUser));
  CHECK(t.region->windows == 0);
  CHECK(t.at(w->key, 0x5000, 1) == 0);
  CHECK_FALSE(t.windows.invalidate(t.regions, w->key, kUser));
}

TEST_CASE("A type 2 window is bound while free, by one QP, and is invalidated by it alone", "[nic][mw]") {
  Tables t;
  MemoryWindow* w = t.windows.add(kUser.pd, WindowType::kType2);
  REQUIRE(w != nullptr);
  CHECK_FALSE(t.windows.can_invalidate(w->key, kUser));
  CHECK_FALSE(t.windows.bind(t.regions, t.request(*w, 0x5100, 0), kUser));  // it has no null bind
  REQUIRE(t.windows.bind(t.regions, t.request(*w), kUser));
  CHECK_FALSE(t.windows.bind(t.regions, t.request(*w), kUser));
  CHECK(t.at(w->key, 0x5100, 1, kAccessRemoteRead) != 0);
  CHECK(t.at(w->key, 0x5100, 1, kAccessRemoteRead, {3, 0x200}) == 0);
  CHECK_FALSE(t.windows.invalidate(t.regions, w->key, {3, 0x200}));
  CHECK_FALSE(t.windows.invalidate(t.regions, w->key, {4, 0x100}));
  CHECK_FALSE(t.windows.invalidate(t.regions, w->key ^ 1, kUser));
  CHECK_FALSE(t.windows.invalidate(t.regions, t.region->key, kUser));
  REQUIRE(t.windows.invalidate(t.regions, w->key, kUser));
  CHECK(t.region->windows == 0);
  CHECK(t.at(w->key, 0x5100, 1) == 0);
  CHECK_FALSE(t.windows.invalidate(t.regions, w->key, kUser));

  // Zero based, and gone with its QP.
  REQUIRE(t.windows.bind(t.regions, t.request(*w, 0x5100, 0x200, kAccessRemoteWrite | kAccessZeroBased), kUser));
  CHECK(t.at(w->key, 0, 0x200) == 0x7000'1100);
  CHECK(t.at(w->key, 0x1FF, 2) == 0);
  CHECK(t.at(w->key, 0x5100, 1) == 0);
  t.windows.release(t.regions, 0x101);
  CHECK(t.at(w->key, 0, 1) != 0);
  t.windows.release(t.regions, kUser.qpn);
  CHECK(t.at(w->key, 0, 1) == 0);
  CHECK(t.region->windows == 0);
}

TEST_CASE("A bind that is not allowed changes nothing", "[nic][mw]") {
  Tables t;
  MemoryWindow* w = t.windows.add(kUser.pd, WindowType::kType1);
  REQUIRE(w != nullptr);
  WindowBind bad = t.request(*w);
  WindowUser user = kUser;
  SECTION("another window key") { bad.window_key ^= 1; }
  SECTION("a region's key for a window's") { bad.window_key = t.region->key; }
  SECTION("a stale region key") { bad.region_key ^= 1; }
  SECTION("a window's key for a region's") { bad.region_key = w->key; }
  SECTION("a QP of another domain") { user.pd = 4; }
  SECTION("a region of another domain") { t.region->pd = 4; }
  SECTION("a region that admits no windows") { t.region->access = kAccessLocalWrite | kAccessRemoteWrite; }
  SECTION("a zero based region") { t.region->access |= kAccessZeroBased; }
  SECTION("a writable window on memory that is not") { t.region->access = kAccessWindowBind; }
  SECTION("a zero based window of type 1") { bad.access |= kAccessZeroBased; }
  SECTION("rights nobody knows") { bad.access |= 1u << 10; }
  SECTION("the right to bind windows to it") { bad.access |= kAccessWindowBind; }
  SECTION("one byte too long") { bad.length = 0xF01; }
  SECTION("one byte too early") { bad.addr = 0x4FFF; }
  SECTION("around the end of the address space") {
    bad.addr = 0x5001;
    bad.length = UINT64_MAX;
  }
  const uint32_t key = w->key;
  CHECK_FALSE(t.windows.bind(t.regions, bad, user));
  CHECK(w->key == key);
  CHECK(w->region == 0);
  CHECK(t.region->windows == 0);
}

TEST_CASE("Window keys are unique while they live and differ from their predecessors", "[nic][mw]") {
  Tables t;
  std::set<uint32_t> keys;
  for (int i = 0; i < 8; ++i) keys.insert(t.windows.add(kUser.pd, WindowType::kType2)->key);
  CHECK(keys.size() == 8);
  CHECK(t.windows.add(kUser.pd, WindowType::kType1) == nullptr);
  MemoryWindow* w = t.windows.at(0);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(t.windows.bind(t.regions, t.request(*w), kUser));
    const uint32_t key = w->key;
    t.windows.remove(t.regions, *w);
    CHECK(t.region->windows == 0);
    w = t.windows.add(kUser.pd, WindowType::kType2);
    REQUIRE(w != nullptr);
    CHECK(w->key != key);
    CHECK(t.windows.find(key) == nullptr);
  }
  CHECK(t.windows.used() == 8);
}
