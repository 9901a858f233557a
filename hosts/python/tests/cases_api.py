# SPDX-License-Identifier: MIT
"""What the package answers: options, errors, sinks, profiling a stretch."""

import ctypes
import errno
import os
import subprocess
import sys
import types

import _codeheap
import codeheap
from rig import must, named, no_perf_map, perf_map_path, refuses, run


def work(n):
    return n and work(n - 1)


def perf_map():
    path = codeheap.sinks()["perfmap"].path
    with open(path) as file:
        return file.read()


def case_wrong_options_change_nothing():
    refuses(ValueError, "no mode", codeheap.activate, "quickly")
    refuses(ValueError, "out of its range", codeheap.activate, "off")
    refuses(ValueError, "no backend", codeheap.activate, backend="rwx")
    refuses(ValueError, "no fork policy", codeheap.activate, fork="spoon")
    refuses(ValueError, "no sink", codeheap.activate, sinks={"paper"})
    refuses(ValueError, "out of its range", codeheap.activate, pool_bytes=-1)
    refuses(ValueError, "pool_bytes is 12345: not a power of two", codeheap.activate, pool_bytes=12345)
    refuses(ValueError, "backend is dual", codeheap.activate, fork="cow", backend="dual")
    refuses(RuntimeError, "no code heap", codeheap.stats)
    refuses(RuntimeError, "no code heap", codeheap.collect)
    must(not codeheap.is_active() and codeheap.deactivate() == (0, 0) and codeheap.discard() == (0, 0))
    codeheap.activate(pool_bytes=1 << 21)
    refuses(RuntimeError, "other options", codeheap.activate, pool_bytes=1 << 22)
    refuses(RuntimeError, "another mode", codeheap.activate, "kept")
    codeheap.activate()
    must(codeheap.mode() == "trampolines" and codeheap.stats()["pool_bytes"] == 1 << 21)
    codeheap.activate(collect_every=1)
    refuses(RuntimeError, "another mode", codeheap.activate, "kept")
    cycles = codeheap.stats()["cycles"]
    work(10)
    must(codeheap.stats()["cycles"] > cycles, "a refused option has an effect")
    work(10)
    codeheap.check()


def case_an_allocation_that_fails_is_a_memory_error():
    """Each of the first allocations of a call fails in turn: the answer or a MemoryError, and the next call works."""
    import _codeheap
    import _testcapi

    def each(call, before=None):
        failed = 0
        for nth in range(60):
            if before:
                before()
            _testcapi.set_nomemory(nth, nth + 1)
            try:
                call()
            except MemoryError:
                failed += 1
            finally:
                _testcapi.remove_mem_hooks()
            codeheap.check()
        must(failed, call)
    codeheap.activate(pool_bytes=1 << 21)
    work(3)
    each(_codeheap.stats)
    each(_codeheap.backtrace)
    # The list of modules cannot be asked then: nobody can say whether there are greenlets.
    each(_codeheap.discard, lambda: work(3))
    each(_codeheap.deactivate, codeheap.activate)
    codeheap.activate()
    work(3)
    must(codeheap.stats()["blocks_now"])


def case_the_environment_has_the_defaults():
    def said(text, **environment):
        done = subprocess.run([sys.executable, "-c", "import codeheap\n" + text], capture_output=True, text=True,
                              env={**os.environ, **environment})
        return (done.stdout + done.stderr.strip().rpartition("\n")[2]).strip()
    activate = "codeheap.activate(); s = codeheap.stats(); "
    must(said(activate + "print(codeheap.mode())", CODEHEAP_PYTHON_MODE="kept") == "kept")
    must(said(activate + "print(s['pool_bytes'])", CODEHEAP_PYTHON_POOL_BYTES="0x200000") == "2097152")
    must(said(activate + "print(s['backend'])", CODEHEAP_PYTHON_FORK="cow") == "procmem")
    must(said(activate + "print(s['backend'])", CODEHEAP_WX="memfd") == "memfd")
    must(said(activate + "print(s['sinks'])", CODEHEAP_SINKS="unwind,gdb") == "unwind,gdb")
    must(said(activate + "print(sum(1 for _ in range(9))); print(codeheap.stats()['cycles'] > s['cycles'])",
              CODEHEAP_PYTHON_COLLECT_EVERY="1") == "9\nTrue")
    must("is no number" in said(activate, CODEHEAP_PYTHON_POOL_BYTES="much"))
    must("no mode" in said(activate, CODEHEAP_PYTHON_MODE="x"))


