# SPDX-License-Identifier: MIT
"""Ends: of the program, of threads, of interpreters; and forks, which are ends and beginnings."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import _xxsubinterpreters as subinterpreters
import codeheap
from rig import collect_all, must, named, run


def define_and_call(times):
    for _ in range(times):
        exec("def test(): return 1", globals())
        test()


def nest(n, act):
    return act() if n == 0 else nest(n - 1, act)


# --- fork ---

def child_goes_on():
    """In the child, deep in frames of code: more code, collections, discards, threads."""
    must(named("nest") >= 20)
    define_and_call(2000)
    collect_all()
    must(codeheap.discard().kept > 0)
    before = codeheap.stats()["blocks_committed"]
    nest(10, int)
    define_and_call(100)
    must(codeheap.stats()["blocks_committed"] > before, "the child makes no code")
    threads = [threading.Thread(target=define_and_call, args=(200,)) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    codeheap.check()


def fork_and(child):
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    status = 1
    try:
        child()
        status = 0
    finally:
        if status:
            sys.excepthook(*sys.exc_info())
        # The frames below return in the child, through code.
        return -1 - status


def forks(**options):
    codeheap.activate(**options)
    stop = threading.Event()

    def others():
        while not stop.is_set():
            define_and_call(20)
    threads = [threading.Thread(target=others) for _ in range(2)]
    for t in threads:
        t.start()
    for _ in range(10):
        status = nest(30, lambda: fork_and(child_goes_on))
        if status < 0:
            os._exit(-1 - status)
        must(status == 0, "child", status)
        define_and_call(100)
    stop.set()
    for t in threads:
        t.join()


def case_fork_in_trampolined_frames_copy():
    forks(fork="copy")
    must(codeheap.stats()["backend"] == "dual", codeheap.stats()["backend"])


def case_fork_in_trampolined_frames_cow():
    forks(fork="cow")
    must(codeheap.stats()["backend"] == "procmem", codeheap.stats()["backend"])


def case_fork_without_code_is_for_programs_that_exec():
    codeheap.activate(fork="none")
    subprocess._USE_VFORK = False  # a vfork runs no handlers of forks
    must(subprocess.check_output(["/bin/echo", "x"]) == b"x\n")
    child = nest(1, os.fork)
    if not child:
        os._exit(0)
    must(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV, "the child goes on")


def square(n):
    define_and_call(50)
    return n * n


def case_multiprocessing_forks():
    codeheap.activate()
    with multiprocessing.get_context("fork").Pool(3) as pool:
        must(pool.map(square, range(50)) == [n * n for n in range(50)])


def case_subprocesses_start_while_threads_make_code():
    codeheap.activate()
    subprocess._USE_VFORK = False  # a vfork runs no handlers of forks
    stop = threading.Event()

    def others():
        while not stop.is_set():
            define_and_call(20)
    threads = [threading.Thread(target=others) for _ in range(3)]
    for t in threads:
        t.start()
    for i in range(30):
        must(subprocess.check_output(["/bin/echo", str(i)]) == b"%d\n" % i)
    stop.set()
    for t in threads:
        t.join()


# --- the end of the program ---

def in_a_process(text, status=0):
    """Runs a program of its own; what it wrote."""
    done = subprocess.run([sys.executable, "-c", "import codeheap; codeheap.activate()\n" + text],
                          capture_output=True, text=True, timeout=60)
    must(done.returncode == status, done.returncode, done.stderr)
    return done.stdout + done.stderr


def case_the_end_of_the_program():
    for how in ("pass", "import sys; sys.exit(0)", "raise SystemExit", "codeheap.deactivate()",
                "codeheap.deactivate(); codeheap.activate()", "import os; os._exit(0)"):
        in_a_process("def f(n): return n and f(n - 1)\nf(50)\n" + how)
    # What runs while the interpreter goes: atexit, __del__ of module globals, threads that are waited for.
    said = in_a_process("""
import atexit, threading, time
class Late:
    def __del__(self):
        print("late", codeheap_mode())
codeheap_mode = codeheap.mode
late = Late()
def at_exit():
    print("atexit", codeheap.mode())
atexit.register(at_exit)
def slow():
    time.sleep(0.2)
    print("thread", codeheap.mode())
threading.Thread(target=slow).start()
""")
    must(said == "thread trampolines\natexit trampolines\nlate off\n", said)


def case_repeated_activation_until_the_end():
    in_a_process("""
def f(n): return n and f(n - 1)
for _ in range(300):
    codeheap.activate(); f(20); codeheap.activate(); f(20); codeheap.deactivate(); f(20); codeheap.deactivate()
codeheap.activate()
""")


def case_activation_while_the_interpreter_ends_is_refused():
    said = in_a_process("""
class Late:
    def __del__(self):
        try:
            activate()
        except RuntimeError as error:
            print("refused:", error)
