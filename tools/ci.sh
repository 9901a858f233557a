#!/bin/bash
# SPDX-License-Identifier: MIT
# `make ci`: every test, strictly; the core tier in each configuration and under each restriction, other architectures under
# their emulators, another Debian, Valgrind, sanitizers, lint, measure, tidy, model, orders, stress, fuzzer, mutants. Goes on behind a
# step that failed.
# ONLY=name,name chooses steps (patterns of the shell's); CODEHEAP_CI_PLACES steps (2) run side by side. Each runs under a
# limit; one that dies, ends late or prints no sums is a failure with its name. Steps that count nothing themselves (lint, measure,
# tidy, model, orders, stress, fuzz, instructions, debug) count as one test each. Ends with a table and one line `N passed, N failed` over
# all steps; exits 1 when anything failed. Needs no terminal and, set up, no network and no root, save that debian-13 needs root, and
# a network the first time. What a step printed is in build/ci/.
set -u
cd "$(dirname "$0")/.." || exit 1
IFS=', ' read -r -a chosen <<<"${ONLY:-}"
known=$(sed -nE 's/^ *(step|core) [0-9]+ ([^ "]+) .*/\2/p; s/^signed ([^ ]+) .*/\1/p' tools/ci.sh)
for pattern in "${chosen[@]}"; do
  for name in $known; do
    # shellcheck disable=SC2053
    [[ $name != $pattern ]] || continue 2
  done
  echo "ci: no step is $pattern; the steps are: $(echo $known)" >&2
  exit 2
done
unset MAKEFLAGS MFLAGS MAKELEVEL SAN GC ALLOC CROSS CC CXX PAGE SYSTEM_PAGE BACKEND TIER T V WITH FEW JOBS EMULATOR VALGRIND \
  DEBUG COVERAGE BUILD EXTRA_CFLAGS STORM_MS PARTS SLOWEST TIMED LONG
# A random seed for each run, which `make check SEED=` repeats.
export STRICT=1 WERROR=1 SEED="${CODEHEAP_CI_SEED:-$(date +%s)}"
# `make ci BUILD=folder`: each step's build is in it.
export BUILD_ROOT="${BUILD_ROOT:-build}"
logs=$BUILD_ROOT/ci
rm -rf "$logs"
mkdir -p "$logs"
tools/setup.sh ci || exit 2
export SETUP=no
echo "seed: $SEED"
places=${CODEHEAP_CI_PLACES:-2}

steps=0 running=0
declare -A step_of # a background job's pid -> the number of its step
declare -A ended   # a step's name -> 1
names=()
# What is left when this is interrupted goes with it.
trap 'for pid in "${!step_of[@]}"; do kill -KILL -- "-$(cat $logs/${step_of[$pid]}.pid)"; done 2>/dev/null' EXIT
trap 'exit 1' INT TERM

