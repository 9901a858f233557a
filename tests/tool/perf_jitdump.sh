#!/bin/bash
# SPDX-License-Identifier: MIT
# perf reads what the jitdump sink writes: `perf record -k 1`, `perf inject --jit`, then who was sampled, where the
# stacks end, and what annotate shows. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
# What `shares_of_` stands before compares numbers of samples, of the others there are some.
cases="perf_owners_of_one_address:300:- perf_names_outlive_pages_that_come_and_go:300:-
perf_annotate_shows_the_source:300:- perf_annotate_shows_bytecode:300:-
perf_call_graph_by_dwarf_needs_the_frame_pointer_with_libunwind:300:-
perf_attaches_to_a_running_process:300:- shares_of_perf_owners_of_one_address:300:timed
shares_of_perf_names_outlive_pages_that_come_and_go:300:timed shares_of_perf_annotate_shows_the_source:300:timed
shares_of_perf_attaches_to_a_running_process:300:timed"

[ $# != 0 ] || { list_cases $cases; exit; }

# perf takes every file that begins with /tmp/perf- for a perf map.
make_work
# What perf caches goes with the folder.
export HOME=$work JITDUMPDIR=$work
fail() { echo "jitdump: $*" >&2; exit 1; }

# A kernel that lets nobody sample is no fault of the library.
# For its listener to BPF programs perf would wait for a second at the end.
record=(perf record -q --no-bpf-event -k 1 -e cpu-clock:u)
"${record[@]}" -o "$work/probe" true >"$work/probe.err" 2>&1 ||
  { echo "the kernel refuses perf: $(head -1 "$work/probe.err")"; exit 77; }

# record GRAPH PROGRAM ARGS..: leaves $work/perf.data, injected.
record() {
  local graph=$1
  shift
  rm -f "$work"/raw.data "$work"/perf.data
  "${record[@]}" -F 997 --call-graph "$graph" -o "$work/raw.data" "$@" \
    >"$work/out" 2>"$work/err" || fail "perf record: $(cat "$work/out" "$work/err")"
  perf inject --jit -i "$work/raw.data" -o "$work/perf.data" 2>"$work/err" ||
    fail "perf inject: $(cat "$work/err")"
}

# samples: "address name reaches_main" of each sample, innermost frame.
samples() {
  perf script -i "$work/perf.data" -F ip,sym 2>"$work/err" |
    awk 'BEGIN { RS = "" } { main = /(^|\n)[ \t]*[0-9a-f]+ main(\n|$)/; print $1, $2, main + 0 }'
}

# count NAME: how many samples it has.
count() { awk -v name="$1" '$2 == name { n++ } END { print n + 0 }' "$work/samples"; }

# in_bounds WHAT A B LOW HIGH: there are some of both, and where shares are asked for A / B lies between the two, in hundredths.
in_bounds() {
  [ "$2" -gt 0 ] && [ "$3" -gt 0 ] || fail "$1: $2 samples to $3"
  [ -n "$shares" ] || return 0
  [ "$3" -ge 20 ] || fail "$1: only $3 samples"
  [ $(($2 * 100)) -ge $(($3 * $4)) ] && [ $(($2 * 100)) -le $(($3 * $5)) ] ||
    fail "$1: $2 samples to $3"
}

# program BODY: a program with `make`, which places a loop of some instructions, and `run`. For shares it runs longer than for
# some samples of each.
program() {
  local part=0.4
  [ -z "$shares${CODEHEAP_TEST_LONG:-}" ] || part=1
  cat >"$work/program.c" <<'C'
#include <codeheap/codeheap.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static struct ch_heap *heap;
static struct ch_vm *vm;
static void ok(enum ch_status status) {
  if (status == CH_OK) return;
  fprintf(stderr, "%s\n", ch_status_text(status));
  exit(1);
}
static int fallback(void) { return 0; }
struct made { struct ch_owner owner; const unsigned char *at; };
static struct made place(const char *name, unsigned bytes, struct ch_code *code) {
  /* push rbp; mov rbp, rsp; mov ecx, 1 << 16; dec ecx; jnz; pop rbp; ret */
  static const unsigned char spin[] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0, 0, 1, 0,
                                       0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};
  struct made made;
  ok(ch_owner_create(vm, name, (const void *)fallback, NULL, &made.owner));
  struct ch_open open = {.size = sizeof open, .owner = made.owner, .hot_bytes = bytes};
  ok(ch_block_open(&open, code));
  memset(code->write, 0xcc, bytes);
  memcpy(code->write, spin, sizeof spin);
  code->used_to = bytes;
  made.at = code->exec;
  return made;
}
static void publish(struct made made, struct ch_code *code) {
  ok(ch_block_commit(code, 1));
  ok(ch_owner_set_entry(made.owner, code->block));
}
static struct made make(const char *name, unsigned bytes) {
  static struct ch_code code;
  struct made made = place(name, bytes, &code);
  publish(made, &code);
  return made;
}
static double cpu_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
__attribute__((noinline)) static void run(struct made made, double seconds) {
  int (*const *cell)(void) = (int (*const *)(void))ch_owner_cell(made.owner);
  for (double end = cpu_s() + seconds * PART; cpu_s() < end;) (*cell)();
}
static void release(struct made made) { ok(ch_owner_release(made.owner, CH_RELEASE_NOT_RUNNING)); }
static void start(void) {
  struct ch_ops ops = {.size = sizeof ops};
  struct ch_config config;
  int failed;
  ch_config_init(&config);
  config.sinks = CH_SINK_UNWIND | CH_SINK_JITDUMP;
  ok(ch_heap_create(&config, &heap));
  ok(ch_vm_attach(heap, &ops, NULL, &vm));
  ok(ch_thread_attach(heap, NULL, NULL));
  if (ch_sink_status(heap, CH_SINK_JITDUMP, NULL, &failed)) return;
  fprintf(stderr, "the sink is off: %s\n", strerror(failed));
  exit(1);
}
C
  cat >>"$work/program.c"
  "$cc" -O1 -g -fno-omit-frame-pointer -I. -DPART=$part -o "$work/program" "$work/program.c" "$build/libcodeheap.a" -pthread -lm ||
    fail "the program does not build"
}

