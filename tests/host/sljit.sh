#!/bin/bash
# SPDX-License-Identifier: MIT
# PCRE2 with its JIT, sljit, on the heap (hosts/sljit), built against the installed library and judged by its own tests.
# Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
pcre2=$PWD/build/source/pcre2
if [ $# = 0 ]; then
  printf '%s 300 0 -\n' sljit_pcre2_test_of_its_jit sljit_pcre2_tests_with_and_without_jit sljit_names_code \
    $(sed -n 's/^CASE(\(.*\))$/sljit_\1/p' hosts/sljit/cases.c)
  exit 0
fi
if [ ! -d "$pcre2" ]; then
  echo "skip: no source of PCRE2 (tools/source.sh pcre2)"
  exit 77
fi
programs=$(cd "$build/sljit" && pwd) || exit 1
make_work
fail() { echo "sljit: $*" >&2; exit 1; }

# Patterns and subjects, each matched by the JIT and by the interpreter.
sljit_pcre2_test_of_its_jit() {
  CODEHEAP_SLJIT_SAYS=1 "$programs/pcre2_jit_test" >"$work/out" 2>&1 || fail "pcre2_jit_test: $(tail -n 3 "$work/out")"
  grep -q 'All JIT regression tests are successfully passed' "$work/out" || fail "not all tests passed: $(tail -n 3 "$work/out")"
  local made alive
  read -r made alive < <(sed -n 's/.*heap: \([0-9]*\) made, \([0-9]*\) alive$/\1 \2/p' "$work/out")
  [ "${made:-0}" -gt 500 ] || fail "the JIT made ${made:-no} pieces of code"
  [ "$alive" = 0 ] || fail "$alive pieces of $made were not freed"
}

# The script of PCRE2 runs each of its input files with the JIT, too, where the program says that there is one.
sljit_pcre2_tests_with_and_without_jit() {
  cp "$pcre2/RunTest" "$work/" && ln -s "$programs/pcre2test" "$work/pcre2test"
  (cd "$work" && srcdir=$pcre2 ./RunTest) >"$work/out" 2>&1 || fail "RunTest: $(tail -n 5 "$work/out")"
  [ "$(grep -c 'OK with JIT' "$work/out")" -ge 5 ] || fail "few tests with JIT: $(cat "$work/out")"
}

sljit_names_code() {
  printf '/a(b+)c/jitverify\n  xabbbc\n' >"$work/input"
  CODEHEAP_SINKS=perfmap CODEHEAP_PERF_MAP_DIR=$work "$programs/pcre2test" -q "$work/input" >"$work/out" 2>&1 ||
    fail "pcre2test: $(cat "$work/out")"
  grep -q '(JIT)' "$work/out" || fail "not matched by the JIT: $(cat "$work/out")"
  grep -q ' sljit$' "$work"/perf-*.map || fail "no name in the perf map: $(cat "$work"/perf-*.map)"
}

# The program of the cases calls the allocator as sljit does, and needs nothing of PCRE2.
if [ "$(type -t "$1")" != function ]; then
  "$programs/cases" "${1#sljit_}"
  exit
fi
"$1"
