// SPDX-License-Identifier: Apache-2.0
//
// The function that a wrapper stands in front of: what dlsym(RTLD_NEXT, name) would give.
//
//   WEFT_NEXT(close)(fd)          calls the next `close` in link order; resolved at the first call
//   WEFT_NEXT_OR_NULL(closefrom)  for functions that older C libraries do not have
//   find_anywhere("pthread_create")  searches the whole program; nullptr when it is not there
//
// dlsym itself is not used: it moved from libdl to libc in glibc 2.34, so that naming it needs either the one or a new
// enough other (DECISIONS 5). The link map is walked instead. No lock, no allocation: safe in the child of a vfork.
#pragma once

#include <atomic>

namespace weft::preload {

class Next {
 public:
  constexpr explicit Next(const char* name) : name_(name) {}
  /// nullptr when no object behind libweft defines it.
  void* get();

 private:
  const char* name_;
  std::atomic<void*> address_{nullptr};
};

void* find_anywhere(const char* name);
/// A function that answers ENOSYS and -1: what a call to a missing function ends in instead of a jump to 0.
void* missing_address();

}  // namespace weft::preload

#define WEFT_NEXT_OR_NULL(function)                                    \
  ([]() {                                                              \
    static constinit ::weft::preload::Next next_symbol(#function);     \
    return reinterpret_cast<decltype(&::function)>(next_symbol.get()); \
  }())

#define WEFT_NEXT(function)                                                                                  \
  ([]() {                                                                                                    \
    auto* found = WEFT_NEXT_OR_NULL(function);                                                               \
    return found != nullptr ? found : reinterpret_cast<decltype(found)>(::weft::preload::missing_address()); \
  }())

/// What the program sees. Everything else in libweft is hidden, and libweft.map says so again.
#define WEFT_INTERPOSE extern "C" __attribute__((visibility("default")))
