// SPDX-License-Identifier: Apache-2.0
#include "nic/abi/rxe_ring.h"

#include <netinet/in.h>  // before rdma/*: rdma_user_rxe.h pulls in linux/in.h
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_rxe.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "protocols/transport/segment.h"

namespace weft::abi {
namespace {

constexpr uint32_t kRingHeader = sizeof(rxe_queue_buf);
constexpr uint32_t kMinElement = 64;
// Not sizeof(rxe_dma_info): the flexible arrays at its end have a size in C++.
constexpr uint32_t kDmaInfo = offsetof(rxe_dma_info, reserved) + sizeof(uint32_t);
constexpr uint32_t kSendHeader = offsetof(rxe_send_wqe, dma) + kDmaInfo;
constexpr uint32_t kReceiveHeader = offsetof(rxe_recv_wqe, dma) + kDmaInfo;

static_assert(kRingHeader == 384 && offsetof(rxe_queue_buf, producer_index) == 128 &&
              offsetof(rxe_queue_buf, consumer_index) == 256);
static_assert(kSendHeader == 208 && kReceiveHeader == 40 && sizeof(rxe_send_wr) == 144);
static_assert(sizeof(rxe_sge) == sizeof(nic::Sge) && offsetof(rxe_sge, length) == offsetof(nic::Sge, length) &&
              offsetof(rxe_sge, lkey) == offsetof(nic::Sge, lkey));
static_assert(sizeof(ib_uverbs_wc) == 48);

// ibv_send_flags
constexpr uint32_t kFlagFence = 1;
constexpr uint32_t kFlagSignaled = 2;
constexpr uint32_t kFlagSolicited = 4;
constexpr uint32_t kFlagInline = 8;
// ibv_wc_flags
constexpr uint32_t kWcGrh = 1;
constexpr uint32_t kWcWithImmediate = 2;
constexpr uint32_t kWcWithInvalidate = 8;

/// Sum of the lengths, saturated: the provider's own sum is wrong in one of its builders (fixed in rdma-core 64).
uint32_t total_length(const nic::Sge* sges, uint32_t count) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += sges[i].length;
  return sum > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(sum);
}

void decode_remote(const rxe_send_wr& wr, nic::SendRequest& out) {
  SendWork& work = out.work;
  switch (work.opcode) {
    case WorkOpcode::kWrite:
    case WorkOpcode::kWriteImm:
    case WorkOpcode::kRead:
    case WorkOpcode::kAtomicWrite:
      work.remote_addr = wr.wr.rdma.remote_addr;
      work.rkey = wr.wr.rdma.rkey;
      break;
    case WorkOpcode::kCompareSwap:
    case WorkOpcode::kFetchAdd:
      work.remote_addr = wr.wr.atomic.remote_addr;
      work.rkey = wr.wr.atomic.rkey;
      work.compare_add = wr.wr.atomic.compare_add;
      work.swap = wr.wr.atomic.swap;
      break;
    case WorkOpcode::kBindWindow:
      out.bind = {wr.wr.mw.addr, wr.wr.mw.length, wr.wr.mw.mr_lkey, wr.wr.mw.mw_rkey, wr.wr.mw.rkey, wr.wr.mw.access};
      break;
    default:
      // Meaningful for UD only; other services ignore it.
      work.remote_qpn = wr.wr.ud.remote_qpn & 0xFFFFFF;
      work.remote_qkey = wr.wr.ud.remote_qkey;
      out.address_handle = wr.wr.ud.ah_num;
      break;
  }
}

bool invalidates(WorkOpcode opcode) {
  return opcode == WorkOpcode::kSendInvalidate || opcode == WorkOpcode::kLocalInvalidate;
}

bool known_opcode(uint32_t opcode) { return opcode <= 9 || opcode == 15; }

}  // namespace

// --- geometry ------------------------------------------------------------------------------------------------

