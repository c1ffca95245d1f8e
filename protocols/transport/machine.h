// SPDX-License-Identifier: Apache-2.0
//
// The shape of a pulled machine (STYLE: machines). Receiving changes state and records what is owed; frames come out of
// pull() only, into the caller's OutFrame; time is an argument and a deadline is asked for, never searched.
#pragma once

#include <concepts>
#include <cstdint>

#include "protocols/base/time.h"
#include "protocols/transport/work.h"

namespace weft {

/// A machine that posts work and learns from responses.
template <typename M>
concept RequesterMachine = requires(M m, const M& c, Instant now, const SendWork& work, const TransportHeader& header,
                                    OutFrame& frame, SendCompletion& completion, WorkNumber number, WorkStatus status) {
  { c.can_post() } -> std::same_as<bool>;
  { m.post(work) } -> std::same_as<void>;
  { m.pull(now, frame) } -> std::same_as<bool>;
  { m.on_response(now, header, uint32_t{}) } -> std::same_as<Placement>;
  { m.placed(now, bool{}) } -> std::same_as<void>;
  { m.on_timer(now) } -> std::same_as<void>;
  { m.fail(now, number, status) } -> std::same_as<void>;
  { m.flush() } -> std::same_as<void>;
  { m.next_completion(completion) } -> std::same_as<bool>;
  { c.next_deadline() } -> std::same_as<Instant>;
  { c.wants_to_send(now) } -> std::same_as<bool>;
};

/// A machine that takes requests and owes answers.
template <typename M>
concept ResponderMachine = requires(M m, const M& c, Instant now, const TransportHeader& header, OutFrame& frame) {
  { m.on_request(now, header, uint32_t{}) } -> std::same_as<Demand>;
  { m.settle(now, Outcome::kDone, uint64_t{}) } -> std::same_as<void>;
  { m.pull(now, frame) } -> std::same_as<bool>;
  { c.owes() } -> std::same_as<bool>;
};

}  // namespace weft
