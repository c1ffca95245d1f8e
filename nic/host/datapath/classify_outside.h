// SPDX-License-Identifier: Apache-2.0
//
// What the switch does with a frame that came in by a port to the outside: parse it into the packet's descriptor, verify
// its ICRC, and refuse what must not go on. Everything about it is hostile; it is in private memory, so one look is
// enough.
//
//   OutsideFrame f;
//   DropReason r = classify_outside(frame, source, map, endpoints, descriptor, f);
//   kNone: bytes [0, f.header_bytes) are headers, the next f.payload_bytes payload with pad; the ICRC is dropped
//
// kNotIp and kNotUdp may be for the hosts as neighbours (neighbours.h). The descriptor is complete on kNone only.
#pragma once

#include "nic/host/datapath/address_map.h"
#include "protocols/base/bytes.h"
#include "protocols/base/drop_reason.h"
#include "protocols/base/packet.h"

namespace weft::nic {

struct OutsideFrame {
  uint32_t header_bytes = 0;
  uint32_t payload_bytes = 0;  ///< pad included
};

/// source: the dense index of the port; endpoints: indices below it are NICs of the fabric.
DropReason classify_outside(Bytes frame, uint32_t source, const AddressMap& map, uint32_t endpoints, PacketDescriptor& descriptor,
                            OutsideFrame& out);

}  // namespace weft::nic
