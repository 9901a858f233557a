#!/bin/bash
# SPDX-License-Identifier: MIT
# The call graph of a Python program by callgrind, with names by callgrind-names: each function is called as often as it is,
# by what calls it. Without arguments it lists its cases, with a name it runs one.
set -u
build=$(realpath -m "${CODEHEAP_BUILD:-build}")
if [ $# = 0 ]; then
  echo 'reader_python_program 300 0 -'
  exit 0
fi
unset "${!PYTHON@}" "${!CODEHEAP_PYTHON_@}" CODEHEAP_SINKS CODEHEAP_DEAD_NAMES
. tests/callgrind/profiles.sh

# Every call of a Python function goes through its trampoline, so that callgrind counts each. With --separate-recs=1 a
# function is one node.
reader_python_program() {
  build_printer . "$work/print_graph"
  cat >"$work/work.py" <<'END'
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def is_even(n):
    return n == 0 or not is_odd(n - 1)
def is_odd(n):
    return n != 0 and not is_even(n - 1)
def bottom(x):
    return x + 1
def left(x):
    return bottom(x) + 1
def right(x):
    return bottom(x) + bottom(x + 1)
def top(x):
    return left(x) + right(x)
print(fib(12), is_even(20), sum(top(x) for x in range(30)))
END
  export HOME=$work PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1
  must valgrind -q --tool=callgrind --separate-recs=1 --callgrind-out-file="$work/python.out" \
    /usr/bin/python3.11 -m codeheap --sinks=perfmap,unwind "$work/work.py"
  named_graph python.out </dev/null
  judge python.out "py::fib:$work/work.py=465..465" "py::is_even:$work/work.py=11..11" "py::is_odd:$work/work.py=10..10" \
    "py::bottom:$work/work.py=90..90" "py::left:$work/work.py=30..30" "py::right:$work/work.py=30..30" \
    "py::top:$work/work.py=30..30"
  # Between two trampolines is the interpreter; no Python function calls another without it.
  "$work/print_graph" "$work/python.out.named" | python3 -c '
import sys
nodes, wrong = [], []
for line in sys.stdin:
    kind, *words = line.rstrip("\n").split("\t")
    if kind == "node":
        nodes.append(words[2])
    if kind == "edge" and nodes[int(words[0])].startswith("py::") and nodes[int(words[1])].startswith("py::"):
        wrong.append((nodes[int(words[0])], nodes[int(words[1])], words[2]))
sys.exit(str(wrong) if wrong else 0)' || fail 'edges that are no calls'
}

"$1"
