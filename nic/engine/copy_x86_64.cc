// SPDX-License-Identifier: Apache-2.0
//
// The copy routine for x86-64. Everything that touches the program's memory lies between two labels; the fault handler
// sends a faulting instruction there to weft_copy_fault, which returns 1. The code keeps nothing on the stack and uses
// only registers a call may change, so that this jump is always safe.
//
// Stores of this architecture become visible in program order (TSO), and a plain store is a release. `rep movsb` may
// reorder its own stores but not against later ones (Intel SDM Vol. 3A, 9.2.4), so the last word comes after it.
#include "nic/engine/copy.h"
#include "nic/engine/copy_system.h"

#if defined(__x86_64__)

extern "C" {
// 0: done; 1: faulted. bytes may be 0.
int weft_copy_in(void* to, const void* from, size_t bytes) __attribute__((visibility("hidden")));
int weft_copy_out(void* to, const void* from, size_t bytes) __attribute__((visibility("hidden")));
int weft_compare_swap(void* word, uint64_t* compare_and_original, uint64_t swap) __attribute__((visibility("hidden")));
int weft_fetch_add(void* word, uint64_t* add_and_original) __attribute__((visibility("hidden")));
extern const char weft_copy_begin[] __attribute__((visibility("hidden")));
extern const char weft_copy_end[] __attribute__((visibility("hidden")));
extern const char weft_copy_fault[] __attribute__((visibility("hidden")));
}

__asm__(R"(
        .text
        .p2align 6
        .globl  weft_copy_begin, weft_copy_end, weft_copy_fault
        .globl  weft_copy_in, weft_copy_out, weft_compare_swap, weft_fetch_add
        .hidden weft_copy_begin, weft_copy_end, weft_copy_fault
        .hidden weft_copy_in, weft_copy_out, weft_compare_swap, weft_fetch_add
        .type   weft_copy_in, @function
        .type   weft_copy_out, @function
        .type   weft_compare_swap, @function
        .type   weft_fetch_add, @function
weft_copy_begin:

# int weft_copy_in(to = rdi, from = rsi, bytes = rdx): no order promised.
weft_copy_in:
        endbr64
        cmp     $16, %rdx
        jb      3f
        movdqu  -16(%rsi,%rdx), %xmm4        # the last 16 bytes, which may overlap the loops' part
        lea     -16(%rdi,%rdx), %r8
        sub     $16, %rdx                    # the loops need to cover this much only
1:      cmp     $64, %rdx
        jb      2f
        movdqu  (%rsi), %xmm0
        movdqu  16(%rsi), %xmm1
        movdqu  32(%rsi), %xmm2
        movdqu  48(%rsi), %xmm3
        movdqu  %xmm0, (%rdi)
        movdqu  %xmm1, 16(%rdi)
        movdqu  %xmm2, 32(%rdi)
        movdqu  %xmm3, 48(%rdi)
        add     $64, %rsi
        add     $64, %rdi
        sub     $64, %rdx
        jmp     1b
2:      test    %rdx, %rdx
        jle     9f
        movdqu  (%rsi), %xmm0
        movdqu  %xmm0, (%rdi)
        add     $16, %rsi
        add     $16, %rdi
        sub     $16, %rdx
        jmp     2b
9:      movdqu  %xmm4, (%r8)
        xor     %eax, %eax
        ret
3:      cmp     $8, %rdx
        jb      4f
        mov     (%rsi), %rax
        mov     -8(%rsi,%rdx), %rcx
        mov     %rax, (%rdi)
        mov     %rcx, -8(%rdi,%rdx)
        xor     %eax, %eax
        ret
4:      cmp     $4, %rdx
        jb      5f
        mov     (%rsi), %eax
        mov     -4(%rsi,%rdx), %ecx
        mov     %eax, (%rdi)
        mov     %ecx, -4(%rdi,%rdx)
        xor     %eax, %eax
        ret
5:      test    %rdx, %rdx
        jz      6f
        movzbl  (%rsi), %eax
        movzbl  -1(%rsi,%rdx), %ecx
        mov     %rdx, %r8
        shr     $1, %r8
        movzbl  (%rsi,%r8), %r9d
        mov     %al, (%rdi)
        mov     %r9b, (%rdi,%r8)
        mov     %cl, -1(%rdi,%rdx)
6:      xor     %eax, %eax
        ret

# int weft_copy_out(to = rdi, from = rsi, bytes = rdx): ascending; the last aligned word last, in one store.
        .p2align 4
weft_copy_out:
        endbr64
        test    %rdx, %rdx
        jz      8f
        lea     -1(%rdi,%rdx), %r8
        and     $-8, %r8                     # the last aligned word of the destination
        mov     %r8, %rcx
        sub     %rdi, %rcx                   # what lies in front of it
        jbe     5f
        sub     %rcx, %rdx                   # rdx: 1..8 bytes of the tail
1:      cmp     $64, %rcx
        jb      2f
        movdqu  (%rsi), %xmm0
        movdqu  16(%rsi), %xmm1
        movdqu  32(%rsi), %xmm2
        movdqu  48(%rsi), %xmm3
        movdqu  %xmm0, (%rdi)
        movdqu  %xmm1, 16(%rdi)
        movdqu  %xmm2, 32(%rdi)
        movdqu  %xmm3, 48(%rdi)
        add     $64, %rsi
        add     $64, %rdi
        sub     $64, %rcx
        jmp     1b
2:      cmp     $16, %rcx
        jb      3f
        movdqu  (%rsi), %xmm0
        movdqu  %xmm0, (%rdi)
        add     $16, %rsi
        add     $16, %rdi
        sub     $16, %rcx
        jmp     2b
3:      cmp     $8, %rcx
        jb      4f
        mov     (%rsi), %rax
        mov     %rax, (%rdi)
        add     $8, %rsi
        add     $8, %rdi
        sub     $8, %rcx
4:      test    %rcx, %rcx
        jz      5f
        movzbl  (%rsi), %eax
        mov     %al, (%rdi)
        inc     %rsi
        inc     %rdi
        dec     %rcx
        jmp     4b
# The tail: within one aligned word, in naturally aligned pieces, ascending.
5:      cmp     $8, %rdx
        jne     6f
        test    $7, %edi
        jnz     6f
        mov     (%rsi), %rax
        mov     %rax, (%rdi)
        jmp     8f
6:      cmp     $4, %rdx
        jb      7f
        test    $3, %edi
        jnz     7f
        mov     (%rsi), %eax
        mov     %eax, (%rdi)
        add     $4, %rsi
        add     $4, %rdi
        sub     $4, %rdx
        jz      8f
7:      cmp     $2, %rdx
        jb      9f
        test    $1, %edi
        jnz     9f
        movzwl  (%rsi), %eax
        mov     %ax, (%rdi)
        add     $2, %rsi
        add     $2, %rdi
        sub     $2, %rdx
        jnz     6b
8:      xor     %eax, %eax
        ret
9:      movzbl  (%rsi), %eax
        mov     %al, (%rdi)
        inc     %rsi
        inc     %rdi
        dec     %rdx
        jnz     6b
        xor     %eax, %eax
        ret

# int weft_compare_swap(word = rdi, compare_and_original = rsi, swap = rdx)
weft_compare_swap:
        endbr64
        mov     (%rsi), %rax
        lock cmpxchg %rdx, (%rdi)
        mov     %rax, (%rsi)
        xor     %eax, %eax
        ret

# int weft_fetch_add(word = rdi, add_and_original = rsi)
weft_fetch_add:
        endbr64
        mov     (%rsi), %rax
        lock xadd %rax, (%rdi)
        mov     %rax, (%rsi)
        xor     %eax, %eax
        ret
weft_copy_end:

weft_copy_fault:
        mov     $1, %eax
        ret
        .size   weft_copy_in, weft_copy_out - weft_copy_in
        .size   weft_copy_out, weft_compare_swap - weft_copy_out
        .size   weft_compare_swap, weft_fetch_add - weft_compare_swap
        .size   weft_fetch_add, weft_copy_end - weft_fetch_add
)");

