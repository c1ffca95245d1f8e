// SPDX-License-Identifier: Apache-2.0
//
// A completion queue as the engine sees it: completions are staged in the sink and become visible at the end of a pass,
// when the acknowledges they depend on are in the transmit ring (nic_rules 4); then the program is told, if it armed.
#pragma once

#include <cstdint>

#include "nic/engine/event_channel.h"
#include "nic/engine/work_queue.h"

namespace weft::nic {

enum class Armed : uint8_t { kNo, kSolicited, kAny };

/// Where asynchronous events of a context go.
struct EventTarget {
  EventChannel* channel = nullptr;
  uint64_t lost = 0;  ///< events that nobody can read, or for which memory was short
  EventTarget* next = nullptr;
};

struct CompletionQueue {
  CompletionSink* sink = nullptr;
  EventChannel* channel = nullptr;  ///< nullptr: created without one
  EventTarget* async = nullptr;
  uint64_t user_handle = 0;
  uint32_t index = 0;
  uint32_t users = 0;          ///< QPs that complete here
  uint32_t staged = 0;         ///< position after the last completion put
  uint32_t visible = 0;        ///< position up to which they are published
  uint32_t events_queued = 0;  ///< completion events given to the channel
  uint32_t events_owed = 0;    ///< completion events that found no room there
  uint32_t async_queued = 0;
  uint32_t limit = 0;  ///< of the publication at hand
  // Positions after the solicited completions (and errors) that are not published yet.
  bool solicited_staged = false;
  uint32_t solicited_first = 0;
  uint32_t solicited_last = 0;
  Armed armed = Armed::kNo;
  bool dirty = false;    ///< in the device's list of queues to publish
  bool overrun = false;  ///< a completion was lost: CQ_ERR went out, nothing is put here any more
  CompletionQueue* next_dirty = nullptr;
};

}  // namespace weft::nic
