// SPDX-License-Identifier: Apache-2.0
//
// The rxe provider's rings (rdma_user_rxe.h) as the engine's work queues and completion sink.
//
//   RxeRing             geometry and memory of one ring; maps through the Platform, so that the program can map it too
//   RxeSendQueue        the program produces, we consume
//   RxeReceiveQueue     the same, for receive requests
//   RxeCompletionRing   we produce, the program consumes
//
// The program maps the same pages writable. Geometry is therefore kept here and never read back, and every index read
// is masked. Layout of elements: nic/abi/rxe_ring.cc, the only place that knows it.
#pragma once

#include <atomic>
#include <cstdint>

#include "nic/engine/platform.h"
#include "nic/engine/work_queue.h"

namespace weft::abi {

/// Where a ring is for mmap(2) on the command fd: the kernel's struct mminfo.
struct MapInfo {
  uint64_t offset;
  uint32_t size;
  uint32_t pad;
};
static_assert(sizeof(MapInfo) == 16);

class RxeRing {
 public:
  RxeRing() = default;
  RxeRing(const RxeRing&) = delete;
  RxeRing& operator=(const RxeRing&) = delete;

  /// Room for `entries` elements of `element_bytes` at least. 0 or errno.
  int map(nic::Platform& platform, int memfd, uint32_t entries, uint32_t element_bytes);
  void unmap(nic::Platform& platform);
  void swap(RxeRing& other);
  bool mapped() const { return memory_.address != nullptr; }
  /// Usable entries: one slot always stays empty.
  uint32_t usable() const { return mask_; }
  uint32_t mask() const { return mask_; }
  uint8_t* element(uint32_t index) const;
  uint32_t element_bytes() const { return 1u << shift_; }
  std::atomic<uint32_t>& producer() const;
  std::atomic<uint32_t>& consumer() const;
  uint32_t load_producer() const { return producer().load(std::memory_order_acquire) & mask_; }
  uint32_t load_consumer() const { return consumer().load(std::memory_order_acquire) & mask_; }
  MapInfo map_info() const { return {memory_.offset, static_cast<uint32_t>(memory_.bytes), 0}; }

 private:
  nic::RingMemory memory_;
  uint32_t mask_ = 0;
  uint32_t shift_ = 0;
};

/// Sizes of the variable part of a send WQE: scatter list and inline data share it.
uint32_t send_element_bytes(uint32_t max_sge, uint32_t max_inline);
uint32_t receive_element_bytes(uint32_t max_sge);

class RxeSendQueue final : public nic::SendQueue {
 public:
  RxeRing ring;
  uint32_t max_sge = 0;
  uint32_t max_inline = 0;

  bool peek(nic::SendRequest& out) override;
  void take() override { taken_ = (taken_ + 1) & ring.mask(); }
  void retire() override;
  bool empty() const override { return ring.load_producer() == taken_; }
  void reset() override;

 private:
  uint32_t taken_ = 0;    ///< next to take
  uint32_t retired_ = 0;  ///< next to retire: the consumer index
};

class RxeReceiveQueue final : public nic::ReceiveQueue {
 public:
  RxeRing ring;
  uint32_t max_sge = 0;

  bool take(nic::ReceiveRequest& out) override;
  bool empty() const override { return !ring.mapped() || ring.load_producer() == taken_; }
  void reset() override;
  uint32_t count() const override { return ring.mapped() ? (ring.load_producer() - taken_) & ring.mask() : 0; }
  uint32_t next_bytes() const override;
  /// Copies what is posted to `fresh`, a mapped ring of the same element size with room for count() of them, and goes
  /// on there; `fresh` is the old one then. False: more was posted meanwhile than fits.
  bool move_to(RxeRing& fresh);

 private:
  uint32_t taken_ = 0;
};

class RxeCompletionRing final : public nic::CompletionSink {
 public:
  RxeRing ring;

  bool put(const nic::Completion& completion) override;
  void publish(uint32_t position) override;
  void check() override { taken_by_program(); }
  uint32_t withdraw(uint32_t qpn) override;
  uint32_t withdrawn() override;
  /// The program's consumer index goes back to `before` if it is exactly one further.
  bool step_back(uint32_t before);
  /// Completions the program has not taken, staged ones included.
  uint32_t pending();
  /// Copies what is pending to `fresh`, a mapped ring with room for it, and goes on there; `fresh` is the old one then.
  void move_to(RxeRing& fresh);

 private:
  uint32_t taken_by_program();

  uint32_t staged_ = 0;            ///< index of the next put
  uint32_t visible_ = 0;           ///< what the producer index says
  uint32_t seen_ = 0;              ///< consumer index, as last believed
  uint32_t puts_ = 0;              ///< position after the last put
  uint32_t position_of_zero_ = 0;  ///< position whose element has index 0
};

}  // namespace weft::abi