def case_every_backend_runs_threads():
    for backend in ("dual", "memfd", "procmem"):
        done = subprocess.run([sys.executable, "-c", """
import codeheap, threading, sys
codeheap.activate(backend=%r)
sys.setswitchinterval(1e-5)
def f(n): return n and f(n - 1)
def run():
    for i in range(100):
        exec("def test(): return 1", {}); f(20)
        if i %% 25 == 0: codeheap.discard()
threads = [threading.Thread(target=run) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
codeheap.check()
print(codeheap.stats()["backend"])
""" % backend], capture_output=True, text=True)
        must(done.returncode == 0 and done.stdout.strip() == backend, backend, done.returncode, done.stderr)


def case_another_evaluator_is_left_alone():
    import _testinternalcapi
    _testinternalcapi.set_eval_frame_record([])
    refuses(RuntimeError, "another extension", codeheap.activate)
    _testinternalcapi.set_eval_frame_default()
    codeheap.activate()
    _testinternalcapi.set_eval_frame_record([])
    work(5)
    codeheap.deactivate()
    _testinternalcapi.set_eval_frame_default()
    must(work(5) == 0)


def case_dead_functions_leave_nothing_to_others():
    def run_some(count):
        for i in range(count):
            names = {}
            exec("def some%d(): return 1" % i, names)
            must(names["some%d" % i]() == 1)
    codeheap.activate()
    # Another extension has a later slot of code objects: its free function is called for none that it never saw.
    told = []
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(told.append)
    must(ctypes.pythonapi._PyEval_RequestCodeExtraIndex(free) > 0)
    run_some(300)
    must(not told, len(told))
    # Records that wait for a function of their name end with the activation.
    owners = codeheap.stats()["owners_now"]
    codeheap.deactivate()
    codeheap.collect()
    codeheap.collect()
    must(codeheap.stats()["owners_now"] < owners - 150, owners, codeheap.stats()["owners_now"])


def case_sinks_are_chosen_and_say_what_failed():
    codeheap.activate(sinks="unwind,perfmap")
    work(3)
    types.FunctionType(work.__code__.replace(co_qualname="odd\nname\0end"), globals())(0)
    codeheap.flush()
    must("py::work:" + __file__ in perf_map(), perf_map()[:300])
    must("py::odd?name?end:" + __file__ in perf_map(), perf_map()[-300:])
    must(codeheap.sinks()["perfmap"] == (True, perf_map_path(), 0))
    codeheap.set_sinks("none")
    must(not any(sink.is_on for sink in codeheap.sinks().values()), codeheap.sinks())
    codeheap.set_sinks(["unwind"])
    must([name for name, sink in codeheap.sinks().items() if sink.is_on] == ["unwind"])
    with no_perf_map():
        error = refuses(OSError, "", codeheap.set_sinks, {"perfmap", "unwind"})
    must(error.errno == codeheap.sinks()["perfmap"].errno != 0, error)
    must(codeheap.sinks()["unwind"].is_on and not codeheap.sinks()["perfmap"].is_on)
    codeheap.set_sinks({"perfmap", "unwind"})
    must(codeheap.sinks()["perfmap"].is_on)


