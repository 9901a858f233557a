#!/bin/bash
# SPDX-License-Identifier: MIT
# nongnu libunwind is no dependency: which programs the products find it in, and what they say where it is not, or not
# as they know it. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
make_work

fail() { echo "libunwind: $*" >&2; exit 1; }

# Turns the sink on, compiles a block, and says what came of it: "on", or the error that refused it.
write_program() {
  cat >"$work/program.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "codeheap/look.h"
static void ok(enum ch_status status) {
  if (status != CH_OK) exit((fprintf(stderr, "%s\n", ch_status_text(status)), 1));
}
static int fallback(void) { return 7; }
int main(int argc, char **argv) {
  struct ch_heap *heap;
  struct ch_vm *vm;
  struct ch_owner owner;
  struct ch_ops ops = {.size = sizeof ops};
  struct ch_code code;
  int failed = 0;
  /* Local: no other object of the process sees its symbols. */
  if (argc > 1 && !dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) return fprintf(stderr, "%s\n", dlerror()), 1;
  ok(ch_heap_create(NULL, &heap));
  ok(ch_vm_attach(heap, &ops, NULL, &vm));
  ok(ch_thread_attach(heap, NULL, NULL));
  enum ch_status status = ch_sink_set(heap, CH_SINK_UNWIND | CH_SINK_LIBUNWIND);
  bool is_on = ch_sink_status(heap, CH_SINK_LIBUNWIND, NULL, &failed);
  if (is_on != (status == CH_OK) || is_on != (failed == 0)) return 2;
  ok(ch_owner_create(vm, "f", (const void *)fallback, NULL, &owner));
  struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 8};
  ok(ch_block_open(&open, &code));
  static const unsigned char return_5[] = {0xb8, 5, 0, 0, 0, 0xc3};
  memcpy(code.write + code.entry_bytes, return_5, sizeof return_5);
  code.used_to = code.entry_bytes + sizeof return_5;
  ok(ch_block_commit(&code, 1));
  ok(ch_owner_set_entry(owner, code.block));
  if ((*(int (*const *)(void))ch_owner_cell(owner))() != 5) return 3;
  const void *pcs[64];
  size_t n = ch_backtrace(heap, CH_BACKTRACE_TABLES, NULL, pcs, 64);
  if (n < 2) return 4;
  ok(ch_vm_detach(vm));
  ok(ch_heap_destroy(heap));
  puts(is_on ? "on" : strerrorname_np(failed));
  return 0;
}
C
}

says() { # says WANTED ARGUMENT link flags...
  local wanted=$1 argument=$2 said
  shift 2
  write_program
  must "$cc" -std=gnu11 -O1 -I. -o "$work/program" "$work/program.c" -Wl,--no-as-needed "$@" -lm -pthread -ldl
  said=$(LD_LIBRARY_PATH=$work:$build "$work/program" $argument) || fail "the program failed: $said"
  [ "$said" = "$wanted" ] || fail "the sink says $said, wanted $wanted"
}

need_it() { [ -e "$(echo /usr/lib/*/libunwind.so)" ] || fail "libunwind-dev is not installed"; }

case_products_refer_to_libunwind_weakly() {
  local n so
  for n in libcodeheap.a libcodeheap.so libcodeheap-dl.so; do
    case $n in *.so) so=-D ;; *) so= ;; esac
    nm $so "$build/$n" 2>/dev/null | grep -q ' w _U_dyn_register$' || fail "$n has no weak _U_dyn_register"
    nm $so "$build/$n" 2>/dev/null | grep -E ' U _U(_dyn|L?x86_64)_' && fail "$n needs symbols of libunwind"
    case $n in *.so) readelf -dW "$build/$n" | grep -i 'needed.*unwind' && fail "$n needs libunwind" ;; esac
  done
  return 0
}

case_program_without_libunwind_is_told() {
  says ENOSYS '' "$build/libcodeheap.a"
  says ENOSYS '' -L"$build" -lcodeheap
  says ENOSYS '' -L"$build" -lcodeheap-dl
}

case_program_with_libunwind_has_the_sink() {
  need_it
  says on '' "$build/libcodeheap.a" -lunwind
  says on '' -L"$build" -lcodeheap -lunwind
  says on '' -L"$build" -lcodeheap-dl -lgcc_s -lunwind
}

case_libunwind_loaded_later_is_found() {
  need_it
  says on libunwind.so.8 "$build/libcodeheap.a"
  says on libunwind.so.8 -L"$build" -lcodeheap
}

# A library of the same name with the objects of libunwind 1.5, which have no load_offset.
case_other_layout_is_refused() {
  cat >"$work/old.c" <<'C'
#include <stdint.h>
#include <string.h>
struct object {
  struct object *next, *prev;
  uint64_t start, end, gp;
  int32_t format, pad;
  uint64_t name, segment, table_words;
  const struct { int32_t start, fde; } *table;
};
static struct object *first;
void *_ULx86_64_local_addr_space;
void _U_dyn_register(struct object *o) { o->next = first; first = o; }
void _U_dyn_cancel(struct object *o) { first = o->next; }
void _Ux86_64_flush_cache(void *s, uint64_t a, uint64_t b) { (void)s, (void)a, (void)b; }
int _ULx86_64_init_local2(void *c, void *u, int f) { (void)c, (void)u, (void)f; return 0; }
int _ULx86_64_step(void *c) { (void)c; return 0; }
int _ULx86_64_get_reg(void *c, int n, uint64_t *v) { (void)c, (void)n; *v = 0; return 0; }
int _ULx86_64_get_proc_info_by_ip(void *s, uint64_t pc, uint64_t *range, void *a) {
  (void)s, (void)a;
  for (struct object *o = first; o; o = o->next) {
    if (pc < o->start || pc >= o->end) continue;
    for (uint64_t i = o->table_words; i-- > 0;)
      if (o->table[i].start <= (int32_t)(pc - o->segment)) {
        memcpy(range, (char *)o->segment + o->table[i].fde + 8, 16);
        range[1] += range[0];
        return pc < range[1] ? 0 : -10;
      }
  }
  return -10;
}
C
  must "$cc" -shared -fPIC -o "$work/libunwind.so.8" "$work/old.c" -Wl,-soname,libunwind.so.8
  says EOPNOTSUPP '' "$build/libcodeheap.a" "$work/libunwind.so.8"
}

[ $# != 0 ] || { list_functions 120; exit; }
"case_$1"
