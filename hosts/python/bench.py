# SPDX-License-Identifier: MIT
"""PYTHONPATH=build/python python3.11 bench.py: what trampolines cost beside a hook that only forwards, a line for each run:
the row, ours, the peer. bench/python.c says what each row is, and makes a table.

Ours and the peer take turns in one process on one core, so that a change of the machine's speed meets both; memory is
that of a process for each mode."""

import os
import subprocess
import sys
import tempfile
import time

import codeheap

RUNS, CALLS, DEFINITIONS, PART = 7, 3000000, 500000, 50000


def empty():
    pass


def call_ns():
    before = time.thread_time_ns()
    for _ in range(CALLS):
        empty()
    return (time.thread_time_ns() - before) / CALLS


def define_us(count=PART):
    before = time.thread_time_ns()
    for _ in range(count):
        exec("def test(): return 1", globals())
        test()
    return (time.thread_time_ns() - before) / count / 1e3


def measured(measure, mode, **options):
    """In a mode, warm."""
    if mode != "off":
        codeheap.activate(mode, **options)
    for _ in range(100):
        empty()
        define_us(20)
    result = measure()
    codeheap.deactivate()
    return result


def profiled_call_ns():
    """While a profile samples the thread as often as it can by its CPU time."""
    with tempfile.TemporaryDirectory() as folder, codeheap.flame_profile(folder + "/bench.folded"):
        return call_ns()


def resident_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def memory(mode, reuse):
    """Growth by the definitions of a process of its own, after the first 50,000."""
    codeheap.activate(mode, reuse=reuse)
    define_us()
    before = resident_kib()
    define_us(DEFINITIONS)
    print(resident_kib() - before)


def alone(*words):
    """What a process of its own says."""
    return float(subprocess.check_output([sys.executable, __file__, *words]))


def rows():
    """(row, ours, peer) for each run."""
    for _ in range(RUNS):
        yield "python_call", measured(call_ns, "trampolines"), measured(call_ns, "forward")
    for _ in range(RUNS):
        yield "python_call_unhooked", measured(call_ns, "trampolines"), measured(call_ns, "off")
    for _ in range(RUNS):
        yield ("python_call_profiled", measured(profiled_call_ns, "trampolines"),
               measured(call_ns, "trampolines"))
    for _ in range(DEFINITIONS // PART):
        yield "python_exec", measured(define_us, "trampolines"), measured(define_us, "forward")
    for _ in range(RUNS):
        yield ("python_exec_collected", measured(define_us, "trampolines", reuse=False),
               measured(define_us, "forward"))
    # What the peer never frees would be in the way of both: each time a process of its own.
    for _ in range(RUNS):
        yield "python_exec_kept", alone("--time", "trampolines"), alone("--time", "kept")
    grown = {"ours": alone("--memory", "trampolines", "1"), "collected": alone("--memory", "trampolines"),
             "kept": alone("--memory", "kept")}
    yield "python_memory", grown["ours"], grown["kept"]
    yield "python_memory_collected", grown["collected"], grown["kept"]


def main():
    if sys.argv[1:2] == ["--memory"]:
        memory(sys.argv[2], sys.argv[3:] == ["1"])
        return
    if sys.argv[1:2] == ["--time"]:
        print(measured(define_us, sys.argv[2], reuse=False))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for row in rows():
        print(*row, flush=True)


main()