# Two owners, one after the other, at one address, 1 : 3 in time; one in front of it and one behind, which is told first:
# whatever a record claims behind its code would be taken from it.
perf_owners_of_one_address() {
  local graph
  program <<'C'
int main(void) {
  start();
  struct made before = make("before", 15), first = make("first", 15);
  run(before, 0.2), run(first, 0.2);
  release(first);
  static struct ch_code low, high;
  struct made second = place("second", 15, &low), behind = place("behind", 15, &high);
  if (second.at != first.at || behind.at < second.at || behind.at > second.at + 64)
    return fprintf(stderr, "not the same address\n"), 1;
  publish(behind, &high), publish(second, &low);
  run(second, 0.6), run(behind, 0.2);
  return 0;
}
C
  for graph in fp dwarf; do
    record $graph "$work/program"
    samples >"$work/samples"
    in_bounds "second to first ($graph)" "$(count second)" "$(count first)" 200 450
    in_bounds "before to first ($graph)" "$(count before)" "$(count first)" 50 200
    in_bounds "behind to first ($graph)" "$(count behind)" "$(count first)" 50 200
    # In the order of time: whatever came later has the name of what was there then.
    awk '$2 == "before" { $2 = 1 } $2 == "first" { $2 = 2 } $2 == "second" { $2 = 3 } $2 == "behind" { $2 = 4 }
      $2 ~ /^[1-4]$/ { if ($2 < last) exit 1; last = $2 }' "$work/samples" || fail "names of another time: $(uniq -c -f1 "$work/samples")"
    awk -v part="${shares:+95}" '$2 ~ /^(before|first|second|behind)$/ { n++; reached += $3 }
      END { exit !(reached > 0 && reached * 100 >= n * part) }' \
      "$work/samples" || fail "--call-graph $graph does not reach main: $(head -3 "$work/samples")"
    rm -f "$work"/jit*
  done
}

