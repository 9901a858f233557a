#!/bin/bash
# SPDX-License-Identifier: MIT
# What lldb sees of code by GDB's JIT interface. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
fail() { echo "lldb: $*" >&2; exit 1; }

# inner is called by outer, and calls C; with an argument it dies instead.
write_program() {
  cat >"$work/program.c" <<'C'
#include <codeheap/codeheap.h>
static int leaf(int x) { return x + 1; }
/* push rbp; mov rbp, rsp; mov rax, target; call rax (or ud2); pop rbp; ret */
static char code[] = "\x55\x48\x89\xe5\x48\xb8........\xff\xd0\x5d\xc3";
int main(int argc, char **argv) {
  int (*f)(int) = leaf;
  struct ch_heap *heap;
  (void)argv;
  if (argc > 1) memcpy(code + 14, "\x0f\x0b", 2);
  if (ch_heap_create(NULL, &heap)) return 1;
  memcpy(code + 6, &f, 8);
  if (ch_code_add(heap, code, 18, "js::inner", &f)) return 1;
  memcpy(code + 6, &f, 8);
  memcpy(code + 14, "\xff\xd0", 2);
  if (ch_code_add(heap, code, 18, "js::outer", &f)) return 1;
  return f(1) - 2;
}
C
  must "$cc" -std=gnu11 -g -O1 -fno-omit-frame-pointer -I. -o "$work/program" "$work/program.c" "$build/libcodeheap.a" -lm -pthread
}

session() { # session ARGUMENTS: lldb's commands from standard input; what it says goes to $work/said
  cat >"$work/commands"
  CODEHEAP_SINKS=unwind,gdb CODEHEAP_WX=${backend:-} "$lldb" --no-lldbinit -s "$work/commands" -- "$work/program" "$@" \
    >"$work/said" 2>&1 </dev/null
  skip_where_ptrace_is_refused "$work/said"
}
said() { grep -qE -- "$1" "$work/said" || fail "lldb did not say '$1': $(tail -30 "$work/said")"; }

case_lldb_backtrace_from_code_reaches_main() {
  session die <<'END'
run
bt
END
  said 'frame #0: .*js::inner \+ 14'
  said 'frame #1: .*js::outer \+ 16'
  said 'frame #2: .*main'
}

case_lldb_stops_in_code_on_procmem() {
  backend=procmem session <<'END'
breakpoint set -r js::inner
run
bt
END
  said 'stop reason = breakpoint 1'
  said 'frame #0: .*js::inner'
}

# The rules of such code are expressions.
case_lldb_has_the_registers_of_the_caller_of_code_with_steps() {
  must "$cc" -std=gnu11 -g -O1 -fno-omit-frame-pointer -I. -o "$work/program" tests/gdb/frame_shapes.c "$build/libcodeheap.a" -lm -pthread
  session <<'END'
run
continue
bt
frame select 1
register read rbx
END
  said 'frame #0: .*has_steps \+ 8'
  said 'frame #1: .*known'
  said 'frame #2: .*main'
  said 'rbx = 0x0*1111$'
}

[ $# != 0 ] || { list_functions 240; exit; }
make_work
lldb=$(command -v lldb lldb-{14..21} | head -1)
[ -n "$lldb" ] || { echo 'skip: no lldb'; exit 77; }
[ "$(uname -m)" = x86_64 ] || { echo 'skip: the code is for x86-64'; exit 77; }
write_program
"case_$1"
