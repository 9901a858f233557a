#!/bin/bash
# SPDX-License-Identifier: MIT
# What gdb itself sees of code: names, lines and callers of C and Scheme frames, live, after attaching and in cores, and
# nothing of what was freed. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/tool-gdb.XXXXXX") || exit 1
victim=
finish() {
  [ -z "$victim" ] || kill -KILL "$victim" 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT

fail() { echo "sink gdb: $*" >&2; exit 1; }
must() { "$@" >"$work/log" 2>&1 || fail "failed: $*: $(tail -5 "$work/log")"; }

# session FILE PROGRAM..: runs gdb's commands from standard input; what it says goes to $work/said.
session() {
  cat - >"$work/commands"
  sed -i '1i set pagination off\nset confirm off\nset breakpoint pending on' "$work/commands"
  [ "$1" != --args ] || sed -i '1i set disable-randomization off' "$work/commands" # containers refuse it
  gdb -nx -q -batch -x "$work/commands" "$@" >"$work/said" 2>&1 </dev/null
  skip_where_ptrace_is_refused "$work/said"
  skip_where_gdb_writes_no_registers "$work/said"
}
# needs_registers PROGRAM FUNCTION: some virtual machines take a debug register and never stop at it.
needs_registers() {
  session --args "$1" <<END
break main
run
hbreak $2
continue
END
  grep -qE "(^|hit )Breakpoint 2, $2" "$work/said" || { echo 'skip: no hardware breakpoints'; exit 77; }
}
said() { grep -qE -- "$1" "$work/said" || fail "gdb did not say '$1': $(tail -40 "$work/said")"; }
said_not() { ! grep -qE -- "$1" "$work/said" || fail "gdb said '$1': $(tail -40 "$work/said")"; }

images() { grep -cE '^0x[0-9a-f]+ +0x[0-9a-f]+ +[0-9]+'; } # rows of `maint info jit` on standard input

# A program whose blocks call C: outer -> inner -> leaf. inner has lines.
write_program() {
  local n
  for ((n = 1; n <= 12; n++)); do echo "(line-$n)"; done >"$work/victim.scm"
  cat >"$work/victim.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "codeheap/codeheap.h"
static struct ch_heap *heap;
static struct ch_vm *vm;
static void ok(enum ch_status s) { if (s) { fprintf(stderr, "%s\n", ch_status_text(s)); exit(1); } }
__attribute__((noinline)) int leaf(int x) { __asm__ volatile("" ::: "memory"); return x + 1; }
static int grow(int x);
__attribute__((noinline)) void freed(void *at) { __asm__ volatile("" :: "r"(at) : "memory"); }
__attribute__((noinline)) void made(void *at) { __asm__ volatile("" :: "r"(at) : "memory"); }
static int interpret(int x) { return x; }
typedef int (*code)(int);
/* push rbp; mov rbp, rsp; mov rax, target; call rax (or ud2; ud2); add eax, 1; pop rbp; ret */
static code make(const char *name, const void *target, struct ch_owner *owner) {
  static const unsigned char head[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8};
  unsigned char tail[] = {0xff, 0xd0, 0x83, 0xc0, 0x01, 0x5d, 0xc3};
  struct ch_code c;
  ok(ch_owner_create(vm, name, (const void *)(size_t)interpret, NULL, owner));
  /* What is to be freed has pages of its own. */
  uint32_t bytes = strcmp(name, "scm::gone") ? 64 : 200000;
  struct ch_open open = {.size = sizeof open, .owner = *owner, .hot_bytes = bytes};
  ok(ch_block_open(&open, &c));
  if (!target) tail[0] = 0x0f, tail[1] = 0x0b;
  memcpy(c.write, head, 6);
  memcpy(c.write + 6, &target, 8);
  memcpy(c.write + 14, tail, 7);
  c.used_to = 21;
  if (!strcmp(name, "scm::inner")) {
    struct ch_line lines[] = {{c.exec, 3}, {c.exec + 4, 4}, {c.exec + 16, 5}};
    ok(ch_block_lines(c.block, SOURCE, lines, 3));
  }
  ok(ch_block_commit(&c, 1));
  ok(ch_owner_set_entry(*owner, c.block));
  return (code)(size_t)c.exec;
}
static int grow(int x) { /* a callee that makes code */
  struct ch_owner other;
  int y = leaf(x);
  for (int i = 0; i < 300; i++) make("scm::inner", (const void *)(size_t)leaf, &other);
  return y;
}
int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "";
  struct ch_owner inner, outer, other;
  struct ch_config config;
  struct ch_ops ops = {.size = sizeof ops};
  ch_config_init(&config);
  config.sinks = CH_SINK_UNWIND | CH_SINK_GDB;
  ok(ch_heap_create(&config, &heap));
  ok(ch_vm_attach(heap, &ops, NULL, &vm));
  ok(ch_thread_attach(heap, NULL, NULL));
  int (*target)(int) = !strcmp(how, "die") ? NULL : !strcmp(how, "grow") ? grow : leaf;
  code in = make("scm::inner", (const void *)(size_t)target, &inner);
  code out = make("scm::outer", (const void *)(size_t)in, &outer);
  if (!strcmp(how, "die")) ok(ch_trap_install(heap));
  if (!strcmp(how, "free") || !strcmp(how, "wild")) {
    void *gone = (void *)(size_t)make("scm::gone", (const void *)(size_t)leaf, &other);
    made(gone);
    ok(ch_owner_release(other, CH_RELEASE_NOT_RUNNING));
    ok(ch_heap_collect(heap));
    freed(gone);
    if (!strcmp(how, "wild")) {
      ok(ch_trap_install(heap));
      ((code)(size_t)gone)(1);
    }
  }
  time_t end = time(NULL) + 300; /* whoever was to end it may be killed */
  if (!strcmp(how, "loop")) puts("ready"), fflush(stdout);
  while (!strcmp(how, "loop") && time(NULL) < end) {
    make("scm::passing", (const void *)(size_t)leaf, &other);
    if (out(1) != 4) return 1;
    ok(ch_owner_release(other, CH_RELEASE_NOT_RUNNING));
    usleep(1000);
  }
  for (int i = 0; !strcmp(how, "many") && i < atoi(argv[2]); i++) make("scm::one_of_many", (const void *)(size_t)leaf, &other);
  if (!strcmp(how, "grow")) return in(1) == 3 ? 0 : 1; /* a breakpoint works where C goes on */
  return out(1) == 4 ? 0 : 1;
}
C
}

