// SPDX-License-Identifier: Apache-2.0
//
// A pollable stream of events to the program: what the kernel makes of a completion channel or of the async fd. One end
// of a SEQPACKET pair is the program's, which reads, polls and closes it as it likes; we keep the other (kernel_abi
// B.5).
//
//   open(program_fd)      makes the pair, both ends close-on-exec; the program's end is handed out
//   send(record, bytes)   queues one record without blocking; false: no room, or the program closed its end
//   post(record, bytes)   as send(), but what finds no room is kept, in order, for flush_kept(); false: the program
//                         closed its end, or memory is short
//   purge(element, bytes) takes unread records whose first word is `element` back out of the queue, keeps the others in
//                         order, and says how many went: those were never read, so they are not owed an acknowledge
//   is_program_fd(fd)     fd is (a duplicate of) the program's end
//
// A reader that races with purge() has read its record, as with a kernel. Not thread-safe: the engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::nic {

class EventChannel {
 public:
  EventChannel() = default;
  ~EventChannel() { close(); }
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;

  /// 0 or errno.
  int open(int& program_fd);
  void close();
  bool is_open() const { return own_fd_ >= 0; }
  bool send(const void* record, size_t bytes);
  bool post(const void* record, size_t bytes);
  uint32_t kept() const { return kept_count_; }
  /// Sends what is kept as far as there is room; what nobody can read any more goes. True: something went.
  bool flush_kept();
  uint32_t purge(uint64_t element, size_t record_bytes);
  bool is_program_fd(int fd) const;
  /// The program has closed its end, so nobody can read any more.
  bool abandoned() const;
  int own_fd() const { return own_fd_; }

  uint32_t users = 0;  ///< CQs that report here

 private:
  struct Kept {
    uint8_t record[16];
    uint32_t bytes;
  };
  bool grow_kept();
  uint32_t purge_kept(uint64_t element);
  int find_program_fd();

  int own_fd_ = -1;
  int program_fd_ = -1;  ///< the number it was handed out under; may be anything by now, see is_program_fd
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  Kept* kept_ = nullptr;  ///< kept_count_ of them, oldest first
  uint32_t kept_room_ = 0;
  uint32_t kept_count_ = 0;
};

}  // namespace weft::nic
