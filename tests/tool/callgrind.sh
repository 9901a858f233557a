#!/bin/bash
# SPDX-License-Identifier: MIT
# callgrind-names: live profiles keep their costs and calls and get names; made-up ones show each rule of the format, and
# each rule, broken in a copy of the tool, is noticed. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
build=$(realpath -m "$build")
here=$PWD
names=$build/callgrind-names
cases="callgrind_names_of_a_scheme_program:300 callgrind_names_with_instructions_jumps_and_parts:300
callgrind_names_with_callers_and_threads:300 callgrind_rules_of_the_format:120 callgrind_refuses_what_is_no_profile:120
callgrind_failure_leaves_no_file:120 callgrind_believes_no_map_of_others:120"

if [ $# = 0 ]; then
  # The live ones profile the Scheme, which needs libgc.
  [ "${CODEHEAP_TEST_GC:-bdw}" != none ] || cases=${cases#*callgrind_rules} cases=callgrind_rules$cases
  # What breaks copies of the sources belongs to `make mutants`.
  [ -z "${CODEHEAP_TEST_BROKEN:-}" ] || cases=callgrind_broken_rules_are_noticed:300
  list_cases $cases
  exit 0
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/tool-callgrind.XXXXXX") || exit 1
map=
trap 'rm -rf "$work" $map' EXIT
fail() { echo "callgrind-names: $*" >&2; exit 1; }

# ---- live ------------------------------------------------------------------------------------------------------------

# profile SWITCHES..: runs $work/work.scm under callgrind; the profile is $work/before, the process's map $map.
profile() {
  CODEHEAP_SINKS=perfmap valgrind -q --tool=callgrind --callgrind-out-file="$work/before" "$@" \
    "$build/scheme" --jit "$work/work.scm" >"$work/out" 2>"$work/err" </dev/null ||
    fail "the program failed under callgrind: $(tail -3 "$work/err")"
  # With --separate-threads the threads have files of their own.
  [ ! -s "$work/before-01" ] || mv "$work/before-01" "$work/before"
  cmp "$work/out" "$work/wanted" || fail 'the program has another output under callgrind'
  map=/tmp/perf-$(sed -n 's/^pid: //p' "$work/before" | head -1).map
  [ -s "$map" ] || fail "there is no $map"
}

# Recursion in itself, between two, and in a loop; a procedure that is passed.
work_scm() {
  cat >"$work/work.scm" <<'END'
(define (fib n) (if (< n 2) (+ n 0) (+ (fib (- n 1)) (fib (- n 2)))))
(define (is-even? n) (if (= n 0) #t (not (is-odd? (- n 1)))))
(define (is-odd? n) (if (= n 0) #f (not (is-even? (- n 1)))))
(define (sum l) (if (null? l) 0 (+ (car l) (sum (cdr l)))))
(define (upto n) (let loop ((i n) (l '())) (if (= i 0) l (loop (- i 1) (cons i l)))))
(define (twice f x) (+ (f x) (f x)))
(display (fib 15)) (newline)
(display (is-even? 50)) (newline)
(display (twice sum (upto 400))) (newline)
END
  printf '610\n#t\n160400\n' >"$work/wanted"
}

# All calls but the few that the interpreter made before there was code, and the two of sum on an empty list: a leaf is
# tested in front of its call. That of fib is none, as it adds.
judge() {
  python3 tests/callgrind/judge.py "$work/before" "$work/after" "$map" "$@" 'scm::fib work.scm:1=1900..1973' \
    'scm::sum work.scm:4=798..800' || exit 1
}

callgrind_names_of_a_scheme_program() {
  work_scm
  profile
  "$names" --output="$work/after" "$work/before" 2>"$work/err" || fail "$(cat "$work/err")"
  [ "$(grep -c 'add up' "$work/err")" = 0 ] || fail "the reader counts otherwise: $(cat "$work/err")"
  judge
  "$names" --by-name --output="$work/after" "$work/before" 2>"$work/err" || fail "$(cat "$work/err")"
  judge by-name
  # What has no anonymous functions left stays as it is, byte by byte; other maps of the process, too.
  "$names" --perf-map=/dev/null "$work/before" 2>"$work/err" | cmp - "$work/before" || fail 'an empty map changes something'
}

callgrind_names_with_instructions_jumps_and_parts() {
  work_scm
  profile --dump-instr=yes --collect-jumps=yes --combine-dumps=yes --dump-every-bb=1000000
  [ "$(grep -c '^part:' "$work/before")" -ge 3 ] || fail 'the profile has no parts'
  "$names" - <"$work/before" >"$work/after" 2>"$work/err" || fail "$(cat "$work/err")"
  [ "$(grep -c 'add up' "$work/err")" = 0 ] || fail "the reader counts otherwise: $(cat "$work/err")"
  judge parts
}

callgrind_names_with_callers_and_threads() {
  work_scm
  profile --separate-callers=2 --separate-threads=yes --simulate-cache=yes
  "$names" --output="$work/after" "$work/before" 2>"$work/err" || fail "$(cat "$work/err")"
  judge
}

# ---- made up ---------------------------------------------------------------------------------------------------------

rules_map() {
  printf '%s\n' '1000 100 one' '2000 100 two' '3000 100 same' '0x4000 100 same' '5000 80 old' '5000 100 new' \
    '6000 100 kept' '# no line' '7000 0 nothing' '8000 100 (1) odd' 'ABC000 10 with a space' >"$work/map"
}

# becomes WHAT [SWITCH..] FROM TO: what is written of a profile; \n is a new line.
becomes() {
  local what=$1
  shift
  local -a switches=()
  while [ $# -gt 2 ]; do switches+=("$1"); shift; done
  printf '%b' "$1" >"$work/from"
  printf '%b' "$2" >"$work/to"
  "$names" --perf-map="$work/map" ${switches[@]+"${switches[@]}"} "$work/from" >"$work/got" 2>"$work/err" ||
    fail "$what: $(cat "$work/err")"
  diff "$work/to" "$work/got" >&2 || fail "$what: it is written otherwise"
  ! grep -q 'add up' "$work/err" || fail "$what: $(cat "$work/err")"
}
# refuses WHAT LINE WORDS PROFILE
refuses() {
  printf '%b' "$4" >"$work/from"
  "$names" --perf-map="$work/map" --output="$work/none" "$work/from" >"$work/got" 2>"$work/err"
  local status=$?
  [ $status = 1 ] || fail "$1: status $status, wanted a refusal"
  grep -q "from:$2: .*$3" "$work/err" || fail "$1: says $(cat "$work/err")"
  [ ! -e "$work/none" ] && [ ! -s "$work/got" ] || fail "$1: something is written"
}

callgrind_rules_of_the_format() {
  rules_map
  local h='positions: line\nevents: Ir\n' hi='positions: instr line\nevents: Ir Dr\n'
  becomes 'address in no object' "${h}fn=(1) 0x1010\n1 5\n" "${h}fn=(2) one\n1 5\n"
  becomes 'leading zeros' "${h}fn=(1) 0x0000000000001000\n1 5\n" "${h}fn=(2) one\n1 5\n"
  becomes 'first and last byte of a block, and the one behind' \
    "${h}fn=0x1000\n1 5\nfn=0x10ff\n1 5\nfn=0x1100\n1 5\nfn=0xfff\n1 5\n" \
    "${h}fn=(1) one\n1 5\nfn=(1)\n1 5\nfn=0x1100\n1 5\nfn=0xfff\n1 5\n"
  becomes 'anonymous object' "${h}ob=(1) ???\nfn=(1) 0x1010\n1 5\n" "${h}ob=(1) ???\nfn=(2) one\n1 5\n"
  becomes 'an object file has such addresses, too' "${h}ob=(1) /lib/x\nfn=(1) 0x1010\n1 5\n" "${h}ob=(1) /lib/x\nfn=(1) 0x1010\n1 5\n"
  becomes 'three spaces of ids' "${h}ob=(1) ???\nfl=(1) file\nfn=(1) 0x1010\n1 5\nob=(1)\nfl=(1)\nfn=(1)\n2 6\n" \
    "${h}ob=(1) ???\nfl=(1) file\nfn=(2) one\n1 5\nob=(1)\nfl=(1)\nfn=(2)\n2 6\n"
  becomes 'cob= cfi= cfl= share the ids of ob= and fl=' \
    "${h}ob=(1) /x\nfl=(1) f\nfn=(1) main\ncob=(2) ???\ncfi=(2) g\ncfn=(2) 0x1000\ncalls=1 1\n1 5\ncob=(2)\ncfl=(2)\ncfn=(2)\ncalls=1 1\n1 5\nob=(2)\nfl=(2)\nfn=(2)\n1 5\n" \
    "${h}ob=(1) /x\nfl=(1) f\nfn=(1) main\ncob=(2) ???\ncfi=(2) g\ncfn=(3) one\ncalls=1 1\n1 5\ncob=(2)\ncfl=(2)\ncfn=(3)\ncalls=1 1\n1 5\nob=(2)\nfl=(2)\nfn=(3)\n1 5\n"
  becomes 'cob= holds for one call' \
    "${h}ob=/x\nfn=main\ncob=???\ncfn=0x1000\ncalls=1 1\n1 5\ncfn=0x1000\ncalls=1 1\n1 5\n" \
    "${h}ob=/x\nfn=main\ncob=???\ncfn=(1) one\ncalls=1 1\n1 5\ncfn=0x1000\ncalls=1 1\n1 5\n"
  becomes 'a callee is in its caller'"'"'s object' "${h}ob=???\nfn=0x1000\n1 1\ncfn=0x2000\ncalls=1 1\n1 5\n" \
    "${h}ob=???\nfn=(1) one\n1 1\ncfn=(2) two\ncalls=1 1\n1 5\n"
  becomes 'one id in two objects' "${h}ob=???\nfn=(1) 0x1000\n1 1\nob=/x\nfn=(1)\n1 1\nfn=(1)\n1 1\nob=???\nfn=(1)\n1 1\n" \
    "${h}ob=???\nfn=(2) one\n1 1\nob=/x\nfn=(1) 0x1000\n1 1\nfn=(1)\n1 1\nob=???\nfn=(2)\n1 1\n"
  becomes 'an id that gets another name' "${h}fn=(1) 0x1000\n1 1\nfn=(1) main\n1 1\nfn=(1)\n1 1\nfn=(1) 0x2000\n1 1\nfn=(1)\n1 1\n" \
    "${h}fn=(2) one\n1 1\nfn=(1) main\n1 1\nfn=(1)\n1 1\nfn=(3) two\n1 1\nfn=(3)\n1 1\n"
  becomes 'entries of one block are one function' "${h}fn=(1) 0x1000\n1 1\nfn=(2) 0x1010\n1 2\n" "${h}fn=(3) one\n1 1\nfn=(3)\n1 2\n"
  becomes 'two blocks of one name stay two' "${h}fn=(1) 0x3001\n1 1\nfn=(2) 0x4001\n1 2\n" \
    "${h}fn=(3) same @0x3000\n1 1\nfn=(4) same @0x4000\n1 2\n"
  becomes 'unless that is not wanted' --by-name "${h}fn=(1) 0x3001\n1 1\nfn=(2) 0x4001\n1 2\n" "${h}fn=(3) same\n1 1\nfn=(3)\n1 2\n"
  becomes 'one of two blocks keeps its name' "${h}fn=(1) 0x3001\n1 1\n" "${h}fn=(2) same\n1 1\n"
  becomes 'a name that a function has' "${h}fn=(1) kept\n1 1\nfn=(2) 0x6000\n1 2\n" "${h}fn=(1) kept\n1 1\nfn=(3) kept @0x6000\n1 2\n"
  becomes 'and with its address' "${h}fn=(1) kept\n1 1\nfn=(2) kept @0x6000\n1 1\nfn=(3) 0x6000\n1 2\n" \
    "${h}fn=(1) kept\n1 1\nfn=(2) kept @0x6000\n1 1\nfn=(4) kept @0x6000+256\n1 2\n"
  becomes 'depth of recursion' "${h}fn=(1) 0x1000\n1 1\nfn=(2) 0x1000'2\n1 2\n" "${h}fn=(3) one\n1 1\nfn=(4) one'2\n1 2\n"
  becomes 'callers in a name' "${h}ob=/x\nfn=(1) f'0x1000'0x2000'2\n1 1\n" "${h}ob=/x\nfn=(2) f'one'two'2\n1 1\n"
  becomes 'the last of two lines for one address' "${h}fn=(1) 0x5000\n1 1\n" "${h}fn=(2) new\n1 1\n"
  becomes 'no more than an address' "${h}fn=0x1000 [Data]\n1 1\nfn=0x1000x\n1 1\nfn=0x7000\n1 1\n" "${h}fn=0x1000 [Data]\n1 1\nfn=0x1000x\n1 1\nfn=0x7000\n1 1\n"
  becomes 'names that look like ids, and with spaces' "${h}fn=0x8000\n1 1\nfn=0xabc008\n1 1\n" "${h}fn=(1) (1) odd\n1 1\nfn=(2) with a space\n1 1\n"
  becomes 'jumps into another function' "${h}ob=???\nfn=(1) 0x1000\n1 1\njfi=(1) f\njfn=(2) 0x2000\njump=3 7\n1\njcnd=1/2 7\n1\njcnd=2 1 7\n1\nfn=(2)\n7 1\n" \
    "${h}ob=???\nfn=(3) one\n1 1\njfi=(1) f\njfn=(4) two\njump=3 7\n1\njcnd=1/2 7\n1\njcnd=2 1 7\n1\nfn=(4)\n7 1\n"
  becomes 'comments, empty lines, no newline at the end' "# callgrind format\n\n${h}\n# c\nfn=(1) 0x1000\ncfn=x\ncalls=1 1\n\n# c\n1 1\n1 1" \
    "# callgrind format\n\n${h}\n# c\nfn=(2) one\ncfn=x\ncalls=1 1\n\n# c\n1 1\n1 1"
  becomes 'a part begins anew, ids go on' "${h}ob=(1) /x\nfn=(1) a\n100 1\npart: 2\n${h}fn=0x1000\n+3 1\n-3 1\nfn=(1)\n* 1\ntotals: 3\n" \
    "${h}ob=(1) /x\nfn=(1) a\n100 1\npart: 2\n${h}fn=(2) one\n+3 1\n-3 1\nfn=(1)\n* 1\ntotals: 3\n"
  becomes 'each part says its names' "${h}fn=(1) 0x1000\n1 1\n${h}fn=(1)\n2 1\nfn=(1)\n3 1\n" "${h}fn=(2) one\n1 1\n${h}fn=(2) one\n2 1\nfn=(2)\n3 1\n"
  becomes 'cob= of no call holds for none' "${h}ob=/x\nfn=main\ncob=???\nfn=g\n1 1\ncfn=0x1000\ncalls=1 1\n1 5\n" \
    "${h}ob=/x\nfn=main\ncob=???\nfn=g\n1 1\ncfn=0x1000\ncalls=1 1\n1 5\n"
  # Totals tell which costs were read as a function's own.
  becomes 'costs of calls and jumps are not its own' "${hi}fn=f\n0x10 1 1 2\ncfn=g\ncalls=1 0x90 3\n+1 * 100 200\njump=1 0x90 3\n* *\n+1 -1 4 8\ntotals: 5 10\n" \
    "${hi}fn=f\n0x10 1 1 2\ncfn=g\ncalls=1 0x90 3\n+1 * 100 200\njump=1 0x90 3\n0x10 1 \n+1 -1 4 8\ntotals: 5 10\n"
  becomes 'costs that are not written are 0' "${hi}fn=f\n0x10 1 7 9\n0x10 1 1\n0x10 1\n0x10 1 . 1\ntotals: 8 10\n" \
    "${hi}fn=f\n0x10 1 7 9\n0x10 1 1\n0x10 1\n0x10 1 . 1\ntotals: 8 10\n"
  becomes 'without positions: there are lines' "events: Ir\nfn=f\n1 5\ntotals: 5\n" "events: Ir\nfn=f\n1 5\ntotals: 5\n"
  # Relative positions may not become negative: that shows from where they count.
  becomes 'positions count from the last costs' "${h}fn=f\n5 1\ncfn=g\ncalls=1 +3\n* 1\n+9 1\n-14 1\n" "${h}fn=f\n5 1\ncfn=g\ncalls=1 +3\n* 1\n+9 1\n-14 1\n"
  # Readers that let the costs of calls and jumps move the position get positions that count from nowhere.
  becomes 'costs of a call move no position' "${h}fn=f\n5 1\ncfn=g\ncalls=1 1\n9 1\n-4 1\n-1 1\n" "${h}fn=f\n5 1\ncfn=g\ncalls=1 1\n9 1\n1 1\n-1 1\n"
  becomes 'where a jump is moves none' "${h}fn=f\n5 1\njump=1 1\n9\n* 1\n* 1\n" "${h}fn=f\n5 1\njump=1 1\n9\n5 1\n* 1\n"
  becomes 'nor addresses' "${hi}fn=f\n0x15 5 1\ncfn=g\ncalls=1 0 0\n+1 * 1\ncfn=g\ncalls=2 +1 +2\n+3 +1 1\n* -1 1 2\n* +1 3\n" \
    "${hi}fn=f\n0x15 5 1\ncfn=g\ncalls=1 0 0\n+1 * 1\ncfn=g\ncalls=2 0x16 7 \n0x18 6 1\n0x15 4 1 2\n* +1 3\n"
}

callgrind_refuses_what_is_no_profile() {
  rules_map
  local h='positions: line\nevents: Ir\n' hi='positions: instr line\nevents: Ir Dr\n'
  refuses 'nothing' 1 'no events' ''
  refuses 'another file' 1 'neither' '\177ELF\002\001\001\n'
  refuses 'no events' 3 'no events' 'version: 1\npid: 1\n# end\n'
  refuses 'empty events' 1 'no events' 'events:  \n'
  refuses 'another version' 1 'version' "version: 2\n$h"
  refuses 'unknown positions' 1 'position' 'positions: place\nevents: Ir\n'
  refuses 'empty positions' 1 'no positions' 'positions:  \nevents: Ir\n'
  refuses 'costs in front of events' 1 'events' '1 5\n'
  refuses 'costs without a function' 3 'fn=' "${h}1 5\n"
  refuses 'a function of another part' 7 'fn=' "${h}fn=f\n1 1\n${h}1 1\n"
  refuses 'more costs than events' 4 'more than 1' "${h}fn=f\n1 5 6\n"
  refuses 'a cost that is no number' 4 'no number' "${h}fn=f\n1 5x\n"
  refuses 'a cost of 65 bits' 4 '64 bits' "${h}fn=f\n1 18446744073709551616\n"
  refuses 'costs that overflow' 5 '64 bits' "${h}fn=f\n1 18446744073709551615\n1 1\n"
  refuses 'a position that is no number' 4 'position' "${h}fn=f\n1x 5\n"
  refuses 'one position of two' 4 'position' "${hi}fn=f\n0x10\n"
  refuses 'a position below 0' 5 'is none' "${h}fn=f\n5 1\n-6 1\n"
  refuses 'the second position below 0' 5 'is none' "${hi}fn=f\n9 5 1\n-6 -6 1\n"
  refuses 'an id without a name' 3 '(7) has no name' "${h}fn=(7)\n1 1\n"
  refuses 'an id of another space' 5 '(1) has no name' "${h}ob=(1) x\nfl=(2) x\nfn=(1)\n1 1\n"
  refuses 'an id of the files' 4 '(2) has no name' "${h}fl=(2) x\nob=(2)\n"
  refuses 'an id that is none' 3 'id' "${h}fn=(7 f\n"
  refuses 'a call to nobody' 4 'cfn' "${h}fn=f\ncalls=1 1\n1 1\n"
  refuses 'a second call to nobody' 7 'cfn' "${h}fn=f\ncfn=g\ncalls=1 1\n1 1\ncalls=1 1\n1 1\n"
  refuses 'a call without costs' 6 'calls=' "${h}fn=f\ncfn=g\ncalls=1 1\nfn=f\n1 1\n"
  refuses 'a call at the end' 5 'calls=' "${h}fn=f\ncfn=g\ncalls=1 1\n"
  refuses 'a call without a number' 5 'number' "${h}fn=f\ncfn=g\ncalls=x 1\n1 1\n"
  refuses 'a call without a target' 5 'position' "${h}fn=f\ncfn=g\ncalls=1\n1 1\n"
  refuses 'a call with two targets' 5 'more than 1' "${h}fn=f\ncfn=g\ncalls=1 1 1\n1 1\n"
  refuses 'a jump without its place' 5 'jump' "${h}fn=f\njump=1 5\nfn=g\n"
  refuses 'a condition with one number' 4 'missing' "${h}fn=f\njcnd=1/ 5\n1\n"
  refuses 'an unknown line' 3 'fx= is no line' "${h}fx=f\n"
  refuses 'a target below 0' 6 'is none' "${h}fn=f\n5 1\ncfn=g\ncalls=1 -6\n5 1\n"
  refuses 'a target that would move the position' 8 'is none' "${h}fn=f\n5 1\ncfn=g\ncalls=1 +3\n* 1\n-6 1\n"
}

callgrind_failure_leaves_no_file() {
  rules_map
  printf 'events: Ir\nfn=0x1000\n1 5\n' >"$work/good"
  printf 'events: Ir\nfn=0x1000\n1 x\n' >"$work/bad"
  echo before >"$work/there"
  "$names" --perf-map="$work/map" --output="$work/there" "$work/bad" 2>"$work/err" && fail 'a bad profile is taken'
  [ "$(cat "$work/there")" = before ] || fail 'what was there is gone'
  "$names" --output="$work/new" "$work/good" 2>"$work/err" && fail 'a profile without pid: needs --perf-map'
  grep -q 'good:2: .*perf-map' "$work/err" || fail "says $(cat "$work/err")"
  # Without addresses nothing is missed.
  printf 'pid: 4194307\nevents: Ir\nob=/x\nfn=f\n1 5\n' | "$names" - >"$work/got" 2>"$work/err" || fail "$(cat "$work/err")"
  printf 'pid: 4194307\nevents: Ir\nfn=0x1000\n1 5\n' | "$names" --output="$work/new" - 2>"$work/err" && fail 'a map that is not there'
  grep -q -- '-:3: .*perf-4194307.map: No such file' "$work/err" || fail "says $(cat "$work/err")"
  # Of two profiles the second is refused, and nothing is written.
  "$names" --perf-map="$work/map" --output="$work/new" "$work/good" "$work/bad" 2>"$work/err" && fail 'a bad second profile'
  grep -q "$work/bad:3: " "$work/err" || fail "says $(cat "$work/err")"
  "$names" --perf-map="$work/none" --output="$work/new" "$work/good" 2>"$work/err" && fail 'a map that is not there'
  grep -q "$work/none: No such file" "$work/err" || fail "says $(cat "$work/err")"
  printf 'pid: ../../etc/passwd\nevents: Ir\n' | "$names" --output="$work/new" - 2>"$work/err" && fail 'a pid that is a path'
  grep -q -- '-:1: pid: is no number' "$work/err" || fail "says $(cat "$work/err")"
  "$names" --perf-map="$work/map" --output="$work/no/new" "$work/good" 2>"$work/err" && fail 'a folder that is not there'
  "$names" --perf-map="$work/map" "$work/good" >/dev/full 2>"$work/err" && fail 'a full disk'
  grep -q 'No space left' "$work/err" || fail "says $(cat "$work/err")"
  "$names" --help >/dev/full 2>"$work/err" && fail 'a full disk gets no help'
  "$names" --what "$work/good" 2>"$work/err"
  [ $? = 2 ] || fail 'an unknown switch'
  [ ! -e "$work/new" ] || fail 'something is written'
  "$names" --perf-map="$work/map" --output="$work/new" "$work/good" 2>"$work/err" || fail "$(cat "$work/err")"
  printf 'events: Ir\nfn=(1) one\n1 5\n' | cmp - "$work/new" || fail 'not what was wanted'
  [ "$(stat -c %a "$work/new")" = "$(printf %o $((0666 & ~$(umask))))" ] || fail "the file's mode is $(stat -c %a "$work/new")"
  # As callgrind makes its profiles: for nobody else to read.
  chmod 600 "$work/good"
  "$names" --perf-map="$work/map" --output="$work/good" "$work/good" 2>"$work/err" || fail 'over itself'
  [ "$(stat -c %a "$work/good")" = 600 ] || fail "over itself its mode is $(stat -c %a "$work/good")"
  cmp "$work/good" "$work/new" || fail 'over itself it is another'
  [ -z "$(find "$work" -mindepth 1 -name '*.??????')" ] || fail 'a file is left over'
  # Two parts of two processes, which no machine has: process ids have 22 bits.
  local one=$((5000000 + 2 * $$)) two=$((5000001 + 2 * $$))
  map="/tmp/perf-$one.map /tmp/perf-$two.map"
  printf '1000 10 first\n' >"/tmp/perf-$one.map"
  printf '1000 10 second\n' >"/tmp/perf-$two.map"
  printf "pid: $one\nevents: Ir\nfn=0x1000\n1 5\npid: $two\nevents: Ir\nfn=0x1000\n1 5\n" | "$names" - 2>"$work/err" |
    grep '^fn' | diff - <(printf 'fn=(1) first\nfn=(2) second\n') || fail 'two processes'
  rm -f $map
}

# Everybody may put something at the name of a map in /tmp.
callgrind_believes_no_map_of_others() {
  local one=$((5000000 + 2 * $$))
  map=/tmp/perf-$one.map
  printf "pid: $one\nevents: Ir\nfn=0x1000\n1 5\n" >"$work/from"
  refused() { # refused WHAT WORDS
    "$names" "$work/from" >"$work/got" 2>"$work/err" && fail "it believes $1"
    grep -q "perf-$one.map: $2" "$work/err" || fail "of $1 it says: $(cat "$work/err")"
    rm -f "$map"
  }
  mkfifo "$map" || fail "no pipe $map"
  refused 'a pipe' 'Operation not permitted'
  printf '1000 10 other\n' >"$work/other"
  ln -s "$work/other" "$map"
  refused 'a link' 'Too many levels of symbolic links'
  printf '1000 10 own\n' >"$map"
  "$names" "$work/from" 2>"$work/err" | grep -q '^fn=(1) own$' || fail "its own map: $(cat "$work/err")"
  # Only root can make a file of another user.
  chown 65534 "$map" 2>/dev/null && refused "another user's file" 'Operation not permitted'
  rm -f "$map"
}

rules_hold() {
  trap 'rm -f $map' EXIT
  rm -f "$work/new"
  callgrind_rules_of_the_format && callgrind_refuses_what_is_no_profile && callgrind_believes_no_map_of_others &&
    callgrind_failure_leaves_no_file
}
# rule FILE PATTERN TEXT: in a copy of the tool the line with the pattern gets another text; the rules must notice.
rule() {
  rm -rf "$work/broken"
  mkdir -p "$work/broken/tools"
  cp -r tools/callgrind "$work/broken/tools"
  sed -i "s@$2@$3@" "$work/broken/tools/callgrind/$1"
  ! cmp -s "tools/callgrind/$1" "$work/broken/tools/callgrind/$1" || fail "there is no '$2' in $1 to break"
  # The library's part of it is the build's, under whose checker it is linked.
  (cd "$work/broken" && "$cc" -O0 -w ${CODEHEAP_TEST_SAN:+"-fsanitize=$CODEHEAP_TEST_SAN"} -I. -I"$here" -o names \
    tools/callgrind/*.c "$build/obj/rooms.a" -lm -ldl -pthread) 2>"$work/err" || fail "$2: $(cat "$work/err")"
  [ $count != 0 ] || (rules_hold) || fail 'the rules themselves'
  (names=$work/broken/names; rules_hold) >/dev/null 2>&1 && fail "nobody notices when '$2' is '$3'"
  count=$((count + 1))
}

callgrind_broken_rules_are_noticed() {
  local count=0
  rule reader.c '"cob", CG_OBJECT' '"cob", CG_FILE'
  rule reader.c '"fl", CG_FILE' '"fl", CG_OBJECT'
  rule reader.c '"cfl", CG_FILE' '"cfx", CG_FILE'
  rule reader.c '"cfi", CG_FILE' '"cfi", CG_FUNCTION'
  rule reader.c '"cfn", CG_FUNCTION' '"cfn", CG_OBJECT'
  rule reader.c '"jfn", CG_FUNCTION' '"jfn", CG_FILE'
  rule reader.c '\treader->called = (struct cg_place){0};' '\t;'
  rule reader.c 'reader->called.object = reader->now.object' 'reader->called.object.at = ""'
  rule reader.c 'uint64_t last = reader->positions\[which\]' 'uint64_t last = 0'
  rule reader.c "sign == '+' ? last + distance" "sign == '+' ? distance"
  rule reader.c 'if (line->kind == CG_COST)$' 'if (line->kind != CG_JUMP_FROM)'
  rule reader.c 'if (line->kind == CG_COST)$' 'if (line->kind != CG_CALL_COST)'
  rule reader.c 'memcpy(reader->others' ';memcpy(reader->others+3'
  rule reader.c 'line->is_ambiguous = line->is_relative' 'line->is_ambiguous = 0'
  rule reader.c 'line->kind = is_call ? CG_CALLS' 'memcpy(reader->positions, line->positions, sizeof line->positions); line->kind = is_call ? CG_CALLS'
  rule reader.c 'if (line->kind != CG_COST)' 'if (0)'
  rule reader.c 'reader->awaited = is_call ? CG_CALL_COST : CG_JUMP_FROM' ''
  rule reader.c 'reader->awaited = is_call ? CG_CALL_COST' 'reader->awaited = is_call ? CG_SKIPPED'
  rule reader.c 'i == reader->event_count' '0'
  rule reader.c 'base = 16,' 'base = 10,'
  rule reader.c 'reader->now = reader->called = (struct cg_place){0}' ''
  rule reader.c 'memset(reader->positions, 0' 'memset(reader->sums, 0'
  rule reader.c 'memset(reader->others, 0' 'memset(reader->sums, 0'
  rule reader.c 'memset(reader->sums, 0' 'memset(reader->positions, 0'
  rule reader.c 'line->definition->flag = false' ''
  rule reader.c '.position_count = 1' '.position_count = 2'
  rule names.c 'cg_text_is(object, "???")' '1'
  rule names.c "part->reader.called.object : part->reader.now.object" "part->reader.now.object : part->reader.now.object"
  rule names.c 'memchr(name->at' 'memchr("", 0, 0); mark = mark ? NULL : memchr(name->at + name->length'
  rule names.c 'entry->owner != range)' '0)'
  rule names.c 'entry->part != naming->part' '!entry->part'
  rule names.c 'line->is_ambiguous ?' '0 ?'
  rule names.c 'literal->flag' '0'
  rule names.c 'line->defines || definition->flag' '1'
  rule perf_map.c 'range->order > found->order' '0'
  rule perf_map.c 'ranges\[low - 1\].reach > address' 'ranges[low - 1].start == address'
  rule perf_map.c '!S_ISREG(found.st_mode) ||' ''
  rule perf_map.c 'O_NOFOLLOW |' ''
  rule output.c 'is_there ? there.st_mode & 0777 : ' ''
  [ "$(id -u)" != 0 ] || rule perf_map.c 'found.st_uid != geteuid()' '0'
  echo "$count broken rules"
}

run_listed "$1" $cases callgrind_broken_rules_are_noticed