namespace weft::nic {

namespace {
bool aligned_word(const void* address) { return (reinterpret_cast<uintptr_t>(address) & 7) == 0; }
}  // namespace

bool copy_from_user(void* slot, const void* user, size_t bytes) {
  if (__builtin_expect(system_copy::enabled(), 0)) return system_copy::from_user(slot, user, bytes);
  return weft_copy_in(slot, user, bytes) == 0;
}

bool copy_to_user(void* user, const void* slot, size_t bytes) {
  if (__builtin_expect(system_copy::enabled(), 0)) return system_copy::to_user(user, slot, bytes);
  return weft_copy_out(user, slot, bytes) == 0;
}

bool compare_swap_user(void* user, uint64_t compare, uint64_t swap, uint64_t& original) {
  if (__builtin_expect(system_copy::enabled(), 0)) return system_copy::compare_swap(user, compare, swap, original);
  if (!aligned_word(user)) return false;
  uint64_t word = compare;
  if (weft_compare_swap(user, &word, swap) != 0) return false;
  original = word;
  return true;
}

bool fetch_add_user(void* user, uint64_t add, uint64_t& original) {
  if (__builtin_expect(system_copy::enabled(), 0)) return system_copy::fetch_add(user, add, original);
  if (!aligned_word(user)) return false;
  uint64_t word = add;
  if (weft_fetch_add(user, &word) != 0) return false;
  original = word;
  return true;
}

uintptr_t copy_fixup(uintptr_t pc) {
  const bool ours =
      pc >= reinterpret_cast<uintptr_t>(weft_copy_begin) && pc < reinterpret_cast<uintptr_t>(weft_copy_end);
  return ours ? reinterpret_cast<uintptr_t>(weft_copy_fault) : 0;
}

}  // namespace weft::nic
#endif
