// SPDX-License-Identifier: Apache-2.0
//
// Which descriptors of the program are open uverbs devices, and which are libweft's own.
//
//   command_file(fd)         the open device behind fd, or nullptr: one load on the hot path (every write() asks)
//   open_command_file(...)   a memfd becomes an open device; returns its descriptor or -errno
//   copied(from, to)         dup, dup2, fcntl(F_DUPFD): `to` names the same open device
//   closed(fd)               the program closed it; with the last descriptor the device's context goes
//   is_private(fd)           a descriptor of libweft itself: wrappers refuse to close or replace it
//   keep_private(fd)         moves fd out of the program's way, marks it; returns the new number
//   move_private(fd)         dup2() wants that number: gives libweft's descriptor another one; false: could not
//
// The table is by number and belongs to the process that opened the devices (owner_here()): the child of a vfork runs
// in our memory, and what it closes are its own descriptors (nic_rules 4). Numbers from 2^20 up are refused with
// EMFILE.
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include <atomic>

#include "nic/engine/platform.h"

namespace weft::abi {
class Context;
}

namespace weft::preload {

class Guest;

struct OpenDevice {
  std::atomic<uint32_t> references{0};  ///< descriptors that name it; 0 = free entry
  abi::Context* context = nullptr;
  Guest* guest = nullptr;  ///< nullptr in the child of a fork: every command answers EIO
  uint32_t nic = 0;
  int number = -1;            ///< the descriptor it was opened with: what the engine passes to map_ring
  std::atomic<int> live{-1};  ///< a descriptor that still names it
  dev_t device = 0;
  ino_t inode = 0;
  std::atomic<uint64_t> file_end{0};  ///< of the memfd, relative to its first ring
};

inline constexpr uint32_t kMaxDescriptors = 1u << 20;
inline constexpr uint32_t kMaxOpenDevices = 1024;

namespace descriptors {

OpenDevice* command_file(int fd);
int open_command_file(Guest& guest, uint32_t nic, int flags);
/// True when fd still is the memfd we gave out; a program may have closed it behind our back (raw system calls).
bool verify(int fd, const OpenDevice& file);
void copied(int from, int to);
void closed(int fd);
/// closed() for every number in [first, last].
void closed_range(unsigned first, unsigned last);

bool is_private(int fd);
/// holder learns of a new number; nullptr: the number is fixed, dup2() onto it is refused.
int keep_private(int fd, std::atomic<int>* holder);
bool move_private(int fd);
void drop_private(int fd);
/// Next private descriptor at or above `from`, or -1.
int next_private(int from);

/// Is this the process whose table this is? False in the child of a vfork and of a fork without our handlers.
bool owner_here();
void set_owner();
/// In the child of a fork: every open device is detached, the private descriptors are closed.
void after_fork_in_child();

/// The open device that the engine knows as `number`; entries of the table by index.
OpenDevice* file_of_number(int number);
uint32_t index_of(const OpenDevice& file);
OpenDevice* file_at(uint64_t index);

// ring_memory.cc
int map_ring(int command_fd, uint64_t bytes, nic::RingMemory& out);
void unmap_ring(const nic::RingMemory& ring);

}  // namespace descriptors
}  // namespace weft::preload
