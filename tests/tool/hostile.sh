#!/bin/bash
# SPDX-License-Identifier: MIT
# Cases of the core tier, each in a process that may not gain executable memory by mprotect (a filter as systemd's
# MemoryDenyWriteExecute), or that has no membarrier; `make hostile` runs them all under all restrictions.
#
#     hostile.sh         lists the cases: name limit signal alone|-
#     hostile.sh NAME    runs one: 0 passed, 77 skipped, else failed
set -u
build=${CODEHEAP_BUILD:-build}

# RESTRICTION PROGRAM CASE; each by the name hostile_CASE_RESTRICTION.
table='
wx-filter unit_pages_pool each_failing_call_leaves_a_sound_pool_dual
wx-filter unit_codeheap_failures failures_block_open_span
wx-filter unit_codeheap_failures failures_fork
wx-filter adversary_memory s26_each_allocation_fails_once
wx-filter api_trampolines trampoline_passes_everything_on
membarrier-enosys adversary_running s01_block_invalidates_itself_in_a_callee_polls
membarrier-enosys adversary_threads s29_discard_of_everything_while_eight_threads_run_polls
membarrier-enosys adversary_full s28_eight_threads_compile_in_one_page_polls
membarrier-enosys unit_os_lock lock_has_one_holder_at_a_time
membarrier-enosys unit_codeheap_failures failures_heap_collect_garbage
membarrier-enosys unit_codeheap_failures failures_block_open_that_collects
'

while read -r restriction program case; do
  [ -n "$restriction" ] || continue
  name=hostile_${case}_${restriction//-/_}
  if [ $# = 0 ]; then
    echo "$name 60 0 -"
  elif [ "$1" = "$name" ]; then
    "$build/tests/hostile" "$restriction" "$build/tests/$program" "$case"
    status=$?
    [ $status != 125 ] || echo "the restriction is not in force"
    exit $status
  fi
done <<<"$table"
[ $# = 0 ] || { echo "no case $1" >&2; exit 1; }