int RxeRing::map(nic::Platform& platform, int memfd, uint32_t entries, uint32_t element_bytes) {
  const uint32_t size = std::bit_ceil(element_bytes < kMinElement ? kMinElement : element_bytes);
  const uint32_t slots = std::bit_ceil(entries + 1);
  const uint64_t bytes = kRingHeader + static_cast<uint64_t>(slots) * size;
  if (bytes > UINT32_MAX - 65536) return EINVAL;
  if (const int error = platform.map_ring(memfd, bytes, memory_); error != 0) return error;
  mask_ = slots - 1;
  shift_ = static_cast<uint32_t>(std::countr_zero(size));
  // For the program's eyes; we keep to our own.
  memcpy(memory_.address + offsetof(rxe_queue_buf, log2_elem_size), &shift_, sizeof shift_);
  memcpy(memory_.address + offsetof(rxe_queue_buf, index_mask), &mask_, sizeof mask_);
  return 0;
}

void RxeRing::unmap(nic::Platform& platform) {
  if (mapped()) platform.unmap_ring(memory_);
  memory_ = {};
  mask_ = 0;
}

void RxeRing::swap(RxeRing& other) {
  std::swap(memory_, other.memory_);
  std::swap(mask_, other.mask_);
  std::swap(shift_, other.shift_);
}

uint8_t* RxeRing::element(uint32_t index) const {
  return memory_.address + kRingHeader + (static_cast<uint64_t>(index & mask_) << shift_);
}

std::atomic<uint32_t>& RxeRing::producer() const {
  return *reinterpret_cast<std::atomic<uint32_t>*>(memory_.address + offsetof(rxe_queue_buf, producer_index));
}

std::atomic<uint32_t>& RxeRing::consumer() const {
  return *reinterpret_cast<std::atomic<uint32_t>*>(memory_.address + offsetof(rxe_queue_buf, consumer_index));
}

uint32_t send_element_bytes(uint32_t max_sge, uint32_t max_inline) {
  const uint32_t list = max_sge * static_cast<uint32_t>(sizeof(nic::Sge));
  return kSendHeader + (list > max_inline ? list : max_inline);
}

uint32_t receive_element_bytes(uint32_t max_sge) {
  return kReceiveHeader + max_sge * static_cast<uint32_t>(sizeof(nic::Sge));
}

// --- send ----------------------------------------------------------------------------------------------------

bool RxeSendQueue::peek(nic::SendRequest& out) {
  if (empty()) return false;
  const uint8_t* element = ring.element(taken_);
  rxe_send_wr wr;
  memcpy(&wr, element, sizeof wr);
  uint32_t inline_bytes = 0;
  uint32_t sge_count = 0;
  memcpy(&inline_bytes, element + offsetof(rxe_send_wqe, dma) + offsetof(rxe_dma_info, length), sizeof inline_bytes);
  memcpy(&sge_count, element + offsetof(rxe_send_wqe, dma) + offsetof(rxe_dma_info, num_sge), sizeof sge_count);

  out = nic::SendRequest{};
  out.wr_id = wr.wr_id;
  if (!known_opcode(wr.opcode)) {
    out.fault = WorkStatus::kLocalQpOperation;
    return true;
  }
  out.work.opcode = static_cast<WorkOpcode>(wr.opcode);
  out.work.signaled = (wr.send_flags & kFlagSignaled) != 0;
  out.work.solicited = (wr.send_flags & kFlagSolicited) != 0;
  out.work.fence = (wr.send_flags & kFlagFence) != 0;
  out.work.immediate = invalidates(out.work.opcode) ? wr.ex.invalidate_rkey : ntohl(wr.ex.imm_data);
  decode_remote(wr, out);
  if (is_local(out.work.opcode)) return true;  // no data: the rest of the element means nothing
  if (out.work.opcode == WorkOpcode::kAtomicWrite) {
    // The value itself is where a list would be, whatever the flags say.
    out.work.length = kAtomicWriteBytes;
    out.inline_data = element + kSendHeader;
    return true;
  }
  // rdma-core before 64 forgets the flag in ibv_wr_set_inline_data: bytes without any entry of a list are that.
  const bool bytes_alone =
      sge_count == 0 && inline_bytes != 0 && (is_send(out.work.opcode) || is_write(out.work.opcode));
  if ((wr.send_flags & kFlagInline) != 0 || bytes_alone) {
    // num_sge is the program's count here and means nothing.
    if (inline_bytes > max_inline) out.fault = WorkStatus::kLocalLength;
    out.work.length = inline_bytes > max_inline ? 0 : inline_bytes;
    out.inline_data = element + kSendHeader;
    return true;
  }
  if (sge_count > max_sge) {
    out.fault = WorkStatus::kLocalQpOperation;
    return true;
  }
  out.sges = reinterpret_cast<const nic::Sge*>(element + kSendHeader);
  out.sge_count = sge_count;
  out.work.length = total_length(out.sges, sge_count);
  return true;
}