def case_an_activation_whose_sink_fails_changes_nothing():
    with no_perf_map():
        refuses(OSError, "", codeheap.activate, sinks="perfmap,gdb")
        must(not codeheap.is_active())
        codeheap.activate(sinks="gdb,unwind")
        refuses(OSError, "", codeheap.activate, sinks="perfmap")
        must(codeheap.is_active() and codeheap.stats()["sinks"] == "unwind,gdb", codeheap.stats()["sinks"])
    # 99: another user's process had this number.
    shell = "rm -f /tmp/perf-$$.map; mkdir /tmp/perf-$$.map || exit 99; exec %s -m codeheap --sinks=perfmap -c 'print(1)'"
    while True:
        child = subprocess.Popen(["/bin/sh", "-c", shell % sys.executable], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        said, error = child.communicate()
        if child.returncode != 99:
            break
    os.rmdir(perf_map_path(child.pid))
    must(child.returncode == 2 and not said, child.returncode, said)
    must(error.startswith("codeheap: ") and error.count("\n") == 1, error)


def case_a_stretch_is_profiled():
    def inside():
        return named("case_a_stretch_is_profiled.<locals>.inside")
    with codeheap.profiling():
        must(codeheap.is_active() and inside() == 1 and codeheap.sinks()["perfmap"].is_on)
    must(not codeheap.is_active() and not codeheap.sinks()["perfmap"].is_on and inside() == 0)
    must("inside" in open(perf_map_path()).read())
    for way_out in (KeyError, SystemExit, KeyboardInterrupt, GeneratorExit):
        try:
            with codeheap.profiling(sinks={"gdb"}):
                must(codeheap.sinks()["gdb"].is_on)
                raise way_out
        except way_out:
            pass
        must(not codeheap.is_active() and not codeheap.sinks()["gdb"].is_on)
    codeheap.activate(sinks="unwind,gdb")
    with codeheap.profiling(sinks="perfmap"):
        must(not codeheap.sinks()["gdb"].is_on)
        with codeheap.profiling(sinks="jitdump"):
            must(codeheap.sinks()["jitdump"].is_on and not codeheap.sinks()["perfmap"].is_on)
        must(codeheap.sinks()["perfmap"].is_on)
    must(codeheap.is_active() and codeheap.sinks()["gdb"].is_on and not codeheap.sinks()["perfmap"].is_on)
    refuses(ValueError, "no sink", codeheap.profiling(sinks="paper").__enter__)
    # A sink that cannot come on leaves nothing behind.
    codeheap.deactivate()
    os.environ["JITDUMPDIR"] = "/nowhere"
    with no_perf_map():
        refuses(OSError, "", codeheap.profiling().__enter__)
    must(not codeheap.is_active() and not codeheap.sinks()["perfmap"].is_on)


def case_another_python_is_refused():
    """The package says so before it looks for the extension."""
    text = "import sys; sys.version_info = (3, 12, 0, 'final', 0); import codeheap"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    must(done.returncode == 1 and "codeheap is built for CPython 3.11, this is cpython 3.12" in done.stderr, done.stderr)


def case_exceptions_pass_through_code():
    codeheap.activate()

    def deep(n):
        if n:
            try:
                return deep(n - 1)
            finally:
                codeheap.collect()
        raise LookupError("deep")
    for _ in range(10):
        try:
            deep(30)
        except LookupError as error:
            count, trace = 0, error.__traceback__
            while trace:
                count, trace = count + 1, trace.tb_next
            must(count == 32, count)
    refuses(RecursionError, "", lambda: deep(10 ** 6))


def case_a_check_that_cannot_be_made_says_why():
    codeheap.activate()
    must(list(range(3)) == sorted(range(3), key=lambda x: x))  # there is a block
    extension, said = ctypes.PyDLL(_codeheap.__file__), []

    @ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)
    def visit(*_):
        said.append(str(refuses(RuntimeError, "", codeheap.check)))
        return False
    extension.ch_block_each(ctypes.c_void_p.in_dll(extension, "the_heap"), None, visit, None)
    must("the heap was not checked: CH_E_STATE" in said[0], said)
    codeheap.check()


if __name__ == "__main__":
    run(globals())
