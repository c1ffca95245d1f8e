// SPDX-License-Identifier: Apache-2.0
// [contract: owned by the data plane; PacketRef, PacketDescriptor (64 bytes), PacketArena: engine_rules 1]
#pragma once
