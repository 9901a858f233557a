# SPDX-License-Identifier: MIT
"""PYTHONPATH=build/python python3.11 bench.py [--raw]: what trampolines cost beside a hook that only forwards.

Ours and the peer take turns in one process on one core, so that a change of the machine's speed meets both; memory is
that of a process for each mode. --raw prints what was measured: the row, ours, the peer."""

import os
import statistics
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
    """(row, unit, ours, peer) for each run."""
    for _ in range(RUNS):
        yield "python_call", "ns", measured(call_ns, "trampolines"), measured(call_ns, "forward")
    for _ in range(RUNS):
        yield "python_call_unhooked", "ns", measured(call_ns, "trampolines"), measured(call_ns, "off")
    for _ in range(RUNS):
        yield ("python_call_profiled", "ns", measured(profiled_call_ns, "trampolines"),
               measured(call_ns, "trampolines"))
    for _ in range(DEFINITIONS // PART):
        yield "python_exec", "us", measured(define_us, "trampolines"), measured(define_us, "forward")
    for _ in range(RUNS):
        yield ("python_exec_collected", "us", measured(define_us, "trampolines", reuse=False),
               measured(define_us, "forward"))
    # What the peer never frees would be in the way of both: each time a process of its own.
    for _ in range(RUNS):
        yield "python_exec_kept", "us", alone("--time", "trampolines"), alone("--time", "kept")
    grown = {"ours": alone("--memory", "trampolines", "1"), "collected": alone("--memory", "trampolines"),
             "kept": alone("--memory", "kept")}
    yield "python_memory", "KiB", grown["ours"], grown["kept"]
    yield "python_memory_collected", "KiB", grown["collected"], grown["kept"]


ABOUT = {
    "python_call": ("an empty call; peer: a hook that only forwards", 1.05),
    "python_call_unhooked": ("the same; peer: no hook, where CPython calls without its evaluator", None),
    "python_call_profiled": ("the same while a profile runs; peer: none", 1.1),
    "python_exec": ("exec of a definition and its call; peer: a hook that only forwards", 1.1),
    "python_exec_collected": ("the same, each trampoline made and collected (reuse off)", None),
    "python_exec_kept": ("reuse off; peer: never freed, a model of CPython 3.12", None),
    "python_memory": ("growth of memory by 500,000 definitions; peer: never freed", None),
    "python_memory_collected": ("the same, reuse off; peer: never freed", None),
}


def table(found):
    for name, (text, goal) in ABOUT.items():
        unit, values = found[name]
        ratios = sorted(ours / peer for ours, peer in values if peer)
        ours, peer = (statistics.median(v[i] for v in values) for i in (0, 1))
        ratio = statistics.median(ratios) if ratios else float("nan")
        quarter = len(ratios) // 4
        spread = "" if len(ratios) < 3 else " (%.3f to %.3f)" % (ratios[quarter], ratios[-1 - quarter])
        verdict = "" if goal is None else "  goal %.2f: %s" % (goal, "met" if ratio <= goal else "MISSED")
        print("%-24s %8.2f %-4s peer %8.2f  ratio %.3f%s%s\n    %s" % (
            name, ours, unit, peer, ratio, spread, verdict, text))


def main():
    if sys.argv[1:2] == ["--memory"]:
        memory(sys.argv[2], sys.argv[3:] == ["1"])
        return
    if sys.argv[1:2] == ["--time"]:
        print(measured(define_us, sys.argv[2], reuse=False))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found = {}
    for name, unit, ours, peer in rows():
        found.setdefault(name, (unit, []))[1].append((ours, peer))
        if "--raw" in sys.argv:
            print(name, ours, peer, flush=True)
    if "--raw" not in sys.argv:
        table(found)


main()