activate = codeheap._codeheap.activate
late = Late()
""")
    must(said == "refused: the interpreter is ending\n", said)


def case_first_activation_at_the_end_is_refused():
    """Nobody would hear of the interpreter's end then, and another one may get its place in memory."""
    program = """
import atexit, os, sys
sys.path[:] = %r
import codeheap
def at_the_end(activate, write=os.write, refusal=RuntimeError):
    try:
        activate()
    except refusal:
        write(1, b"refused.")
class Late:
    def __call__(self): pass
    def __del__(self, activate=codeheap._codeheap.activate, at_the_end=at_the_end):
        at_the_end(activate)
# It dies after the dictionary of the interpreter.
os.register_at_fork(before=Late())
""" % sys.path
    at_exit = "atexit.register(at_the_end, codeheap.activate)\n"
    said = in_a_process("""
import _xxsubinterpreters
def nest(n): return n and nest(n - 1)
for text in 10 * (%r, %r):
    one = _xxsubinterpreters.create()
    _xxsubinterpreters.run_string(one, text)
    _xxsubinterpreters.destroy(one)
    nest(20)
assert codeheap.stats()["vms_now"] == 2
""" % (program + at_exit, program + "codeheap.activate()\n"))
    must(said == 30 * "refused.", said)


def case_daemon_threads_at_the_end():
    """They are ended where they wait for the lock, in frames of code, which are unwound."""
    for _ in range(5):
        in_a_process("""
import threading, time, sys
sys.setswitchinterval(1e-5)
def deep(n, act):
    return act() if n == 0 else deep(n - 1, act)
def spin():
    while True:
        exec("def test(): return 1")
def sleep():
    time.sleep(0.01 if codeheap.is_active() else 0.02)
for i in range(4):
    threading.Thread(target=deep, args=(30, spin), daemon=True).start()
    threading.Thread(target=lambda: [deep(30, sleep) for _ in range(10000)], daemon=True).start()
time.sleep(0.1)
""")


def case_daemon_threads_and_a_discard_at_the_end():
    in_a_process("""
import atexit, threading, time
def deep(n):
    return time.sleep(0.05) if n == 0 else deep(n - 1)
def loop():
    while True:
        deep(20)
for _ in range(3):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.1)
atexit.register(lambda: [codeheap.discard(), codeheap.collect(), codeheap.collect()])
""")


# --- subinterpreters ---

SUB = """
import sys
sys.path[:] = %r
import codeheap
codeheap.activate()
def f(n): return n and f(n - 1)
f(30)
for i in range(500):
    exec("def test(): return 1"); test()
assert codeheap.is_active()
def here(): return [n for n in codeheap.backtrace() if n.startswith("py::here:")]
assert len(here()) == 1, codeheap.backtrace()
import json, re, collections
collections.namedtuple("T", "a b")(1, 2)
codeheap.check()
"""


def case_interpreters_come_and_go():
    codeheap.activate()
    vms = codeheap.stats()["vms_now"]
    for _ in range(20):
        one, two = subinterpreters.create(), subinterpreters.create()
        subinterpreters.run_string(one, SUB % sys.path)
        subinterpreters.run_string(two, SUB % sys.path)
        define_and_call(100)
        subinterpreters.destroy(one)
        define_and_call(100)
        subinterpreters.destroy(two)
    must(codeheap.stats()["vms_now"] == vms, codeheap.stats()["vms_now"])
    collect_all()
    must(codeheap.stats()["blocks_now"] < 3000, codeheap.stats()["blocks_now"])


def case_objects_that_die_as_an_interpreter_ends_may_collect():
    late = """
import contextvars, sys, threading
class Late:
    def __init__(self, name):
        self.name = name
    def __del__(self, collect=codeheap._codeheap.collect, write=sys.stderr.write):
        write(self.name + " dies; ")
        collect()
local = threading.local()
local.late = Late("local")
variable = contextvars.ContextVar("late")
variable.set(Late("context"))
"""
    said = in_a_process("""
import _xxsubinterpreters
one = _xxsubinterpreters.create()
_xxsubinterpreters.run_string(one, %r)
_xxsubinterpreters.destroy(one)
print("ended")
""" % (SUB % sys.path + late))
    must("local dies; " in said and "context dies; " in said and "ended" in said, said)


def case_an_interpreter_is_active_alone():
    """The first one to be active ends first; what it left at shared code objects is still right."""
    one = subinterpreters.create()
    subinterpreters.run_string(one, SUB % sys.path)
    must(not codeheap.is_active())
    nest(20, int)
    codeheap.activate()
    nest(20, int)
    import importlib._bootstrap
    subinterpreters.destroy(one)
    import xml.dom.minidom
    two = subinterpreters.create()
    codeheap.deactivate()
    subinterpreters.run_string(two, SUB % sys.path + "\ncodeheap.discard()\n")
    codeheap.activate()
    import email.mime.text
    must(nest(20, lambda: named("nest")) == 21)
    subinterpreters.destroy(two)


def case_an_interpreter_deactivates_and_others_go_on():
    codeheap.activate()
    one = subinterpreters.create()
    subinterpreters.run_string(one, SUB % sys.path + "\ncodeheap.deactivate()\n")
    must(nest(20, lambda: named("nest")) == 21)
    subinterpreters.destroy(one)


if __name__ == "__main__":
    run(globals())
