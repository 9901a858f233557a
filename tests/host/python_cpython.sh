#!/bin/bash
# SPDX-License-Identifier: MIT
# CPython's own test modules (package libpython3.11-testsuite) as judges of hosts/python: run by Debian's python3.11 with
# each function on a trampoline, and again with a collection forced at every 1,000th call. The hook is on in every process
# and every interpreter that the tests start, isolated ones (-I) too: their interpreter is that of a virtual environment
# whose site activates it. Without arguments it lists its cases, with a name it runs one.
set -u
build=$(realpath -m "${CODEHEAP_BUILD:-build}")
# Module, how many tests it has at least, and how many processes and interpreters with the hook it starts at least. With
# LONG=1 no test is left out.
modules='test_generators:38:1 test_coroutines:96:1 test_asyncgen:65:1 test_threading:190:25 test_gc:45:5 test_fork1:4:1
test_code:28:1 test_sys_settrace:290:1 test_contextlib:80:1 test_functools:250:1'
# What fails without the hook, too: none of them. A test that does is named here, as MODULE.CLASS.METHOD.
fails_without=''
# left_out MODULE WHEN: tests that little is seen by and that wait for a time to pass. What another class has, too, as the same
# function, is left out without LONG=1; of the others only where collections are forced.
left_out() {
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || return
  case $1:$2 in
    test_fork1:*) echo test.fork_wait.ForkWait.test_wait ;;
    test_threading:*)
      printf 'test.test_threading.%s\n' {Lock,CRLock,ConditionAsRLock}Tests.test_timeout SemaphoreTests.test_acquire_timeout
      [ "$2" = plain ] || printf 'test.test_threading.%s\n' {PyRLock,Event,Condition,Barrier}Tests.test_timeout \
        BoundedSemaphoreTests.test_acquire_timeout ThreadTests.test_join_nondaemon_on_shutdown ;;
  esac
}

if [ $# = 0 ]; then
  for m in $modules; do printf '%s 120 0 -\n' "cpython_${m%%:*}" "cpython_${m%%:*}_collecting"; done
  # It asks of the machine, not of the library.
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || echo "cpython_modules_without_the_hook 240 0 -"
  exit 0
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/host-cpython.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "cpython: $*" >&2; exit 1; }
# Whatever the caller's environment asks of Python and of the extension.
unset "${!PYTHON@}" "${!CODEHEAP_PYTHON_@}" CODEHEAP_SINKS CODEHEAP_DEAD_NAMES
export TMPDIR=$work PYTHONPYCACHEPREFIX=$work/cache

# What site runs first in each interpreter. Where it ends, the heap is looked at and says what happened; what os._exit or
# a signal ends says only that it began.
environment() {
  local site=$work/env/lib/python3.11/site-packages
  mkdir -p "$work/env/bin" "$site" "$work/said"
  ln -s /usr/bin/python3.11 "$work/env/bin/python"
  echo 'home = /usr/bin' >"$work/env/pyvenv.cfg"
  printf '%s\nimport hook_is_on\n' "$build/python" >"$site/hook_is_on.pth"
  cat >"$site/hook_is_on.py" <<PYTHON
import atexit, codeheap, os
codeheap.activate()
said = "$work/said"
with open("%s/begun.%d.%x" % (said, os.getpid(), id(codeheap)), "w"):
    pass
def at_end():
    codeheap.check()
    stats = codeheap.stats()
    with open("%s/ended.%d.%x" % (said, os.getpid(), id(codeheap)), "w") as file:
        print(codeheap.mode(), stats["blocks_committed"], stats["blocks_freed"], stats["cycles"], file=file)
atexit.register(at_end)
PYTHON
}

# Tests of asyncio give a task a tenth of a second to end, which on a loaded machine it may not get.
is_late='test_asyncgen\.AsyncGenAsyncioTest\.'

