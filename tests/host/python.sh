#!/bin/bash
# SPDX-License-Identifier: MIT
# hosts/python: CPython 3.11 on the installed library. The cases of hosts/python/tests/*.py, each in a process of its own,
# and programs that end and say the same with `-m codeheap` as without. Without arguments it lists its cases, with a
# name it runs one.
. tests/support/script.sh
build=$(realpath -m "$build")
here=$(pwd)/hosts/python/tests
python=/usr/bin/python3.11
# Whatever the caller's environment asks of Python and of the extension.
unset "${!PYTHON@}" "${!CODEHEAP_PYTHON_@}" CODEHEAP_SINKS CODEHEAP_DEAD_NAMES
export PYTHONPATH=$build/python:$here PYTHONDONTWRITEBYTECODE=1

cases="python_hundreds_of_thousands_of_definitions_stay_flat:300 python_definitions_are_collected_without_reuse:300
python_definitions_of_other_names_are_collected:300 python_definitions_in_a_full_pool_run_all_the_same:300
python_nothing_is_freed_in_the_mode_that_keeps:120 python_each_function_has_a_frame_of_its_name:120
python_discard_and_deactivate_inside_trampolined_frames:120 python_a_function_dies_while_it_runs:120
python_suspended_generators_and_coroutines:120 python_four_threads_turn_it_on_and_off:120
python_the_first_activation_is_of_four_threads:120
python_threads_hold_their_code_while_they_wait:120 python_threads_come_and_go:120 python_collections_at_each_call:120
python_threads_of_c_come_to_python:120 python_greenlets_are_not_discarded_under:120
python_fork_in_trampolined_frames_copy:120 python_fork_in_trampolined_frames_cow:120
python_fork_without_code_is_for_programs_that_exec:120 python_multiprocessing_forks:120
python_subprocesses_start_while_threads_make_code:120 python_the_end_of_the_program:120
python_repeated_activation_until_the_end:120 python_activation_while_the_interpreter_ends_is_refused:120
python_first_activation_at_the_end_is_refused:120
python_daemon_threads_at_the_end:120 python_daemon_threads_and_a_discard_at_the_end:120
python_interpreters_come_and_go:120 python_objects_that_die_as_an_interpreter_ends_may_collect:120
python_an_interpreter_is_active_alone:120
python_an_interpreter_deactivates_and_others_go_on:120 python_wrong_options_change_nothing:120
python_an_allocation_that_fails_is_a_memory_error:120
python_the_environment_has_the_defaults:120 python_every_backend_runs_threads:120
python_another_evaluator_is_left_alone:120 python_dead_functions_leave_nothing_to_others:120
python_sinks_are_chosen_and_say_what_failed:120 python_a_check_that_cannot_be_made_says_why:120
python_an_activation_whose_sink_fails_changes_nothing:120
python_a_stretch_is_profiled:120 python_another_python_is_refused:120 python_exceptions_pass_through_code:120
python_runs_uncaught_exception:120 python_runs_exit_codes:120 python_runs_arguments_and_paths:120
python_runs_a_module:120 python_runs_code_in_the_command:120 python_runs_standard_input:120 python_runs_wrong_syntax:120
python_runs_no_such_file:120 python_runs_an_interrupt:120 python_runs_a_folder_and_an_archive:120
python_runs_processes_of_the_program:120 python_runs_hooks_of_the_program:120 python_runs_compiled_file:120
python_runs_with_options:120
python_each_case_of_the_files_is_listed:60"
if [ $# = 0 ]; then
  for case in $cases; do echo "${case%:*} ${case#*:} 0 -"; done
  exit 0
fi

# These choose backends themselves.
case $1 in *_fork_in_* | *_wrong_options_* | *_every_backend_* | *_environment_*) unset CODEHEAP_WX ;; esac
make_work
export JITDUMPDIR=$work

# same WORDS...: the program of these words does the same with and without the package.
same() {
  local way
  for way in plain codeheap; do
    local extra=()
    [ $way = plain ] || extra=(-m codeheap)
    (cd "$work" && "$python" "${extra[@]}" "$@" >"$work/$way.out" 2>"$work/$way.err" <"${input:-/dev/null}")
    echo "ended with $?" >>"$work/$way.out"
    # A name that differs with each process.
    sed -i -e 's/0x[0-9a-f]*/0xADDRESS/g' "$work/$way.out" "$work/$way.err"
  done
  cmp -s "$work/plain.out" "$work/codeheap.out" && cmp -s "$work/plain.err" "$work/codeheap.err" && return
  diff "$work/plain.out" "$work/codeheap.out" >&2
  diff "$work/plain.err" "$work/codeheap.err" >&2
  fail "not the same: $*"
}

# What `same` compares had better be there.
said() { grep -qF -- "$1" "$work/codeheap.out" "$work/codeheap.err" || fail "it did not say: $1"; }

program() { cat >"$work/$1"; }

case ${1#python_runs_} in
  uncaught_exception)
    program p.py <<'P'
import atexit
atexit.register(print, "at exit")
class Odd(Exception): pass
def f(n):
    if n == 0: raise Odd("deep")
    f(n - 1)
try:
    f(3)
except Odd as odd:
    raise KeyError("outer") from odd
P
    same p.py && said 'raise KeyError("outer") from odd' && said "ended with 1" && said "at exit" ;;
  exit_codes)
    for how in "import sys; sys.exit(7)" "raise SystemExit('words')" "raise SystemExit" "import os; os._exit(9)" \
      "import os, signal; os.kill(os.getpid(), signal.SIGTERM)" "import os; os.abort()" "assert False"; do
      echo "$how" | program p.py
      same p.py
    done ;;
  arguments_and_paths)
    mkdir -p "$work/sub"
    program sub/p.py <<'P'
