// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/next.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

#include "nic/preload/text.h"

namespace weft::preload {

namespace {

// The parts of one loaded object that a lookup reads.
struct Symbols {
  uintptr_t base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* gnu_hash = nullptr;
  const ElfW(Half) * versions = nullptr;
};

// glibc relocates these addresses in place on the architectures we run on, except in the vdso.
template <typename T>
const T* dynamic_pointer(const link_map& object, ElfW(Addr) value) {
  return reinterpret_cast<const T*>(value < object.l_addr ? value + object.l_addr : value);
}

bool read_dynamic(const link_map& object, Symbols& out) {
  if (object.l_ld == nullptr) return false;
  out.base = object.l_addr;
  for (const ElfW(Dyn)* entry = object.l_ld; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) value = entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_SYMTAB:
        out.symbols = dynamic_pointer<ElfW(Sym)>(object, value);
        break;
      case DT_STRTAB:
        out.strings = dynamic_pointer<char>(object, value);
        break;
      case DT_GNU_HASH:
        out.gnu_hash = dynamic_pointer<uint32_t>(object, value);
        break;
      case DT_VERSYM:
        out.versions = dynamic_pointer<ElfW(Half)>(object, value);
        break;
      default:
        break;
    }
  }
  return out.symbols != nullptr && out.strings != nullptr && out.gnu_hash != nullptr;
}

uint32_t gnu_hash(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<uint8_t>(*name);
  return hash;
}

void* address_of(const Symbols& object, const ElfW(Sym) & symbol) {
  void* address = reinterpret_cast<void*>(object.base + symbol.st_value);
  if (ELF64_ST_TYPE(symbol.st_info) == STT_GNU_IFUNC) address = reinterpret_cast<void* (*)()>(address)();
  return address;
}

// The default version wins; a hidden one (`__xstat` since glibc 2.33) is taken when there is no other.
void* lookup(const Symbols& object, const char* name, uint32_t hash) {
  const uint32_t bucket_count = object.gnu_hash[0];
  const uint32_t first_symbol = object.gnu_hash[1];
  const uint32_t bloom_words = object.gnu_hash[2];
  if (bucket_count == 0) return nullptr;
  const auto* bloom = reinterpret_cast<const ElfW(Addr)*>(object.gnu_hash + 4);
  const auto* buckets = reinterpret_cast<const uint32_t*>(bloom + bloom_words);
  const uint32_t* chain = buckets + bucket_count;
  uint32_t index = buckets[hash % bucket_count];
  if (index < first_symbol) return nullptr;
  void* hidden_version = nullptr;
  for (;; ++index) {
    const uint32_t entry = chain[index - first_symbol];
    const ElfW(Sym)& symbol = object.symbols[index];
    if ((entry | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && same(object.strings + symbol.st_name, name)) {
      void* address = address_of(object, symbol);
      if (object.versions == nullptr || (object.versions[index] & 0x8000) == 0) return address;
      hidden_version = address;
    }
    if ((entry & 1) != 0) return hidden_version;
  }
}

long missing_function() {
  errno = ENOSYS;
  return -1;
}

const link_map* ourselves() {
  for (const link_map* object = _r_debug.r_map; object != nullptr; object = object->l_next) {
    if (object->l_ld == _DYNAMIC) return object;
  }
  return nullptr;
}

void* search(const link_map* from, const link_map* except, const char* name) {
  const uint32_t hash = gnu_hash(name);
  for (const link_map* object = from; object != nullptr; object = object->l_next) {
    Symbols symbols;
    if (object == except || !read_dynamic(*object, symbols)) continue;
    if (void* found = lookup(symbols, name, hash)) return found;
  }
  return nullptr;
}

}  // namespace

void* Next::get() {
  void* found = address_.load(std::memory_order_relaxed);
  if (__builtin_expect(found != nullptr, 1)) return found;
  const link_map* self = ourselves();
  if (self != nullptr) found = search(self->l_next, self, name_);
  // Loaded by dlopen instead of LD_PRELOAD: libc lies in front of us.
  if (found == nullptr) found = search(_r_debug.r_map, self, name_);
  address_.store(found, std::memory_order_relaxed);
  return found;
}

void* find_anywhere(const char* name) { return search(_r_debug.r_map, ourselves(), name); }

void* missing_address() { return reinterpret_cast<void*>(&missing_function); }

}  // namespace weft::preload
