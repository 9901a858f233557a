#!/bin/bash
# SPDX-License-Identifier: MIT
# make model: runs the protocol models in spin, two at a time. Base models and correct variants must pass, each mutant
# must be caught, and by the kind of error that is expected of it: a failed assertion, or a deadlock. Every switch of a
# model must be in the list. Every search is exhaustive, no state is
# hashed away. One line a run; exits 1 unless all are as expected. Scratch files lie in model/ of the build.
set -u
cd "$(dirname "$0")/../.." || exit 2
scratch=$(realpath -m "${CODEHEAP_BUILD:-build}")/model
models=$PWD/docs/model

# EXPECT MODEL DEFINES...: EXPECT is pass, assert or deadlock. The longest ones first.
list='
pass collection
pass collection ROUNDS=2 STEPS=1
pass collection MARK_READ_FIRST
pass collection NO_NEWBORN
pass stub
pass collection CYCLES=3 STEPS=1
pass collection ABANDON STEPS=1
pass collection RELEASE_AT_ONCE COHERENT ROUNDS=2 STEPS=1
assert collection RELEASE_AT_ONCE ROUNDS=2
assert collection NO_REGION
assert collection TEST_OUTSIDE
assert collection NO_ALIVE_TEST
assert collection STALE_HANDLE
assert collection RESURRECT
assert collection EARLY_UNFREEZE
assert collection NO_CORE_SYNC
assert collection SKIP_STACKS
assert collection OPEN_NO_ROOT
assert collection EDGE_NOT_TRACED
assert collection NOTENTRANT_NOT_TRACED
assert collection KEEP_IN_EDGES
assert collection NO_CELL_RESET
assert collection NO_QUARANTINE
assert collection GENERATION_FIRST
assert collection SWEEP_NO_RECHECK ROUNDS=2 STEPS=1
assert collection ABANDON ABANDONED_COUNTS

pass finalize
pass finalize STEPS=3
assert finalize STALE_HANDLE
assert finalize NO_ALIVE_TEST
assert finalize COMMIT_DEAD_OWNER
assert finalize SET_ENTRY_LOOKS_ONCE
assert finalize NO_BUSY
assert finalize FLAG_ENDS_ENTRY
assert finalize OWNER_FREED_FIRST
assert finalize RESURRECT
assert finalize COMPLETED_BEFORE_FINALIZE
assert finalize REVIVED_NOT_MARKED

pass stub LOSER_TRUSTS STEPS=1
assert stub NO_ALIVE_TEST
assert stub LINK_STALE
assert stub ENTRY_LATE
assert stub STUB_RETURN_NO_ROOT
assert stub FRAME_NOT_SCANNED

pass fork
assert fork NO_LOCKS
assert fork NO_FREEZE
assert fork COPY_IN_CHILD
assert fork VIEWS_INHERITED
assert fork OPEN_KEPT
assert fork CODE_KEPT
deadlock fork FREEZE_KEPT
deadlock fork LOCK_KEPT
deadlock fork INSIDE_KEPT
deadlock fork THREADS_KEPT

pass lookup
assert lookup NO_STATE_TEST
assert lookup STATE_LAST
assert lookup GENERATION_BEFORE_FIELDS
assert lookup SAME_GENERATION
assert lookup ONE_LOOK
assert lookup NO_RANGE_TEST
assert lookup START_AT_OPEN
assert lookup START_BEFORE_LIVE
assert lookup START_KEPT
assert lookup TOMBSTONE_LATE
assert lookup STALE_HANDLE

pass stop
pass stop NO_MEMBARRIER FENCE_IN_REGIONS
assert stop NO_MEMBARRIER
assert stop LOAD_BEFORE_STORE
assert stop UNPARK_WITHOUT_FENCE
assert stop ONE_THREAD_AWAITED
deadlock stop WAIT_UNPARKED
'

# What pan says: pass, assert, deadlock, or why it counts as none of them.
verdict_of() { # verdict_of FOLDER
  [ -x "$1/pan" ] || { echo 'not built'; return; }
  if ! grep -q 'errors: [0-9]' "$1/pan.log" || grep -qE 'max search depth too small|out of memory|reached -DMEMLIM bound' "$1/pan.log"; then
    echo 'not finished'
  elif grep -q 'assertion violated' "$1/pan.log"; then
    echo assert
  elif grep -q 'invalid end state (' "$1/pan.log"; then
    echo deadlock
  elif grep -q 'errors: 0' "$1/pan.log"; then
    echo pass
  else
    echo 'another error'
  fi
}

run() { # run NUMBER EXPECT MODEL DEFINES...
  local folder=$scratch/$1 expect=$2 model=$3 started=$SECONDS reduce='' speed=-O1 found verdict=FAIL
  shift 3
  mkdir -p "$folder" && cd "$folder" || exit 2
  # Partial-order reduction is not sound for `provided` clauses.
  grep -q 'provided' "$models/$model.pml" && reduce=-DNOREDUCE
  # An error is found soon: what costs time there is the compiler.
  [ "$expect" = pass ] && speed=-O2
  { spin "${@/#/-D}" -a "$models/$model.pml" && gcc $speed -w -DSAFETY $reduce -DCOLLAPSE -DMEMLIM=1500 -DVECTORSZ=512 \
    -o pan pan.c; } >build.log 2>&1 && timeout -s KILL 400 ./pan -m100000 -w22 >pan.log 2>&1
  found=$(verdict_of "$folder")
  [ "$found" = "$expect" ] && verdict=ok
  printf '%-4s %-10s %-40s %s, expected %s; %s states, %d s\n' $verdict "$model" "${*:-base}" "$found" "$expect" \
    "$(awk '/states, stored/ { print $1 }' pan.log 2>/dev/null)" $((SECONDS - started)) | tee "$scratch/$(basename "$folder").line"
  rm -rf "$folder"
}

number=0 wanted=${1:-}
[ -z "$wanted" ] || [ -f "$models/$wanted.pml" ] || { echo "model: there is no model $wanted" >&2; exit 2; }
command -v spin >/dev/null || { echo 'model: spin is missing' >&2; exit 2; }
rm -rf "$scratch" && mkdir -p "$scratch" || exit 2
while read -r line; do
  read -r _ model _ <<<"$line"
  [ -n "$line" ] && { [ -z "$wanted" ] || [ "$wanted" = "$model" ]; } || continue
  while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
  number=$((number + 1))
  # shellcheck disable=SC2086
  run $number $line &
done <<<"$list"
wait
passed=$(cat "$scratch"/*.line | grep -c '^ok')
failed=$((number - passed))

# A switch that no run sets proves nothing; a number's default is none.
for model in "$models"/*.pml; do
  name=$(basename "$model" .pml)
  for switch in $(sed -n 's/^#ifn\?def \([A-Z_]*\).*/\1/p' "$model" | sort -u); do
    grep -q "^#define $switch [0-9]" "$model" && continue
    grep -qE "^[a-z]+ $name .*\b$switch\b" <<<"$list" && continue
    echo "FAIL $name: no run has the switch $switch"
    failed=$((failed + 1))
  done
done
rm -rf "$scratch"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
