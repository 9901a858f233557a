#!/bin/bash
# SPDX-License-Identifier: MIT
# LLVM 14 on the heap (hosts/llvm), built against the installed library: ordinary programs that clang compiled to bitcode
# do what they do when clang compiled them to a file (the Makefile there makes both), and the checks of the memory managers
# hold, on each backend and where the process has denied itself new executable rights. Without arguments it lists its cases,
# with a name it runs one.
. tests/support/script.sh
here=hosts/llvm
made=$build/llvm/programs
lli=$build/llvm/codeheap-lli
programs_c="words numbers jumps pointers large threads processes"
programs_cc="exceptions globals tasks"
checks() { # the cases of a program of checks, without running it: the list is made before it is built
  sed -n 's/^\t{"\([a-z_]*\)",.*/\1/p' "$here/check_life.h" "$here/check_$1.cc"
}
if [ $# = 0 ]; then
  for p in $programs_c $programs_cc; do echo "llvm_runs_$p 120 0 -"; done
  for m in mcjit jitlink rtdyld; do
    for c in $(checks $m); do echo "llvm_${m}_$c 120 0 -"; done
    printf '%s\n' "llvm_${m}_with_executable_rights_denied 300 0 -" "llvm_${m}_on_each_backend 600 0 -" \
      "llvm_${m}_forgets_no_memory 300 0 -"
  done
  printf '%s\n' "llvm_links_two_modules 120 0 -" "llvm_runs_with_executable_rights_denied 300 0 -" \
    "llvm_runs_on_each_backend 300 0 -" "llvm_runs_with_every_sink 120 0 -" "llvm_drops_programs 300 0 -" "llvm_drops_a_program_whose_thread_runs_on 120 0 -" \
    "llvm_keeps_programs_apart 120 0 -" "llvm_errors_are_sentences 120 0 -" \
    "llvm_names_modules_in_a_perf_map 120 0 -" "llvm_names_functions_in_gdb 120 0 -" \
    "llvm_frames_of_damaged_sections 120 0 -" "llvm_each_check_is_listed 60 0 -"
  exit 0
fi
make_work
run() { "$@" </dev/null; }

# expect NAME [ARGUMENT..]: what the native program says goes to $work/expected; its status is $status.
expect() {
  run "$made/$1" "${@:2}" >"$work/expected" 2>"$work/expected.err"
  status=$?
}
# same NAME LLI-OPTIONS...: output, errors and status of the bitcode are those of the native program.
same() {
  local name=$1 status got args=()
  shift
  [ "$name" = globals ] || args=(one "two words")
  expect "$name" "${args[@]}"
  run "$lli" "$@" "$made/$name.bc" "${args[@]}" >"$work/got" 2>"$work/got.err"
  got=$?
  [ $got = 77 ] && { cat "$work/got.err"; exit 77; }
  [ $got = $status ] || fail "$name: status $got, not $status: $(tail -3 "$work/got.err")"
  cmp "$work/expected" "$work/got" && cmp "$work/expected.err" "$work/got.err" || fail "$name: another output"
}

under=() # what a program of checks is started by
check() { # check MANAGER CASE
  run "${under[@]}" "$build/llvm/check_$1" "$2" "$made/module.bc"
}
all_checks() { # all_checks MANAGER: under the environment as it is
  local c status
  for c in $(checks "$1"); do
    check "$1" "$c" >"$work/out" 2>&1
    status=$?
    [ $status = 77 ] && { cat "$work/out"; exit 77; }
    [ $status = 0 ] || fail "$1 $c: $status: $(tail -3 "$work/out")"
  done
}
# procmem is on x86-64 only; dual is what the other cases run on, where nothing else is asked for.
backends="memfd $([ "$(uname -m)" != x86_64 ] || echo procmem)"
[ -z "${CODEHEAP_TEST_LONG:-}${CODEHEAP_WX:-}" ] || backends="dual $backends"
checks_on_each_backend() {
  local b
  for b in $backends; do CODEHEAP_WX=$b all_checks "$1"; done
}

number_of() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" "$2"; }

case_drops_programs() {
  local status times=25 one many
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || times=200
  expect exceptions
  run "$lli" --drop --stats "$made/exceptions.bc" >/dev/null 2>"$work/one" || fail "a load"
  "$lli" --drop --times=$times --stats "$made/exceptions.bc" >"$work/got" 2>"$work/many" || fail "$times loads"
  for _ in $(seq $times); do cat "$work/expected"; done | cmp - "$work/got" || fail "another output at some load"
  one=$(number_of pages_peak "$work/one") many=$(number_of pages_peak "$work/many")
  # What one load is not rid of, because a word on the stack names it, the next cycle frees.
  [ "$many" -le $((one * 3)) ] || fail "$times loads took $many pages, one took $one"
  [ "$(number_of blocks_freed "$work/many")" -ge $(($(number_of blocks_freed "$work/one") * (times - 2))) ] || fail "blocks are left"
  [ "$(number_of blocks_now "$work/many")" -le 6 ] || fail "blocks are left at the end"
}
# No signal reaches the thread: the collection gives up, and that is no failure of the program's.
case_drops_a_program_whose_thread_runs_on() {
  clang-14 -O1 -emit-llvm -c -x c -o "$work/blocks.bc" - <<'C' || fail "clang"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
static volatile int runs;
static void *stay(void *arg)
{
	for (;;)
		runs = 1;
	return arg;
}
int main(void)
{
	sigset_t all, before;
	pthread_t thread;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	pthread_create(&thread, NULL, stay, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	while (!runs)
		;
	return puts("done") < 0 ? 1 : 7;
}
C
  local times=1
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || times=2
  run "$lli" --drop --times=$times "$work/blocks.bc" >"$work/got" 2>"$work/err"
  [ $? = 7 ] || fail "status: $(cat "$work/err")"
  yes 'done' | head -n $times | cmp - "$work/got" && [ ! -s "$work/err" ] || fail "$(cat "$work/err")"
}
case_keeps_programs_apart() { # three loads at one time, each with its data
  local status
  expect globals
  run "$lli" --times=3 --stats "$made/globals.bc" >"$work/got" 2>"$work/stats"
  [ "$? $status" = "5 5" ] || fail "status"
  cat "$work/expected" "$work/expected" "$work/expected" | cmp - "$work/got" || fail "another output"
  expect globals four
  run "$lli" "$made/globals.bc" four >"$work/got"
  [ "$? $status" = "4 4" ] || fail "exit"
  cmp "$work/expected" "$work/got" || fail "exit: another output"
}
says() { # says PATTERN COMMAND...: ends with 2 and this sentence on stderr
  local pattern=$1
  shift
  run "$@" >"$work/out" 2>&1
  [ $? = 2 ] || fail "$*: not 2: $(tail -3 "$work/out")"
  grep -q "$pattern" "$work/out" || fail "$*: $(tail -3 "$work/out")"
}
case_errors_are_sentences() {
  says usage "$lli"
  says 'not a number' "$lli" --times=0 x.bc
  says 'No such file' "$lli" "$work/none.bc"
  echo no bitcode >"$work/text.bc"
  says 'not LLVM bitcode' "$lli" "$work/text.bc"
  echo 'int other(void) { return 1; }' | clang-14 -emit-llvm -c -x c -o "$work/other.bc" -
  says 'no function main' "$lli" "$work/other.bc"
  echo 'int there_is_no_such_function(void); int main(void) { return there_is_no_such_function(); }' |
    clang-14 -emit-llvm -c -x c -o "$work/none.bc" -
  says 'there_is_no_such_function' "$lli" "$work/none.bc"
  echo 'static char much[3 << 20]; int main(int n, char **a) { much[n] = 1; return much[0] + (a != 0) - 1; }' |
    clang-14 -emit-llvm -c -x c -o "$work/large.bc" -
  says 'codeheap: .*the pool has 2097152' "$lli" --pool=2 "$work/large.bc"
  run "$lli" --pool=16 "$work/large.bc" || fail "a pool that is large enough"
}
case_names_modules_in_a_perf_map() {
  CODEHEAP_SINKS=perfmap "$lli" "$made/numbers.bc" >/dev/null 2>"$work/err" </dev/null &
  local process=$!
  wait $process
  grep -qE '^[0-9a-f]+ [0-9a-f]+ numbers\.bc' "/tmp/perf-$process.map" || fail "the map does not name the module"
  rm -f "/tmp/perf-$process.map"
}

case_names_functions_in_gdb() { # by LLVM's own part of gdb's interface; our part names the module instead
  local sinks callers
  for sinks in unwind unwind,gdb; do
    CODEHEAP_SINKS=$sinks gdb -q -nx -batch -ex 'set breakpoint pending on' -ex 'break vsnprintf' -ex run -ex bt --args \
      "$lli" "$made/numbers.bc" >"$work/out" 2>&1 </dev/null
    skip_where_ptrace_is_refused "$work/out"
    callers=$(sed -nE 's/^#[12] +(0x[0-9a-f]+ in )?([^ ]*) .*/\2/p' "$work/out" | tr '\n' ' ')
    [ "$sinks $callers" = 'unwind say main ' ] || [ "$sinks $callers" = 'unwind,gdb numbers.bc numbers.bc ' ] || fail "$(tail -5 "$work/out")"
  done
}
case_each_check_is_listed() {
  local m
  for m in mcjit jitlink rtdyld; do
    "$build/llvm/check_$m" >"$work/out" || fail "$m: no list"
    checks $m | cmp - "$work/out" || fail "$m: cases are missing here, or in its table"
  done
}

name=${1#llvm_}
case $name in
  runs_with_executable_rights_denied)
    for p in words jumps exceptions threads; do same $p --mdwe; done ;;
  frames_of_damaged_sections) run "$build/llvm/check_frames" ;;
  runs_on_each_backend)
    for p in processes exceptions threads large; do
      for b in $backends; do CODEHEAP_WX=$b same $p; done
    done ;;
  runs_with_every_sink) # what others are told changes nothing, and all is withdrawn; libunwind is not in the programs
    JITDUMPDIR=$work CODEHEAP_SINKS=unwind,jitdump,gdb same exceptions
    JITDUMPDIR=$work CODEHEAP_SINKS=unwind,jitdump,gdb all_checks mcjit
    JITDUMPDIR=$work CODEHEAP_SINKS=unwind,jitdump,gdb all_checks rtdyld
    JITDUMPDIR=$work CODEHEAP_SINKS=unwind,jitdump,gdb all_checks jitlink ;;
  runs_*) same "${name#runs_}" ;;
  links_two_modules) same linked --extra="$made/linked_part.bc" ;;
  mcjit_with_executable_rights_denied | jitlink_with_executable_rights_denied | rtdyld_with_executable_rights_denied)
    CHECK_MDWE=1 all_checks "${name%%_*}" ;;
  mcjit_forgets_no_memory | jitlink_forgets_no_memory | rtdyld_forgets_no_memory)
    # tables of unwinders, memory in place of sections
    under=(env "LD_PRELOAD=$(gcc -print-file-name=liblsan.so)" LSAN_OPTIONS=exitcode=23)
    run "${under[@]}" true >/dev/null 2>&1 && [ -e "${under[1]#*=}" ] || { echo "skip: leaks cannot be looked for"; exit 77; }
    all_checks "${name%%_*}" ;;
  mcjit_on_each_backend | jitlink_on_each_backend | rtdyld_on_each_backend) checks_on_each_backend "${name%%_*}" ;;
  mcjit_* | jitlink_* | rtdyld_*) check "${name%%_*}" "${name#*_}" ;;
  *) "case_$name" ;;
esac
