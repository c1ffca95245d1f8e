// SPDX-License-Identifier: Apache-2.0
#include "protocols/wire/opcode.h"

#include <catch2/catch.hpp>

#include "protocols/wire/transport_header.h"

using namespace weft;

namespace {
const OpcodeInfo& info(Opcode opcode) { return opcode_info(static_cast<uint8_t>(opcode)); }
}  // namespace

TEST_CASE("bytes of BTH and extended headers") {
  // IBTA Vol 1, 9.3: RETH 16, AETH 4, AtomicETH 28, AtomicAckETH 8, ImmDt 4, IETH 4, DETH 8.
  CHECK(info(Opcode::kRcSendFirst).header_bytes == 12);
  CHECK(info(Opcode::kRcSendLastImm).header_bytes == 16);
  CHECK(info(Opcode::kRcWriteFirst).header_bytes == 28);
  CHECK(info(Opcode::kRcWriteMiddle).header_bytes == 12);
  CHECK(info(Opcode::kRcWriteLastImm).header_bytes == 16);
  CHECK(info(Opcode::kRcWriteOnlyImm).header_bytes == 32);
  CHECK(info(Opcode::kRcReadRequest).header_bytes == 28);
  CHECK(info(Opcode::kRcReadResponseFirst).header_bytes == 16);
  CHECK(info(Opcode::kRcReadResponseMiddle).header_bytes == 12);
  CHECK(info(Opcode::kRcReadResponseLast).header_bytes == 16);
  CHECK(info(Opcode::kRcReadResponseOnly).header_bytes == 16);
  CHECK(info(Opcode::kRcAcknowledge).header_bytes == 16);
  CHECK(info(Opcode::kRcAtomicAcknowledge).header_bytes == 24);
  CHECK(info(Opcode::kRcCompareSwap).header_bytes == 40);
  CHECK(info(Opcode::kRcFetchAdd).header_bytes == 40);
  CHECK(info(Opcode::kRcSendOnlyInvalidate).header_bytes == 16);
  CHECK(info(Opcode::kRcFlush).header_bytes == 32);
  CHECK(info(Opcode::kRcAtomicWrite).header_bytes == 28);
  CHECK(info(Opcode::kUcWriteOnlyImm).header_bytes == 32);
  CHECK(info(Opcode::kUdSendOnly).header_bytes == 20);
  CHECK(info(Opcode::kUdSendOnlyImm).header_bytes == 24);
  CHECK(info(Opcode::kCnp).header_bytes == 28);
  CHECK(opcode_info(0x44).header_bytes == 12 + 4 + 8);       // RD SEND only
  CHECK(opcode_info(0x53).header_bytes == 12 + 4 + 8 + 28);  // RD compare and swap
  CHECK(opcode_info(0xAA).header_bytes == 12 + 4 + 16);      // XRC WRITE only
}

TEST_CASE("what is a response, and what carries payload") {
  for (const Opcode o : {Opcode::kRcReadResponseFirst, Opcode::kRcReadResponseMiddle, Opcode::kRcReadResponseLast,
                         Opcode::kRcReadResponseOnly, Opcode::kRcAcknowledge, Opcode::kRcAtomicAcknowledge}) {
    CHECK(info(o).response);
  }
  for (const Opcode o :
       {Opcode::kRcSendOnly, Opcode::kRcReadRequest, Opcode::kRcFetchAdd, Opcode::kUdSendOnly, Opcode::kCnp}) {
    CHECK_FALSE(info(o).response);
  }
  for (const Opcode o : {Opcode::kRcReadRequest, Opcode::kRcAcknowledge, Opcode::kRcAtomicAcknowledge,
                         Opcode::kRcCompareSwap, Opcode::kRcFlush, Opcode::kCnp}) {
    CHECK_FALSE(info(o).payload);
  }
  CHECK(info(Opcode::kRcWriteFirst).part == MessagePart::kFirst);
  CHECK(info(Opcode::kRcWriteMiddle).part == MessagePart::kMiddle);
  CHECK(info(Opcode::kRcSendLastInvalidate).part == MessagePart::kLast);
  CHECK(info(Opcode::kRcWriteOnlyImm).part == MessagePart::kOnly);
}

TEST_CASE("reserved opcodes are unknown") {
  for (const unsigned o : {0x15u, 0x18u, 0x1bu, 0x1eu, 0x1fu, 0x2cu, 0x33u, 0x3fu, 0x55u, 0x60u,
                           0x63u, 0x66u, 0x80u, 0x82u, 0x9fu, 0xb8u, 0xbfu, 0xc0u, 0xe0u, 0xffu}) {
    CAPTURE(o);
    CHECK_FALSE(opcode_info(static_cast<uint8_t>(o)).known);
  }
  unsigned known = 0;
  for (unsigned o = 0; o < 256; ++o) known += opcode_info(static_cast<uint8_t>(o)).known;
  // RC 23 + FLUSH and ATOMIC WRITE, UC 12, RD 21, UD 2, CNP 1, XRC 23.
  CHECK(known == 25 + 12 + 21 + 2 + 1 + 23);
}
