#!/bin/bash
# SPDX-License-Identifier: MIT
# perf with the perf map, on the Scheme: what it names, how far its call graphs reach. Without arguments it lists its
# cases, with a name it runs one.
. tests/support/script.sh
scheme=${CODEHEAP_BUILD:-build}/scheme
# What `most_` stands before asks for a share of the samples, of the others for some.
cases='perf_map_names_samples:300 perf_map_names_samples_of_freed_code:300 perf_frame_pointers_reach_main:300
perf_report_shows_procedures:300 perf_report_shows_short_names:300 perf_report_names_code_that_comes_late:300
perf_report_names_code_of_a_child:300 perf_report_names_the_loop_of_a_killed_program:300
perf_report_names_the_loop_of_an_interrupted_record:300
most_perf_map_names_samples:300:timed most_perf_map_names_samples_of_freed_code:300:timed
most_perf_frame_pointers_reach_main:300:timed'

[ $# != 0 ] || { list_cases $cases; exit; }
make_work

fail() { echo "perf map: $*" >&2; exit 1; }

# record [PERF-SWITCHES] SCHEME..: runs $work/work.scm under perf; the process's number is in $pid. For its listener to BPF
# programs perf would wait for a second at the end.
probe() {
  perf record -q --no-bpf-event -e cpu-clock -o "$work/probe" -- true > "$work/err" 2>&1 ||
    { echo "perf record is refused: $(tail -1 "$work/err")"; exit 77; }
}
record() {
  probe
  # Another user's file of this number is not touched.
  while
    perf record -q --no-bpf-event -e cpu-clock -F 999 -o "$work/data" "$@" "$work/work.scm" > "$work/out" 2> "$work/err" ||
      fail "the program failed: $(tail -3 "$work/err")"
    pid=$(perf script -i "$work/data" -F pid,comm 2> "$work/err" | awk '$1 == "scheme" { print $2; exit }')
    [ -e "/tmp/perf-$pid.map" ] && [ ! -O "/tmp/perf-$pid.map" ]
  do :; done
  [ -s "/tmp/perf-$pid.map" ] || fail "no file of process '$pid'"
  # perf reads it there.
  trap 'rm -rf "$work" "/tmp/perf-$pid.map"' EXIT
}

# judge MODE: of the samples in the pool, how many have a name, or a call graph that reaches main. Prints a sentence and
# fails without any, or, where most are asked for, below 99 of 100.
judge() {
  perf script -i "$work/data" --show-mmap-events -F comm,ip,sym > "$work/script" 2> "$work/err" ||
    fail "perf script: $(tail -3 "$work/err")"
  python3 - "$1" "$work/script" "/tmp/perf-$pid.map" "$most" << 'END'
import re, sys

mode, script, path, most = sys.argv[1:]
pools, samples = [], []
for line in open(script, errors="replace"):
    mapped = re.search(r"\[0x([0-9a-f]+)\(0x([0-9a-f]+)\).*r-xs .*/dev/zero", line)
    if mapped:
        low, size = (int(n, 16) for n in mapped.groups())
        pools.append((low, low + size))
        continue
    frame = re.match(r"\s+([0-9a-f]+) (.*)$", line)
    if frame:
        samples[-1].append((int(frame.group(1), 16), frame.group(2).strip()))
    elif line.strip() and "PERF_RECORD" not in line:
        samples.append([])
        # Without call graphs the address stands behind the command's name.
        one = re.match(r"\s*\S+\s+([0-9a-f]+) (.*)$", line)
        if one:
            samples[-1].append((int(one.group(1), 16), one.group(2).strip()))
ours = [s for s in samples if s and any(low <= s[0][0] < high for low, high in pools)]
named = [s for s in ours if re.match(r"scm::\S+ (\S+:\d+|eval)$|codeheap_", s[0][1])]
reach = [s for s in ours if any(name == "main" for _, name in s)]
good = reach if mode == "main" else named
print(f"{len(samples)} samples, {len(ours)} in the pool, {len(named)} named, {len(reach)} reach main")
if not pools or len(ours) < (100 if most else 1):
    sys.exit("perf map: too few samples in the pool to judge")
if not good or most and len(good) * 100 < len(ours) * 99:
    bad = [s for s in ours if s not in good][:3]
    sys.exit(f"perf map: {len(good)} of {len(ours)} samples: {mode}; not of these: {bad}")

lines = sorted((int(a, 16), int(n, 16), name.strip()) for a, n, name in (line.split(" ", 2) for line in open(path)))
for one, two in zip(lines, lines[1:]):
    if one[0] + one[1] > two[0]:
        sys.exit(f"perf map: two names for one address: {one} {two}")
END
}

work_hard() {
  cat > "$work/work.scm" << END
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define (tak x y z)
  (if (not (< y x)) z (tak (tak (- x 1) y z) (tak (- y 1) z x) (tak (- z 1) x y))))
(define (sum l) (if (null? l) 0 (+ (car l) (sum (cdr l)))))
(define (upto n) (let loop ((i n) (l '())) (if (= i 0) l (loop (- i 1) (cons i l)))))
(define (rounds k)
  (if (> k 0)
      (begin (fib 24) (tak 18 12 6) (sum (upto 40)) (rounds (- k 1)))))
(rounds $([ -n "$most${CODEHEAP_TEST_LONG:-}" ] && echo 4000 || echo 1500))
END
}

perf_map_names_samples() {
  work_hard
  record "$scheme" --sinks=unwind,perfmap
  judge named || exit
}

# Procedures that run for a moment, die, and are collected before perf looks.
perf_map_names_samples_of_freed_code() {
  cat > "$work/work.scm" << 'END'
(define (make n)
  (eval (list 'letrec (list (list 'spin '(lambda (i s) (if (= i 0) s (spin (- i 1) (+ s 1))))))
              (list 'lambda '() (list 'spin 100000 n)))))
(define (rounds k)
  (if (> k 0)
      (begin ((make k)) (if (= 0 (remainder k 50)) (code-collect!)) (rounds (- k 1)))))
(rounds 2500)
(code-collect!)
(display (cdr (assq 'blocks-freed (code-stats))))
END
  export CODEHEAP_DEAD_NAMES=kept
  record "$scheme" --sinks=unwind,perfmap
  [ "$(cat "$work/out")" -gt 5000 ] || fail "only $(cat "$work/out") blocks were freed"
  judge named || exit
}

perf_frame_pointers_reach_main() {
  work_hard
  record --call-graph fp "$scheme" --sinks=unwind,perfmap
  judge main || exit
}

perf_report_shows_procedures() {
  local name
  work_hard
  record "$scheme" --sinks=unwind,perfmap
  perf report -i "$work/data" --stdio --sort symbol > "$work/report" 2> "$work/err" ||
    fail "perf report: $(tail -3 "$work/err")"
  for name in 'scm::fib work.scm:1' 'scm::tak work.scm:2'; do
    grep -qE "^ +[0-9.]+% .* $name( |\$)" "$work/report" || fail "perf report does not show $name"
  done
}

# native NAME: builds $work/NAME.c. sample NAME SWITCHES..: runs the program under perf; its samples are in $work/script.
native() {
  [ "$(uname -m)" = x86_64 ] || { echo 'skip: the code is for x86-64'; exit 77; }
  "${CC:-gcc}" -std=gnu11 -I. -o "$work/$1" "$work/$1.c" "${CODEHEAP_BUILD:-build}/libcodeheap.a" -lm -lpthread > "$work/err" 2>&1 ||
    fail "not built: $(tail -3 "$work/err")"
  probe
}
forget() { for pid in $pid; do rm -f "/tmp/perf-$pid.map"; done; }
sample() {
  local name=$1
  shift
  perf record -q --no-bpf-event -e cpu-clock -F 999 -o "$work/data" "$@" "$work/$name" > "$work/out" 2>&1 ||
    fail "perf record: $(tail -3 "$work/out")"
  pid=$(perf script -i "$work/data" -F pid,comm 2> "$work/err" | awk -v name="$name" '$1 == name { print $2 }' | sort -u)
  trap 'rm -rf "$work"; forget' EXIT
  perf script -i "$work/data" -F ip,sym > "$work/script" 2> "$work/err"
}

# perf passes over a line of the map whose name has fewer than three bytes.
perf_report_shows_short_names() {
  cat > "$work/short.c" << 'END'
#include "codeheap/codeheap.h"
/* push rbp; mov rbp, rsp; mov ecx, 200000000; again: dec ecx; jnz again; pop rbp; ret */
static const char code[] = "\x55\x48\x89\xe5\xb9\x00\xc2\xeb\x0b\xff\xc9\x75\xfc\x5d\xc3";
int main(void) {
  struct ch_heap *heap;
  struct ch_config config;
  void (*f)(void), (*gh)(void);
  ch_config_init(&config);
  config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP;
  if (ch_heap_create(&config, &heap) || ch_code_add(heap, code, 15, "f", &f) || ch_code_add(heap, code, 15, "gh", &gh)) return 1;
  f();
  gh();
  return 0;
}
END
  native short
  sample short
  grep -qE "^ +[0-9a-f]+ f *\$" "$work/script" && grep -qE "^ +[0-9a-f]+ gh *\$" "$work/script" ||
    fail "perf has no sample in f or in gh: $(sort "$work/script" | uniq -c | sort -rn | head -3)"
}

# write_late FORK: a program whose code comes into memory that the pool did not have at first.
write_late() {
  cat > "$work/late.c" << END
#include "codeheap/codeheap.h"
#include <sys/wait.h>
#include <unistd.h>
static const char code[] = "\\x55\\x48\\x89\\xe5\\xb9\\x00\\xc2\\xeb\\x0b\\xff\\xc9\\x75\\xfc\\x5d\\xc3"; /* as above */
int main(void) {
  struct ch_heap *heap;
  void (*f)(void);
  if (ch_heap_create(NULL, &heap) || ch_code_add(heap, code, 15, "scm::early", &f)) return 1;
  if ($1) return waitpid(-1, NULL, 0) < 0;
  for (int i = 0; i < 20000; i++)
    if (ch_code_add(heap, code, 15, "scm::early", &f)) return 1;
  if (ch_code_add(heap, code, 15, "scm::late", &f)) return 1;
  f();
  return 0;
}
END
  native late
}
# late_is_named BACKEND SWITCHES..
late_is_named() {
  CODEHEAP_WX=$1 CODEHEAP_SINKS=perfmap sample late "${@:2}"
  grep -qE '[0-9a-f] scm::late *$' "$work/script" ||
    fail "$*: no sample in scm::late: $(sort "$work/script" | uniq -c | sort -rn | head -3)"
  forget
}
# A call graph by DWARF makes perf note all mappings, not those of code alone.
perf_report_names_code_that_comes_late() {
  local backend
  write_late 0
  for backend in dual procmem; do
    late_is_named $backend
    late_is_named $backend --call-graph dwarf,512
  done
}
perf_report_names_code_of_a_child() {
  write_late 'fork()'
  late_is_named dual
}

# A program in its steady state: it compiles nothing more, and never ends.
work_for_ever() {
  cat > "$work/work.scm" << 'END'
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define (again) (fib 20) (again))
(again)
END
}

# await COMMAND..: until it succeeds, for a minute.
await() {
  local tries=0
  until "$@"; do
    [ $((tries += 1)) -lt 600 ] || fail "in vain: $*"
    sleep 0.1
  done
}

loop_is_named() { grep -qs 'scm::again' "/tmp/perf-$pid.map"; }

report_names_the_loop() {
  perf report -i "$work/data" --stdio --sort symbol > "$work/report" 2> "$work/err" ||
    fail "perf report: $(tail -3 "$work/err")"
  grep -qE '^ +[0-9.]+% .* scm::fib work.scm:1( |$)' "$work/report"
}

perf_report_names_the_loop_of_a_killed_program() {
  probe
  work_for_ever
  "$scheme" --sinks=unwind,perfmap "$work/work.scm" &
  pid=$!
  trap 'kill -9 $pid 2> /dev/null; rm -rf "$work" "/tmp/perf-$pid.map"' EXIT
  await loop_is_named
  # In the time of one record it may be off the processor.
  record_some() {
    perf record -q --no-bpf-event -e cpu-clock -F 999 -o "$work/data" -p "$pid" -- sleep 0.3 > "$work/out" 2>&1 ||
      fail "perf record: $(cat "$work/out")"
    report_names_the_loop
  }
  await record_some
  kill -9 "$pid"
  wait "$pid" 2> /dev/null
  report_names_the_loop || fail "perf report names nothing of a program that was killed: $(grep % "$work/report" | head -3)"
}

perf_report_names_the_loop_of_an_interrupted_record() {
  probe
  work_for_ever
  perf record -q --no-bpf-event -e cpu-clock -F 999 -o "$work/data" "$scheme" --sinks=unwind,perfmap "$work/work.scm" > "$work/out" 2>&1 &
  local recorder=$!
  has_started() { pid=$(pgrep -P "$recorder" scheme); }
  await has_started
  trap 'kill -9 $pid 2> /dev/null; rm -rf "$work" "/tmp/perf-$pid.map"' EXIT
  await loop_is_named
  has_run() { [ "$(cut -d ' ' -f 14 "/proc/$pid/stat")" -ge "$1" ]; } # in ticks of 10 ms
  await has_run $(($(cut -d ' ' -f 14 "/proc/$pid/stat") + 30))
  kill -INT "$recorder"
  wait "$recorder"
  report_names_the_loop || fail "perf report names nothing after Ctrl-C: $(grep % "$work/report" | head -3)"
}

[ -x "$scheme" ] || { echo 'skip: no Scheme in this build'; exit 77; }
case $1 in most_*) most=yes ;; *) most= ;; esac
"${1#most_}"
