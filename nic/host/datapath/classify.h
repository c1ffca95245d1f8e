// SPDX-License-Identifier: Apache-2.0
//
// What a host's NIC does with a frame that one of its processes published: parse it once into the packet's descriptor,
// and refuse what a real NIC would never put on the wire: malformed frames, and frames under another host's identity.
//
// `descriptor` keeps its priority and seat. On a refusal it holds what was understood, so that the sender's notice names
// the QPN where there was one.
#pragma once

#include "nic/host/datapath/address_map.h"
#include "protocols/attach/frame_port.h"
#include "protocols/base/drop_reason.h"
#include "protocols/base/packet.h"

namespace weft::nic {

struct NicIdentity {
  uint32_t endpoint = 0;  ///< dense index
  EndpointAddress address;
};

/// Of what ECMP chooses by; 0 for the addresses of IPv6 frames.
uint32_t flow_hash(uint32_t source, uint32_t destination, uint16_t sport);

DropReason classify(const attach::TakenFrame& frame, const NicIdentity& self, const AddressMap& map,
                    PacketDescriptor& descriptor);

}  // namespace weft::nic
