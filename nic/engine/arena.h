// SPDX-License-Identifier: Apache-2.0
//
// Memory of the engine: raw mappings of its own, because it lives in somebody else's process (its malloc may be hooked,
// its pages may be forked away; nic_rules 8, kernel_abi G.2) and because state is paid for on first use only.
//
//   map_memory / unmap_memory   whole pages, zero-filled, by raw system calls
//   Pool<T>                     objects in chunks that are mapped when first needed and never unmapped: a stale pointer
//                               or index stays readable. An index is dense and stable. Freed objects are reused first.
//
// Not thread-safe (the engine's lock), except at(), which any thread may call with any index.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

namespace weft::nic {

inline constexpr size_t kArenaPage = 65536;  // a multiple of every page size in use

inline void* map_memory(size_t bytes) {
  const int saved = errno;
  const long address =
      syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  errno = saved;
  return address == -1 ? nullptr : reinterpret_cast<void*>(address);
}

inline void unmap_memory(void* address, size_t bytes) {
  const int saved = errno;
  if (address != nullptr) syscall(SYS_munmap, address, bytes);
  errno = saved;
}

constexpr size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

template <typename T>
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Reserves nothing but the chunk table. False when memory is short.
  bool open(uint32_t capacity) {
    capacity_ = capacity;
    const size_t chunks = (capacity + kPerChunk - 1) / kPerChunk;
    table_bytes_ = round_up(chunks * sizeof(std::atomic<Cell*>), 4096);
    table_ = static_cast<std::atomic<Cell*>*>(map_memory(table_bytes_));
    return table_ != nullptr;
  }

  /// For pools that end before the process: the caller knows that no pointer is left.
  void close() {
    if (table_ == nullptr) return;
    for (uint32_t first = 0; first < fresh_; first += kPerChunk) unmap_memory(chunk_of(first), kChunkBytes);
    unmap_memory(table_, table_bytes_);
    table_ = nullptr;
    fresh_ = used_ = 0;
    free_ = kNone;
  }

  /// A new object and its index, or nullptr when the capacity or the memory is used up.
  T* take(uint32_t& index) {
    if (free_ != kNone) {
      index = free_;
      Cell& cell = *cell_of(index);
      free_ = cell.next_free;
      return occupy(cell);
    }
    if (table_ == nullptr || fresh_ == capacity_) return nullptr;
    if (chunk_of(fresh_) == nullptr) {
      void* memory = map_memory(kChunkBytes);
      if (memory == nullptr) return nullptr;
      table_[fresh_ / kPerChunk].store(static_cast<Cell*>(memory), std::memory_order_release);
    }
    index = fresh_++;
    return occupy(*cell_of(index));
  }

  void give(uint32_t index) {
    Cell& cell = *cell_of(index);
    reinterpret_cast<T*>(cell.storage)->~T();
    cell.live.store(false, std::memory_order_release);
    cell.next_free = free_;
    free_ = index;
    --used_;
  }

  /// The live object of that index, or nullptr.
  T* at(uint32_t index) const {
    if (index >= capacity_ || table_ == nullptr) return nullptr;
    Cell* chunk = chunk_of(index);
    if (chunk == nullptr) return nullptr;
    Cell& cell = chunk[index % kPerChunk];
    return cell.live.load(std::memory_order_acquire) ? reinterpret_cast<T*>(cell.storage) : nullptr;
  }

  uint32_t used() const { return used_; }
  uint32_t capacity() const { return capacity_; }
  /// Indices below this one have been used at some time: the end of a scan.
  uint32_t high_water() const { return fresh_; }

 private:
  struct Cell {
    alignas(T) unsigned char storage[sizeof(T)];
    std::atomic<bool> live;
    uint32_t next_free;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kPerChunk = sizeof(Cell) >= kArenaPage / 2 ? 1 : kArenaPage / sizeof(Cell);
  static constexpr size_t kChunkBytes = round_up(kPerChunk * sizeof(Cell), 4096);

  Cell* chunk_of(uint32_t index) const { return table_[index / kPerChunk].load(std::memory_order_acquire); }
  Cell* cell_of(uint32_t index) const { return chunk_of(index) + index % kPerChunk; }
  T* occupy(Cell& cell) {
    T* object = new (cell.storage) T();
    cell.live.store(true, std::memory_order_release);
    ++used_;
    return object;
  }

  std::atomic<Cell*>* table_ = nullptr;
  size_t table_bytes_ = 0;
  uint32_t capacity_ = 0;
  uint32_t fresh_ = 0;
  uint32_t used_ = 0;
  uint32_t free_ = kNone;
};

}  // namespace weft::nic
