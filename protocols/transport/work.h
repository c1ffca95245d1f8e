// SPDX-License-Identifier: Apache-2.0
//
// What transport machines exchange with the engine that owns them: work going in, frames coming out, demands on memory
// and receive queues, completions. All plain values; no pointers into anybody's memory.
//
// The machines never touch bytes and never call out. They say what has to be done with a payload (OutFrame::source,
// Placement, Demand); the engine does it and reports the outcome with one call. Order, per packet:
//
//   Demand d = responder.on_request(now, header, payload_bytes);
//   if (d.need != Need::kNothing) responder.settle(now, engine_does(d));
//
//   Placement p = requester.on_response(now, header, payload_bytes);
//   if (p.wanted) requester.placed(now, engine_copies(p));
//   while (requester.next_completion(c)) ...
//
// Numbers of enums are those of the verbs ABI (rdma/ib_user_verbs.h), so that adapters convert by cast.
#pragma once

#include <cstdint>

#include "protocols/wire/transport_header.h"

namespace weft {

enum class WorkOpcode : uint8_t {
  kWrite = 0,
  kWriteImm = 1,
  kSend = 2,
  kSendImm = 3,
  kRead = 4,
  kCompareSwap = 5,
  kFetchAdd = 6,
  kLocalInvalidate = 7,
  kBindWindow = 8,
  kSendInvalidate = 9,
  kAtomicWrite = 15,
};

/// Completion statuses, numbered as ibv_wc_status.
enum class WorkStatus : uint8_t {
  kSuccess = 0,
  kLocalLength = 1,
  kLocalQpOperation = 2,
  kLocalProtection = 4,
  kFlushed = 5,
  kWindowBind = 6,
  kLocalAccess = 8,
  kRemoteInvalidRequest = 9,
  kRemoteAccess = 10,
  kRemoteOperation = 11,
  kRetryExceeded = 12,
  kRnrRetryExceeded = 13,
  kGeneral = 21,
};

/// Counts the work requests of one queue since its last RESET; wraps modulo 2^32.
using WorkNumber = uint32_t;

/// One send work request as a machine sees it: no scatter list, no payload.
struct SendWork {
  WorkOpcode opcode = WorkOpcode::kSend;
  bool signaled = false;
  bool solicited = false;
  bool fence = false;
  uint32_t length = 0;  ///< bytes of the message (sum of SGEs, or inline); for READ: bytes asked for; atomics: 8
  uint32_t immediate = 0;        ///< or the rkey of SEND with invalidate
  uint64_t remote_addr = 0;
  uint32_t rkey = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint32_t remote_qpn = 0;   ///< UD
  uint32_t remote_qkey = 0;  ///< UD
};

/// Where the payload of a frame comes from.
enum class PayloadSource : uint8_t {
  kNone,
  kWork,    ///< bytes [offset, offset + bytes) of send work `work`
  kMemory,  ///< bytes [va, va + bytes) under `rkey`: a READ response
};

struct OutFrame {
  TransportHeader header;
  PayloadSource source = PayloadSource::kNone;
  uint32_t payload_bytes = 0;
  WorkNumber work = 0;   ///< kWork; for frames without payload: the work they belong to (UD addressing)
  uint32_t offset = 0;   ///< kWork
  uint64_t va = 0;       ///< kMemory
  uint32_t rkey = 0;     ///< kMemory
};

/// The requester's wish after a READ response or an ATOMIC acknowledge: copy payload (or the value) to send work
/// `work`'s scatter list at `offset`.
struct Placement {
  bool wanted = false;
  bool from_header = false;  ///< 8 bytes of header.atomic_original, in host order, instead of payload
  WorkNumber work = 0;
  uint32_t offset = 0;
  uint32_t length = 0;
};

struct SendCompletion {
  WorkNumber work = 0;
  WorkStatus status = WorkStatus::kSuccess;
};

/// What the responder needs done before it can accept a request packet.
enum class Need : uint8_t {
  kNothing,    ///< handled (or dropped) inside; do not call settle
  kPlaceSend,  ///< SEND data: place `length` bytes at `offset` of the current receive request
  kPlaceWrite, ///< WRITE data: place at `va` under `rkey` (rights: remote write); length may be 0 (then no check)
  kStartRead,  ///< READ: check `message_bytes` at `va` under `rkey` (rights: remote read); nothing is copied yet
  kAtomic,     ///< execute atomically at `va` under `rkey`; settle with the original value
  kAtomicWrite,  ///< the packet's 8 bytes in one store at `va` under `rkey` (rights: remote write)
};

struct Demand {
  Need need = Need::kNothing;
  bool first = false;             ///< first or only packet of the message
  bool last = false;              ///< last or only packet of the message
  bool takes_receive = false;     ///< a receive request must be at hand *before* this packet is accepted: answer
                                  ///  kReceiverNotReady otherwise, with nothing placed and nothing consumed
  bool completes_receive = false; ///< after kDone the engine completes that receive request (SEND last/only, WRITE imm)
  bool with_immediate = false;
  bool with_invalidate = false;
  bool solicited = false;
  uint32_t immediate = 0;         ///< or the rkey to invalidate
  uint32_t offset = 0;            ///< of this payload in the message
  uint32_t length = 0;            ///< bytes in this packet
  uint32_t message_bytes = 0;     ///< RETH length; for completes_receive: bytes of the whole message
  uint64_t va = 0;                ///< where this packet's bytes go (already advanced by offset)
  uint32_t rkey = 0;
  AtomicEth atomic;               ///< kAtomic
  Opcode opcode = Opcode::kRcSendOnly;
};

enum class Outcome : uint8_t {
  kDone,
  kReceiverNotReady,  ///< becomes an RNR NAK
  kInvalidRequest,    ///< e.g. a SEND longer than the receive request
  kRemoteAccess,
  kRemoteOperation,   ///< the receive request's own memory failed
};

}  // namespace weft