# program LIBRARY-FLAGS..: the victim, linked with it.
program() {
  write_program
  must "$cc" -std=gnu11 -O1 -g -fno-omit-frame-pointer -I. -DSOURCE="\"$work/victim.scm\"" -o "$work/victim" "$work/victim.c" \
    "$@" -lm -pthread
}
whole_stack() { # leaf, inner, outer, main: with the line of inner's call
  said '^#[0-9]+ .*leaf \(x=1\)'
  said '^#[0-9]+ .*in scm::inner \(\) at .*victim\.scm:4'
  said '^#[0-9]+ .*in scm::outer \(\)'
  said '^#[0-9]+ .*main \('
}

case_backtrace_through_code_reaches_main() {
  program "$build/libcodeheap.a"
  session --args "$work/victim" <<'END'
break leaf
run
bt
up
info symbol $pc
info line *$pc
END
  whole_stack
  said '^scm::inner \+ 16 in section \.text of <in-memory'
  said '^Line 5 of ".*victim\.scm" starts at'
}

# other_jit WORDS...: compiles another JIT's list for gdb.
other_jit() {
  cat >"$work/other.c" <<'C'
struct { unsigned version, action; void *relevant, *first; } __jit_debug_descriptor = {1, 0, 0, 0};
__attribute__((noinline)) void __jit_debug_register_code(void) { __asm__ volatile("" ::: "memory"); }
C
  must "$cc" "$@" "$work/other.c"
}
whole_stack_at_leaf() {
  session --args "$work/victim" <<'END'
break leaf
run
bt
END
  whole_stack
}

