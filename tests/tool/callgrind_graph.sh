#!/bin/bash
# SPDX-License-Identifier: MIT
# What callgrind-names makes of profiles and jitdumps: the call graph as JSON, stacks, the difference of two graphs, and
# objects of blocks. Made-up ones show each rule, live ones are judged by readers and rules of the judge's own, and each
# rule, broken in a copy of the tool, is noticed. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
build=$(realpath -m "$build")
here=$PWD
names=$build/callgrind-names
san=${CODEHEAP_TEST_SAN:-}
cases="callgrind_graph_of_a_scheme_program:300 callgrind_objects_of_a_scheme_program:480
callgrind_json_names_no_machine:120 callgrind_graph_is_the_same_in_another_folder:300 callgrind_stacks_lose_no_cost:120
callgrind_difference_of_two_graphs:120 callgrind_json_that_is_none_is_refused:480 callgrind_switches_that_do_not_go_together:120
callgrind_output_behind_a_link:120 callgrind_dump_that_is_damaged:480 callgrind_graph_failures_leave_no_file:480
callgrind_json_of_long_paths:120"

if [ $# = 0 ]; then
  # The live ones run the Scheme, which needs libgc.
  [ "${CODEHEAP_TEST_GC:-bdw}" != none ] || cases=${cases#*callgrind_json_names} cases=callgrind_json_names$cases
  # What breaks copies of the sources belongs to `make mutants`.
  [ -z "${CODEHEAP_TEST_BROKEN:-}" ] || cases=callgrind_broken_graphs_are_noticed:600
  list_cases $cases
  exit 0
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/tool-callgrind-graph.XXXXXX") || exit 1
map=
trap 'rm -rf "$work" $map' EXIT
fail() { echo "callgrind-names: $*" >&2; exit 1; }
judge() { python3 tests/callgrind/outputs.py "$@" >"$work/judged" || exit 1; }
# made ARGUMENTS..: runs the tool, which must succeed; its output is $work/got.
made() { "$names" "$@" >"$work/got" 2>"$work/err" || fail "$*: $(cat "$work/err")"; }

# ---- live ------------------------------------------------------------------------------------------------------------

work_scm() {
  cat >"$work/work.scm" <<'END'
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define (is-even? n) (if (= n 0) #t (not (is-odd? (- n 1)))))
(define (is-odd? n) (if (= n 0) #f (not (is-even? (- n 1)))))
(define (twice f x) (+ (f x) (f x)))
(display (fib 15)) (newline)
(display (is-even? 50)) (newline)
(display (twice fib 10)) (newline)
END
  printf '610\n#t\n110\n' >"$work/wanted"
}

callgrind_graph_of_a_scheme_program() {
  work_scm
  CODEHEAP_SINKS=perfmap valgrind -q --tool=callgrind --simulate-cache=yes --callgrind-out-file="$work/before" \
    "$build/scheme" --jit "$work/work.scm" >"$work/out" 2>"$work/err" </dev/null || fail "under callgrind: $(tail -3 "$work/err")"
  cmp "$work/out" "$work/wanted" || fail 'the program has another output under callgrind'
  map=/tmp/perf-$(sed -n 's/^pid: //p' "$work/before" | head -1).map
  made --output="$work/named" "$work/before"
  made --json --costs --output="$work/json" "$work/before"
  judge json "$work/named" "$work/json"
  grep -q '"scm::fib work.scm:1"' "$work/json" || fail 'the graph does not have the name of a block'
  ! grep -qE "$work|${PWD//+/.}|/usr/|GLIBC_" "$work/json" || fail 'the graph has names of this machine'
  made --json --output="$work/other" "$work/named"
  made --json --output="$work/json" "$work/before"
  cmp "$work/json" "$work/other" || fail 'a profile with names has another graph'
  made --folded --output="$work/folded" "$work/before"
  judge folded "$work/named" "$work/folded"
  grep -q ';scm::fib work.scm:1[; ]' "$work/folded" || fail 'no stack has the name of a block'
  # Another event has other costs.
  made --folded --event=Dw "$work/before"
  [ "$(awk '{ s += $NF } END { print s }' "$work/got")" = "$(awk '/^summary:/ { print $4 }' "$work/before")" ] ||
    fail 'the stacks do not add up to the writes'
  made --svg --redact --output="$work/svg" "$work/before"
  python3 - "$work/svg" <<'END' || fail 'the picture is none'
import sys, xml.etree.ElementTree as tree
text = "".join(tree.parse(sys.argv[1]).getroot().itertext())
assert "scm::fib work.scm:1" in text and "scheme --jit work.scm" in text and "/tmp/" not in text
END
  "$names" diff "$work/json" "$work/before" >"$work/got" 2>"$work/err" || fail "a graph differs from itself: $(cat "$work/got" "$work/err")"
}

callgrind_objects_of_a_scheme_program() {
  # Code that is discarded again and again in a small pool, so that addresses have several owners.
  cat >"$work/work.scm" <<'END'
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define (again n) (if (= n 0) 'done (begin (fib 6) (gc) (again (- n 1)))))
(display (fib 12))
(again 12)
(display (fib 12))
END
  (cd "$work" && CODEHEAP_SINKS=jitdump JITDUMPDIR="$work" "$build/scheme" --jit --lines --pool=131072 --discard-every=10 work.scm) >"$work/out" 2>"$work/err" ||
    fail "the program failed: $(cat "$work/err")"
  set -- "$work"/jit-*.dump
  [ $# = 1 ] && [ -s "$1" ] || fail 'there is no dump'
  made --elf="$work/objects" --output="$work/list" "$1"
  ! grep -q wrong "$work/err" || fail "$(cat "$work/err")"
  judge elf "$1" "$work/objects" "$work/list" work.scm
  ! grep -q ' 0 addresses' "$work/judged" || fail 'no address had several owners: nothing is shown'
  grep -q 'scm::fib work.scm:1$' "$work/list" || fail 'the list has no name'
  # A second time into the same folder; cut in its last record, and behind it.
  made --elf="$work/objects" --output="$work/again" "$1"
  cmp "$work/list" "$work/again" || fail 'the second time is another'
  head -c -3 "$1" >"$work/cut"
  made --elf="$work/cut-objects" "$work/cut"
  grep -q 'the last record is not whole' "$work/err" || fail "says $(cat "$work/err")"
}

# profile_in FOLDER: a program of two files that have functions of one name, compiled and profiled there.
profile_in() {
  mkdir -p "$1/a" "$1/b"
  printf 'static __attribute__((noinline)) int step(int n) { return n + 1; }\nint one(int n) { return step(n) + step(n); }\n' >"$1/a/part.c"
  printf 'static __attribute__((noinline)) int step(int n) { return n + 2; }\nint two(int n) { return step(n); }\n' >"$1/b/part.c"
  cat >"$1/main.c" <<'END'
#include <stdlib.h>
int one(int), two(int);
static __attribute__((noinline)) int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
int main(int argc, char **argv)
{
  (void)argv;
  int *made = malloc(sizeof *made);
  *made = fib(10 + argc - 1) + one(argc) + two(argc);
  int end = *made != 62;
  free(made);
  return end;
}
END
  (cd "$1" && gcc -g -O1 -fPIC -shared -o libpart.so.1.2 a/part.c b/part.c && gcc -g -O1 -o program main.c ./libpart.so.1.2 &&
    valgrind -q --tool=callgrind --toggle-collect=main --callgrind-out-file=out ./program) >"$work/out" 2>&1 ||
    fail "under callgrind: $(tail -5 "$work/out")"
}

callgrind_graph_is_the_same_in_another_folder() {
  profile_in "$work/x"
  profile_in "$work/a folder/of another/name"
  made --json --output="$work/one" "$work/x/out"
  made --json --output="$work/two" "$work/a folder/of another/name/out"
  diff "$work/one" "$work/two" >&2 || fail 'one program in two folders has two graphs'
  local object
  for object in '"libpart.so", "file": "a/part.c", "function": "step"' '"libpart.so", "file": "b/part.c", "function": "step"' \
    '"program", "file": "main.c", "function": "fib"'; do
    [ "$(grep -cF "$object" "$work/one")" -ge 1 ] || fail "there is no $object: $(cat "$work/one")"
  done
  made --folded --redact --output="$work/one" "$work/x/out"
  made --folded --redact --output="$work/two" "$work/a folder/of another/name/out"
  diff <(sed 's/ [0-9]*$//' "$work/one") <(sed 's/ [0-9]*$//' "$work/two") >&2 || fail 'one program in two folders has two sets of stacks'
  grep -q ';one;step (a/part.c) ' "$work/one" || fail "two functions of one name: $(cat "$work/one")"
  grep -q ';two;step (b/part.c) ' "$work/one" || fail "two functions of one name: $(cat "$work/one")"
  made --folded "$work/x/out"
  judge folded "$work/x/out" "$work/got"
  "$names" diff "$work/x/out" "$work/a folder/of another/name/out" >"$work/got" 2>&1 || fail "they differ: $(cat "$work/got")"
}

# ---- made up ---------------------------------------------------------------------------------------------------------

h='positions: line\nevents: Ir\n'

# shows WHAT SWITCHES PROFILE TO: what is written of a profile, \n is a new line.
shows() {
  printf '%b' "$3" >"$work/from"
  printf '%b' "$4" >"$work/to"
  made $2 --perf-map=/dev/null "$work/from"
  diff "$work/to" "$work/got" >&2 || fail "$1: it is written otherwise"
}

# name WHAT OBJECT FILE FUNCTION OBJECT FILE FUNCTION: what JSON calls a node.
name() {
  shows "$1" --json "${h}ob=$2\nfl=$3\nfn=$4\n1 1\n" \
    "{\"format\": \"callgrind-names 1\",\n\"nodes\": [\n{\"object\": \"$5\", \"file\": \"$6\", \"function\": \"$7\"}\n],\n\"edges\": [\n]}\n"
}

callgrind_json_names_no_machine() {
  local many
  name 'folders' /home/me/build/prog /home/me/src/x.c main prog x.c main
  name 'a name of its own' prog x.c main prog x.c main
  name 'what callgrind does not know' '???' '???' f '???' '???' f
  name 'what the profile does not say' '' '' f '' '' f
  name 'the version behind' /lib/libc.so.6 x f libc.so x f
  name 'three numbers' /lib/libx.so.1.2.30 x f libx.so x f
  name 'the version in front' /lib/libc-2.36.so x f libc.so x f
  name 'a number that is no version' /lib/ld-linux-x86-64.so.2 x f ld-linux-x86-64.so x f
  name 'no library' /bin/prog-1.2 x f prog-1.2 x f
  name 'a library with a suffix' /lib/x.so.debug x f x.so.debug x f
  name 'a function without a name' /bin/p x 0x0000000000001090 p x '[unnamed]'
  name 'and its recursion' /bin/p x "0x1090'2" p x "[unnamed]'2"
  name 'callers without a name' /bin/p x "f'0x1090'g" p x "f'[unnamed]'g"
  name 'a caller that is a block' /bin/p x "f'w:1 @0x3000'stub 0x7f0012345678" p x "f'w:1'stub [address]"
  name 'a caller that is in an object' '???' x "f'memcpy@GLIBC_2.2.5'/bin x/y" '???' x "f'memcpy'y"
  name 'a number is no address' /bin/p x f0x1090 p x f0x1090
  name 'the version of a symbol' /bin/p x __libc_start_main@@GLIBC_2.34 p x __libc_start_main
  name 'an old one' /bin/p x memcpy@GLIBC_2.2.5 p x memcpy
  name 'no version' '???' x 'f@Home' '???' x 'f@Home'
  name 'the mark of two blocks' '???' x 'f w:1 @0x3000' '???' x 'f w:1'
  name 'with a size' '???' x 'f w:1 @0x3000+256' '???' x 'f w:1'
  name 'which means nothing elsewhere' /bin/p x 'f w:1 @0x3000' p x 'f w:1 @0x3000'
  name 'an address in a name' '???' x 'stub 0x7f0012345678 of f' '???' x 'stub [address] of f'
  name 'a small number' '???' x 'f 0x10' '???' x 'f 0x10'
  name 'a path in a name' '???' x 'py::fib:/home/me/a b/work.py' '???' x 'py::fib:work.py'
  name 'behind a space' '???' x 'scm::f /home/me/w.scm:1' '???' x 'scm::f w.scm:1'
  name 'an implementation in a file' /bin/p x '<impl at /home/me/x.rs:1:2>::f' p x '<impl at x.rs:1:2>::f'
  name 'a function that divides' '???' x 'scm::/ w.scm:1' '???' x 'scm::/ w.scm:1'
  name 'a slash in a word' /bin/p x 'a/b/c' p x 'a/b/c'
  name 'quotes and what is no text' /bin/p x 'f"\\\\\001\377' p x 'f\\"\\\\\\\\\\u0001\357\277\275'
  # Two that would become one keep more of their paths, or of their versions.
  shows 'two files of one name' --json "${h}ob=/b/p\nfl=/h/a/x.c\nfn=f\n1 1\nfl=/h/b/x.c\nfn=f\n1 1\n" \
    '{"format": "callgrind-names 1",\n"nodes": [\n{"object": "p", "file": "a/x.c", "function": "f"},\n{"object": "p", "file": "b/x.c", "function": "f"}\n],\n"edges": [\n]}\n'
  shows 'two versions of a library' --json "${h}ob=/l/libx.so.1\nfn=f\n1 1\nob=/l/libx.so.2\nfn=f\n1 1\n" \
    '{"format": "callgrind-names 1",\n"nodes": [\n{"object": "libx.so.1", "file": "", "function": "f"},\n{"object": "libx.so.2", "file": "", "function": "f"}\n],\n"edges": [\n]}\n'
  shows 'two versions in two folders' --json "${h}ob=/a/l/libx.so.1\nfn=f\n1 1\nob=/a/l/libx.so.2\nfn=f\n1 1\nob=/b/l/libx.so.1\nfn=f\n1 1\nob=/b/l/libx.so.2\nfn=f\n1 1\n" \
    "{\"format\": \"callgrind-names 1\",\n\"nodes\": [$(printf ',\\n{"object": "%s", "file": "", "function": "f"}' a/l/libx.so.1 a/l/libx.so.2 b/l/libx.so.1 b/l/libx.so.2 | sed 's/^,//')\n],\n\"edges\": [\n]}\n"
  shows 'an event of no text' '--json --costs' 'events: I\377\nfn=f\n1 1\n' \
    '{"format": "callgrind-names 1",\n"events": ["I\357\277\275"],\n"nodes": [\n{"object": "", "file": "", "function": "f", "costs": [1]}\n],\n"edges": [\n]}\n'
  # Order is by names; those that become one are added up, and their edges.
  many='ob=???\nfn=b\n1 1\ncfn=a\ncalls=1 1\n1 9\nfn=0x1000\n1 2\ncfn=a\ncalls=2 1\n1 3\nfn=0x2000\n1 4\ncfn=a\ncalls=3 1\n1 5\nfn=a\n1 6\n'
  shows 'order and sums' '--json --costs' "$h$many" \
    '{"format": "callgrind-names 1",\n"events": ["Ir"],\n"nodes": [\n{"object": "???", "file": "", "function": "[unnamed]", "costs": [6]},\n{"object": "???", "file": "", "function": "a", "costs": [6]},\n{"object": "???", "file": "", "function": "b", "costs": [1]}\n],\n"edges": [\n{"caller": 0, "callee": 1, "calls": 5, "costs": [8]},\n{"caller": 2, "callee": 1, "calls": 1, "costs": [9]}\n]}\n'
}

# As long as two paths of one part or of a hundred thousand, which differ in their first one only.
callgrind_json_of_long_paths() {
  python3 - >"$work/from" <<'END'
tail = "/a" * 500000
print(f"events: Ir\nfl=/x{tail}\nfn=f\n1 1\nfl=/y{tail}\nfn=f\n1 1\nfl=/z\nfn=f\n1 1")
END
  made --json --perf-map=/dev/null "$work/from"
  python3 - "$work/got" <<'END' || fail 'long paths have other names'
import json, sys
files = [node["file"] for node in json.load(open(sys.argv[1]))["nodes"]]
assert files == ["x" + "/a" * 500000, "y" + "/a" * 500000, "z"], [len(file) for file in files]
END
}

# folds WHAT PROFILE TO: the stacks of a profile; they are kept, as what is judged besides.
folds() {
  local pair=$work/pair${#pairs[@]}
  shows "$1" --folded "$h$2" "$3"
  mv "$work/from" "$pair.from" && mv "$work/got" "$pair.got"
  pairs+=("$pair.from" "$pair.got")
}
# call NAME CALLS COST: a call of the function at hand.
call() { printf 'cfn=%s\\ncalls=%s 1\\n1 %s\\n' "$1" "$2" "$3"; }

callgrind_stacks_lose_no_cost() {
  local k pairs=()
  folds 'a chain' "fn=main\n1 1\n$(call a 1 9)fn=a\n1 3\n$(call b 1 6)fn=b\n1 6\n" 'main 1\nmain;a 3\nmain;a;b 6\n'
  folds 'a diamond, in proportion to cost' \
    "fn=main\n1 5\n$(call a 1 30)$(call b 9 60)fn=a\n1 20\n$(call c 9 10)fn=b\n1 40\n$(call c 1 20)fn=c\n1 30\n" \
    'main 5\nmain;a 20\nmain;a;c 10\nmain;b 40\nmain;b;c 20\n'
  folds 'a remainder goes to who lost most' \
    "fn=main\n1 1\n$(call a 1 10)$(call b 1 10)$(call c 1 10)fn=a\n1 1\n$(call d 1 9)fn=b\n1 1\n$(call d 1 9)fn=c\n1 1\n$(call d 1 9)fn=d\n1 20\n$(call e 1 7)fn=e\n1 7\n" \
    'main 1\nmain;a 1\nmain;a;d 7\nmain;a;d;e 3\nmain;b 1\nmain;b;d 7\nmain;b;d;e 2\nmain;c 1\nmain;c;d 6\nmain;c;d;e 2\n'
  folds 'recursion' "fn=main\n1 1\n$(call fib 1 100)fn=fib\n1 100\n$(call fib 20 300)" 'main 1\nmain;fib 100\n'
  folds 'two that call each other' \
    "fn=main\n1 1\n$(call even 1 30)fn=even\n1 10\n$(call odd 5 60)fn=odd\n1 20\n$(call even 4 50)" 'main 1\nmain;even 10\nmain;even;odd 20\n'
  folds 'a circle that is entered at two places' \
    "fn=main\n1 1\n$(call a 1 20)$(call b 1 10)fn=a\n1 12\n$(call b 5 10)fn=b\n1 18\n$(call a 5 40)" \
    'main 1\nmain;a 12\nmain;a;b 9\nmain;b 9\n'
  folds 'what a circle calls is split as the circle is' \
    "fn=main\n1 1\n$(call a 1 30)fn=a\n1 10\n$(call b 5 40)$(call c 1 4)fn=b\n1 10\n$(call a 5 40)$(call c 1 6)fn=c\n1 10\n" \
    'main 1\nmain;a 10\nmain;a;b 10\nmain;a;b;c 6\nmain;a;c 4\n'
  folds 'the dear edge first, and what leads back to it is cut' \
    "fn=main\n1 1\n$(call a 1 40)fn=a\n1 10\n$(call b 1 20)$(call c 1 5)fn=b\n1 10\n$(call a 1 7)$(call c 1 30)fn=c\n1 15\n$(call b 1 12)" \
    'main 1\nmain;a 10\nmain;a;b 10\nmain;a;b;c 13\nmain;a;c 2\n'
  folds 'measuring began in the middle' "fn=a\n1 1\n$(call b 3 30)fn=b\n1 40\n" 'a 1\na;b 30\nb 10\n'
  folds 'and in a recursion' "fn=fib\n1 100\n$(call fib 20 90)" 'fib 100\n'
  folds 'two roots' "fn=a\n1 1\nfn=b\n1 2\n" 'a 1\nb 2\n'
  folds 'calls that cost nothing, by how often' "fn=a\n1 1\n$(call c 3 0)fn=b\n1 1\n$(call c 1 0)fn=c\n1 0\n" 'a 1\nb 1\n'
  shows 'and another event' '--folded --event=Dr' \
    "positions: line\nevents: Ir Dr\nfn=a\n1 1 1\n$(call c 3 '5 0')fn=b\n1 1 1\n$(call c 1 '5 0')fn=c\n1 10 8\n" 'a 1\nb 1\nc 8\n'
  shows 'whose cost came from nowhere' '--folded --event=Dr' \
    "positions: line\nevents: Ir Dr\nfn=a\n1 1 1\n$(call c 3 '5 6')fn=b\n1 1 1\n$(call c 1 '5 2')fn=c\n1 10 8\n" 'a 1\na;c 6\nb 1\nb;c 2\n'
  shows 'from the other end' '--folded --reversed' "${h}fn=main\n1 1\n$(call a 1 9)fn=a\n1 9\n" 'a;main 9\nmain 1\n'
  shows 'functions of one name' --folded "${h}ob=p\nfl=a.c\nfn=main\n1 1\nfn=f\n1 2\nfl=b.c\nfn=f\n1 3\nob=q\nfl=b.c\nfn=f\n1 4\n" \
    'f (a.c) 2\nf (b.c, p) 3\nf (b.c, q) 4\nmain 1\n'
  # A profile has the positions that it says, or lines, whatever the one in front of it has.
  printf '%b' "positions: instr line\nevents: Ir\nfn=f\n0x9 2 3" >"$work/from"
  printf '%b' "events: Ir\nfn=f\n1 5\n" >"$work/with"
  made --folded "$work/from" "$work/with"
  [ "$(cat "$work/got")" = 'f 8' ] || fail "positions of two profiles: $(cat "$work/got")"
  made --folded "$work/with" "$work/from"
  [ "$(cat "$work/got")" = 'f 8' ] || fail "positions of two profiles: $(cat "$work/got")"
  # What no map names is told.
  printf '%b' "pid: 4194307\n${h}fn=0x1000\n1 1\n" >"$work/from"
  made --folded "$work/from"
  grep -q ': 1 functions are in no perf map' "$work/err" || fail "a function without a name: says $(cat "$work/err")"
  # Of several profiles the error is told of the one that has the line.
  printf '%b' "${h}fn=f\n1 18446744073709551615" >"$work/from"
  printf '%b' "\n${h}fn=f\n1 1\n" >"$work/with"
  "$names" --folded "$work/from" "$work/with" >"$work/got" 2>"$work/err"
  [ $? = 1 ] && [ ! -s "$work/got" ] && grep -q "$work/with:5: .*64 bits" "$work/err" || fail "a sum of 65 bits: says $(cat "$work/err")"
  # A ladder of 40 rungs has 2^40 ways; the widest stay, and nothing is lost.
  { printf "$h"
    for k in $(seq 40); do
      printf 'fn=r%s\n1 1000\n' "$k"
      [ "$k" = 40 ] || printf 'cfn=a%s\ncalls=1 1\n1 %s\ncfn=b%s\ncalls=1 1\n1 %s\n' "$k" $(((40 - k) * 600 + 1)) "$k" $(((40 - k) * 400 + 1))
      [ "$k" = 40 ] || printf 'fn=a%s\n1 1\ncfn=r%s\ncalls=1 1\n1 %s\nfn=b%s\n1 1\ncfn=r%s\ncalls=1 1\n1 %s\n' \
        "$k" $((k + 1)) $(((40 - k) * 600)) "$k" $((k + 1)) $(((40 - k) * 400))
    done; } >"$work/ladder"
  made --folded "$work/ladder"
  judge folded "${pairs[@]}" "$work/ladder" "$work/got"
  [ "$(wc -l <"$work/got")" -lt 12000 ] || fail 'a ladder has all its ways'
}

differs() { # differs STATUS WHAT SWITCHES BEFORE AFTER TO
  local status
  printf '%b' "$4" >"$work/from"
  printf '%b' "$5" >"$work/with"
  printf '%b' "$6" >"$work/to"
  "$names" diff $3 --perf-map=/dev/null "$work/from" "$work/with" >"$work/got" 2>"$work/err"
  status=$?
  [ $status = "$1" ] || fail "$2: status $status: $(cat "$work/err")"
  diff "$work/to" "$work/got" >&2 || fail "$2: the difference is another"
}

callgrind_difference_of_two_graphs() {
  local one two
  one="${h}ob=/x/p\nfl=x.c\nfn=main\n1 5\n$(call a 3 30)$(call b 1 10)fn=a\n1 30\nfn=b\n1 10\n"
  two="${h}ob=/y/p\nfl=x.c\nfn=main\n1 5\n$(call a 7 90)$(call c 2 4)fn=a\n1 90\nfn=c\n1 4\n"
  differs 0 'a graph and itself' '' "$one" "$one" ''
  differs 0 'costs are not looked at' '' "${h}fn=f\n1 5\n" "${h}fn=f\n1 6\n" ''
  differs 1 'unless they are wanted' --costs "${h}fn=f\n1 5\n" "${h}fn=f\n1 6\n" '~ node f [:]  calls 0 -> 0 (+0)  Ir 5 -> 6 (+1)\n'
  differs 1 'calls, came and went' '' "$one" "$two" \
    '~ node a [p:x.c]  calls 3 -> 7 (+4)\n~ edge main [p:x.c] -> a [p:x.c]  calls 3 -> 7 (+4)\n+ node c [p:x.c]  calls 2\n+ edge main [p:x.c] -> c [p:x.c]  calls 2\n- node b [p:x.c]  calls 1\n- edge main [p:x.c] -> b [p:x.c]  calls 1\n'
  differs 1 'by cost' --costs "$one" "$two" \
    '~ node a [p:x.c]  calls 3 -> 7 (+4)  Ir 30 -> 90 (+60)\n~ edge main [p:x.c] -> a [p:x.c]  calls 3 -> 7 (+4)  Ir 30 -> 90 (+60)\n- node b [p:x.c]  calls 1  Ir 10\n- edge main [p:x.c] -> b [p:x.c]  calls 1  Ir 10\n+ node c [p:x.c]  calls 2  Ir 4\n+ edge main [p:x.c] -> c [p:x.c]  calls 2  Ir 4\n'
  differs 1 'fewer' '' "${h}fn=f\n1 1\n$(call f 9 9)" "${h}fn=f\n1 1\n$(call f 2 9)" \
    '~ node f [:]  calls 9 -> 2 (-7)\n~ edge f [:] -> f [:]  calls 9 -> 2 (-7)\n'
  differs 1 'an edge that turned' '' "${h}fn=f\n1 1\n$(call g 1 1)fn=g\n1 1\n" "${h}fn=f\n1 1\nfn=g\n1 1\n$(call f 1 1)" \
    '~ node f [:]  calls 0 -> 1 (+1)\n~ node g [:]  calls 1 -> 0 (-1)\n- edge f [:] -> g [:]  calls 1\n+ edge g [:] -> f [:]  calls 1\n'
  differs 1 'the first event that both have' --costs 'events: A B\nfn=f\n1 9 1\n' 'events: B\nfn=f\n1 3\n' '~ node f [:]  calls 0 -> 0 (+0)  B 1 -> 3 (+2)\n'
  differs 2 'no event that both have' --costs 'events: A\nfn=f\n1 9\n' 'events: B\nfn=f\n1 3\n' ''
  differs 1 'as JSON' '--json --costs' "$one" "$two" ''"$(cat <<'END'
{"format": "callgrind-names diff 1",
"events": ["Ir"],
"nodes": [
{"change": "changed", "node": {"object": "p", "file": "x.c", "function": "a"}, "calls": [3, 7], "costs": [[30, 90]]},
{"change": "went", "node": {"object": "p", "file": "x.c", "function": "b"}, "calls": [1, 0], "costs": [[10, 0]]},
{"change": "came", "node": {"object": "p", "file": "x.c", "function": "c"}, "calls": [0, 2], "costs": [[0, 4]]}
],
"edges": [
{"change": "changed", "caller": {"object": "p", "file": "x.c", "function": "main"}, "callee": {"object": "p", "file": "x.c", "function": "a"}, "calls": [3, 7], "costs": [[30, 90]]},
{"change": "went", "caller": {"object": "p", "file": "x.c", "function": "main"}, "callee": {"object": "p", "file": "x.c", "function": "b"}, "calls": [1, 0], "costs": [[10, 0]]},
{"change": "came", "caller": {"object": "p", "file": "x.c", "function": "main"}, "callee": {"object": "p", "file": "x.c", "function": "c"}, "calls": [0, 2], "costs": [[0, 4]]}
]}
END
)\n"
  # A profile and what --json made of it are the same, with costs and without; names come back as they were.
  printf '%b' "${h}ob=/b/p\nfl=x.c\nfn=f\"\\\\\\\\ \001 \303\244\342\202\254\n1 7\n$(call g 2 3)fn=g\n1 3\n" >"$work/from"
  made --json --costs --output="$work/json" "$work/from"
  python3 -m json.tool "$work/json" >"$work/with" || fail 'it is no JSON'
  "$names" diff --costs "$work/json" "$work/from" >"$work/got" 2>&1 || fail "read back: $(cat "$work/got")"
  # Other spaces, and characters as codes, are the same text.
  "$names" diff --costs "$work/with" "$work/json" >"$work/got" 2>&1 || fail "with other spaces: $(cat "$work/got")"
  made --json --output="$work/json" "$work/from"
  "$names" diff --costs "$work/json" "$work/from" >"$work/got" 2>"$work/err"
  [ $? = 2 ] && grep -q 'no costs' "$work/err" || fail "costs that are not there: $(cat "$work/err")"
}

# refuses LINE WORDS JSON
refuses() {
  local status
  printf '%b' "$3" >"$work/from"
  "$names" diff "$work/from" "$work/good" >"$work/got" 2>"$work/err"
  status=$?
  [ $status = 2 ] && grep -q "from:$1: .*$2" "$work/err" || fail "$3: status $status, says $(cat "$work/err")"
  [ ! -s "$work/got" ] || fail "$3: something is written"
}

callgrind_json_that_is_none_is_refused() {
  local f='{"format": "callgrind-names 1",' n='{"object": "", "file": "", "function": "f"}' count=20 seed status
  printf '%b' "${h}fn=f\n1 1\n" >"$work/good"
  refuses 1 'format' '{}'
  refuses 1 'another format' '{"format": "callgrind-names 2"}'
  refuses 1 'another format' '{"format": "callgrind-names diff 1"}'
  refuses 2 'nodes' "$f\n\"edges\": []}"
  refuses 2 'object' "$f\n\"nodes\": [{}], \"edges\": []}"
  refuses 1 'there before' "$f\"nodes\": [$n, $n], \"edges\": []}"
  refuses 1 'not there' "$f\"nodes\": [$n], \"edges\": [{\"caller\": 0, \"callee\": 1, \"calls\": 1}]}"
  refuses 1 'not there' "$f\"nodes\": [$n], \"edges\": [{\"caller\": 1, \"callee\": 0, \"calls\": 1}]}"
  refuses 1 'not there' "$f\"nodes\": [], \"edges\": [{\"caller\": 0, \"callee\": 0, \"calls\": 1}]}"
  refuses 1 'there before' "$f\"nodes\": [$n], \"edges\": [{\"caller\": 0, \"callee\": 0, \"calls\": 1}, {\"caller\": 0, \"callee\": 0, \"calls\": 1}]}"
  refuses 1 '64 bits' "$f\"nodes\": [$n], \"edges\": [{\"caller\": 0, \"callee\": 0, \"calls\": 18446744073709551616}]}"
  refuses 1 'no number' "$f\"nodes\": [$n], \"edges\": [{\"caller\": 0x0, \"callee\": 0, \"calls\": 1}]}"
  refuses 1 'no number' "$f\"nodes\": [$n], \"edges\": [{\"caller\": 0X0, \"callee\": 0, \"calls\": 1}]}"
  refuses 1 'no ,' "$f\"events\": [\"Ir\"], \"nodes\": [$n], \"edges\": []}"
  refuses 1 'there before' "$f\"events\": [\"Ir\", \"Ir\"], \"nodes\": [], \"edges\": []}"
  refuses 1 'behind the end' "$f\"nodes\": [], \"edges\": []} x"
  refuses 1 'without an end' "$f\"nodes\": [{\"object\": \"x"
  refuses 1 'a control character' "$f\"nodes\": [{\"object\": \"\001\", \"file\": \"\", \"function\": \"\"}], \"edges\": []}"
  refuses 1 'character' "$f\"nodes\": [{\"object\": \"\\\\ud800\", \"file\": \"\", \"function\": \"\"}], \"edges\": []}"
  refuses 1 'backslash' "$f\"nodes\": [{\"object\": \"\\\\x\", \"file\": \"\", \"function\": \"\"}], \"edges\": []}"
  made --json --costs --output="$work/json" "$work/good"
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || count=100
  judge mutate "$work/json" $count "$work/bad"
  for seed in $(seq $count); do
    "$names" diff "$work/bad.$seed" "$work/good" >"$work/got" 2>"$work/err"
    status=$?
    [ $status -le 2 ] || fail "seed $seed: status $status: $(cat "$work/err")"
  done
}

callgrind_switches_that_do_not_go_together() {
  local switches
  printf '%b' "${h}fn=f\n1 1\n" >"$work/good"
  for switches in '--json --folded' '--svg --folded' '--costs' '--costs --svg' '--event=Ir' '--event=Ir --json' '--elf=x --json' \
    '--elf=x --by-name' '--redact --json' '--icicle --folded' '--elf=' '--output=' '--title=x --json' '--nonsense' '-'; do
    [ "$switches" != - ] || switches=
    "$names" $switches ${switches:+"$work/good"} >"$work/got" 2>"$work/err" </dev/null
    [ $? = 2 ] && [ -s "$work/err" ] && [ ! -s "$work/got" ] || fail "'$switches': $(cat "$work/got" "$work/err")"
  done
  # One line says what is wrong.
  for switches in '' '--json' 'diff x' 'diff x y z' 'diff --svg x y' '--elf=x y z' '--elf=x'; do
    "$names" $switches >"$work/got" 2>"$work/err" </dev/null
    [ $? = 2 ] && [ "$(wc -l <"$work/err")" = 1 ] && [ ! -s "$work/got" ] || fail "'$switches': $(cat "$work/got" "$work/err")"
  done
  "$names" --folded --event=Dr "$work/good" >"$work/got" 2>"$work/err"
  [ $? = 1 ] && grep -q 'no such event' "$work/err" || fail "says $(cat "$work/err")"
  made --icicle --reversed --title='<&>' --svg "$work/good"
  grep -q '&#60;&#38;&#62;' "$work/got" || fail 'the title is another'
}

# A link stays a link; what a standard stream leads to is no file to be replaced.
callgrind_output_behind_a_link() {
  printf '%b' "${h}fn=f\n1 1\n" >"$work/good"
  echo 'f 1' >"$work/to"
  mkdir "$work/there"
  ln -s there/target "$work/link"
  ln -s /proc/self/fd/1 "$work/stdout"
  ln -s /proc/self/fd/2 "$work/stderr"
  echo before >"$work/there/target"
  made --folded --output="$work/link" "$work/good"
  [ -L "$work/link" ] || fail 'the link is gone'
  cmp "$work/to" "$work/there/target" || fail 'what the link leads to is another'
  (echo head; "$names" --folded --output="$work/stdout" "$work/good"; echo tail) >"$work/got" || fail "status $?"
  [ -L "$work/stdout" ] && [ "$(cat "$work/got")" = $'head\nf 1\ntail' ] || fail "standard output is $(cat "$work/got")"
  (echo head; "$names" --folded --output="$work/stderr" "$work/good"; echo tail) 2>"$work/err" >&2 || fail "status $?"
  [ -L "$work/stderr" ] && [ "$(cat "$work/err")" = $'head\nf 1\ntail' ] || fail "standard error is $(cat "$work/err")"
  "$names" --folded --output="$work/stdout" "$work/good" | cmp "$work/to" - || fail 'a pipe gets something else'
  [ "$(find "$work" -mindepth 1 -name '*.??????' | wc -l)" = 0 ] || fail 'something is left beside it'
}

# ---- damage ----------------------------------------------------------------------------------------------------------

# dump FILE: a dump with blocks of hostile names, two of one index, and lines of two files.
dump() {
  python3 - "$1" <<'END'
import struct, sys
def load(index, name, at=0x1000, code=b"\x90\x90\x90\xc3", time=9, length=None):
    body = struct.pack("<IIQQQQ", 1, 1, at, at, len(code) if length is None else length, index) + name + b"\0" + code
    return struct.pack("<IIQ", 0, 16 + len(body), time) + body
def lines(at, entries, more=0):
    body = struct.pack("<QQ", at, len(entries) + more)
    body += b"".join(struct.pack("<QII", *entry[:2], 0) + entry[2] + b"\0" for entry in entries)
    return struct.pack("<IIQ", 2, 16 + len(body), 9) + body
out = struct.pack("<IIIIIIQQ", 0x4a695444, 1, 40, 62, 0, 1, 1, 0)
out += load(1, b"../../etc/passwd") + load(2, b"a b\nc\x1b[31m\xc2\x9b") + load(3, b"") + load(4, b"n" * 900) + load(5, b".")
out += load(6, b"first", time=5) + load(6, b"second", time=7) + load(6, b"third", time=7) + load(7, b"\xff\xfe")
out += lines(0x2000, [(0x2000, 3, b"a.c"), (0x2001, 4, b"\xff"), (0x2002, 5, b"b.h"), (0x2004, 5, b"a.c")])
out += load(8, b"with.lines__", at=0x2000) + load(9, b"[freed]", at=0x2000) + load(10, b"", length=5)
out += load(11, b"none", code=b"") + load(12, b"high", at=(1 << 64) - 2) + load(14, b"low", at=0)
out += lines(0x3000, [(0x3000, 1, b"\xff"), (0x3001, 2, b"n" * 20)], 1) + load(15, b"own", at=0x3000)
out += struct.pack("<IIQ", 99, 20, 9) + b"what"
open(sys.argv[1], "wb").write(out + load(13, b"last"))
END
}

callgrind_dump_that_is_damaged() {
  local status count=40 seed leaf
  dump "$work/dump"
  "$names" --elf="$work/objects" --output="$work/list" "$work/dump" 2>"$work/err"
  [ $? = 1 ] || fail 'wrong records are no failure'
  grep -q '5 records are wrong' "$work/err" && grep -q '1 records are of kinds' "$work/err" &&
    grep -q '11 blocks written, 1 times' "$work/err" && grep -q '3 source lines are of a second file' "$work/err" || fail "says $(cat "$work/err")"
  # shellcheck disable=SC2012 # names are what is tested
  (cd "$work/objects" && LC_ALL=C ls) >"$work/leaves"
  printf '%s\n' 00000001-.._.._etc_passwd.elf 00000002-a_b_c__31m__.elf 00000003.elf "00000004-$(printf 'n%.0s' $(seq 100)).elf" \
    00000005-..elf 00000006-first.elf 00000006@7-second.elf 00000007-__.elf 00000008-with.lines__.elf 00000013-last.elf 00000015-own.elf >"$work/to"
  diff "$work/to" "$work/leaves" >&2 || fail 'files are called otherwise'
  [ "$(find "$work" -type f | grep -c passwd)" = 1 ] || fail 'a name leads elsewhere'
  [ "$(LC_ALL=C tr -d '\n -~\377\376' <"$work/list" | wc -c)" = 0 ] || fail 'the list has control characters'
  gdb -nx -batch -ex 'info line *0x2000' -ex 'info line *0x2001' -ex 'info symbol 0x2001' -ex 'x/4xb 0x2000' "$work/objects/00000008-with.lines__.elf" >"$work/got" 2>&1
  grep -q 'Line 3 of "a.c"' "$work/got" && grep -q 'Line 4 of "a.c"' "$work/got" && grep -q 'with.lines__ + 1' "$work/got" &&
    grep -q '0x90.*0x90.*0x90.*0xc3' "$work/got" ||
    fail "gdb says $(cat "$work/got")"
  head -c -3 "$work/dump" >"$work/cut"
  "$names" --elf="$work/cut-objects" --output="$work/list" "$work/cut" 2>"$work/err"
  grep -q 'the last record is not whole' "$work/err" || fail "of a cut dump it says $(cat "$work/err")"
  for leaf in "printf ''" "head -c 39 '$work/dump'" "printf '%040d' 0" "sed 's/^DTiJ/JiTD/' '$work/dump'" \
    "sed 's/>/Q/' '$work/dump'" "python3 -c 'import sys; sys.stdout.buffer.write(open(\"$work/dump\", \"rb\").read().replace(bytes([62]), bytes([3]), 1))'"; do
    eval "$leaf" >"$work/bad"
    "$names" --elf="$work/none" "$work/bad" >"$work/got" 2>"$work/err"
    [ $? = 1 ] && [ ! -e "$work/none" ] && [ ! -s "$work/got" ] || fail "$leaf is taken: $(cat "$work/err")"
  done
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || count=200
  judge mutate "$work/dump" $count "$work/bad"
  for seed in $(seq $count); do
    "$names" --elf="$work/bad-objects" "$work/bad.$seed" >"$work/got" 2>"$work/err"
    status=$?
    [ $status -le 1 ] || fail "seed $seed: status $status: $(cat "$work/err")"
    [ $((seed % 20)) != 0 ] || [ ! -d "$work/bad-objects" ] || find "$work/bad-objects" -type f -print0 |
      xargs -0 -r nm >/dev/null 2>"$work/err" || ! grep -vE 'no symbols|^$' "$work/err" >&2 || fail "seed $seed: nm does not read what was written"
    rm -rf "$work/bad-objects"
  done
}

# unwritten SWITCHES..: each way to write fails, and leaves what was there.
unwritten() {
  "$names" "$@" >/dev/full 2>"$work/err"
  case $? in 1 | 2) ;; *) fail "$*: a full disk is no failure" ;; esac
  grep -q 'No space left' "$work/err" || fail "$*: says $(cat "$work/err")"
  "$names" "$@" --output=/dev/full 2>"$work/err" && fail "$*: a full device is no failure"
  "$names" "$@" --output="$work/no/such" 2>"$work/err" && fail "$*: a folder that is not there"
  "$names" "$@" --output="$work" 2>"$work/err" && fail "$*: a folder is no file"
  echo before >"$work/there"
  (ulimit -f 0; trap '' XFSZ; "$names" "$@" --output="$work/there" 2>/dev/null) && fail "$*: no room for files"
  [ "$(cat "$work/there")" = before ] || fail "$*: what was there is gone"
  [ "$(find "$work" -maxdepth 1 -name 'there*' | wc -l)" = 1 ] || fail "$*: something is left beside it"
}

# starved SWITCHES..: each allocation in turn fails; there is an end with a word about it and no file, or, as the C library
# does without a buffer, the whole file.
starved() {
  local n status said failed=0
  "$names" "$@" --output="$work/whole" 2>/dev/null
  for n in $(seq 1 2000); do
    [ ! -e "$work/there" ] || rm "$work/there"
    [ ! -e "$work/objects" ] || rm -r "$work/objects"
    FAIL_AT="$n" LD_PRELOAD="$work/starve.so" "$names" "$@" --output="$work/there" 2>"$work/err"
    status=$?
    said=$(<"$work/err")
    [[ $said == *starved* ]] || break
    case "$1 $status" in
      diff\ 2 | -*\ 1)
        failed=$((failed + 1))
        [ ! -e "$work/there" ] || fail "$*: allocation $n failed, and something is written"
        [[ ${said,,} == *memory* ]] || fail "$*: allocation $n failed, and it says $said"
        ;;
      *) cmp "$work/whole" "$work/there" || fail "$*: allocation $n failed: status $status: $(cat "$work/err")" ;;
    esac
  done
  cmp "$work/whole" "$work/there" || fail "$*: nothing failed, and the output is another: $(cat "$work/err")"
  [ $failed -gt 5 ] || fail "$*: only $failed failures"
}

callgrind_graph_failures_leave_no_file() {
  local switches
  printf '%b' "${h}ob=/x/p\nfl=x.c\nfn=main\n1 5\n$(call a 3 30)$(call b 1 10)fn=a\n1 30\n$(call a 1 1)fn=b\n1 10\n" >"$work/good"
  printf '%b' "${h}fn=main\n1 5\n" >"$work/other"
  dump "$work/dump"
  head -c 117 "$work/dump" >"$work/short"
  for switches in --json --folded --svg; do unwritten $switches "$work/good"; done
  unwritten diff "$work/good" "$work/other"
  unwritten --elf="$work/objects" "$work/short"
  (ulimit -f 0; trap '' XFSZ; "$names" --elf="$work/objects-2" "$work/dump" >"$work/none" 2>"$work/err")
  [ ! -s "$work/none" ] && [ -z "$(ls -A "$work/objects-2")" ] || fail 'an object of which nothing could be written'
  "$names" --elf="$work/no/such" "$work/dump" 2>"$work/err" && fail 'a folder below one that is not there'
  "$names" --elf="$work/good" "$work/dump" 2>"$work/err" && fail 'a file is no folder'
  [ -z "$san" ] || return 0 # a checker has an allocator of its own
  cat >"$work/starve.c" <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static long left = -1;
/* What the C library allocates before main, and what a message needs, is not the tool's. */
static int starves(void)
{
  if (left < 0)
    left = getenv("FAIL_AT") ? atol(getenv("FAIL_AT")) : 0;
  if (left == 0 || --left)
    return 0;
  errno = ENOMEM;
  return write(2, "starved\n", 8) == 8;
}
void *malloc(size_t n) { return starves() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return starves() ? NULL : __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return starves() ? NULL : __libc_realloc(p, n); }
END
  gcc -O1 -shared -fPIC -o "$work/starve.so" "$work/starve.c" || fail 'the failing allocator does not compile'
  for switches in '--json --costs' --folded '--svg --redact'; do starved $switches "$work/good"; done
  made --json --output="$work/json" "$work/good"
  starved diff "$work/json" "$work/other"
  starved --elf="$work/objects" "$work/short"
}

# ---- mutants ---------------------------------------------------------------------------------------------------------

# try CASE NAMES: runs the case with this program in a folder of its own.
try() { (names=$2 work=$work/case; rm -rf "$work"; mkdir "$work"; "$1"); }
# rule CASE FILE PATTERN TEXT: in a copy of the tool the line with the pattern gets another text; the case must notice.
rule() {
  ! is_new "$1" || try "$1" "$names" || fail "$1 itself"
  rm -rf "$work/broken"
  mkdir -p "$work/broken/tools"
  cp -r tools/callgrind "$work/broken/tools"
  sed -i "s@$3@$4@" "$work/broken/tools/callgrind/$2"
  ! cmp -s "tools/callgrind/$2" "$work/broken/tools/callgrind/$2" || fail "there is no '$3' in $2 to break"
  # The library's part of it is the build's, under whose checker it is linked; other files are compiled once.
  mkdir -p "$work/compiled"
  local file
  for file in tools/callgrind/*.c; do
    file=${file##*/}
    [ -e "$work/compiled/$file.o" ] || "$cc" -O0 -w ${san:+"-fsanitize=$san"} -I. -c -o "$work/compiled/$file.o" "tools/callgrind/$file" || fail "$file does not compile"
  done
  rm -rf "$work/linked"
  cp -r "$work/compiled" "$work/linked"
  (cd "$work/broken" && "$cc" -O0 -w ${san:+"-fsanitize=$san"} -I. -I"$here" -c -o "$work/linked/$2.o" "tools/callgrind/$2") 2>"$work/err" ||
    fail "$3: $(cat "$work/err")"
  "$cc" ${san:+"-fsanitize=$san"} -o "$work/broken/names" "$work"/linked/*.o "$build/obj/rooms.a" -lm -ldl -pthread 2>"$work/err" ||
    fail "$3: $(cat "$work/err")"
  try "$1" "$work/broken/names" >/dev/null 2>&1 && fail "$1 does not notice when '$3' is '$4'"
  count=$((count + 1))
}

callgrind_broken_graphs_are_noticed() {
  local count=0 names_of=callgrind_json_names_no_machine stacks=callgrind_stacks_lose_no_cost diff=callgrind_difference_of_two_graphs
  rule callgrind_output_behind_a_link output.c 'is_there ? realpath(path, NULL) :' ''
  rule callgrind_output_behind_a_link output.c 'is_there ? stream_of(&there)' '0 ? NULL'
  rule $names_of redact.c 'may_be_block = may_be_symbol = true' ''
  rule $names_of redact.c 'may_be_symbol = true' 'true'
  rule $names_of redact.c '|| !label_by(paths, true)' ''
  rule $names_of graph_json.c 'has_functions ? cg_redact_function' '0 ? cg_redact_function'
  rule $names_of graph_json.c 'cg_graph_edge(redacted, places\[edge->caller\], places\[edge->callee\]' 'cg_graph_edge(redacted, places[edge->callee], places[edge->caller]'
  rule $names_of graph_json.c 'cg_paths_find(objects, node->object)' 'node->object'
  rule $names_of graph_json.c 'cg_paths_find(files, node->file)' 'node->file'
  rule $names_of redact.c 'most + 1' '1'
  rule $names_of redact.c 'is_number(dash + 1, found, false)' '0'
  rule $names_of redact.c 'cg_output_print(output, "\[unnamed\]")' 'cg_output_text(output, piece)'
  rule $names_of redact.c 'size_t skipped = folders_at(piece, before)' 'size_t skipped = 0'
  rule $names_of redact.c "while (rest.at\[last\] != '/')" "while (0)"
  rule $names_of redact.c 'if (address)$' 'if (0)'
  rule $names_of redact.c 'may_be_block && is_mark(piece)' '0'
  rule $names_of redact.c "rest.at\[n\] == '+'" '0'
  rule $names_of output.c 'if (!bytes)' 'if (0)'
  rule $names_of output.c "first == '\"' ||" ''
  rule $names_of graph.c 'qsort(sorted' '(void)(sorted'
  rule $names_of graph.c 'graph->edges\[i\].caller = now\[graph->edges\[i\].caller\]' ''
  rule $stacks names.c 'if (is_next && !write_text(naming' 'if (0 \&\& !write_text(naming'
  rule $stacks main.c 'naming->may_lack_map && naming->unnamed' '0'
  rule $stacks graph_command.c 'line -= lines + 1' 'line -= lines'
  rule $stacks stacks.c 'for (size_t i = 0; left; i++, left--)' 'for (size_t i = 0; 0; i++)'
  rule $stacks stacks.c 'poorest_first)' 'widest_first)'
  rule $stacks ways.c 'return a->cost > b->cost ? -1 : 1' 'return a->cost > b->cost ? 1 : -1'
  rule $stacks stacks.c 'part_of(way->share, part, all)' 'way->share'
  rule $stacks stacks.c 'return measure == BY_COST ? e->inclusive' 'return measure == BY_CALLS ? e->inclusive'
  rule $stacks stacks.c 'uint64_t entered = measure == BY_COST ? ways->entered\[node\] : 0' 'uint64_t entered = 0'
  rule $stacks stacks.c 'if (fold->found_count > WAYS_MOST)' 'if (0)'
  rule $stacks stacks.c 'bool has_object = is_shared(fold, label)' 'bool has_object = false'
  rule $stacks stacks.c 'if (label->failed || !is_shared(fold, label))' 'if (1)'
  rule $stacks ways.c 'ways->entered\[found\] = out > in ? out - in : 0' 'ways->entered[found] = out'
  rule $stacks ways.c 'uint64_t mine\[\] = {cost, calls, all}' 'uint64_t mine[] = {0, 0, -all}'
  rule $stacks ways.c 'cost = is_inner(w, e) ? cost : sum' 'cost = sum'
  rule $stacks graph_command.c 'command->is_reversed, put' '0, put'
  rule $diff graph_diff.c 'if (ends\[0\]\[i\] != ends\[1\]\[i\])' 'if (i == 1 \&\& ends[0][i] != ends[1][i])'
  rule $diff graph_diff.c 'is_change |= change.calls\[0\] != change.calls\[1\]' ''
  rule $diff graph_diff.c 'is_change |= d != 0' ''
  rule $diff graph_diff.c 'a->ordinal < b->ordinal' 'a->ordinal > b->ordinal'
  rule $diff graph_diff.c "is_more ? '+' : '-'" "'+'"
  rule $diff graph_command.c 'diff.count != 0' '0'
  rule $diff graph_command.c 'is_json(input)' '0'
  rule callgrind_json_that_is_none_is_refused graph_json.c 'caller >= graph->node_count' '0'
  rule callgrind_json_that_is_none_is_refused graph_json.c 'graph->edge_count == before' '0'
  rule callgrind_dump_that_is_damaged jitdump.c 'if (bytes > left)' 'if (0)'
  rule callgrind_dump_that_is_damaged jitdump.c 'code_bytes != (uint64_t)' '0 \&\& code_bytes != (uint64_t)'
  rule callgrind_dump_that_is_damaged jitdump.c 'block->address > UINT64_MAX - code_bytes' '0'
  rule callgrind_dump_that_is_damaged jitdump.c 'strcmp(block->file, entry.file)' '0'
  rule callgrind_dump_that_is_damaged jitdump.c '!block->address ||' ''
  rule callgrind_dump_that_is_damaged jitdump.c '|| !entry->file' ''
  rule callgrind_dump_that_is_damaged jitdump.c 'left_out += count' 'left_out += 0'
  rule callgrind_dump_that_is_damaged elf_blocks.c 'is_harmless(block->name.at\[i\])' '1'
  rule callgrind_dump_that_is_damaged elf_blocks.c 'i < NAME_MOST' '1'
  rule callgrind_dump_that_is_damaged elf_blocks.c 'if (!is_new)' 'if (0)'
  rule callgrind_dump_that_is_damaged elf_blocks.c 'sections\[i\].sh_type = SHT_PROGBITS;' 'sections[i].sh_addr++;'
  rule callgrind_graph_failures_leave_no_file output.c 'snprintf(beside, room, "%s.XXXXXX", target)' 'unlink(target), snprintf(beside, room, "%s.XXXXXX", target)'
  rule callgrind_graph_failures_leave_no_file output.c '!fflush(file)' '(fflush(file), 1)'
  echo "$count broken rules"
}

run_listed "$1" $cases callgrind_broken_graphs_are_noticed