# The pool grows, gives memory back, and takes it again: the kernel tells perf of executable mappings, and a mapping told
# after a block would hide it.
perf_names_outlive_pages_that_come_and_go() {
  program <<'C'
enum { LARGE = 3 << 19 };
static uint64_t committed(void) {
  struct ch_stats stats = {.size = sizeof stats};
  ok(ch_heap_stats(heap, &stats));
  return stats.committed_bytes_now;
}
int main(void) {
  start();
  struct made early = make("early", 15), large[4];
  run(early, 0.1);
  uint64_t small = committed();
  for (int i = 0; i < 4; i++) large[i] = make("grown", LARGE);
  uint64_t most = committed();
  run(large[3], 0.2);
  for (int i = 0; i < 4; i++) release(large[i]);
  ok(ch_heap_collect(heap));
  if (most < small + 4 * LARGE || committed() >= most) return fprintf(stderr, "no memory came and went\n"), 1;
  for (int i = 0; i < 4; i++) large[i] = make("again", LARGE);
  run(large[0], 0.1), run(large[3], 0.1), run(early, 0.1);
  return 0;
}
C
  local wx
  for wx in dual memfd; do
    export CODEHEAP_WX=$wx
    record fp "$work/program"
    samples >"$work/samples"
    in_bounds "early to grown ($wx)" "$(count early)" "$(count grown)" 50 200
    in_bounds "again to grown ($wx)" "$(count again)" "$(count grown)" 50 200
    rm -f "$work"/jit*
  done
}

# What was told before perf came is named too: it finds the file by the page of it that stays mapped.
perf_attaches_to_a_running_process() {
  [ -x "$build/scheme" ] || { echo 'skip: no Scheme in this build'; exit 77; }
  local pid status part=0.3
  [ -z "$shares${CODEHEAP_TEST_LONG:-}" ] || part=1
  echo '(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
    (define (again) (fib 20) (again))
    (again)' >"$work/again.scm"
  "$build/scheme" --sinks=jitdump "$work/again.scm" &
  pid=$!
  until grep -qs 'scm::again' "$work"/jit-*.dump; do
    kill -0 $pid || fail 'the program has ended'
    sleep 0.1
  done
  # In the time of one record it may be off the processor.
  while
    (record fp -p $pid -- sleep "$part")
    status=$?
    samples >"$work/samples"
    [ $status = 0 ] && [ "$(count scm::fib)" -lt 20 ]
  do :; done
  kill -9 $pid
  wait $pid 2>/dev/null
  [ $status = 0 ] || exit $status
  in_bounds "named to all" "$(count scm::fib)" "$(wc -l <"$work/samples")" 80 100
}

# annotate SWITCH..: what perf annotate shows of a Scheme program.
annotate() {
  [ -x "$build/scheme" ] || { echo 'skip: no Scheme in this build'; exit 77; }
  cat >"$work/fib.scm" <<'END'
(define (fib n)
  (if (< n 2)
      n
      (+ (fib (- n 1))
         (fib (- n 2)))))
(display (fib 37))
(newline)
END
  record fp "$build/scheme" --sinks=jitdump "$@" "$work/fib.scm"
  grep -qx 24157817 "$work/out" || fail "the program says $(cat "$work/out")"
  samples >"$work/samples"
  awk -v shares="$shares" '{ n++; jit += $2 ~ /^scm::fib$/; reached += $2 ~ /^scm::fib$/ && $3 }
    END { exit !(reached > 0 && (!shares || n >= 50 && jit * 100 >= n * 80 && reached * 100 >= jit * 95)) }' "$work/samples" ||
    fail "few samples are named and reach main: $(cut -d' ' -f2- "$work/samples" | sort | uniq -c | sort -rn | head -5)"
  perf annotate -i "$work/perf.data" --stdio -l >"$work/shown" 2>"$work/err" ||
    fail "perf annotate: $(cat "$work/err")"
}

