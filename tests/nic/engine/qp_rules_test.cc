// SPDX-License-Identifier: Apache-2.0
//
// The state table as ib_core has it (qp_state_table and ib_modify_qp_is_ok in drivers/infiniband/core/verbs.c), written
// down row by row, and every transition of every service judged by it: with exactly what is required, with each bit
// missing, with each other bit added, with pairs of them.
#include "nic/engine/qp_rules.h"

#include <catch2/catch.hpp>
#include <vector>

using namespace weft::nic;

namespace {

// ibv_qp_attr_mask, spelled out here again: the numbers are the ABI.
constexpr uint32_t kState = 1, kCurState = 2, kEnSqdNotify = 4, kAccess = 8, kPkey = 0x10, kPort = 0x20, kQkey = 0x40,
                   kAv = 0x80, kMtu = 0x100, kTimeout = 0x200, kRetry = 0x400, kRnrRetry = 0x800, kRqPsn = 0x1000,
                   kMaxRd = 0x2000, kAltPath = 0x4000, kMinRnr = 0x8000, kSqPsn = 0x10000, kMaxDest = 0x20000,
                   kMigration = 0x40000, kDestQpn = 0x100000;
constexpr uint32_t kBits = 21;
enum : uint8_t { R, I, TR, TS, SQD, SQE, ERR };  // RESET, INIT, RTR, RTS, …

struct Masks {
  uint32_t required = 0, optional = 0;
};
struct Row {
  uint8_t from, to;
  Masks rc = {}, uc = {}, ud = {};
};

constexpr uint32_t kRcRunning = kCurState | kAltPath | kAccess | kMinRnr | kMigration;
constexpr uint32_t kUcRunning = kCurState | kAltPath | kAccess | kMigration;
constexpr uint32_t kUdRunning = kCurState | kQkey;
constexpr uint32_t kPath = kAv | kMtu | kDestQpn | kRqPsn;
constexpr uint32_t kRtrOptional = kAltPath | kAccess | kPkey;

const Row kTable[] = {
    {R, R},
    {R, I, {kPkey | kPort | kAccess, 0}, {kPkey | kPort | kAccess, 0}, {kPkey | kPort | kQkey, 0}},
    {I, R},
    {I, ERR},
    {I, I, {0, kPkey | kPort | kAccess}, {0, kPkey | kPort | kAccess}, {0, kPkey | kPort | kQkey}},
    {I, TR, {kPath | kMaxDest | kMinRnr, kRtrOptional}, {kPath, kRtrOptional}, {0, kPkey | kQkey}},
    {TR, R},
    {TR, ERR},
    {TR, TS, {kTimeout | kRetry | kRnrRetry | kSqPsn | kMaxRd, kRcRunning}, {kSqPsn, kUcRunning}, {kSqPsn, kUdRunning}},
    {TS, R},
    {TS, ERR},
    {TS, TS, {0, kRcRunning}, {0, kUcRunning}, {0, kUdRunning}},
    {TS, SQD, {0, kEnSqdNotify}, {0, kEnSqdNotify}, {0, kEnSqdNotify}},
    {SQD, R},
    {SQD, ERR},
    {SQD, TS, {0, kRcRunning}, {0, kUcRunning}, {0, kUdRunning}},
    {SQD,
     SQD,
     {0, kPort | kAv | kTimeout | kRetry | kRnrRetry | kMaxRd | kMaxDest | kAltPath | kAccess | kPkey | kMinRnr |
             kMigration},
     {0, kAv | kAltPath | kAccess | kPkey | kMigration},
     {0, kPkey | kQkey}},
    {SQE, R},
    {SQE, ERR},
    {SQE, TS, {}, {0, kCurState | kAccess}, {0, kCurState | kQkey}},
    {ERR, R},
    {ERR, ERR},
};

const Row* row_of(uint8_t from, uint8_t to) {
  for (const Row& row : kTable) {
    if (row.from == from && row.to == to) return &row;
  }
  return nullptr;
}

bool expected(QpType type, uint8_t from, uint8_t to, uint32_t mask) {
  if ((mask & kCurState) != 0 && (from < TR || from == ERR)) return false;
  const Row* row = row_of(from, to);
  if (row == nullptr) return false;
  const Masks& m = type == QpType::kRc ? row->rc : type == QpType::kUc ? row->uc : row->ud;
  return (mask & m.required) == m.required && (mask & ~(m.required | m.optional | kState)) == 0;
}

bool allowed(QpType type, uint8_t from, uint8_t to, uint32_t mask) {
  return transition_allowed(type, static_cast<QpState>(from), static_cast<QpState>(to), mask);
}

}  // namespace

TEST_CASE("The state table is the kernel's, for every service, transition and attribute", "[nic][qp]") {
  const QpType type = GENERATE(QpType::kRc, QpType::kUc, QpType::kUd);
  uint32_t accepted = 0;
  for (uint8_t from = R; from <= ERR; ++from) {
    for (uint8_t to = R; to <= ERR; ++to) {
      const Row* row = row_of(from, to);
      const Masks none;
      const Masks& m = row == nullptr ? none : type == QpType::kRc ? row->rc : type == QpType::kUc ? row->uc : row->ud;
      std::vector<uint32_t> masks = {m.required, m.required | kState, m.required | m.optional | kState, 0, kState};
      for (uint32_t a = 0; a < kBits; ++a) {
        for (uint32_t b = 0; b <= a; ++b) {
          const uint32_t flipped = 1u << a | 1u << b;
          masks.push_back((m.required | kState) ^ flipped);
          masks.push_back((m.required | m.optional | kState) ^ flipped);
        }
      }
      for (const uint32_t mask : masks) {
        const bool right = expected(type, from, to, mask);
        accepted += right ? 1 : 0;
        if (allowed(type, from, to, mask) != right) {
          FAIL_CHECK("type " << static_cast<int>(type) << " from " << int{from} << " to " << int{to} << " mask 0x"
                             << std::hex << mask << (right ? " must be allowed" : " must be refused"));
        }
      }
    }
  }
  CHECK(accepted > 200);
}

TEST_CASE("The transitions every program makes, as the masks that libraries send", "[nic][qp]") {
  CHECK(allowed(QpType::kRc, R, I, 0x39));
  CHECK(allowed(QpType::kRc, I, TR, 0x129181));
  CHECK(allowed(QpType::kRc, TR, TS, 0x12e01));
  CHECK(allowed(QpType::kUc, I, TR, 0x101181));
  CHECK(allowed(QpType::kUd, R, I, 0x71));
  CHECK(allowed(QpType::kUd, TR, TS, 0x10001));
  CHECK_FALSE(allowed(QpType::kRc, R, TR, 0x129181));
  CHECK_FALSE(allowed(QpType::kRc, I, TS, 0x12e01));
  CHECK_FALSE(allowed(QpType::kRc, ERR, I, 0x39));
}