void RxeSendQueue::retire() {
  retired_ = (retired_ + 1) & ring.mask();
  ring.consumer().store(retired_, std::memory_order_release);
}

void RxeSendQueue::reset() {
  taken_ = retired_ = ring.load_producer();
  ring.consumer().store(retired_, std::memory_order_release);
}

// --- receive -------------------------------------------------------------------------------------------------

bool RxeReceiveQueue::take(nic::ReceiveRequest& out) {
  if (empty()) return false;
  const uint8_t* element = ring.element(taken_);
  memcpy(&out.wr_id, element + offsetof(rxe_recv_wqe, wr_id), sizeof out.wr_id);
  uint32_t count = 0;
  memcpy(&count, element + offsetof(rxe_recv_wqe, dma) + offsetof(rxe_dma_info, num_sge), sizeof count);
  // The provider has refused longer lists; whoever writes the ring himself gets a request without room.
  out.malformed = count > max_sge || count > nic::kMaxSges;
  out.sge_count = out.malformed ? 0 : count;
  memcpy(out.sges, element + kReceiveHeader, out.sge_count * sizeof(nic::Sge));
  out.bytes = total_length(out.sges, out.sge_count);
  taken_ = (taken_ + 1) & ring.mask();
  ring.consumer().store(taken_, std::memory_order_release);
  return true;
}

uint32_t RxeReceiveQueue::next_bytes() const {
  if (empty()) return 0;
  const uint8_t* element = ring.element(taken_);
  uint32_t count = 0;
  memcpy(&count, element + offsetof(rxe_recv_wqe, dma) + offsetof(rxe_dma_info, num_sge), sizeof count);
  if (count > max_sge || count > nic::kMaxSges) return UINT32_MAX;  // take() finds it malformed
  nic::Sge sges[nic::kMaxSges];
  memcpy(sges, element + kReceiveHeader, count * sizeof(nic::Sge));
  return total_length(sges, count);
}

bool RxeReceiveQueue::move_to(RxeRing& fresh) {
  const uint32_t posted = count();
  if (posted > fresh.usable() || fresh.element_bytes() != ring.element_bytes()) return false;
  for (uint32_t i = 0; i < posted; ++i) memcpy(fresh.element(i), ring.element(taken_ + i), ring.element_bytes());
  taken_ = 0;
  fresh.producer().store(posted, std::memory_order_release);
  ring.swap(fresh);
  return true;
}

void RxeReceiveQueue::reset() {
  if (!ring.mapped()) return;
  taken_ = ring.load_producer();
  ring.consumer().store(taken_, std::memory_order_release);
}

// --- completions ---------------------------------------------------------------------------------------------

/// The program's consumer index, believed only as far as it can be true. rdma-core before 55 advances it past the
/// producer when ibv_next_poll finds nothing and ibv_end_poll follows; the ring would look full for ever.
uint32_t RxeCompletionRing::taken_by_program() {
  uint32_t raw = ring.consumer().load(std::memory_order_acquire);
  const uint32_t consumer = raw & ring.mask();
  const uint32_t advance = (consumer - seen_) & ring.mask();
  const uint32_t outstanding = (visible_ - seen_) & ring.mask();
  if (advance <= outstanding) {
    seen_ = consumer;
  } else if (ring.consumer().compare_exchange_strong(raw, visible_, std::memory_order_acq_rel)) {
    seen_ = visible_;
  }
  return seen_;
}

