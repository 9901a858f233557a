#!/bin/bash
# SPDX-License-Identifier: MIT
# `make hostile`: runs the programs given as arguments under each restriction of tests/runner/hostile.c. Prints the failures of
# each run, a table, and `N passed, N failed` summed over all runs; exits 1 when anything failed. A restriction that the
# kernel refuses to set is named with its reason and counts as nothing. WITH: the restrictions to run, all by default. FEW=1:
# of the programs those that ask most of the system.
set -u
build=${CODEHEAP_BUILD:-build}
launcher=$build/tests/hostile
# Filling up the maps takes each case half a second of CPU: of the core tier these programs, which map and unmap.
maps_programs='unit_pages_* api_blocks api_full api_graphs api_trampolines api_holes adversary_memory adversary_fibers
  adversary_graph bdw_cycles bdw_graphs'
few_programs="$maps_programs api_backends api_fork api_in_place api_sink_files api_stats_file api_profile
  adversary_fork adversary_full adversary_limits adversary_membarrier adversary_patch adversary_ports adversary_reserves
  adversary_running adversary_spawn adversary_stubs adversary_threads adversary_unwind adversary_world"
passed=0 failed=0 ran=0
table=()
started=$SECONDS
log=$(mktemp "$build/hostile.XXXXXX")
trap 'rm -f "$log"' EXIT

only() { # PATTERNS PROGRAM...: those of the patterns, a line each
  local program pattern
  set -f
  for program in "${@:2}"; do
    for pattern in $1; do
      # shellcheck disable=SC2053
      [[ ${program##*/} != $pattern ]] || echo "$program"
    done
  done
  set +f
}

for restriction in ${WITH:-$($launcher | cut -d' ' -f1)}; do
  text=$($launcher | sed -n "s/^$restriction //p")
  if ! reason=$($launcher "$restriction" 2>&1); then
    table+=("$(printf '%-18s %s' "$restriction" "not set: $reason")")
    [[ $reason == 'hostile: '* ]] && failed=$((failed + 1))
    continue
  fi
  from=$SECONDS
  programs=("$@")
  [ -z "${FEW:-}" ] || mapfile -t programs < <(only "$few_programs" "$@")
  [ "$restriction" != maps ] || mapfile -t programs < <(only "$maps_programs" "$@")
  # Who reads the list of maps reads all of them.
  slow=${CODEHEAP_TEST_SLOW:-1}
  [ "$restriction" != maps ] || slow=$((slow * 4))
  CODEHEAP_TEST_SLOW=$slow "$build/tests/runner" -l tests/cannot_run.list -S -w "$launcher" \
    -r "$restriction" -j "${JOBS:-2}" ${T:+-t "$T"} "${programs[@]}" >"$log" 2>&1 </dev/null
  status=$?
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
  p=${line%% *} f=${line#*, } f=${f%% *}
  [ -n "$line" ] || { p=0 f=1; tail -n 20 "$log"; }
  [ $status = 0 ] || [ "$f" != 0 ] || f=1
  sed -n "/^not ok/,/^skipped/{/^skipped/d;s/^not ok/not ok $restriction/;p}" "$log"
  unable=$(sed -n 's/^unable \([0-9]*\) .*/\1/p' "$log")
  table+=("$(printf '%-18s %7d %7d %7d %8d  %s' "$restriction" "$p" "$f" "${unable:-0}" $((SECONDS - from)) "$text")")
  passed=$((passed + p)) failed=$((failed + f)) ran=$((ran + 1))
done

printf '%-18s %7s %7s %7s %8s\n' restriction passed failed unable seconds
printf '%s\n' "${table[@]}"
echo "$ran restrictions, $((SECONDS - started)) s"
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $ran -gt 0 ]
