#!/bin/bash
# SPDX-License-Identifier: MIT
# The products under Valgrind with its default flags: the example, and Scheme programs whose code is compiled, freed and
# reused while the Boehm collector marks. Memcheck must report nothing and the output must be right. Without arguments it
# lists its cases, with a name it runs one.
. tests/support/script.sh
make_work
cases="valgrind_example:120 valgrind_scheme_generators:120 valgrind_scheme_redefinition:120 valgrind_scheme_threads:120"

under_valgrind() { # under_valgrind FLAGS.. PROGRAM..: its output is $work/out
  valgrind -q --error-exitcode=99 "$@" >"$work/out" 2>"$work/err" </dev/null
  local status=$?
  [ $status != 99 ] || fail "valgrind: memcheck reports: $(head -c 1500 "$work/err")"
  [ $status = 0 ] || fail "valgrind: exit $status: $(head -c 1500 "$work/err")"
}

scheme_program() { # scheme_program NAME SWITCHES..
  local program=hosts/scheme/programs/$1
  shift
  under_valgrind --suppressions=tools/libgc.supp "$build/scheme" --jit "$@" "$program.scm"
  cmp "$work/out" "$program.out" || fail "valgrind: $program has another output"
}

valgrind_example() {
  under_valgrind --leak-check=full "$build/examples/min"
  "$build/examples/min" | cmp - "$work/out" || fail "valgrind: the example has another output"
}
valgrind_scheme_generators() { scheme_program generators --gc-every-call=20000; }
valgrind_scheme_redefinition() {
  printf '(define (f) 1)\n(let loop ((i 0)) (if (< i 60) (begin
    (eval (list (quote define) (list (quote f)) (list (quote +) i 1)) (interaction-environment))
    (f) (loop (+ i 1)))))\n(display (f)) (newline)\n' >"$work/p.scm"
  under_valgrind --suppressions=tools/libgc.supp "$build/scheme" --jit --pool=65536 --page=16384 \
    --discard-every=10 "$work/p.scm"
  [ "$(cat "$work/out")" = 60 ] || fail "valgrind: says $(cat "$work/out")"
}
valgrind_scheme_threads() { scheme_program threads; }

if [ $# = 0 ]; then
  [ "${CODEHEAP_TEST_GC:-bdw}" != none ] || cases=valgrind_example:120 # the Scheme needs libgc
  list_cases $cases
  exit 0
fi
"$1"
