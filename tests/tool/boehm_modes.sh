#!/bin/bash
# SPDX-License-Identifier: MIT
# The adversaries of the Boehm driver again, in the collector's other modes: marked by four threads at once (_markers),
# and in steps between which the world runs (_incremental). Without arguments it lists its cases, with a name it runs
# one. The programs' own run has the default mode.
set -u
build=${CODEHEAP_BUILD:-build}

# Each program that has cases of the driver, from its text: they are listed by the program itself.
programs() {
  grep -lE 'STAGE_BOEHM|EVERY_DRIVER|THREADED_DRIVER|STOPPING_DRIVER|SHARED_DRIVER' tests/adversary/*.c | sed 's|tests/adversary/\(.*\)\.c|adversary_\1|'
}

# Not those that may be skipped: what they lack they lack in each mode.
boehm_cases() { # boehm_cases PROGRAM: name limit signal alone
  local cases skips name rest
  cases=$("$build/tests/$1" | grep -E '^[a-z0-9_]+_boehm ') || return
  # What only a sanitizer lacks is there: scripts run in builds without one.
  # shellcheck disable=SC2046 # names, a word each
  skips=$("$build/tests/runner" -l tests/cannot_run.list -q skip "$1" $(cut -d' ' -f1 <<<"$cases") |
    sed '/anitizer/d;s/:.*//' | tr '\n' ' ')
  while read -r name rest; do
    [[ " $skips" == *" $name "* ]] || echo "$name $rest"
  done <<<"$cases"
}

if [ $# = 0 ]; then
  [ "${CODEHEAP_TEST_GC:-bdw}" = none ] && exit 0
  for program in $(programs); do
    [ -x "$build/tests/$program" ] || continue
    boehm_cases "$program" | while read -r name limit signal alone; do
      printf '%s_markers %s %s %s\n%s_incremental %s %s %s\n' "$name" "$limit" "$signal" "$alone" "$name" "$limit" \
        "$signal" "$alone"
    done
  done
  exit 0
fi

mode=${1##*_}
name=${1%_*}
# Not the length of a storm is asked for, but the mode; it is longer with LONG=1.
storm=200
[ "${CODEHEAP_TEST_LONG:-}" != 1 ] || storm=500
export CODEHEAP_TEST_BOEHM=$mode CODEHEAP_TEST_STORM_MS=$storm
file=$(grep -lwE "$name|${name%_boehm}" tests/adversary/*.c | head -1)
[ -n "$file" ] || { echo "no case $name" >&2; exit 1; }
exec "$build/tests/adversary_$(basename "$file" .c)" "$name"
