// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/window_table.h"

namespace weft::nic {
namespace {

constexpr uint32_t kKeyByte = 0xff;
constexpr uint32_t kWindowRights =
    kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic | kAccessZeroBased;
constexpr uint32_t kChanges = kAccessRemoteWrite | kAccessRemoteAtomic;

/// [addr, addr + length) lies in [start, start + room), without overflow.
bool within(uint64_t addr, uint64_t length, uint64_t start, uint64_t room) {
  const uint64_t offset = addr - start;
  return addr >= start && offset <= room && length <= room - offset;
}

/// What a region must allow for a window with these rights. IBTA Vol 1, 10.6.7.2, C10-73 to C10-75.
bool region_allows(const MemoryRegion& region, const WindowBind& request) {
  if ((region.access & kAccessZeroBased) != 0 || (region.access & kAccessWindowBind) == 0) return false;
  if ((request.access & kChanges) != 0 && (region.access & kAccessLocalWrite) == 0) return false;
  return within(request.addr, request.length, region.iova, region.length);
}

}  // namespace

bool WindowTable::open(uint32_t capacity) {
  last_byte_ = static_cast<uint8_t*>(map_memory(round_up(capacity, 4096)));
  return last_byte_ != nullptr && windows_.open(capacity);
}

MemoryWindow* WindowTable::add(uint32_t pd, WindowType type) {
  uint32_t index = 0;
  MemoryWindow* window = windows_.take(index);
  if (window == nullptr) return nullptr;
  // Odd, as in MrTable: a stale key is wrong for a long time.
  last_byte_[index] = static_cast<uint8_t>(last_byte_[index] + 0x35);
  window->index = index;
  window->key = kWindowKey | (index + 1) << 8 | last_byte_[index];
  window->pd = pd;
  window->type = type;
  return window;
}

void WindowTable::remove(MrTable& regions, MemoryWindow& window) {
  unbind(regions, window);
  last_byte_[window.index] = static_cast<uint8_t>(window.key);
  windows_.give(window.index);
}

MemoryWindow* WindowTable::find(uint32_t key) const {
  if (!is_window_key(key)) return nullptr;
  MemoryWindow* window = windows_.at(((key & ~kWindowKey) >> 8) - 1);
  return window != nullptr && window->key == key ? window : nullptr;
}

void WindowTable::unbind(MrTable& regions, MemoryWindow& window) {
  if (window.region == 0) return;
  if (MemoryRegion* region = regions.find(window.region)) --region->windows;
  if (window.type == WindowType::kType2) --type2_bound_;
  window.region = window.qpn = window.access = 0;
  window.addr = window.length = 0;
}

bool WindowTable::bind(MrTable& regions, const WindowBind& request, WindowUser user) {
  MemoryWindow* window = find(request.window_key);
  if (window == nullptr || window->pd != user.pd || (request.access & ~kWindowRights) != 0) return false;
  const bool type2 = window->type == WindowType::kType2;
  // o10-36.2.2, o10-37.2.30, o10-37.2.40: type 1 is never zero based; type 2 must be free, and is not freed by a bind.
  if (type2 ? window->region != 0 || request.length == 0 : (request.access & kAccessZeroBased) != 0) return false;
  MemoryRegion* region = nullptr;
  if (request.length != 0) {
    region = regions.find(request.region_key);
    if (region == nullptr || region->pd != user.pd || !region_allows(*region, request)) return false;
  }
  unbind(regions, *window);
  window->key = (window->key & ~kKeyByte) | (request.new_key & kKeyByte);
  if (region == nullptr) return true;  // type 1: taken back
  ++region->windows;
  window->region = region->key;
  window->addr = request.addr;
  window->length = request.length;
  window->access = request.access;
  if (type2) {
    window->qpn = user.qpn;
    ++type2_bound_;
  }
  return true;
}

bool WindowTable::can_invalidate(uint32_t key, WindowUser user) const {
  const MemoryWindow* window = find(key);
  // o10-37.2.26: never type 1.
  return window != nullptr && window->type == WindowType::kType2 && window->region != 0 && window->pd == user.pd &&
         window->qpn == user.qpn;
}

bool WindowTable::invalidate(MrTable& regions, uint32_t key, WindowUser user) {
  if (!can_invalidate(key, user)) return false;
  unbind(regions, *find(key));
  return true;
}

void WindowTable::release(MrTable& regions, uint32_t qpn) {
  for (uint32_t i = 0; i < windows_.high_water() && type2_bound_ != 0; ++i) {
    MemoryWindow* window = windows_.at(i);
    if (window != nullptr && window->region != 0 && window->qpn == qpn) unbind(regions, *window);
  }
}

uint8_t* WindowTable::user_address(const MrTable& regions, uint32_t key, uint64_t va, uint64_t bytes, uint32_t rights,
                                   WindowUser user) const {
  const MemoryWindow* window = find(key);
  if (window == nullptr || window->region == 0 || window->pd != user.pd || (window->access & rights) != rights) {
    return nullptr;
  }
  if (window->type == WindowType::kType2 && window->qpn != user.qpn) return nullptr;
  const bool zero_based = (window->access & kAccessZeroBased) != 0;
  const uint64_t base = zero_based ? 0 : window->addr;
  if (!within(va, bytes, base, window->length)) return nullptr;
  // The window's rights are what counts: the region itself may allow no remote access at all.
  return regions.user_address(window->region, window->addr + (va - base), bytes, 0, user.pd);
}

}  // namespace weft::nic