# The names that gdb looks for survive strip, and another JIT's of the same name.
case_stripped_library_still_names() {
  local loaded
  loaded=$(readelf -dW "$build/libcodeheap.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
  cp "$build/libcodeheap.so" "$work/$loaded"
  strip "$work/$loaded"
  ln -s "$loaded" "$work/libcodeheap.so"
  other_jit -shared -fPIC -o "$work/libother.so"
  program -L"$work" -Wl,--no-as-needed -lother -lcodeheap -Wl,-rpath,"$work"
  whole_stack_at_leaf
}

# gdb takes a bare symbol for a name of Ada or Objective-C where it can.
case_names_of_any_letters_stay_whole() {
  local name n=0 names='run$1 workB _ada_main onN Oadd boxX f_E1s fUaa _i_a_b_ my__f.x plain Z.B'
  cat >"$work/victim.c" <<'C'
#include "codeheap/codeheap.h"
void *at[32];
__attribute__((noinline)) void made(void) { __asm__ volatile("" ::: "memory"); }
int main(int argc, char **argv) {
  struct ch_heap *heap;
  struct ch_config config;
  ch_config_init(&config);
  config.sinks = CH_SINK_UNWIND | CH_SINK_GDB;
  if (ch_heap_create(&config, &heap)) return 1;
  for (int i = 1; i < argc; i++)
    if (ch_code_add(heap, "\x90\xc3", 2, argv[i], &at[i])) return 1;
  made();
  return 0;
}
C
  must "$cc" -g -std=gnu11 -I. -o "$work/victim" "$work/victim.c" "$build/libcodeheap.a" -lm -lpthread
  { printf 'break made\nrun\n'; for name in $names; do printf 'set $pc = at[%d]\nframe 0\n' $((++n)); done; } |
    session --args "$work/victim" $names
  for name in $names; do
    grep -qF " in $name ()" "$work/said" || fail "gdb has another name for $name: $(tail -40 "$work/said")"
  done
}

# The library inside a program takes no other JIT's entries: each has a lock of its own.
case_list_in_a_program_is_not_that_of_another_jits_library() {
  other_jit -shared -fPIC -o "$work/libother.so"
  program "$build/libcodeheap.a" -L"$work" -Wl,--no-as-needed -lother -Wl,-rpath,"$work"
  if nm -D --defined-only "$work/victim" | grep __jit_debug; then fail "the program gives its list away"; fi
  whole_stack_at_leaf
}

# Two in one program share the list of the one whose names are not weak.
case_static_link_with_another_jit_works() {
  other_jit -c -o "$work/other.o"
  program "$work/other.o" "$build/libcodeheap.a"
  whole_stack_at_leaf
}

# gdb takes the library's list for a copy of the executable's; the commands know the code by the heap.
case_commands_name_what_the_list_of_an_executable_hides() {
  other_jit -c -o "$work/other.o"
  program "$work/other.o" -L"$build" -Wl,--no-as-needed -lcodeheap -Wl,-rpath,"$(realpath "$build")"
  session --args "$work/victim" <<'END'
source tools/gdb/codeheap.py
info address __jit_debug_descriptor
break leaf
run
bt
END
  said '^Symbol "__jit_debug_descriptor" is '
  said '^#[0-9]+ .*scm::inner'
  said '^#[0-9]+ .*scm::outer'
  said '^#[0-9]+ .*main \('
}

# No sink tells gdb of the shape: the commands read the rule that the VM registered.
case_commands_find_the_callers_of_a_registered_shape() {
  must "$cc" -std=gnu11 -g -fno-omit-frame-pointer -I. -o "$work/frames" examples/frames.c "$build/libcodeheap.a" -lm -pthread
  export CODEHEAP_SINKS=none
  session --args "$work/frames" <<'END'
source tools/gdb/codeheap.py
break finds
run
set $rbx = 0x1111
break look
continue
set $rbx = 0x2222
bt
frame 2
info registers rbx
END
  said '^#1 .*in fixed \[LIVE\]'
  said '^#2 .*in saving \[LIVE\]'
  said '^#3 .*in finds \('
  said '^#4 .*in main \('
  said '^rbx +0x1111 '
}

case_commands_end_at_a_shape_without_a_caller() {
  cat >"$work/bottom.c" <<'C'
#include <stdlib.h>
#include <string.h>
#include "codeheap/codeheap.h"
static void ok(enum ch_status s) { if (s) abort(); }
__attribute__((noinline)) void shown(void) { __asm__ volatile("" ::: "memory"); }
int main(void) {
  static const unsigned char rule[] = {0x0c, 7, 8, 0x07, 16};
  /* push rbp; xor ebp, ebp; sub rsp, 16; call rdi; add rsp, 16; pop rbp; ret */
  static const unsigned char bottom[] = {0x55, 0x31, 0xed, 0x48, 0x83, 0xec, 16, 0xff, 0xd7, 0x48, 0x83, 0xc4, 16, 0x5d, 0xc3};
  struct ch_open open = {.size = sizeof open, .hot_bytes = sizeof bottom, .name = "bottom"};
  struct ch_code c;
  ok(ch_heap_create(NULL, &open.heap));
  ok(ch_frame_register(open.heap, rule, sizeof rule, &open.frame));
  ok(ch_block_open(&open, &c));
  memcpy(c.write, bottom, c.used_to = sizeof bottom);
  ok(ch_block_commit(&c, 1));
  ((void (*)(void (*)(void)))(size_t)c.exec)(shown);
  return 0;
}
C
  must "$cc" -std=gnu11 -O1 -g -I. -o "$work/bottom" "$work/bottom.c" "$build/libcodeheap.a" -lm -pthread
  export CODEHEAP_SINKS=none
  session --args "$work/bottom" <<'END'
source tools/gdb/codeheap.py
break shown
run
bt
END
  said '^#1 .*in bottom \[LIVE\]'
  said_not '^#2 '
}

# It waits for the code: set before the program runs.
case_breakpoint_at_a_line_stops_there() {
  program "$build/libcodeheap.a"
  needs_registers "$work/victim" leaf
  session --args "$work/victim" <<'END'
hbreak victim.scm:5
hbreak -function scm::outer
run
bt
continue
bt
END
  said '^Breakpoint 1, scm::inner \(\) at .*victim\.scm:5'
  said '^5	\(line-5\)'
  said '^Breakpoint 2, 0x[0-9a-f]+ in scm::outer \(\)'
}

case_freed_block_is_unknown() {
  program "$build/libcodeheap.a"
  session --args "$work/victim" free <<'END'
break made
break freed
run
info symbol at
maint info jit
continue
echo now it is freed\n
info symbol at
maint info jit
END
  said '^scm::gone in section|^scm::gone - |^scm::gone \+'
  said '^No symbol matches at\.'
  [ "$(grep -c '^scm::gone' "$work/said")" = 1 ] || fail "scm::gone is known after it was freed: $(cat "$work/said")"
  [ "$(sed '/^now it is freed/,$d' "$work/said" | images)" = 4 ] || fail "not 4 images: $(cat "$work/said")"
  [ "$(sed '1,/^now it is freed/d' "$work/said" | images)" = 3 ] || fail "the image of scm::gone is listed: $(cat "$work/said")"
}

# gdb sees the trap first, and keeps it; the handler has it when gdb hands it on.
trap_line='^libcodeheap: block `scm::gone` \(#[0-9.]+, owner `scm::gone`\), freed after collection 0 because its owner was released \(NOT_RUNNING\); executed at \+0x0 \(0x[0-9a-f]+\); return address \(a guess\) 0x[0-9a-f]+ in .*victim \+0x[0-9a-f]+$'
case_trap_in_freed_code_is_told() {
  program "$build/libcodeheap.a"
  session --args "$work/victim" wild <<'END'
run
x/i $pc - 1
signal SIGTRAP
signal SIGTRAP
END
  said '^Program received signal SIGTRAP'
  said '^ *0x[0-9a-f]+:	int3'
  said "$trap_line"
  said '^Program terminated with signal SIGTRAP'
  session --args "$work/victim" wild <<'END'
run
handle SIGTRAP nostop noprint pass
continue
END
  said "$trap_line"
  said '^Program terminated with signal SIGTRAP'
}

# Every address of a block larger than a page is its own in one image: gdb ignores a section that overlaps another.
case_cold_part_of_a_span_has_its_name() {
  cat >"$work/span.c" <<'C'
#include <stdlib.h>
#include <string.h>
#include "codeheap/codeheap.h"
static void ok(enum ch_status s) { if (s) abort(); }
__attribute__((noinline)) void shown(void *hot, void *cold) { __asm__ volatile("" :: "r"(hot), "r"(cold) : "memory"); }
int main(void) {
  enum { HOT = 200000, COLD = 512 };
  struct ch_heap *heap;
  struct ch_vm *vm;
  struct ch_owner owner;
  struct ch_config config;
  struct ch_ops ops = {.size = sizeof ops};
  ch_config_init(&config);
  config.sinks = CH_SINK_UNWIND | CH_SINK_GDB;
  ok(ch_heap_create(&config, &heap));
  ok(ch_vm_attach(heap, &ops, NULL, &vm));
  ok(ch_thread_attach(heap, NULL, NULL));
  ok(ch_owner_create(vm, "scm::wide", (const void *)(size_t)main, NULL, &owner));
  struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = HOT, .cold_bytes = COLD};
  struct ch_code c;
  ok(ch_block_open(&open, &c));
  /* The hot part calls the cold one, which calls shown. */
  static const unsigned char call[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8}, tail[] = {0xff, 0xd0, 0x5d, 0xc3};
  const void *target = c.cold_exec, *last = (const void *)(size_t)shown;
  memcpy(c.write, call, 6), memcpy(c.write + 6, &target, 8), memcpy(c.write + 14, tail, 4);
  memcpy(c.cold_write, call, 6), memcpy(c.cold_write + 6, &last, 8), memcpy(c.cold_write + 14, tail, 4);
  c.used_to = HOT;
  c.cold_used = COLD;
  ok(ch_block_commit(&c, 1));
  ((void (*)(void *, void *))(size_t)c.exec)(c.exec, c.cold_exec);
  return 0;
}
C
  must "$cc" -std=gnu11 -O1 -g -fno-omit-frame-pointer -I. -o "$work/victim" "$work/span.c" "$build/libcodeheap.a" -lm -pthread
  session --args "$work/victim" <<'END'
break shown
run
bt
info symbol hot
info symbol cold
info symbol (char *)cold - 64
END
  said_not 'unexpected overlap'
  said '^#1 .*in scm::wide \[cold\] \(\)'
  said '^#2 .*in scm::wide \(\)'
  said '^#3 .*main \('
  said '^scm::wide( \+ [0-9]+)? in section \.text'
  said '^scm::wide \[cold\]( \+ [0-9]+)? in section \.text'
}

