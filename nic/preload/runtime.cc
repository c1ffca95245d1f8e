// SPDX-License-Identifier: Apache-2.0
//
// What the compiler may call in C++ code and a program without libstdc++ does not bring: operator new and delete, and
// the stubs behind pure virtual functions and std::optional's checked access. libweft allocates with raw mmap; nothing
// of ours calls these. They exist so that virtual destructors and header-only std link. The version script keeps them
// from replacing the program's own.
#include <stddef.h>

#include "protocols/base/assert.h"

namespace {
[[noreturn]] void not_in_libweft(const char* what) { weft::assertion_failed(what, "nic/preload/runtime.cc", __LINE__); }
}  // namespace

#define WEFT_HIDDEN __attribute__((visibility("hidden")))

void* operator new(size_t) { not_in_libweft("no operator new in libweft"); }
void* operator new[](size_t) { not_in_libweft("no operator new[] in libweft"); }
void operator delete(void*) noexcept {}
void operator delete[](void*) noexcept {}
void operator delete(void*, size_t) noexcept {}
void operator delete[](void*, size_t) noexcept {}

extern "C" WEFT_HIDDEN void __cxa_pure_virtual() { not_in_libweft("a pure virtual function was called"); }

// With -fno-exceptions libstdc++'s headers still name the functions that would throw.
namespace std {
WEFT_HIDDEN void __throw_bad_variant_access(const char* what) { not_in_libweft(what); }
WEFT_HIDDEN void __throw_bad_optional_access() { not_in_libweft("empty optional"); }
WEFT_HIDDEN void __throw_out_of_range_fmt(const char* what, ...) { not_in_libweft(what); }
WEFT_HIDDEN void __throw_length_error(const char* what) { not_in_libweft(what); }
WEFT_HIDDEN void __throw_logic_error(const char* what) { not_in_libweft(what); }
WEFT_HIDDEN void __throw_bad_array_new_length() { not_in_libweft("array length"); }
// std::array and std::span with _GLIBCXX_ASSERTIONS.
WEFT_HIDDEN void __glibcxx_assert_fail(const char*, int, const char*, const char* condition) noexcept {
  not_in_libweft(condition == nullptr ? "libstdc++ assertion" : condition);
}
}  // namespace std
