#!/bin/bash
# SPDX-License-Identifier: MIT
# What the stress does when it finds something, shown by a library that is broken on purpose: it prints its seed and ends
# with one line of JSON, keeps the program that failed and a shorter one, and both fail again when they are run again,
# while the library is broken. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
build=$(cd "${CODEHEAP_BUILD:-build}" && pwd) || exit 2
stress=$build/stress/stress-tested

broken() { # broken MUTANT: the program
  local program=$work/stress-$1
  [ -n "$1" ] || program=$stress
  [ -x "$program" ] || CODEHEAP_BUILD=$build tests/breaks/planted.py --link "$1" stress "$program" >&2 || exit 1
  echo "$program"
}

break_and_find() { # break_and_find FOLDER MUTANT LEVEL SEED MINIMISE-MS: what it says goes to FOLDER/said
  CODEHEAP_BUILD=$1 timeout -s KILL 200 "$(broken "$2")" --levels="$3" --seconds=100 --seed="$4" \
    --minimise-ms="$5" >"$1/said" 2>"$1/errors" </dev/null
  local status=$?
  [ $status = 1 ] || fail "it ended with $status: $(tail -n 3 "$1/said" "$1/errors")"
  [ "$(head -n 1 "$1/said")" = "seed $4" ] || fail "its first line is $(head -n 1 "$1/said")"
  tail -n 1 "$1/said" | python3 -c 'import json, sys; json.loads(sys.stdin.read())' || fail 'its last line is no JSON'
}

replay() { # replay MUTANT FILE: the status of a run of the program; '': on what is not broken
  CODEHEAP_BUILD=$work timeout -s KILL 60 "$(broken "$1")" --replay="$2" >/dev/null 2>&1 </dev/null
}

# The seed decides about the program: two runs of one seed keep the same. Two notices of one block come in any schedule.
stress_that_fails_keeps_a_short_program_of_calls() {
  local seed=7 name=graph-7000021 from to
  mkdir "$work/again"
  break_and_find "$work" NOTICE_TWICE 1 $seed 60000
  break_and_find "$work/again" NOTICE_TWICE 1 $seed 60000
  local kept=$work/stress/failures
  cmp "$kept/$name.txt" "$work/again/stress/failures/$name.txt" || fail 'one seed made two programs'
  read -r from to < <(sed -n 's/^minimised from \([0-9]*\) operations to \([0-9]*\)$/\1 \2/p' "$work/said")
  [ "${to:-0}" -gt 0 ] && [ "$to" -lt $((from / 10)) ] || fail "it was not made shorter: ${from:-?} to ${to:-?}"
  replay NOTICE_TWICE "$kept/$name.txt"
  [ $? = 1 ] || fail 'the program that was kept does not fail'
  replay NOTICE_TWICE "$kept/$name.min.txt"
  [ $? = 1 ] || fail 'the shorter program does not fail'
  replay '' "$kept/$name.min.txt" || fail 'the shorter program fails where nothing is broken'
}

# A leak is a failure, too: nothing dies of it, and what the model predicts dead stays.
stress_that_sees_a_leak_keeps_the_program() {
  break_and_find "$work" RELEASED_IS_ROOT 1 7 2000
  grep -qE '^graph level: of [0-9]+ blocks predicted dead only [0-9]+ were freed$' "$work/said" || fail 'it says no share'
  ls "$work"/stress/failures/graph-*[0-9].txt >/dev/null || fail 'the program was not kept'
}

stress_that_would_try_nothing_is_refused() {
  local argument
  for argument in --levels=0 --levels=4 --seconds= --seconds=0 --seconds=-1 --seed=1x; do
    CODEHEAP_BUILD=$work timeout -s KILL 20 "$stress" "$argument" >/dev/null 2>&1
    [ $? = 2 ] || fail "$argument is not refused"
  done
  CODEHEAP_BUILD=$work/none timeout -s KILL 20 "$stress" --seconds=1 >/dev/null 2>"$work/errors"
  [ $? = 2 ] && grep -q 'No such file' "$work/errors" || fail 'it does not say that it has no folder'
}

# Nothing is tried again then: what is kept is all that there is.
stress_that_may_not_shorten_keeps_all_that_ran() {
  break_and_find "$work" SKIP_STACKS 2 7 0
  grep -q '^(define ' "$work"/stress/failures/scheme-*[0-9].scm || fail 'it keeps no Scheme program'
  grep -q 'again' "$work/said" && fail 'it says that it ran the program again'
  break_and_find "$work" NOTICE_TWICE 1 7 0
  replay NOTICE_TWICE "$work"/stress/failures/graph-*[0-9].txt
  [ $? = 1 ] || fail 'it keeps no program of calls that fails'
}

stress_says_of_a_file_whether_it_fails_or_is_no_program() {
  local file folder=$work/of.scm
  mkdir "$folder"
  : >"$work/empty.scm"
  echo 'no program' >"$folder/words.txt"
  for file in "$work/none.scm" "$work/empty.scm" "$folder" "$folder/words.txt" "$work/none.txt"; do
    replay '' "$file"
    [ $? = 2 ] || fail "$file is taken for a program"
  done
  echo '(write 1)' >"$work/one.scm"
  replay '' "$work/one.scm" || fail 'a program that agrees is said to fail'
}

# What fails depends on the schedule: not every program that failed fails again, so it goes on until one does.
stress_that_fails_keeps_a_short_program_in_scheme() {
  local seed whole short
  for ((seed = 7; ; seed++)); do
    rm -rf "$work/stress/failures"
    break_and_find "$work" SKIP_STACKS 2 $seed 2000
    whole=$(ls "$work"/stress/failures/scheme-*[0-9].scm 2>/dev/null | head -n 1)
    short=$(ls "$work"/stress/failures/scheme-*-min.scm 2>/dev/null | head -n 1)
    [ -n "$whole" ] || fail 'the program was not kept'
    [ -z "$short" ] || break
  done
  [ "$(wc -c <"$short")" -le "$(wc -c <"${short%-min.scm}.scm")" ] || fail 'the shorter program is longer'
  replay '' "$short" || fail 'the shorter program fails where nothing is broken'
}

cases=(
  stress_that_fails_keeps_a_short_program_of_calls:450
  stress_that_sees_a_leak_keeps_the_program:240
  stress_that_would_try_nothing_is_refused:60
  stress_that_may_not_shorten_keeps_all_that_ran:480
  stress_says_of_a_file_whether_it_fails_or_is_no_program:120
  stress_that_fails_keeps_a_short_program_in_scheme:600
)
if [ $# = 0 ]; then
  [ "${CODEHEAP_TEST_GC:-bdw}" = none ] && exit 0
  list_cases "${cases[@]}"
  exit 0
fi
make_work
run_listed "$1" "${cases[@]}"
