#!/bin/bash
# SPDX-License-Identifier: MIT
# Debian's python3.11 with hosts/python, seen from outside: its functions are frames of their own in perf's call chains, in
# gdb's backtraces and in the process's own, names in a perf map, and nodes of callgrind's graph that are called as often
# as they are. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
build=$(realpath -m "$build")
cases='python_functions_are_in_the_chains_of_perf:300:- python_chains_of_perf_are_whole:120:timed
python_functions_are_leaves_by_the_perf_map:300:-
python_functions_are_frames_of_gdb:240:- python_functions_are_nodes_of_callgrind:300:- python_functions_are_frames_of_the_library:60:-'

[ $# != 0 ] || { list_cases $cases; exit; }
work=$(mktemp -d "${TMPDIR:-/tmp}/host-python.XXXXXX") || exit 1
# Whatever the caller's environment asks of Python and of the extension.
unset "${!PYTHON@}" "${!CODEHEAP_PYTHON_@}" CODEHEAP_SINKS CODEHEAP_DEAD_NAMES
map=
trap 'rm -rf "$work" $map' EXIT
export HOME=$work JITDUMPDIR=$work PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1
python=/usr/bin/python3.11
fail() { echo "python: $*" >&2; exit 1; }
# Frames of the program itself, as its name and file.
mine() { grep -oE "py::[^:]+:$work/work.py" "$@" | sed 's/^py:://; s/:.*//'; }

# For its listener to BPF programs perf would wait for a second at the end.
record=(perf record -q --no-bpf-event -e cpu-clock:u)
need_perf() {
  "${record[@]}" -o "$work/probe" -- true >"$work/err" 2>&1 ||
    { echo "perf record is refused: $(tail -1 "$work/err")"; exit 77; }
}

work_hard() {
  cat >"$work/work.py" <<'END'
import sys, time
def leafy(n):
    s = 0
    for i in range(n):
        s += i * i
    return s
class Thing:
    def middle(self, n):
        return leafy(n) + 1
def steps(thing):
    while True:
        yield thing.middle(300)
def outer(seconds):
    step = steps(Thing())
    end = time.process_time() + seconds
    while time.process_time() < end:
        next(step)
outer(float(sys.argv[1]))
END
}

# The interpreter has no frame pointers: perf walks it by its tables, and trampolines by those of the jitdump. $samples and
# $whole: how many samples are in leafy, and how many of these have the whole chain.
chains_of_perf() { # chains_of_perf SECONDS
  rm -f "$work"/jit*
  "${record[@]}" -k 1 -F 499 --call-graph dwarf,16384 -o "$work/raw.data" \
    $python -m codeheap --sinks=jitdump,unwind "$work/work.py" "$1" >"$work/out" 2>"$work/err" ||
    fail "perf record: $(tail -5 "$work/err")"
  perf inject --jit -i "$work/raw.data" -o "$work/perf.data" 2>"$work/err" || fail "perf inject: $(tail -5 "$work/err")"
  perf script -i "$work/perf.data" -F ip,sym 2>"$work/err" >"$work/script"
  read -r samples whole < <($python - "$work/script" "$work/work.py" <<'PYTHON'
import sys
chain = ["leafy", "Thing.middle", "steps", "outer", "<module>"]
wanted = ["py::%s:%s" % (name, sys.argv[2]) for name in chain]
samples = whole = 0
for text in open(sys.argv[1]).read().split("\n\n"):
    frames = [line.split(None, 1)[1] for line in text.split("\n") if len(line.split(None, 1)) == 2]
    ours = [f for f in frames if f.startswith("py::") and f.endswith(sys.argv[2])]
    if wanted[0] in ours:
        samples += 1
        whole += ours == wanted and any("Py_BytesMain" in f for f in frames)
print(samples, whole)
PYTHON
  )
  echo "${samples:=0} samples are in leafy, ${whole:=0} have the whole chain"
}
# perf loses samples, and what is mapped, while it waits for a processor: again until one is whole.
python_functions_are_in_the_chains_of_perf() {
  local samples whole=0
  need_perf
  work_hard
  while [ "$whole" = 0 ]; do chains_of_perf 0.4; done
}
python_chains_of_perf_are_whole() {
  local samples whole
  need_perf
  work_hard
  chains_of_perf 1.5
  [ "$samples" -ge 100 ] && [ $((whole * 100)) -ge $((samples * 95)) ] || fail 'few chains are whole'
}

# A trampoline runs for a moment: of many samples some are its own. perf reads no perf map for code in a file's pages.
python_functions_are_leaves_by_the_perf_map() {
  export CODEHEAP_WX=dual
  need_perf
  cat >"$work/work.py" <<'END'
import time
def empty(): pass
def calls():
    end = time.process_time() + 0.5
    while time.process_time() < end:
        for _ in range(10000):
            empty()
calls()
END
  local count=0
  while [ "$count" -lt 5 ]; do leaves_by_the_perf_map; done
}
leaves_by_the_perf_map() {
  "${record[@]}" -F 4999 -o "$work/perf.data" $python -m codeheap --sinks=perfmap,unwind "$work/work.py" \
    >"$work/out" 2>"$work/err" || fail "perf record: $(tail -5 "$work/err")"
  [ -z "$map" ] || rm -f "$map"
  map=/tmp/perf-$(perf script -i "$work/perf.data" -F pid,comm 2>/dev/null | awk '/python/ { print $2; exit }').map
  [ -s "$map" ] || fail "there is no $map"
  perf script -i "$work/perf.data" -F ip,sym 2>"$work/err" >"$work/script"
  count=$((count + $(grep -c "py::empty:$work/work.py" "$work/script")))
  echo "$count samples are in the trampoline of empty, the last run had $(wc -l <"$work/script")"
}

# Their names are whole: gdb takes for Ada's what has no capital in it, and would write `my.func:/a[py]`.
python_functions_are_frames_of_gdb() {
  cat >"$work/work.py" <<'END'
import os
exec(compile("""
class thing:
    def __enter__(self, parent=os.getppid): return parent()
    def __exit__(self, *error): pass
def my__steps():
    with thing() as parent: yield parent
def outer(): return [step for step in my__steps()]
outer()
""", "/small/__letters__.py", "exec"))
END
  gdb -nx -q -batch -ex 'set pagination off' -ex 'set disable-randomization off' \
    -ex 'set breakpoint pending on' -ex 'break getppid' -ex run -ex bt \
    --args $python -m codeheap --sinks=gdb,unwind "$work/work.py" >"$work/said" 2>&1 </dev/null
  skip_where_ptrace_is_refused "$work/said"
  local frames
  frames=$(grep -oE 'py::[^:]+:/small/__letters__.py ' "$work/said" | sed 's/^py:://; s/:.*//' | tr '\n' ' ')
  [ "$frames" = 'thing.__enter__ my__steps outer.<locals>.<listcomp> outer <module> ' ] ||
    fail "gdb shows other frames: $frames: $(tail -50 "$work/said")"
  grep -q ' Py_BytesMain ' "$work/said" || fail "the backtrace does not reach main: $(tail -50 "$work/said")"
}

# Every call goes through the trampoline, so callgrind counts each.
python_functions_are_nodes_of_callgrind() {
  cat >"$work/work.py" <<'END'
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def is_even(n):
    return n == 0 or not is_odd(n - 1)
def is_odd(n):
    return n != 0 and not is_even(n - 1)
class Shape:
    def area(self):
        return 3
def areas(shapes):
    for shape in shapes:
        yield shape.area()
print(fib(15), is_even(20), sum(areas([Shape() for _ in range(40)])))
END
  valgrind -q --tool=callgrind --callgrind-out-file="$work/before" $python -m codeheap --sinks=perfmap,unwind "$work/work.py" \
    >"$work/out" 2>"$work/err" || fail "the program failed under callgrind: $(tail -3 "$work/err")"
  [ "$(cat "$work/out")" = '610 True 120' ] || fail "the program says $(cat "$work/out")"
  map=/tmp/perf-$(sed -n 's/^pid: //p' "$work/before").map
  "$build/callgrind-names" --output="$work/after" "$work/before" 2>"$work/err" || fail "$(cat "$work/err")"
  ! grep -q 'add up' "$work/err" || fail "$(cat "$work/err")"
  # fib(15) is 1973 calls; a generator is entered when it is made, for each value, and to end.
  $python tests/callgrind/judge.py "$work/before" "$work/after" "$map" "py::fib:$work/work.py=1973..1973" \
    "py::is_even:$work/work.py=11..11" "py::is_odd:$work/work.py=10..10" "py::Shape.area:$work/work.py=40..40" \
    "py::areas:$work/work.py=42..42" "py::<module>:$work/work.py=1..1" || exit 1
}

# The library walks by frame pointers where there are some, and by the unwinder's tables through an interpreter that has
# none: stock Debian's.
python_functions_are_frames_of_the_library() {
  cat >"$work/work.py" <<'END'
import codeheap
class Thing:
    def inner(self): return codeheap.backtrace()
def outer(): return Thing().inner()
print("\n".join(map(str, outer())))
END
  $python -m codeheap "$work/work.py" >"$work/said" 2>&1 || fail "$(tail -5 "$work/said")"
  [ "$(mine "$work/said" | tr '\n' ' ')" = 'Thing.inner outer <module> ' ] || fail "other frames: $(cat "$work/said")"
  grep -q 'Py_BytesMain' "$work/said" || fail "the walk does not reach main: $(cat "$work/said")"
}

run_listed "$1" $cases
