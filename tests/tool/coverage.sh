#!/bin/bash
# SPDX-License-Identifier: MIT
# What `make coverage` says of a library of one file: lines and ways of branches are counted, what is too little fails,
# what the two rules leave out is left out, and no more. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
tool=$PWD/tools/coverage.py
make_work

# run_with TEXT ARGUMENT...: the text as the body of f, run once with each argument; the tool's table in $said.
run_with() {
  local text=$1 argument
  shift
  mkdir -p "$work/pages" "$work/objects/pages"
  cat >"$work/pages/f.c" <<C
#include <stdlib.h>
#define CH_ASSERT(condition, reason) ((condition) ? (void)0 : abort())
int f(int a);
int f(int a)
{
$text
	return a;
}
C
  echo 'int f(int); int main(int n, char **v) { (void)v; return f(n) == 12345; }' >"$work/main.c"
  rm -f "$work"/objects/pages/*
  (cd "$work" && gcc -O0 --coverage -c -o objects/pages/f.o pages/f.c && gcc --coverage -o program main.c objects/pages/f.o) ||
    fail "it does not compile"
  for argument; do
    # shellcheck disable=SC2086
    "$work/program" $argument || fail "the program failed"
  done
  said=$(cd "$work" && python3 "$tool" -v objects 2>&1)
  status=$?
}

wants() { # wants STATUS TEXT: of the row of all
  [ $status = "$1" ] || fail "exit code $status, not $1: $said"
  tr -s ' ' <<<"$said" | grep -qF "$2" || fail "it says no \"$2\": $said"
}

case_coverage_counts_lines_and_both_ways() {
  local text='	if (a > 1)
		a = 7;'
  run_with "$text" 'one more'
  wants 1 'all 4/4 100.0 1/2 50.0'
  wants 1 'pages/f.c:6: '
  run_with "$text" ''
  wants 1 'all 3/4 75.0 1/2 50.0'
  wants 1 'pages/f.c:7: never: a = 7;'
  run_with "$text" '' 'one more'
  wants 0 'all 4/4 100.0 2/2 100.0'
}

case_coverage_below_either_bound_fails() {
  local lines='' n
  for n in $(seq 40); do lines+=$'\ta += 1;\n'; done
  run_with "$lines	if (a > 1000)
		a = 7;" ''
  wants 1 'coverage: below 95 % of the lines or 85 % of the branches'
  wants 1 'all 43/44 97.7 1/2 50.0'
  run_with "	int b = a;
	a += b > 1;
	a += b > 1 ? 2 : 3;
	a += b > 1 ? 2 : 3;
	a += b > 1 ? 2 : 3;
	a += b > 1 ? 2 : 3;
	if (a == 77)
		a = 1;" '' 'one more'
  wants 1 'all 9/10 90.0 9/10 90.0'
}

case_coverage_leaves_out_what_the_rules_say() {
  run_with '	CH_ASSERT(a > 0, "it is");
	if (a > 1) /* cannot run: nobody has that many arguments */
		a = 7; // cannot run: see above
	/* cannot run: see above */
	if (a == 12)
		a = 3; /* cannot run: see above */' ''
  wants 0 'all 3/3 100.0 0/0 100.0'
  # A mark without a reason is none.
  run_with '	if (a > 1) /* cannot run: */
		a = 7;' ''
  wants 1 'all 3/4 75.0 1/2 50.0'
}

case_coverage_of_nothing_is_refused() {
  mkdir -p "$work/empty"
  said=$(cd "$work" && python3 "$tool" empty 2>&1) && fail "no counts, and no failure"
  grep -q 'no counts below empty' <<<"$said" || fail "it says: $said"
}

[ $# != 0 ] || { list_functions 120; exit; }
"case_$1"
