// SPDX-License-Identifier: Apache-2.0
//
// A shared receive queue as the engine sees it: a receive queue that several QPs take from, one request at the first
// packet of each message (IBTA Vol 1, 10.2.9). Its requests belong to nobody until then: an error of a QP flushes only
// the one that it had taken.
#pragma once

#include <cstdint>

#include "nic/engine/completion_queue.h"
#include "nic/engine/work_queue.h"

namespace weft::nic {

struct SharedReceiveQueue {
  ReceiveQueue* queue = nullptr;
  EventTarget* async = nullptr;
  uint64_t user_handle = 0;
  uint32_t index = 0;
  uint32_t pd = 0;     ///< its requests' memory is judged by this one, whichever QP takes them
  uint32_t users = 0;  ///< QPs that receive from here
  uint32_t limit = 0;  ///< fewer requests than this are worth an event; 0: not armed
  uint32_t async_queued = 0;
  bool failed = false;  ///< SRQ_ERR went out
};

}  // namespace weft::nic