bool RxeCompletionRing::put(const nic::Completion& completion) {
  const uint32_t next = (staged_ + 1) & ring.mask();
  if (next == taken_by_program()) return false;
  ib_uverbs_wc wc;
  memset(&wc, 0, sizeof wc);
  wc.wr_id = completion.wr_id;
  wc.status = static_cast<uint32_t>(completion.status);
  wc.opcode = static_cast<uint32_t>(completion.opcode);
  wc.byte_len = completion.byte_len;
  if (completion.with_invalidate) {
    wc.ex.invalidate_rkey = completion.immediate;
  } else {
    wc.ex.imm_data = htonl(completion.immediate);
  }
  wc.qp_num = completion.qpn;
  wc.src_qp = completion.source_qpn;
  wc.wc_flags = (completion.with_grh ? kWcGrh : 0) | (completion.with_immediate ? kWcWithImmediate : 0) |
                (completion.with_invalidate ? kWcWithInvalidate : 0);
  wc.pkey_index = completion.pkey_index;
  wc.sl = completion.sl;
  wc.port_num = 1;
  memcpy(ring.element(staged_), &wc, sizeof wc);
  staged_ = next;
  ++puts_;
  return true;
}

void RxeCompletionRing::publish(uint32_t position) {
  visible_ = (position - position_of_zero_) & ring.mask();
  ring.producer().store(visible_, std::memory_order_release);
}

uint32_t RxeCompletionRing::withdraw(uint32_t qpn) {
  uint32_t count = 0;
  for (uint32_t i = taken_by_program(); i != staged_; i = (i + 1) & ring.mask()) {
    uint8_t* element = ring.element(i);
    uint32_t number = 0;
    uint32_t status = 0;
    memcpy(&number, element + offsetof(ib_uverbs_wc, qp_num), sizeof number);
    memcpy(&status, element + offsetof(ib_uverbs_wc, status), sizeof status);
    if (number != qpn || status == nic::kWithdrawn) continue;
    // One store: a program that polls at this moment gets the one or the other.
    reinterpret_cast<std::atomic<uint32_t>*>(element + offsetof(ib_uverbs_wc, status))
        ->store(nic::kWithdrawn, std::memory_order_relaxed);
    ++count;
  }
  return count;
}

uint32_t RxeCompletionRing::withdrawn() {
  uint32_t count = 0;
  for (uint32_t i = ring.mapped() ? taken_by_program() : staged_; i != staged_; i = (i + 1) & ring.mask()) {
    uint32_t status = 0;
    memcpy(&status, ring.element(i) + offsetof(ib_uverbs_wc, status), sizeof status);
    count += status == nic::kWithdrawn ? 1 : 0;
  }
  return count;
}

uint32_t RxeCompletionRing::pending() { return (staged_ - taken_by_program()) & ring.mask(); }

void RxeCompletionRing::move_to(RxeRing& fresh) {
  const uint32_t first = taken_by_program();
  const uint32_t count = (staged_ - first) & ring.mask();
  const uint32_t shown = (visible_ - first) & ring.mask();
  for (uint32_t i = 0; i < count; ++i) memcpy(fresh.element(i), ring.element(first + i), sizeof(ib_uverbs_wc));
  // Position p has index p − position_of_zero_, in the old ring and in the new one.
  position_of_zero_ = puts_ - count;
  staged_ = count;
  visible_ = shown;
  seen_ = 0;
  fresh.producer().store(visible_, std::memory_order_release);
  ring.swap(fresh);
}

bool RxeCompletionRing::step_back(uint32_t before) {
  uint32_t after = (before + 1) & ring.mask();
  return ring.consumer().compare_exchange_strong(after, before & ring.mask(), std::memory_order_acq_rel);
}

}  // namespace weft::abi
