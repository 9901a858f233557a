#!/bin/bash
# SPDX-License-Identifier: MIT
# Profiles of Debian's python3.11 by hosts/python: the cases of hosts/python/tests/cases_profile.py, each in a process of
# its own, and programs that run under `-m codeheap --profile=FILE`, end and say the same as without, and leave a profile
# however they end. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
build=$(realpath -m "$build")
here=$(pwd)/hosts/python/tests
python=/usr/bin/python3.11
# Whatever the caller's environment asks of Python and of the extension.
unset "${!PYTHON@}" "${!CODEHEAP_PYTHON_@}" CODEHEAP_SINKS CODEHEAP_DEAD_NAMES
export PYTHONPATH=$build/python:$here PYTHONDONTWRITEBYTECODE=1

cases="python_profile_shows_a_split_of_three_to_one:60:timed python_profile_shows_both_of_two:120:-
python_profile_shows_whole_stacks:240:- python_profile_shows_who_ran_when_it_began:120:-
python_profile_shows_hardly_others_when_it_began:60:timed python_profile_shows_threads:120:-
python_profile_by_time_shows_who_waits:120:- python_profile_by_time_shows_shares:60:timed
python_profile_of_an_interpreter_within:120:- python_profile_names_what_died:240:-
python_profile_while_code_is_thrown_away:120:- python_profile_is_written_on_every_way_out:120:-
python_profile_is_written_at_the_end_of_the_program:240:-
python_profile_ends_with_its_process:120:- python_profile_refuses_before_the_body:120:-
python_profile_is_one_at_a_time:120:- python_profile_that_is_not_written_masks_nothing:120:-
python_profile_waits_for_no_list_of_threads:120:-
python_profile_that_is_interrupted_is_not_left_running:120:- python_profile_begins_and_ends_often:120:-
python_profiled_program_ends_as_without:300:- python_profiled_modules_folders_and_standard_input:120:-
python_profiled_processes_of_the_program:120:- python_profile_options_of_the_command:120:-"
[ $# != 0 ] || { list_cases $cases; exit; }

make_work
export JITDUMPDIR=$work TMPDIR=$work
program() { cat >"$work/$1"; }

# same WORDS...: the program of these words ends and says the same under a profile as by itself, and the profile is there. By
# the wall clock: which functions of a short program a tick of processor time finds is luck on a busy machine.
same() {
  local way
  rm -f "$work/p.folded"
  for way in plain profiled; do
    local extra=()
    [ $way = plain ] || extra=(-m codeheap --profile="$work/p.folded" --profile-wall --profile-rate=1999)
    (cd "$work" && "$python" "${extra[@]}" "$@" >"$work/$way.out" 2>"$work/$way.err" <"${input:-/dev/null}")
    echo "ended with $?" >>"$work/$way.out"
  done
  cmp -s "$work/plain.out" "$work/profiled.out" && cmp -s "$work/plain.err" "$work/profiled.err" ||
    fail "not the same: $*: $(diff "$work/plain.out" "$work/profiled.out"; diff "$work/plain.err" "$work/profiled.err")"
  [ -s "$work/p.folded" ] || fail "no profile of $*"
}
ended() { grep -qx "ended with $1" "$work/profiled.out" || fail "it did not end with $1: $(cat "$work/profiled.out")"; }
# stack REGEX: a stack begins so; outermost first.
stack() { grep -qE "^$1" "$work/p.folded" || fail "no stack $1: $(head -20 "$work/p.folded")"; }
# What most programs here do.
spin='
import time
def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(100): pass
'

case $1 in
  python_profiled_program_ends_as_without)
    while IFS='|' read -r code end; do
      printf '%s\n' "$spin" 'spin(0.05)' 'print("said")' "$end" | program p.py
      same p.py one two
      ended "$code"
      # Nothing of this package is in it.
      stack "py::<module>:$work/p.py;py::spin:$work/p.py;"
      ! grep -E 'py::(main|run|show_without_our_frames):.*codeheap' "$work/p.folded" || fail 'our own frames'
    done <<'END'
