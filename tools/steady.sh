#!/bin/bash
# SPDX-License-Identifier: MIT
# make steady: `make check` RUNS times (5) beside LOAD endless loops (4); TIER=core: of that tier. Prints a line for each run,
# then each case that failed or passed at a second try only, with how often, and `RUNS runs: N failed, N unsteady`. Exits 1
# when a case failed or more than two names were unsteady in all. What a run printed is in steady/ of its build.
set -u
shopt -s nullglob # RUNS=0 has no log
cd "$(dirname "$0")/.." || exit 1
runs=${RUNS:-5} load=${LOAD:-4} names_allowed=2
build=${CODEHEAP_BUILD:-build}
logs=$build/steady
rm -rf "$logs"
mkdir -p "$logs"
unset MAKEFLAGS MFLAGS MAKELEVEL
loops=()
trap 'kill -KILL "${loops[@]}" 2>/dev/null' EXIT
trap 'exit 1' INT TERM

for ((n = 0; n < load; n++)); do
  (while :; do :; done) &
  loops+=($!)
done
failed_runs=0
for ((n = 1; n <= runs; n++)); do
  started=$SECONDS
  timeout -s KILL 21600 make check BUILD="$build" >"$logs/$n.log" 2>&1 </dev/null
  status=$?
  sums=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$logs/$n.log" | tail -n 1)
  [ $status = 0 ] || failed_runs=$((failed_runs + 1))
  echo "run $n: ${sums:-no line of sums, exit $status}, $((SECONDS - started)) s"
  [ ! -d "$build/unsteady" ] || cp -r "$build/unsteady" "$logs/$n.unsteady"
done
counts() { # counts WORDS: how often each case stands behind these words
  cat /dev/null "$logs"/[0-9]*.log | sed -nE "s/^$1 ([^ ]+) # .*/\1/p" | sort | uniq -c | sort -rn
}
failed=$(counts 'not ok')
unsteady=$(counts 'passed again')
[ -z "$failed" ] || sed 's/^/failed   /' <<<"$failed"
[ -z "$unsteady" ] || sed 's/^/unsteady /' <<<"$unsteady"
failed_names=$(grep -c . <<<"$failed") unsteady_names=$(grep -c . <<<"$unsteady")
echo "$runs runs: $failed_names names failed, $unsteady_names unsteady"
[ $failed_runs = 0 ] && [ "$failed_names" = 0 ] && [ "$unsteady_names" -le $names_allowed ]