# shows WHAT PATTERN: a line of annotate's has it.
shows() { grep -qE "$2" "$work/shown" || fail "annotate shows no $1: $(head -60 "$work/shown")"; }

perf_annotate_shows_the_source() {
  annotate
  shows 'instruction with its share' '^ *[1-9][0-9.]* : +[0-9a-f]+: +[a-z]+ '
  shows 'call' 'call +[0-9a-f]+'
  shows 'source line' ': [0-9]+ +\(if \(< n 2\)'
  shows 'source line' ': [0-9]+ +\(fib \(- n 2\)\)\)\)\)'
  shows 'line of a sample' '// fib.scm:[2-5]'
}

perf_annotate_shows_bytecode() {
  annotate --dump-ir="$work/ir"
  shows 'instruction with its share' '^ *[1-9][0-9.]* : +[0-9a-f]+: +[a-z]+ '
  shows 'bytecode' ': [0-9]+ +0 +JNLTI +r0, 2 -> 2'
  shows 'bytecode' ': [0-9]+ +2 +ADDI +r[0-9]+, r0, -1'
  shows 'bytecode' ': [0-9]+ +[0-9]+ +ADD +r'
  shows 'line of a sample' '// [0-9]+-fib.bytecode:[0-9]+'
  # The first line is the procedure's, then one an instruction: what objdump says of the second is the first.
  [ "$(sed -n 2p "$work"/ir/*-fib.bytecode | cut -c1-17)" = '    0  JNLTI     ' ] || fail 'another listing'
}

# perf with libunwind cannot read the rules that are in the file; with libdw it follows them.
perf_call_graph_by_dwarf_needs_the_frame_pointer_with_libunwind() {
  program <<'C'
int main(void) {
  /* push rbp; xor ebp, ebp; mov ecx, 1 << 28; dec ecx; jnz; pop rbp; ret */
  static const unsigned char spin[] = {0x55, 0x31, 0xed, 0xb9, 0, 0, 0, 16, 0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};
  static const unsigned char rule[] = {0x0c, 7, 16, 0x90, 1, 0x86, 2};
  struct ch_code code;
  start();
  struct ch_open open = {.size = sizeof open, .heap = heap, .hot_bytes = sizeof spin, .name = "own"};
  ok(ch_frame_register(heap, rule, sizeof rule, &open.frame));
  ok(ch_block_open(&open, &code));
  memcpy(code.write, spin, code.used_to = sizeof spin);
  ok(ch_block_commit(&code, 1));
  ((void (*)(void))(size_t)code.exec)();
  run(make("kept", 15), 0.2);
  return 0;
}
C
  record dwarf "$work/program"
  samples >"$work/samples"
  [ "$(count own)" -gt 0 ] && [ "$(count kept)" -gt 0 ] || fail "no samples: $(head -3 "$work/samples")"
  local own kept
  own=$(awk '$2 == "own" { n += $3 } END { print n + 0 }' "$work/samples")
  kept=$(awk '$2 == "kept" { n += $3 } END { print n + 0 }' "$work/samples")
  [ "$kept" -gt 0 ] || fail "main is not reached from code that keeps the frame pointer"
  if perf version --build-options 2>&1 | grep -q 'libunwind: \[ on'; then
    [ "$own" = 0 ] || fail "libunwind reaches main from a registered shape: say so in docs/unwinders.md"
  else
    [ "$own" -gt 0 ] || fail "libdw does not reach main from a registered shape"
  fi
}

case " $(echo $cases | sed 's/:[^ ]*//g') " in
  *" $1 "*)
    case $1 in shares_of_*) shares=yes ;; *) shares= ;; esac
    "${1#shares_of_}" ;;
  *) fail "no case $1" ;;
esac
