// SPDX-License-Identifier: Apache-2.0
//
// The extended transport headers as they lie on the wire. IBTA Vol 1, 9.3; FETH from annex A19. Reserved bytes are
// written as 0 and ignored when read.
#pragma once

#include <array>
#include <cstdint>

#include "protocols/base/bytes.h"

namespace weft {

struct RethHeader {
  Be64 va;
  Be32 rkey;
  Be32 length;
};
struct AethHeader {
  uint8_t syndrome = 0;
  Be24 msn;
};
struct AtomicEthHeader {
  Be64 va;
  Be32 rkey;
  Be64 swap_add;
  Be64 compare;
};
struct AtomicAckEthHeader {
  Be64 original;
};
struct ImmediateHeader {
  Be32 immediate;
};
struct InvalidateHeader {
  Be32 rkey;
};
struct DethHeader {
  Be32 qkey;
  uint8_t reserved = 0;
  Be24 source_qpn;
};
struct RdethHeader {
  uint8_t reserved = 0;
  Be24 ee_context;
};
struct XrcethHeader {
  uint8_t reserved = 0;
  Be24 srqn;
};
struct FethHeader {
  Be32 flush;
};
/// What follows the BTH of a CNP instead of a payload. IBTA annex A17.9.3.
struct CnpReserved {
  std::array<uint8_t, 16> zero{};
};

static_assert(sizeof(RethHeader) == 16 && sizeof(AethHeader) == 4 && sizeof(AtomicEthHeader) == 28);
static_assert(sizeof(AtomicAckEthHeader) == 8 && sizeof(ImmediateHeader) == 4 && sizeof(InvalidateHeader) == 4);
static_assert(sizeof(DethHeader) == 8 && sizeof(RdethHeader) == 4 && sizeof(XrcethHeader) == 4);
static_assert(sizeof(FethHeader) == 4 && sizeof(CnpReserved) == 16);
static_assert(alignof(RethHeader) == 1 && alignof(AtomicEthHeader) == 1 && alignof(DethHeader) == 1);

}  // namespace weft