is_chosen() {
  local pattern
  [ ${#chosen[@]} -gt 0 ] || return 0
  for pattern in "${chosen[@]}"; do
    # shellcheck disable=SC2053
    [[ $1 != $pattern ]] || return 0
  done
  return 1
}

# run_step NUMBER LIMIT_SECONDS KIND command...: leaves `passed failed seconds` in NUMBER.result, and what is to be seen of
# it in NUMBER.said. A session of its own, so that what outlives the limit can be ended too, and nothing else.
run_step() {
  local log=$logs/$1.log said=$logs/$1.said limit=$2 kind=$3 started=$SECONDS number=$1 status line='' p f
  shift 3
  setsid timeout -s KILL "$limit" "$@" >"$log" 2>&1 </dev/null &
  echo $! >"$logs/$number.pid"
  wait $!
  status=$?
  kill -KILL -- "-$(cat "$logs/$number.pid")" 2>/dev/null
  p=$((status == 0)) f=$((status != 0))
  if [ "$kind" = tests ]; then
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    p=${line%% *} f=${line#*, } f=${f%% *}
    [ -n "$line" ] || { p=0 f=1; }
    [ $status = 0 ] || [ "$f" != 0 ] || f=1
  fi
  {
    grep -oE '^(skipped [1-9][0-9]*|left out [1-9][0-9]* under .*|[a-z-]+ +not set: .*)' "$log"
    grep -c '^-- ' "$log" | sed -n 's/^[1-9].*/& mutants were not tried/p'
    if [ "$f" != 0 ]; then
      [ $status != 137 ] || echo "killed after $limit s"
      [ "$kind" != tests ] || [ -n "$line" ] || echo "no line of sums; exit $status"
      grep -A 12 -E '^(not ok|.*:[0-9]+: |make.*Error)' "$log" | grep -vE '^skipped ' | cut -c 1-400 | tail -n 60
      [ "$kind" = tests ] && [ -n "$line" ] || tail -n 15 "$log" | cut -c 1-400
    fi
  } >"$said"
  echo "$p $f $((SECONDS - started))" >"$logs/$number.result"
}

# Waits until a step has ended, and shows it.
end_one() {
  local pid number p f seconds
  wait -n -p pid
  number=${step_of[$pid]}
  unset "step_of[$pid]"
  running=$((running - 1))
  ended[${names[number]}]=1
  read -r p f seconds <"$logs/$number.result" || { p=0 f=1 seconds=0; echo "0 1 0" >"$logs/$number.result"; }
  echo "== ${names[number]}: $p passed, $f failed, $seconds s"
  sed 's/^/   /' "$logs/$number.said"
}

# after NAME: what follows uses the build that NAME makes.
after() { while is_chosen "$1" && [ -z "${ended[$1]:-}" ]; do end_one; done; }

# step LIMIT_SECONDS NAME KIND command...  KIND tests: the command prints `N passed, N failed`; one: its exit code counts.
step() {
  local limit=$1 name=$2 kind=$3
  shift 3
  is_chosen "$name" || return 0
  while [ $running -ge "$places" ]; do end_one; done
  names[steps]=$name
  run_step $steps "$limit" "$kind" "$@" &
  step_of[$!]=$steps
  steps=$((steps + 1)) running=$((running + 1))
}
core() { local limit=$1 name=$2; shift 2; step "$limit" "$name" tests make check TIER=core "$@"; }
wait_for_all() { while [ $running -gt 0 ]; do end_one; done; }

# Times are judged with nothing beside them.
step 2400 check-timed tests make check-timed
wait_for_all
# A storm gets its full length here; the runner lengthens the limits by as much. The long steps come first, and beside this
# one none that builds in the same folder.
step 2400 check tests make check LONG=1 STORM_MS="${CODEHEAP_CI_STORM_MS:-30000}"
step 900 model one make model
step 900 tidy one make tidy
step 600 fuzz one make fuzz SECONDS=60
core 1800 thread SAN=thread GC=none
core 1800 address CC=clang-14 SAN=address,undefined GC=none
core 1800 aarch64 CROSS=aarch64-linux-gnu-
core 1800 riscv64 CROSS=riscv64-linux-gnu- GC=none
# Return addresses are signed and landing pads guarded where all is compiled so: a build of its own, one test at a time.
signed() { # signed NAME TEST
  core 600 "$1" CROSS=aarch64-linux-gnu- EXTRA_CFLAGS=-mbranch-protection=standard BUILD="$BUILD_ROOT/cross-aarch64-signed" T="$2"
}
signed aarch64-signed-running adversary_running
# What the core tier can differ in goes in pairs, so that each of them is there, and one build or run serves two.
core 900 clang-memfd-page-65536 CC=clang-14 BACKEND=memfd PAGE=65536
core 900 gc-none-malloc-page-8192 GC=none ALLOC=malloc PAGE=8192
step 300 debug one make DEBUG=1 libs programs
after aarch64-signed-running
signed aarch64-signed-landing api_landing_aarch64
after gc-none-malloc-page-8192
core 1500 valgrind VALGRIND=1 GC=none ALLOC=malloc
after check
step 900 mdwe tests make hostile WITH=mdwe
after aarch64-signed-landing
signed aarch64-signed-unwind adversary_unwind
core 900 procmem-page-4096 PAGE=4096 BACKEND=procmem
core 900 system-page-65536 SYSTEM_PAGE=65536
step 2400 debian-13 tests tools/other_debian.sh trixie
# The other restrictions; `make hostile` has all programs under each.
if is_chosen hostile; then
  make -s "$BUILD_ROOT/tests/hostile" >/dev/null
  restrictions=$("$BUILD_ROOT/tests/hostile" | cut -d' ' -f1 | grep -vx mdwe)
  step 1200 hostile tests make hostile FEW=1 WITH="$(echo $restrictions)"
fi
after thread
step 900 orders one make orders
step 400 stress one make stress SECONDS=60
step 900 instructions one make instructions
step 300 lint one make lint
after lint
step 300 measure one make measure CHECK=1
# These build where those before ran, and run two at a time themselves.
wait_for_all
step 3600 mutants tests make mutants
wait_for_all

passed=0 failed=0
row() { printf '%-42s %8s %8s %8s\n' "$1" "$2" "$3" "$4"; }
echo
row configuration tests failures seconds
for ((n = 0; n < steps; n++)); do
  read -r p f seconds <"$logs/$n.result"
  passed=$((passed + p)) failed=$((failed + f))
  row "${names[n]}" $((p + f)) "$f" "$seconds"
done
row all $((passed + failed)) $failed $SECONDS
echo
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
