// SPDX-License-Identifier: Apache-2.0
//
// The invariant CRC of RoCE v2: CRC-32 (Ethernet's polynomial, reflected, ones before and after) over eight bytes of
// ones in place of the LRH, then IP, UDP, BTH, extended headers, payload and pad, with every field that a switch may
// change read as ones. IBTA Vol 1, 7.8.1 and annex A17. Ethernet and 802.1Q headers are not covered.
//
//   headers   from the Ethernet header to the last extended header
//   payload   pad included, ICRC excluded; wherever it lies
//
//   uint8_t trailer[4];
//   store_icrc(icrc(headers, payload), trailer);
//
// The frame must have parsed as RoCE v2 (protocols/wire/roce_frame.h); the value for anything else means nothing, but
// no byte outside the spans is read. Thread-safe. A library of its own: programs under Weft do not link it.
#pragma once

#include <cstdint>

#include "protocols/base/bytes.h"
#include "protocols/wire/roce_frame.h"

namespace weft {

uint32_t icrc(Bytes headers, Bytes payload);

/// The four bytes after the pad: least significant first.
void store_icrc(uint32_t value, uint8_t* trailer);
uint32_t load_icrc(const uint8_t* trailer);

/// Whether a frame in one piece, parsed into `parsed` with IcrcBytes::kPresent, ends in the right value.
bool icrc_good(const RoceFrame& parsed, Bytes frame);

}  // namespace weft
