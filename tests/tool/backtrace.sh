#!/bin/bash
# SPDX-License-Identifier: MIT
# Backtraces by tables under each unwinder that a process may have: libgcc's, LLVM's, nongnu libunwind's; with the heap's
# sinks on and off. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
make_work

fail() { echo "backtrace: $*" >&2; exit 1; }

# main calls middle, middle calls code, code calls trace: middle's return address into main must be found behind the
# code's, and names must be right.
write_program() {
  cat >"$work/program.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "codeheap/look.h"
static struct ch_heap *heap;
static const void *pcs[64], *in_main, *in_code;
static size_t n;
static void ok(enum ch_status status) {
  if (status != CH_OK) exit((fprintf(stderr, "%s\n", ch_status_text(status)), 1));
}
static void trace(void) { n = ch_backtrace(heap, CH_BACKTRACE_TABLES, NULL, pcs, 64); }
static int fallback(void) { return 0; }
__attribute__((noinline)) static int middle(void (*code)(void)) {
  in_main = __builtin_return_address(0);
  code();
  return 1;
}
static size_t index_of(const void *pc) {
  for (size_t i = 0; i < n; i++) if (pcs[i] == pc) return i;
  return SIZE_MAX;
}
int main(void) {
  struct ch_vm *vm;
  struct ch_owner owner;
  struct ch_ops ops = {.size = sizeof ops};
  struct ch_code code;
  /* push rbp; mov rbp, rsp; mov rax, trace; call rax; pop rbp; ret */
  unsigned char bytes[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x5d, 0xc3};
  void (*callee)(void) = trace;
  char name[64];
  memcpy(bytes + 6, &callee, sizeof callee);
  ok(ch_heap_create(NULL, &heap));
  ok(ch_vm_attach(heap, &ops, NULL, &vm));
  ok(ch_thread_attach(heap, NULL, NULL));
  ok(ch_owner_create(vm, "middling", (const void *)fallback, NULL, &owner));
  struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = sizeof bytes};
  ok(ch_block_open(&open, &code));
  memcpy(code.write + code.entry_bytes, bytes, sizeof bytes);
  code.used_to = code.entry_bytes + sizeof bytes;
  ok(ch_block_commit(&code, 1));
  in_code = code.exec + code.entry_bytes + 16;
  if (!middle((void (*)(void))(code.exec + code.entry_bytes))) return 2;
  size_t at = index_of(in_code);
  if (at == SIZE_MAX || index_of(in_main) != at + 2) {
    for (size_t i = 0; i < n; i++) {
      ch_address_name(heap, pcs[i], true, name, sizeof name);
      fprintf(stderr, "%zu %s\n", i, name);
    }
    return 3;
  }
  ch_address_name(heap, pcs[at], true, name, sizeof name);
  puts(name);
  ok(ch_vm_detach(vm));
  ok(ch_heap_destroy(heap));
  return 0;
}
C
  must "$cc" -std=gnu11 -O1 -fno-omit-frame-pointer -fno-optimize-sibling-calls -I. -o "$work/program" "$work/program.c" \
    "$build/libcodeheap.a" -lm -pthread
}

finds_main() { # finds_main SINKS [PRELOADED]
  local said
  said=$(CODEHEAP_SINKS=$1 LD_PRELOAD=${2:-} "$work/program") || fail "with sinks $1 and ${2:-libgcc}: no way to main"
  case "$said" in middling+0x*) ;; *) fail "code is named $said" ;; esac
}

of_system() { # of_system SONAME: its path
  local path
  path=$(ls /usr/lib/*/"$1" 2>/dev/null | head -1)
  [ -n "$path" ] || fail "$1 is not installed"
  echo "$path"
}

case_tables_of_libgcc() {
  write_program
  finds_main none
  finds_main unwind
  finds_main unwind,libunwind
}

case_tables_of_llvm() {
  write_program
  local llvm
  llvm=$(of_system libunwind.so.1) || exit 1
  finds_main none "$llvm"
  finds_main unwind "$llvm"
}

case_tables_of_nongnu() {
  write_program
  local nongnu
  nongnu=$(of_system libunwind.so.8) || exit 1
  finds_main none "$nongnu"
  finds_main unwind "$nongnu"
  finds_main unwind,libunwind "$nongnu"
  finds_main libunwind "$nongnu"
}

[ $# != 0 ] || { list_functions 120; exit; }
"case_$1"
