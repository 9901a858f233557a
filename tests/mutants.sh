#!/bin/bash
# SPDX-License-Identifier: MIT
# make mutants: breaks the library in one way at a time (arch/mutant.h) and runs the test that must notice. A
# mutant is caught when its test fails, dies or does not end; every mutant of the header must have a test here. Prints
# a line for each and `N passed, N failed`; exits 1 when one was not caught. A test that is skipped on this machine, as
# tests/skips.list says, proves nothing: its line begins with `--`. CODEHEAP_BUILD is the folder of the build.
set -u
build=${CODEHEAP_BUILD:-build}
header=arch/mutant.h
limit=25
export LC_ALL=C.UTF-8 # as make check has it
export CODEHEAP_TEST_STORM_MS=${CODEHEAP_TEST_STORM_MS:-2000}

# MUTANT PROGRAM CASE [TRIES]: a race is tried more than once. ARCH:PROGRAM is the one that is built for ARCH.
table='
SPAWN_FORKS adversary_spawn s33_processes_are_made_while_a_thread_holds_every_lock_polls
SPAWN_FORKS adversary_spawn s33_vfork_and_posix_spawn_leave_the_heap_alone_polls
RAW_TWO_NOPS adversary_patch_x86_64 s35_entry_of_one_instruction_becomes_a_jump_while_it_runs 5
RAW_BYTEWISE adversary_patch_x86_64 s34_jump_is_repointed_by_one_store_while_it_runs 5
RAW_STRADDLE adversary_patch_x86_64 s34_jump_is_repointed_by_one_store_while_it_runs 5
'

results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT

# A program of another architecture runs behind its emulator, where make check CROSS= has built it.
folder_of() { # folder_of PROGRAM
  case $1 in
    riscv64:* | *_riscv64) echo "$build/cross-riscv64-linux-gnu-gc-none/tests" ;;
    aarch64:* | *_aarch64) echo "$build/cross-aarch64-linux-gnu/tests" ;;
    *) echo "$build/tests" ;;
  esac
}
run_case() { # run_case PROGRAM CASE: its exit status; its children go with it
  local emulator=
  case $1 in
    riscv64:* | *_riscv64) emulator=qemu-riscv64-static ;;
    aarch64:* | *_aarch64) emulator="qemu-aarch64-static -cpu max -L build/sysroot-arm64" ;;
  esac
  { timeout -s KILL $limit $emulator "$(folder_of "$1")/${1#*:}" "$2" </dev/null; } >/dev/null 2>&1
}

# A test that fails by itself would catch every mutant.
check_mutant() { # check_mutant MUTANT PROGRAM CASE TRIES
  local file="$results/$1.$2.$3" status=0 n
  if [ ! -x "$(folder_of "$2")/${2#*:}" ]; then
    [[ $2 == bdw_* ]] && [ "${GC:-bdw}" = none ] && return
    if [[ $2 == *_riscv64 || $2 == *_aarch64 || $2 == *:* ]]; then
      echo "-- $1: $2 is for another machine" >"$file"
      return
    fi
    echo "not ok $1: $2 is not built" >"$file"
    return
  fi
  run_case "$2" "$3"
  status=$?
  if [ $status = 77 ] && grep -q "^$3: " tests/skips.list; then
    echo "-- $1: $3 is for another machine" >"$file"
    return
  fi
  [ $status = 0 ] || { echo "not ok $1: $3 fails without it" >"$file"; return; }
  for ((n = 1; n <= ${4:-1}; n++)); do
    CODEHEAP_MUTANT=$1 run_case "$2" "$3"
    status=$?
    [ $status != 0 ] && [ $status != 77 ] && [ $status != 2 ] && break
  done
  case $status in
    0 | 2 | 77) echo "not ok $1: $3 does not notice" >"$file" ;;
    1) echo "ok $1: $3 failed" >"$file" ;;
    137) echo "ok $1: $3 did not end" >"$file" ;;
    *) echo "ok $1: $3 died of signal $((status - 128))" >"$file" ;;
  esac
}

wanted=${1:-}
while read -r mutant program case tries; do
  [ -n "$mutant" ] || continue
  [ -z "$wanted" ] || [ "$wanted" = "$mutant" ] || continue
  [ "${GC:-bdw}" = none ] && [[ $program == bdw_* || $case == *_boehm ]] && continue
  while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
  check_mutant "$mutant" "$program" "$case" "$tries" &
done <<<"$table"
wait

# The random programs must find these by themselves, each level within a minute; without a mutant they find nothing.
# Level 1 is the one of API calls on machine code, level 2 the one of Scheme programs.
stress=$build/stress/stress-mutant
run_stress() { # run_stress LEVEL SECONDS
  timeout -s KILL $(($2 + 60)) "$stress" --levels=$1 --seconds=$2 --seed=1 --minimise-ms=0 >/dev/null 2>&1 </dev/null
}
check_stress() { # check_stress LEVEL MUTANT
  local file="$results/$2.stress$1"
  if CODEHEAP_MUTANT=$2 run_stress "$1" 60; then
    echo "not ok $2: level $1 of the stress does not notice" >"$file"
  else
    echo "ok $2: level $1 of the stress failed" >"$file"
  fi
}
planted_1=""
planted_2=""
if [ -x "$stress" ]; then
  for level in 1 2; do
    planted=planted_$level
    run_stress $level 20 || echo "not ok stress: level $level fails without a mutant" >"$results/stress$level"
    for mutant in ${!planted}; do
      [ -z "$wanted" ] || [ "$wanted" = "$mutant" ] || continue
      while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
      check_stress $level $mutant &
    done
    wait
  done
fi

# The programs that the fuzzer kept find these; without a mutant each call of them answers as the model says.
replay=$build/fuzz/replay
run_corpus() {
  { timeout -s KILL $limit "$replay" fuzz/corpus/* </dev/null; } >/dev/null 2>&1
}
check_corpus() { # check_corpus MUTANT
  if CODEHEAP_MUTANT=$1 run_corpus; then
    echo "not ok $1: the programs of fuzz/corpus do not notice" >"$results/$1.corpus"
  else
    echo "ok $1: the programs of fuzz/corpus failed" >"$results/$1.corpus"
  fi
}
known_to_corpus=""
if [ -x "$replay" ]; then
  run_corpus || echo "not ok corpus: it fails without a mutant" >"$results/corpus"
  for mutant in $known_to_corpus; do
    [ -z "$wanted" ] || [ "$wanted" = "$mutant" ] || continue
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    check_corpus $mutant 2>/dev/null &
  done
  wait
fi

for mutant in $(sed -n '/define CH__MUTANT_LIST/,/^$/p' $header | grep -o 'X([A-Z_]*)' | sed 's/X(\(.*\))/\1/'); do
  [ -z "$wanted" ] || [ "$wanted" = "$mutant" ] || continue
  grep -q "^$mutant " <<<"$table" || echo "not ok $mutant: no test names it" >"$results/$mutant.none"
  grep -rqE "CH__MUTANT_$mutant\b" --include='*.[ch]' --include='*.cc' arch pages unwind codeheap invalidate tests ||
    echo "not ok $mutant: nothing asks for it" >"$results/$mutant.place"
done
cat "$results"/* 2>/dev/null
failed=$(cat "$results"/* 2>/dev/null | grep -c '^not ok')
passed=$(cat "$results"/* 2>/dev/null | grep -c '^ok')
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