# Code that saves and changes every register of its caller, then code without a frame: gdb has the caller's registers.
case_frames_of_the_fixed_shapes_give_their_callers_registers() {
  must "$cc" -std=gnu11 -O1 -g -fno-omit-frame-pointer -I. -o "$work/victim" tests/gdb/frame_shapes.c "$build/libcodeheap.a" -lm -pthread
  session --args "$work/victim" <<END
break shown
run
bt
frame function known
info registers rbx r12 r13 r14 r15
delete
continue
bt
continue
bt
frame function known
info registers rbx r12
generate-core-file $work/core
continue
bt
END
  [ "$(grep -cE '^#0 .*in has_steps \(\)' "$work/said")" = 2 ] || fail "has_steps did not stop twice: $(cat "$work/said")"
  [ "$(grep -cE '^#1 .*known \(' "$work/said")" = 4 ] || fail "its caller is not there: $(cat "$work/said")"
  [ "$(grep -cE '^rbx +0x1111' "$work/said")" = 2 ] || fail "its caller has another rbx: $(cat "$work/said")"
  said '^#1 .*in saves_all \(\)'
  said '^#2 .*known \('
  said '^#3 .*main \('
  local n=1111
  for register in rbx r12 r13 r14 r15; do said "^$register +0x$n"; n=$((n + 1)); done
  said '^Program received signal SIGTRAP'
  said '^#0 .*in has_none \(\)'
  said '^#1 .*known \('
  said '^#2 .*main \('
  session "$work/victim" "$work/core" <<'END'
bt
frame function known
info registers rbx
END
  said '^#0 .*in has_steps \(\)'
  said '^#2 .*main \('
  said '^rbx +0x1111'
}

