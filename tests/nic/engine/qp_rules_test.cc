// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/qp_rules.h"

#include <catch2/catch.hpp>

using namespace weft::nic;
using S = QpState;

namespace {
constexpr uint32_t kRcRtr = 0x129181, kRcRts = 0x12e01, kUcRtr = 0x101181;
}

TEST_CASE("The transitions every program uses are allowed with exactly their attributes", "[nic][qp]") {
  CHECK(transition_allowed(QpType::kRc, S::kReset, S::kInit, 0x39));
  CHECK(transition_allowed(QpType::kRc, S::kInit, S::kInit, 1));
  CHECK(transition_allowed(QpType::kRc, S::kInit, S::kReadyToReceive, kRcRtr));
  CHECK(transition_allowed(QpType::kRc, S::kReadyToReceive, S::kReadyToSend, kRcRts));
  CHECK(transition_allowed(QpType::kUc, S::kReset, S::kInit, 0x39));
  CHECK(transition_allowed(QpType::kUc, S::kInit, S::kReadyToReceive, kUcRtr));
  CHECK(transition_allowed(QpType::kUc, S::kReadyToReceive, S::kReadyToSend, 0x10001));
  CHECK(transition_allowed(QpType::kUd, S::kReset, S::kInit, 0x71));
  CHECK(transition_allowed(QpType::kUd, S::kInit, S::kReadyToReceive, 1));
  CHECK(transition_allowed(QpType::kUd, S::kReadyToReceive, S::kReadyToSend, 0x10001));
}

TEST_CASE("Each required attribute is required, and no other is taken", "[nic][qp]") {
  struct Case {
    QpType type;
    S from, to;
    uint32_t required, optional;
  };
  const Case cases[] = {
      {QpType::kRc, S::kReset, S::kInit, 0x38, 0},
      {QpType::kUd, S::kReset, S::kInit, 0x70, 0},
      {QpType::kRc, S::kInit, S::kReadyToReceive, 0x129180, 0x4018},
      {QpType::kUc, S::kInit, S::kReadyToReceive, 0x101180, 0x4018},
      {QpType::kUd, S::kInit, S::kReadyToReceive, 0, 0x50},
      {QpType::kRc, S::kReadyToReceive, S::kReadyToSend, 0x12e00, 0x4c00a | 0x8000},
      {QpType::kUd, S::kReadyToReceive, S::kReadyToSend, 0x10000, 0x42},
      {QpType::kRc, S::kReadyToSend, S::kDrained, 0, 4},
  };
  for (const Case& c : cases) {
    INFO("to state " << static_cast<int>(c.to) << " for type " << static_cast<int>(c.type));
    for (uint32_t bit = 2; bit < 1u << 21; bit <<= 1) {
      INFO("bit " << bit);
      if ((c.required & bit) != 0) {
        CHECK_FALSE(transition_allowed(c.type, c.from, c.to, (c.required | 1) & ~bit));
      } else {
        const bool optional =
            (c.optional & bit) != 0 && !(c.type == QpType::kRc && bit == 0x8000 && c.to == S::kReadyToReceive);
        CHECK(transition_allowed(c.type, c.from, c.to, c.required | 1 | bit) == optional);
      }
    }
  }
}

TEST_CASE("Transitions that are not in the table are refused", "[nic][qp]") {
  const QpType type = GENERATE(QpType::kRc, QpType::kUc, QpType::kUd);
  for (uint8_t from = 0; from <= 6; ++from) {
    CHECK(transition_allowed(type, static_cast<S>(from), S::kReset, 1));
    CHECK(transition_allowed(type, static_cast<S>(from), S::kError, 1) == (from != 0));
    CHECK_FALSE(transition_allowed(type, static_cast<S>(from), S::kReset, 1 | 8));
    CHECK_FALSE(transition_allowed(type, static_cast<S>(from), S::kSendError, 1));
  }
  CHECK_FALSE(transition_allowed(type, S::kReset, S::kReadyToReceive, kRcRtr));
  CHECK_FALSE(transition_allowed(type, S::kReset, S::kReadyToSend, kRcRts));
  CHECK_FALSE(transition_allowed(type, S::kInit, S::kReadyToSend, kRcRts));
  CHECK_FALSE(transition_allowed(type, S::kReadyToSend, S::kReadyToReceive, kRcRtr));
  CHECK_FALSE(transition_allowed(type, S::kError, S::kInit, 0x39));
  CHECK_FALSE(transition_allowed(type, S::kReset, S::kReset, 3));
}