# run PYTHON MODULE TESTS [LEFT-OUT..]: all its tests but for these, and no fewer than there are.
run() {
  local count tries=3 wanted=$(($3 + 3 - $#)) without=("${@:4}")
  while
    (cd "$work" && "$1" -m test -v "${without[@]/#/--ignore=}" "$2") >"$work/out" 2>&1
    local status=$?
    [ $status != 0 ] && [ $((--tries)) -gt 0 ] && grep -q "^FAIL: [^ ]* (test\.$is_late" "$work/out"
  do echo "$2: once more: $(grep '^FAIL: ' "$work/out")"; done
  count=$(sed -n 's/^Ran \([0-9]*\) tests\? in .*/\1/p' "$work/out" | tail -1)
  if [ $status != 0 ] || ! grep -qx 'Tests result: SUCCESS' "$work/out"; then
    sed -n 's/^\(ERROR\|FAIL\): [^ ]* (test\.\(.*\))$/\2/p' "$work/out" | sort -u >"$work/failed"
    grep -vxFf <(printf '%s\n' $fails_without) "$work/failed" >"$work/unknown"
    [ -s "$work/failed" ] && [ ! -s "$work/unknown" ] ||
      fail "$2 ends with $status after ${count:-no} tests: $(tail -60 "$work/out")"
    echo "$2: without the hook these fail, too: $(cat "$work/failed")"
  fi
  [ "${count:-0}" -ge "$wanted" ] || fail "$2 ran ${count:-no} tests, not $wanted: $(tail -20 "$work/out")"
}

with_hook() { # with_hook MODULE plain|collecting
  local name tests processes begun ended
  [ -r /usr/lib/python3.11/test/test_generators.py ] || fail 'libpython3.11-testsuite is not installed'
  for m in $modules; do
    IFS=: read -r name tests processes <<<"$m"
    [ "$name" != "$1" ] || break
  done
  [ "$name" = "$1" ] || fail "no module $1"
  environment
  run "$work/env/bin/python" "$name" "$tests" $(left_out "$name" "$2")
  begun=$(find "$work/said" -name 'begun.*' | wc -l)
  ended=$(find "$work/said" -name 'ended.*' | wc -l)
  # The hook was on all the time, and the code of functions that died was freed where collections were asked for.
  [ "$begun" -ge "$processes" ] || fail "only $begun interpreters have the hook"
  [ "$ended" -ge 1 ] || fail 'nobody has told how it ended'
  cat "$work"/said/ended.* >"$work/all"
  ! grep -v '^trampolines ' "$work/all" || fail 'the hook was off'
  awk '$2 > most { most = $2 } END { exit !(most > 500) }' "$work/all" || fail "few trampolines: $(cat "$work/all")"
  if [ "${CODEHEAP_PYTHON_COLLECT_EVERY:-0}" != 0 ]; then
    awk '$4 > most { most = $4; freed = $3 } END { exit !(most > 10 && freed > 100) }' "$work/all" ||
      fail "few collections: $(cat "$work/all")"
  fi
  awk -v name="$name" -v begun="$begun" '{ made += $2; freed += $3; cycles += $4 } END {
    print name ": " begun " interpreters; " made " trampolines made, " freed " freed, " cycles " collections" }' "$work/all"
}

without_hook() {
  local m name tests
  for m in $modules; do
    IFS=: read -r name tests _ <<<"$m"
    run /usr/bin/python3.11 "$name" "$tests"
  done
}

case $1 in
  cpython_modules_without_the_hook) without_hook ;;
  cpython_*_collecting)
    # What dies is freed, and not kept for the next function of its name.
    export CODEHEAP_PYTHON_COLLECT_EVERY=1000 CODEHEAP_PYTHON_REUSE=0
    name=${1%_collecting}
    with_hook "${name#cpython_}" collecting ;;
  cpython_*) with_hook "${1#cpython_}" plain ;;
  *) fail "no case $1" ;;
esac