# An image for each commit, until they become one: with LONG=1 two thousand.
case_many_blocks_have_a_bounded_number_of_images() {
  local blocks=600
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || blocks=2000
  program "$build/libcodeheap.a"
  session --args "$work/victim" many $blocks <<'END'
break leaf
run
maint info jit
bt
END
  whole_stack
  local n
  n=$(images <"$work/said")
  [ "$n" -ge 2 ] && [ "$n" -le 520 ] || fail "$n images for $blocks blocks"
}

# gdb keeps what it read of the function that it finishes, and dies when the function's image goes meanwhile.
case_finish_of_a_block_whose_callee_commits_hundreds() {
  program "$build/libcodeheap.a"
  session --args "$work/victim" grow <<'END'
break leaf
run
delete
frame 2
finish
bt
END
  said '^#2 .*in scm::inner \(\) at .*victim\.scm:4'
  said '^#0 .*main \('
}

loop() { # the victim, which goes on until it is killed
  program "$build/libcodeheap.a"
  "$work/victim" loop >"$work/log" 2>&1 &
  victim=$!
  until grep -q ready "$work/log"; do
    kill -0 $victim || fail "the victim does not start: $(cat "$work/log")"
    sleep 0.1
  done
}
case_attached_debugger_learns_what_is_there() {
  loop
  session -p $victim <<'END'
break leaf if x == 1
continue
bt
delete
detach
END
  kill -KILL $victim
  whole_stack
}
# The program does not go on in between.
case_flush_of_the_heap_that_stats_names_shows_all() {
  loop
  session -p $victim <<'END'
source tools/gdb/codeheap.py
info functions ^scm::outer
python heap = gdb.execute('codeheap stats', to_string=True).split()[3]
python gdb.execute('call (int)ch_sink_flush((void *)%s)' % heap)
info functions ^scm::outer
END
  kill -KILL $victim
  [ "$(grep -c '^0x.* scm::outer' "$work/said")" = 1 ] || fail "$(cat "$work/said")"
}

