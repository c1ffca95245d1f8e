// SPDX-License-Identifier: Apache-2.0
//
// What makes a host a machine of its own for its programs (nic_rules 10, DECISIONS 22 to 24): files in its folder that
// libweft shows them in the place of the machine's.
//
//   view                                   lines "host 1", "hosts 3", "nics 1", "loopback 18" (B of 127.B; 0: shared
//   TCP) etc/hostname, proc/sys/kernel/hostname the host's name proc/sys/kernel/random/boot_id         a random one:
//   middleware takes equal ones for one machine sys/class/net/{lo,weftN}/…             the interfaces, with what
//   programs ask about them
//
// Errors: one line for people. Control thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "nic/host/identity.h"

namespace weft::host {

struct MachineIdentity {
  std::string name;
  uint32_t host = 0;
  uint32_t hosts = 0;
  uint32_t nics = 0;                  ///< of every host
  uint32_t loopback = 0;              ///< B of 127.B/16; 0: TCP is the machine's
  std::array<uint8_t, 16> entropy{};  ///< of the boot id
};

/// folder: the host's, with its sys/ already there. Empty on success, else one line.
std::string write_machine_tree(const std::string& folder, const MachineIdentity& machine,
                               std::span<const NicIdentity> nics);

/// RFC 4122, version 4.
std::string text_of_uuid(std::array<uint8_t, 16> bytes);

/// The address on loopback where a host's TCP and UDP are; 127.0.0.1 when shared.
uint32_t loopback_address(uint32_t loopback, uint32_t host);

}  // namespace weft::host