0|
7|import sys; sys.exit(7)
1|raise SystemExit("words")
1|raise ValueError("uncaught")
130|raise KeyboardInterrupt
130|import os, signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)
0|import threading; threading.Thread(target=spin, args=(100,), daemon=True).start(); spin(0.05)
0|import threading; threading.Thread(target=spin, args=(0.05,)).start()
0|import atexit; atexit.register(spin, 0.05)
END
    # What the kernel ends at once has no profile, and nothing half written.
    printf '%s\n' "$spin" 'spin(0.05)' 'import os; os._exit(3)' | program p.py
    rm -f "$work/p.folded"
    "$python" -m codeheap --profile="$work/p.folded" "$work/p.py"
    [ $? = 3 ] && [ ! -e "$work/p.folded" ] || fail "os._exit leaves a profile"
    [ -z "$(find "$work" -name '*.folded*')" ] || fail "something is left: $(ls "$work")" ;;
  python_profiled_modules_folders_and_standard_input)
    mkdir -p "$work/pack" "$work/app"
    printf '%s\n' "$spin" 'spin(0.05)' 'print(__name__, __package__)' | program pack/tool.py
    same -m pack.tool a b && stack "py::_run_module_as_main.*py::<module>:$work/pack/tool.py;py::spin:"
    same -c "$spin"'spin(0.05)' && stack "py::<module>:<string>;py::spin:<string>;"
    cp "$work/pack/tool.py" "$work/app/__main__.py"
    same app && stack ".*py::<module>:$work/app/__main__.py;py::spin:"
    (cd "$work/app" && "$python" -m zipfile -c ../app.pyz __main__.py)
    same app.pyz && stack ".*py::<module>:$work/app.pyz/__main__.py;py::spin:"
    input=$work/pack/tool.py same - a && stack "py::<module>:<stdin>;py::spin:<stdin>;" ;;
  python_profiled_processes_of_the_program)
    printf '%s\n' "$spin" 'import multiprocessing, os, sys
def in_child(n): spin(0.05); return n
if __name__ == "__main__":
    spin(0.05)
    with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(in_child, range(4)))
    child = os.fork()
    if not child: spin(0.05); sys.exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))' | program p.py
    same p.py
    stack "py::<module>:$work/p.py;py::spin:"
    ! grep -q in_child "$work/p.folded" || fail "a child of fork is in it" ;;
  python_profile_options_of_the_command)
    printf '%s\n' "$spin" 'spin(0.05)' | program p.py
    "$python" -m codeheap --profile="$work/p.svg" --profile-wall --profile-rate=500 "$work/p.py" || fail 'it failed'
    grep -q '<svg' "$work/p.svg" || fail "no graph: $(head -3 "$work/p.svg")"
    grep -q "p.py" "$work/p.svg" || fail 'no title'
    # By processor time, as often as it takes until a tick finds the function.
    until "$python" -m codeheap --profile="$work/p.folded" "$work/p.py" || fail 'it failed'; grep -q 'py::spin:' "$work/p.folded"
    do rm "$work/p.folded"; done
    for wrong in "--profile=$work/nowhere/x" "--profile=" "--profile=$work/p.svg --profile-rate=0" \
      "--profile=$work/p.svg --mode=forward"; do
      echo 'print("it runs")' | program q.py
      "$python" -m codeheap $wrong "$work/q.py" >"$work/out" 2>"$work/err"
      [ "$? $(wc -l <"$work/err") $(cat "$work/out")" = "2 1 " ] || fail "'$wrong': $(cat "$work/out" "$work/err")"
    done
    for wrong in --profile-rate=9 --profile-wall "--profile=x --profile-rate=fast"; do
      "$python" -m codeheap $wrong "$work/q.py" >/dev/null 2>"$work/err" && fail "accepted: $wrong"
      grep -q "^python3.11 -m codeheap" "$work/err" || fail "says nothing about '$wrong': $(cat "$work/err")"
    done
    "$python" -m codeheap --help | grep -q -- --profile= || fail 'no help' ;;
  *)
    case=case_${1#python_}
    (cd "$work" && exec "$python" "$here/cases_profile.py" "$case") ;;
esac