# Of what is reserved for code and records, a core has the memory that is used.
is_small() { [ "$(stat -c %s "$1")" -lt $((128 << 20)) ] || fail "a core of $(stat -c %s "$1") bytes"; }
case_core_of_a_debugged_process_names_code() {
  program "$build/libcodeheap.a"
  session --args "$work/victim" <<END
break leaf
run
generate-core-file $work/core
kill
END
  [ -s "$work/core" ] || fail "no core: $(tail -3 "$work/said")"
  is_small "$work/core"
  session "$work/victim" "$work/core" <<'END'
bt
info symbol $pc
END
  whole_stack
}

# Nobody looked while it ran: the handler of ch_trap_install filled the list, and the kernel wrote the core.
case_core_of_a_crash_names_code() {
  case $(cat /proc/sys/kernel/core_pattern) in
    '|'*) echo 'skip: cores go to a program'; exit 77 ;;
    /*) echo 'skip: cores go elsewhere'; exit 77 ;;
  esac
  (ulimit -c unlimited) 2>/dev/null || { echo 'skip: cores are forbidden'; exit 77; }
  program "$build/libcodeheap.a"
  (cd "$work" && ulimit -c unlimited && exec ./victim die) >"$work/log" 2>&1
  grep -q '^libcodeheap: live block `scm::inner` (#[0-9.]*, owner `scm::inner`); executed at +0xe ' "$work/log" || fail "the handler said: $(cat "$work/log")"
  local core
  core=$(find "$work" -name 'core*' -size +0 | head -1)
  [ -n "$core" ] || { echo 'skip: the kernel wrote no core'; exit 77; }
  is_small "$core"
  session "$work/victim" "$core" <<'END'
bt
x/i $pc
END
  said '^Program terminated with signal SIGILL'
  said '^#0  .*scm::inner \(\) at .*victim\.scm:4' # the registers of the fault, not of a handler
  said '^#1  .*scm::outer \(\)'
  said '^#2  .*main \('
  said '=> .*<scm::inner\+14>:.ud2'
}

# --- the Scheme
write_scheme() {
  cat >"$work/fairy.scm" <<'END'
(define (leaf n)
  (gc)
  n)
(define (walk n)
  (if (= n 0)
      (leaf 42)
      (+ 1 (walk (- n 1)))))
(define (warm k)
  (if (= k 0)
      'done
      (begin (walk 3) (warm (- k 1)))))
(warm 60)
END
}

case_scheme_frames_have_names_and_lines() {
  [ -x "$build/scheme" ] || { echo 'skip: no Scheme in this build'; exit 77; }
  write_scheme
  session --args "$build/scheme" --sinks=unwind,gdb "$work/fairy.scm" <<'END'
break collect
ignore 1 40
run
bt
END
  said '^#0  collect \('
  said '^#1 .*in scm::leaf fairy\.scm:1 \(\) at .*fairy\.scm:2'
  said '^#2 .*in scm::walk fairy\.scm:4 \(\) at .*fairy\.scm:7'
  said '^#4 .*in scm::walk fairy\.scm:4 \(\) at .*fairy\.scm:7'
  said '^#[5-9] .*in scm::warm fairy\.scm:8 \(\) at .*fairy\.scm:11'
  said '^#[0-9]+ .*jit_enter \('
  said '^#[0-9]+ .*main \('
}

case_scheme_stops_at_a_line() {
  [ -x "$build/scheme" ] || { echo 'skip: no Scheme in this build'; exit 77; }
  needs_registers "$build/scheme" jit_start
  write_scheme
  session --args "$build/scheme" --sinks=unwind,gdb "$work/fairy.scm" <<'END'
break collect
ignore 1 40
run
hbreak fairy.scm:2
continue
bt 3
END
  said '^#0 .*scm::leaf fairy\.scm:1 \(\) at .*fairy\.scm:2'
  said '^#1 .*scm::walk fairy\.scm:4 \(\) at .*fairy\.scm:7'
}

if [ $# = 0 ]; then
  # Cases with a debugger of their own are slow on a busy machine, not heavy.
  declare -F | sed -n 's/^declare -f case_\(.*\)/gdb_\1 240 0 -/p'
  exit 0
fi
"case_${1#gdb_}"
