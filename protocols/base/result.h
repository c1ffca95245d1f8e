// SPDX-License-Identifier: Apache-2.0
//
// Result<T, E>: a value or an error, for configuration and control. Never for packets (those are data).
// E defaults to int, an errno value; folders that talk to people use an error with a text.
//
//   Result<int> r = open_it();  if (!r) return r.error();  use(*r);
#pragma once

#include <utility>
#include <variant>

#include "protocols/base/assert.h"

namespace weft {

template <typename E>
struct Failure {
  E error;
};
template <typename E>
Failure(E) -> Failure<E>;

template <typename T, typename E = int>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}                       // NOLINT
  Result(Failure<E> failure) : state_(std::in_place_index<1>, std::move(failure.error)) {}    // NOLINT

  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() { return value(); }
  const T& operator*() const { return *std::get_if<0>(&state_); }
  T* operator->() { return &value(); }
  T& value() {
    WEFT_ASSERT(state_.index() == 0);
    return *std::get_if<0>(&state_);
  }
  const E& error() const {
    WEFT_ASSERT(state_.index() == 1);
    return *std::get_if<1>(&state_);
  }

 private:
  std::variant<T, E> state_;
};

}  // namespace weft
