// SPDX-License-Identifier: Apache-2.0
//
// The base transport header. IBTA Vol 1, 9.2; FECN and BECN as in annex A17 (the first two bits of the word that
// carries the destination QPN, which the ICRC masks).
#pragma once

#include <cstdint>

#include "protocols/base/bytes.h"

namespace weft {

inline constexpr uint16_t kDefaultPkey = 0xFFFF;

struct BthHeader {
  uint8_t opcode = 0;
  uint8_t flags = 0;  ///< SE 1, MigReq 1, PadCnt 2, TVer 4
  Be16 pkey;
  uint8_t reserved = 0;  ///< FECN 1, BECN 1, resv6a 6
  Be24 dest_qpn;
  uint8_t ack = 0;  ///< AckReq 1, resv7
  Be24 psn;

  static constexpr uint8_t kSolicited = 0x80;
  static constexpr uint8_t kMigration = 0x40;
  static constexpr uint8_t kPadShift = 4;
  static constexpr uint8_t kVersionMask = 0x0F;
  static constexpr uint8_t kFecn = 0x80;
  static constexpr uint8_t kBecn = 0x40;
  static constexpr uint8_t kAckRequest = 0x80;

  constexpr uint8_t pad() const { return (flags >> kPadShift) & 3; }
  constexpr uint8_t version() const { return flags & kVersionMask; }
};
static_assert(sizeof(BthHeader) == 12 && alignof(BthHeader) == 1);

}  // namespace weft
