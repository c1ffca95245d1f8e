// SPDX-License-Identifier: Apache-2.0
//
// Memory windows (IBTA Vol 1, 10.6.7): rights to a part of a memory region, given and taken back by work requests.
// Type 1 is bound again and again, by any QP of its domain; type 2 (2B here) is free or bound, belongs to the QP that
// bound it, and only that QP's peer may use it or invalidate it.
//
//   add(pd, type)          takes a window and gives its first key; nullptr when the table is full
//   bind(regions, ...)     the BIND_MW work request, with every check; false: a memory window bind error
//   invalidate(...)        LOCAL_INV and SEND with invalidate: a bound type 2 window becomes free
//   release(qpn)           the QP is gone or reset: its type 2 windows are free again
//   user_address(...)      as MrTable's, through the window: its key, domain, QP, rights and range
//
// A key has bit 31 set, which tells it from a region's; then (index + 1) << 8 | a byte that the binding program
// chooses. A bound window counts in MemoryRegion::windows; such a region is neither deregistered nor changed. Not
// thread-safe: the engine's lock.
#pragma once

#include <cstdint>

#include "nic/engine/arena.h"
#include "nic/engine/mr_table.h"
#include "nic/engine/work_queue.h"

namespace weft::nic {

inline constexpr uint32_t kWindowKey = 1u << 31;
constexpr bool is_window_key(uint32_t key) { return (key & kWindowKey) != 0; }

/// Numbered as ibv_mw_type.
enum class WindowType : uint8_t { kType1 = 1, kType2 = 2 };

struct MemoryWindow {
  uint64_t addr = 0;  ///< where it begins, in the region's addresses
  uint64_t length = 0;
  uint32_t index = 0;
  uint32_t key = 0;
  uint32_t region = 0;  ///< key of the region it is bound to; 0: to none
  uint32_t pd = 0;
  uint32_t access = 0;
  uint32_t qpn = 0;  ///< type 2: of the QP that bound it
  WindowType type = WindowType::kType1;
};

/// The QP that binds, invalidates or is accessed through a window.
struct WindowUser {
  uint32_t pd;
  uint32_t qpn;
};

class WindowTable {
 public:
  bool open(uint32_t capacity);
  MemoryWindow* add(uint32_t pd, WindowType type);
  void remove(MrTable& regions, MemoryWindow& window);
  MemoryWindow* at(uint32_t index) const { return windows_.at(index); }
  MemoryWindow* find(uint32_t key) const;
  [[nodiscard]] bool bind(MrTable& regions, const WindowBind& request, WindowUser user);
  bool can_invalidate(uint32_t key, WindowUser user) const;
  [[nodiscard]] bool invalidate(MrTable& regions, uint32_t key, WindowUser user);
  void release(MrTable& regions, uint32_t qpn);
  uint8_t* user_address(const MrTable& regions, uint32_t key, uint64_t va, uint64_t bytes, uint32_t rights,
                        WindowUser user) const;
  uint32_t used() const { return windows_.used(); }

 private:
  void unbind(MrTable& regions, MemoryWindow& window);

  Pool<MemoryWindow> windows_;
  uint8_t* last_byte_ = nullptr;  ///< low byte of the last key of each index
  uint32_t type2_bound_ = 0;
};

}  // namespace weft::nic
