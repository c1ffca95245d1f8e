// SPDX-License-Identifier: Apache-2.0
//
// What the engine asks of a work queue and of a completion sink. The rings of the rxe provider (nic/abi/rxe_ring.h) are
// one adapter of each; the engine knows no layout. All calls with the engine's lock held, once per work or completion,
// never per packet.
//
//   SendQueue     peek the oldest work not yet taken; take it; retire the oldest one taken (its ring entry may go)
//   ReceiveQueue  take one receive request, copied out; several QPs may take from one (an SRQ)
//   CompletionSink  put one completion at a private position; publish makes those before a position visible
//
// Scatter lists stay where the program put them: `sges` points into shared memory that the program may change at any
// time, so every use reads each entry once and checks it against the MR table.
#pragma once

#include <cstdint>

#include "protocols/transport/work.h"

namespace weft::nic {

inline constexpr uint32_t kMaxSges = 32;

/// A scatter/gather entry, as every verbs ABI lays it out.
struct Sge {
  uint64_t addr;
  uint32_t length;
  uint32_t lkey;
};
static_assert(sizeof(Sge) == 16);

/// What a BIND_MW asks for.
struct WindowBind {
  uint64_t addr = 0;
  uint64_t length = 0;
  uint32_t region_key = 0;
  uint32_t window_key = 0;
  uint32_t new_key = 0;  ///< its low byte becomes the window's
  uint32_t access = 0;
};

struct SendRequest {
  SendWork work;
  WindowBind bind;  ///< BIND_MW
  uint64_t wr_id = 0;
  const Sge* sges = nullptr;
  uint32_t sge_count = 0;
  const uint8_t* inline_data = nullptr;     ///< when set, the payload; sges is not used
  uint32_t address_handle = 0;              ///< UD
  WorkStatus fault = WorkStatus::kSuccess;  ///< other than success: complete with that, send nothing
};

struct ReceiveRequest {
  uint64_t wr_id = 0;
  uint32_t sge_count = 0;
  uint32_t bytes = 0;      ///< sum of the lengths, saturated
  bool malformed = false;  ///< its list is longer than any that can be posted; it has no room
  Sge sges[kMaxSges];
};

/// Completion opcodes, numbered as ibv_wc_opcode.
enum class CompletionOpcode : uint8_t {
  kSend = 0,
  kWrite = 1,
  kRead = 2,
  kCompareSwap = 3,
  kFetchAdd = 4,
  kBindWindow = 5,
  kLocalInvalidate = 6,
  kAtomicWrite = 9,
  kReceive = 128,
  kReceiveWriteImm = 129,
};

struct Completion {
  uint64_t wr_id = 0;
  WorkStatus status = WorkStatus::kSuccess;
  CompletionOpcode opcode = CompletionOpcode::kSend;
  bool with_immediate = false;
  bool with_invalidate = false;
  bool with_grh = false;
  bool solicited = false;
  uint8_t sl = 0;
  uint16_t pkey_index = 0;
  uint32_t byte_len = 0;
  uint32_t immediate = 0;  ///< or the rkey that was invalidated
  uint32_t qpn = 0;
  uint32_t source_qpn = 0;
};

/// Status of a completion whose QP was reset or destroyed before the program took it. The program's ring has no way to
/// take an entry out again while the program may be polling, so what polls for it steps over these
/// (Platform::steps_over_withdrawn).
inline constexpr uint32_t kWithdrawn = 0x57'45'46'54;

class SendQueue {
 public:
  virtual bool peek(SendRequest& out) = 0;
  virtual void take() = 0;
  virtual void retire() = 0;
  virtual bool empty() const = 0;  ///< nothing to peek at
  virtual void reset() = 0;        ///< the QP goes to RESET: everything posted is forgotten

 protected:
  ~SendQueue() = default;
};

class ReceiveQueue {
 public:
  virtual bool take(ReceiveRequest& out) = 0;
  virtual bool empty() const = 0;
  virtual void reset() = 0;
  virtual uint32_t count() const = 0;       ///< requests that take() would find
  virtual uint32_t next_bytes() const = 0;  ///< room of the next one as it is now, a hint; 0 when there is none

 protected:
  ~ReceiveQueue() = default;
};

class CompletionSink {
 public:
  /// False: the ring is full. The position of the entry is the number of successful puts before it, modulo 2^32.
  virtual bool put(const Completion& completion) = 0;
  /// Makes the entries before `position` visible (release). Positions only go forward.
  virtual void publish(uint32_t position) = 0;
  /// Looks at how far the program has read, and mends what an ABI's library is known to get wrong there.
  virtual void check() = 0;
  /// Marks what the program has not taken of that QP as withdrawn (kWithdrawn for a status); says how many.
  virtual uint32_t withdraw(uint32_t qpn) = 0;
  /// How many withdrawn ones the program has not come across yet.
  virtual uint32_t withdrawn() = 0;

 protected:
  ~CompletionSink() = default;
};

}  // namespace weft::nic