import sys, __main__, helper
print(sys.argv, sys.path[0], __name__, __file__, __main__ is sys.modules["__main__"])
names = dict(vars(__main__)); names.pop("names", None)
print(sorted(names), __spec__, __package__, type(__loader__).__name__, __loader__.name, __builtins__, __cached__)
class Kept: pass
import pickle; print(type(pickle.loads(pickle.dumps(Kept()))) is Kept)
P
    echo "print('helper of', __name__)" | program sub/helper.py
    same sub/p.py one --two -m three && said "helper of helper" && said "['sub/p.py', 'one', '--two', '-m', 'three']"
    ln -s sub/p.py "$work/link.py"
    same link.py && same ./sub/../sub/p.py && same "$work/sub/p.py" ;;
  a_module)
    mkdir -p "$work/pack/inner"
    echo "print('pack is imported')" | program pack/__init__.py
    echo "import sys; print(sys.argv[1:], sys.path[0], __name__, __package__, __spec__.name); 1 / 0" | program pack/tool.py
    echo "import sys; print('main of', __package__, sys.argv)" | program pack/inner/__main__.py
    same -m pack.tool a b && said "ZeroDivisionError" && same -m pack.inner x && same -m pack && same -m nothing_there
    echo '{"a": 1}' | program in.json
    same -m json.tool in.json && said '"a": 1' ;;
  code_in_the_command)
    same -c 'import sys; print(sys.argv, repr(sys.path[0]), __name__, sorted(globals()))' a -b
    same -c 'def f(): return 1 / 0
f()' && said 'File "<string>", line 2, in <module>' ;;
  standard_input)
    echo "import sys; print(sys.argv, sys.path[0] == '', __name__); 1 / 0" | program in
    input=$work/in same - a b && said ZeroDivisionError ;;
  wrong_syntax)
    printf 'x = 1\ndef (:\n' | program p.py
    same p.py && said SyntaxError ;;
  no_such_file)
    same nothing.py && said "ended with 2" && same sub/nothing.py ;;
  an_interrupt)
    echo 'raise KeyboardInterrupt' | program p.py
    same p.py && said "ended with 130"
    echo 'import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)' | program p.py
    same p.py && said "ended with 130" ;;
  a_folder_and_an_archive)
    mkdir "$work/app"
    echo "import sys, inside; print(sys.argv, sys.path[0], __name__, __file__); inside.go()" | program app/__main__.py
    echo "def go(): raise ValueError('inside')" | program app/inside.py
    same app x y && said ValueError
    (cd "$work/app" && "$python" -m zipfile -c ../app.pyz __main__.py inside.py)
    same app.pyz x y && said ValueError ;;
  processes_of_the_program)
    program p.py <<'P'
import multiprocessing, sys
def square(n): return n * n
if __name__ == "__main__":
    for way in "fork", "spawn", "forkserver":
        with multiprocessing.get_context(way).Pool(2) as pool:
            print(way, pool.map(square, range(9)))
P
    same p.py && said "spawn [0, 1, 4, 9, 16, 25, 36, 49, 64]" && said "ended with 0" ;;
  hooks_of_the_program)
    program p.py <<'P'
import sys, traceback, threading
def hook(kind, value, trace):
    print("hook", kind, value, [f.name for f in traceback.extract_tb(trace)], value.__traceback__ is trace)
sys.excepthook = hook
def run(): raise OSError("in a thread")
t = threading.Thread(target=run); t.start(); t.join()
def f(): raise ValueError("seen by the hook")
f()
P
    same p.py && said "hook <class 'ValueError'> seen by the hook ['<module>', 'f'] True" ;;
  compiled_file)
    echo "print('compiled', __file__, type(__loader__).__name__)" | program p.py
    "$python" -c "import py_compile; py_compile.compile('$work/p.py', '$work/q.pyc')"
    same q.pyc && said compiled ;;
  with_options)
    echo "import codeheap; print(codeheap.mode(), codeheap.stats()['sinks'], codeheap.stats()['pool_bytes'])" | program p.py
    said=$("$python" -m codeheap --sinks=unwind,gdb --mode=kept --pool=0x200000 --stats "$work/p.py" 2>"$work/err") || fail "it failed"
    [ "$said" = "kept unwind,gdb 2097152" ] || fail "options: $said"
    grep -q "'blocks_committed': " "$work/err" || fail "no statistics: $(cat "$work/err")"
    for wrong in --mode=x --sinks=paper --pool=12345 --pool=0x10000000000000000 --fork=; do
      "$python" -m codeheap $wrong "$work/p.py" >"$work/out" 2>"$work/err"
      [ "$? $(wc -l <"$work/err") $(cat "$work/out")" = "2 1 " ] || fail "'$wrong': $(cat "$work/out" "$work/err")"
    done
    for wrong in --what --pool=x ""; do
      "$python" -m codeheap $wrong >/dev/null 2>"$work/err" && fail "accepted: $wrong"
      grep -q "^python3.11 -m codeheap" "$work/err" || fail "says nothing about '$wrong': $(cat "$work/err")"
    done
    "$python" -m codeheap --help | grep -q -- --sinks= || fail "no help" ;;
  python_each_case_of_the_files_is_listed)
    for name in $(sed -n 's/^def case_\([a-z_0-9]*\)().*/\1/p' "$here"/cases_*.py); do
      grep -q "python_$name:" "$0" "${0%.sh}_profile.sh" || fail "$name is not in the list of $0"
    done ;;
  *)
    case=case_${1#python_}
    file=$(grep -l "^def $case()" "$here"/cases_*.py) || exit 2
    (cd "$work" && exec "$python" "$file" "$case") ;;
esac
