# SPDX-License-Identifier: MIT
"""flame_profile: what it shows, every way a stretch ends, and what it refuses."""

import asyncio
import collections
import ctypes
import gc
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import codeheap
from rig import collect_all, must, refuses, run, tries

here = tempfile.mkdtemp(prefix="profile.")


def path_of(name):
    return os.path.join(here, name)


def read(path):
    """{functions of this file's stacks, outermost first: weight}"""
    found = collections.Counter()
    with open(path) as file:
        for line in file:
            stack, count = line.rsplit(" ", 1)
            names = [f[4:].rsplit(":", 1) for f in stack.split(";") if f.startswith("py::")]
            found[tuple(name for name, of in names if of == __file__ or of.startswith("fresh"))] += int(count)
    return found


def share(found, *some):
    """Of the weight of what has one of these functions, the first one's."""
    first, *_ = parts = [sum(n for stack, n in found.items() if name in stack) for name in some]
    return first / (sum(parts) or 1), sum(parts)


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(100):
            pass


def no_body(profile):
    """The error of a stretch that does not begin."""
    try:
        with profile:
            raise AssertionError("the body runs")
    except (OSError, RuntimeError) as error:
        return error
    raise AssertionError("nothing was refused")


# --- what it shows ---

def burn(n):
    s = 0
    for i in range(n):
        s += i * i
    return s


def thrice():
    for _ in range(3):
        burn(1000)


def once():
    burn(1000)


class Ticks:
    """How many samples of equal weight those of a timer of CPU time are worth: on a busy machine the kernel's ticks find
    the process seldom, and one stands for much. A timer beside the profiler's says at which times they did."""

    def __enter__(self):
        self.at = []
        self.before = signal.signal(signal.SIGVTALRM, lambda *_: self.at.append(time.thread_time()))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
        return self

    def __exit__(self, *error):
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self.before)

    def worth(self):
        weights = [after - before for before, after in zip(self.at, self.at[1:])]
        return sum(weights) ** 2 / sum(w * w for w in weights) if weights else 1


def case_profile_shows_a_split_of_three_to_one():
    """Within five points, or four times the deviation that chance has where so few samples were taken."""
    path = path_of("split.folded")
    with codeheap.flame_profile(path) as profile, Ticks() as ticks:
        end = time.thread_time() + 4
        while time.thread_time() < end:
            thrice()
            once()
    of_three, weight = share(read(path), "thrice", "once")
    print("%.1f %% of %d samples, worth %.0f" % (100 * of_three, weight, ticks.worth()))
    off = max(0.05, 4 * math.sqrt(0.75 * 0.25 / ticks.worth()))
    must(weight > 400 and abs(of_three - 0.75) < off, of_three, weight, off, profile.counts)
    must(profile.counts.samples >= weight and profile.counts.threads >= 1 and not profile.counts.dropped)


def case_profile_shows_both_of_two():
    """In every run: the names, who called them, and no more weight than the thread's clock has time for."""
    path = path_of("two.folded")
    found, spent = collections.Counter(), time.thread_time()
    while not all(any(name in stack for stack in found) for name in ("thrice", "once")):
        with codeheap.flame_profile(path) as profile:
            end = time.thread_time() + 0.3
            while time.thread_time() < end:
                thrice()
                once()
        found += read(path)
        must(profile.counts.threads >= 1 and not profile.counts.dropped, profile.counts)
    spent = time.thread_time() - spent
    must(all(stack[-1] != "burn" or stack[-2] in ("thrice", "once") for stack in found), found)
    must(sum(found.values()) <= spent * 997 * 1.1 + 20, spent, found)


def leaf():
    pass


class Thing:
    def method(self):
        leaf()
        leaf()

    def __enter__(self):
        leaf()

    def __exit__(self, *error):
        leaf()

    @property
    def value(self):
        return leaf()


def down(n):
    return leaf() if n == 0 else down(n - 1)


def key(x):
    leaf()
    return x


def steps():
    while True:
        leaf()
        yield 1


async def waits():
    await asyncio.sleep(0)
    leaf()


def work():
    thing, step = Thing(), steps()
    for _ in range(2000):
        leaf()
        thing.method()
        next(step)
        down(4)
        thing.value
        sorted((2, 1), key=key)
        with thing:
            pass
        [leaf() for _ in range(3)]
        (lambda: leaf())()


def stacks_of_work():
    mine = ("work",)
    yield mine
    for name in ("Thing.method", "steps", "Thing.value", "key", "Thing.__enter__", "Thing.__exit__",
                 "work.<locals>.<listcomp>", "work.<locals>.<lambda>", *(("down",) * n for n in range(1, 6))):
        name = (name,) if isinstance(name, str) else name
        yield mine + name
        yield mine + name + ("leaf",)
    yield mine + ("leaf",)


def case_profile_shows_whole_stacks():
    """Each stack that was sampled is one that there is, from the module on, and each function is seen."""
    path = path_of("whole.folded")
    names = {"work", "Thing.method", "steps", "down", "Thing.value", "key", "Thing.__enter__", "Thing.__exit__",
             "work.<locals>.<listcomp>", "work.<locals>.<lambda>", "leaf"}
    found, seen = collections.Counter(), set()
    # On a busy machine a sample may stand for seconds: as long as it takes.
    while not names <= seen or sum(found.values()) <= 2000:
        with codeheap.flame_profile(path, wall=True, rate=5000) as profile:
            end = time.monotonic() + tries(4, 0.5)
            while time.monotonic() < end:
                work()
        found += read(path)
        seen = {name for stack in found for name in stack}
    outer = ("<module>", "case_profile_shows_whole_stacks")
    # Rig.run is between the two, in another file. A generator that is dropped is closed by its caller's caller.
    known = {outer + stack for stack in stacks_of_work()} | {outer, outer + ("steps",)}
    wrong = {stack: n for stack, n in found.items() if stack not in known}
    print("%d samples, %d of other stacks" % (sum(found.values()), sum(wrong.values())), dict(list(wrong.items())[:5]))
    must(not wrong, wrong, profile.counts)


def case_profile_shows_who_ran_when_it_began():
    """Functions that were called before code was made: one evaluator runs several of them."""
    who_ran_when_it_began("case_profile_shows_who_ran_when_it_began", 0.2)


def case_profile_shows_hardly_others_when_it_began():
    """A sample while a frame is made may lack one, and stand for all of a long wait for a processor."""
    found, outer = who_ran_when_it_began("case_profile_shows_hardly_others_when_it_began", 0.6)
    must(sum(n for stack, n in found.items() if stack[:3] != outer) * 100 <= sum(found.values()), found)


def who_ran_when_it_began(caller, seconds):
    path = path_of("before.folded")

    def innermost(profile):
        profile.start()
        spin(seconds)

    def middle(profile):
        innermost(profile)
        spin(seconds)
    profile = codeheap.flame_profile(path, wall=True)
    must(not codeheap.is_active())
    middle(profile)
    spin(seconds)
    profile.stop()
    must(not codeheap.is_active())
    me = "who_ran_when_it_began"
    outer = ("<module>", caller, me)
    found = read(path)
    for stack in ((me + ".<locals>.middle", me + ".<locals>.innermost", "spin"), (me + ".<locals>.middle", "spin"),
                  ("spin",)):
        must(found[outer + stack] > 100 * seconds, stack, found)
    return found, outer


def clock_of(thread):
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def case_profile_shows_threads():
    path = path_of("threads.folded")
    done = threading.Event()

    def busy(name):
        exec(compile("def %s():\n  while not done.is_set():\n    burn(500)\n%s()" % (name, name), __file__, "exec"),
             {"done": done, "burn": burn})
    early = [threading.Thread(target=busy, args=("early%d" % i,)) for i in range(2)]
    for thread in early:
        thread.start()
    while any(clock_of(thread) < 0.05 for thread in early):
        time.sleep(0.01)
    with codeheap.flame_profile(path) as profile:
        later = [threading.Thread(target=busy, args=("later%d" % i,)) for i in range(2)]
        for thread in later:
            thread.start()
        # Who has the interpreter's lock, and how long, is luck: each has a time of its own.
        ends = {thread: clock_of(thread) + 0.35 for thread in early + later}
        while any(clock_of(thread) < end for thread, end in ends.items()):
            time.sleep(0.05)
        done.set()
        for thread in early + later:
            thread.join()
    found = read(path)
    for name in ("early0", "early1", "later0", "later1"):
        weight = sum(n for stack, n in found.items() if stack[-2:] == (name, "burn"))
        must(weight > 30, name, weight, found)
    must(profile.counts.threads >= 5, profile.counts)
    # The first two were there before: their functions have no code but for those that they called since.
    must(all("busy" in stack[-4] for stack in found if stack[-2:] in (("later0", "burn"), ("later1", "burn"))), found)


def waiting():
    time.sleep(0.05)


def case_profile_by_time_shows_who_waits():
    """Six times a twentieth of a second at least, and of processor time next to nothing."""
    path, found = path_of("waits.folded"), {}
    for wall in (True, False):
        before = time.thread_time()
        with codeheap.flame_profile(path, wall=wall, rate=500):
            for _ in range(6):
                waiting()
            spent = time.thread_time() - before
        found[wall] = sum(n for stack, n in read(path).items() if "waiting" in stack)
    must(found[True] > 80 and found[False] <= spent * 500 + 20, found, spent)


def case_profile_by_time_shows_shares():
    found = {}
    for wall in (False, True):
        path = path_of("wall.folded")
        with codeheap.flame_profile(path, wall=wall, rate=500):
            # On a busy machine what spins waits for a processor, too; of processor time there are samples enough.
            for _ in range(15):
                waiting()
                spin(0.002 if wall else 0.05)
        found[wall] = share(read(path), "waiting", "spin")
    must(found[True][0] > 0.5 and found[False][0] < 0.3, found)


def case_profile_of_an_interpreter_within():
    import _xxsubinterpreters as interpreters
    other = interpreters.create()
    interpreters.run_string(other, "import codeheap, time; codeheap.activate()\n" + """if True:
        exec(compile('''
def within():
    end = time.thread_time() + 0.3
    while time.thread_time() < end: deeper()
def deeper():
    for _ in range(1000): pass
''', "fresh", "exec"))""")
    path = path_of("within.folded")

    def calls():
        interpreters.run_string(other, "within()")
    with codeheap.flame_profile(path, wall=True):
        calls()
        spin(0.1)
    found = read(path)
    interpreters.destroy(other)
    must(sum(n for stack, n in found.items() if stack[-2:] == ("within", "deeper")) > 30, found)
    must(any("spin" in s for s in found) and not any("spin" in s and "within" in s for s in found), found)


# --- names ---

def pair(i):
    """Two functions of one number; who is named with another one's is named wrong."""
    names = {"loop": range(40)}
    exec(compile("def inner_%d():\n  for _ in loop: pass\ndef outer_%d():\n  inner_%d()\nouter_%d()" % (i, i, i, i),
                 "fresh%d" % (i % 7), "exec"), names)


def case_profile_names_what_died():
    """Code of functions that die at once is used again for others, many times before the report."""
    codeheap.activate(pool_bytes=1 << 20, reuse=False, collect_every=200)
    path = path_of("died.folded")
    i = pairs = wrong = 0
    while codeheap.stats()["blocks_freed"] <= 1000 or pairs <= 500:
        with codeheap.flame_profile(path, wall=True, rate=5000):
            end = time.monotonic() + tries(5, 1)
            while time.monotonic() < end:
                pair(i)
                i += 1
                if i % 1000 == 0:
                    gc.collect()
        for stack, n in read(path).items():
            numbers = {name.split("_")[1] for name in stack if name.startswith(("inner_", "outer_"))}
            pairs += n if len(numbers) == 1 else 0
            wrong += n if len(numbers) > 1 else 0
        freed = codeheap.stats()["blocks_freed"]
        print("%d functions, %d blocks freed, %d samples in them, %d wrong" % (i, freed, pairs, wrong))
        must(not wrong)


def case_profile_while_code_is_thrown_away():
    """discard and deactivate in the midst: no name is wrong, and what is called afterwards is shown again."""
    path = path_of("thrown.folded")
    codeheap.activate(reuse=False)
    with codeheap.flame_profile(path, wall=True, rate=2000):
        for i in range(tries(60, 18)):
            end = time.monotonic() + 0.03
            while True:
                work()
                pair(i)
                if time.monotonic() > end:
                    break
            if i % 3 == 0:
                codeheap.discard()
            elif i % 3 == 1:
                codeheap.deactivate()
                work()
                codeheap.activate(reuse=False)
            collect_all()
    found = read(path)
    me = "case_profile_while_code_is_thrown_away"
    known = {stack for stack in stacks_of_work()} | {("steps",), ("burn",), ()}
    for stack, n in found.items():
        if "pair" in stack or any(name.startswith(("inner_", "outer_")) for name in stack):
            must(len({name.split("_")[1] for name in stack if "er_" in name}) <= 1, stack)
            continue
        rest = tuple(name for name in stack if name not in ("<module>", me))
        # Without code a function is left out, wherever it is: what is there keeps its order.
        must(any(is_part(rest, whole) for whole in known), stack, n)
    must(any("leaf" in stack for stack in found))


def is_part(some, whole):
    names = iter(whole)
    return all(name in names for name in some)


# --- the ways a stretch ends ---

def written(path):
    """Whether there is a graph with spin in it, and it is taken away."""
    found = read(path)
    os.remove(path)
    return any("spin" in stack for stack in found)


def case_profile_is_written_on_every_way_out():
    path = path_of("out.folded")
    profile = codeheap.flame_profile(path, wall=True)

    def returns():
        with profile:
            spin(0.04)
            return 7
    must(returns() == 7 and written(path))
    for kind in (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit):
        mine = kind("mine")
        try:
            with profile:
                spin(0.04)
                raise mine
        except BaseException as error:
            must(error is mine and not hasattr(error, "__notes__"), error)
        must(written(path), kind)

    def yields():
        with profile:
            spin(0.04)
            yield 1
    closed, dropped = yields(), None
    next(closed)
    closed.close()
    must(written(path))
    dropped = yields()
    next(dropped)
    del dropped
    must(written(path))

    def thread():
        with profile:
            spin(0.04)
            sys.exit()
    t = threading.Thread(target=thread)
    t.start()
    t.join()
    must(written(path))

    async def coroutine():
        with profile:
            await asyncio.sleep(0)
            spin(0.04)
    asyncio.run(coroutine())
    must(written(path))

    @profile
    def decorated(n, *, m):
        spin(0.04)
        return n + m
    must(decorated(1, m=2) == 3 and decorated(2, m=2) == 4 and written(path))
    must(profile.start() is profile)
    spin(0.04)
    must(profile.stop() is profile.counts and profile.counts.samples > 0 and written(path))
    with profile:
        spin(0.04)
        profile.stop()
    must(written(path) and not codeheap.is_active())


def ended(text, *options, code=0, **environment):
    """(what the program said, its profile) of a program that ends with this code."""
    path = path_of("ended.folded")
    if os.path.exists(path):
        os.remove(path)
    with open(path_of("program.py"), "w") as file:
        file.write("import sys, os, threading, time, codeheap\npath = %r\n%s" % (path, text))
    done = subprocess.run([sys.executable, *options, path_of("program.py")], capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=100)
    must(done.returncode == code, done)
    return done.stdout + done.stderr, open(path).read() if os.path.exists(path) else ""


SPIN = """
def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(100): pass
"""


def case_profile_is_written_at_the_end_of_the_program():
    start = SPIN + "codeheap.flame_profile(path, wall=True).start()\nspin(0.05)\n"
    for end, code, says in (("", 0, ""), ("sys.exit(3)", 3, ""), ("raise ValueError('mine')", 1, "ValueError: mine"),
                            ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
                            ("threading.Thread(target=spin, args=(100,), daemon=True).start()\nspin(0.04)", 0, ""),
                            ("import atexit\natexit.register(spin, 0.04)", 0, ""),
                            ("with codeheap.profiling(): pass", 0, ""),
                            ("os._exit(0)", 0, None)):
        said, folded = ended(start + end, code=code)
        must("py::spin:" in folded if says is not None else not folded, end, said, folded)
        must((says or "") in said and (says or not said), end, said)
    # A thread or generator that is still in its stretch.
    said, folded = ended(SPIN + """
def inside():
    with codeheap.flame_profile(path, wall=True):
        spin(0.05)
        began.set()
        time.sleep(100)
began = threading.Event()
threading.Thread(target=inside, daemon=True).start()
began.wait()
""")
    must("py::spin:" in folded and not said, said, folded)
    said, folded = ended(SPIN + """
def inside():
    with codeheap.flame_profile(path, wall=True):
        spin(0.05)
        yield
step = inside()
next(step)
""")
    must("py::spin:" in folded and not said, said, folded)


def case_profile_ends_with_its_process():
    """A child of fork that leaves the stretch leaves its parent's file alone, and may have its own."""
    path, own = path_of("parent.folded"), path_of("child.folded")
    profile = codeheap.flame_profile(path, wall=True)
    with open(path, "w") as file:
        file.write("before 1\n")
    for way in ("leaves", "own", "again", "stops"):
        try:
            with profile:
                spin(0.05)
                child = os.fork()
                if not child:
                    spin(0.05)
                    if way == "own":
                        with codeheap.flame_profile(own, wall=True):
                            spin(0.05)
                    if way == "again":
                        codeheap.flame_profile(own, wall=True).start()
                        spin(0.05)
                    if way == "stops":
                        must(profile.stop() is None)
                        refuses(RuntimeError, "does not run", profile.stop)
                    sys.exit(5)
                must(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5)
                with open(path) as file:
                    must(file.read() == "before 1\n", "the child has written")
        except SystemExit:
            if os.path.exists(own):
                must(written(own))
            # As at the end of the program: `again` is still open.
            import atexit
            atexit._run_exitfuncs()
            must((way == "again") == os.path.exists(own) and (way != "again" or written(own)), way)
            os._exit(5)
        must(written(path), way)
        with open(path, "w") as file:
            file.write("before 1\n")


# --- what it refuses, and what it does then ---

def case_profile_refuses_before_the_body():
    for text, path in (("No such file", path_of("nowhere/x.svg")), ("Is a directory", here), ("Not a directory", "/dev/null/x")):
        must(text in str(no_body(codeheap.flame_profile(path))), text)
        must(not codeheap.is_active())
    must(sorted(os.listdir(here)) == [], os.listdir(here))
    # The longest name has room; a link is written through, and stays.
    must("name too long" in str(no_body(codeheap.flame_profile(path_of("x" * 256)))))
    longest = path_of("x" * 255)
    with codeheap.flame_profile(longest, wall=True):
        spin(0.04)
    os.remove(longest)
    link, target = path_of("link.folded"), path_of("target.folded")
    os.symlink("nowhere/x.folded", link)
    must("No such file" in str(no_body(codeheap.flame_profile(link))))
    os.remove(link)
    os.symlink("target.folded", link)
    for _ in range(2):
        with codeheap.flame_profile(link, wall=True):
            spin(0.04)
        must(os.path.islink(link) and any("spin" in stack for stack in read(target)))
    os.remove(link)
    os.remove(target)
    for kind, text, args, options in (
            (ValueError, "no path", ("",), {}), (ValueError, "no path", ("a\0b",), {}), (TypeError, "", (7,), {}),
            (ValueError, "rate", ("x",), {"rate": 0}), (ValueError, "rate", ("x",), {"rate": 20001}),
            (ValueError, "rate", ("x",), {"rate": 1.5}), (TypeError, "title", ("x",), {"title": 7})):
        refuses(kind, text, codeheap.flame_profile, *args, **options)
    for function in (steps, waits):
        refuses(TypeError, "use `with` inside", codeheap.flame_profile("x"), function)
    codeheap.activate("forward")
    must("nothing is active" in str(no_body(codeheap.flame_profile(path_of("x")))))
    must(codeheap.mode() == "forward")
    codeheap.deactivate()
    refuses(RuntimeError, "does not run", codeheap.flame_profile("x").stop)


def case_profile_is_one_at_a_time():
    path = path_of("one.folded")
    with codeheap.flame_profile(path, wall=True) as profile:
        must("runs already, for " + path in str(no_body(codeheap.flame_profile(path_of("two")))))
        must("runs already" in str(no_body(profile)))
        found = []

        def other():
            found.append(no_body(codeheap.flame_profile(path_of("two"))))
        t = threading.Thread(target=other)
        t.start()
        t.join()
        must("runs already" in str(found[0]) and codeheap.is_active())
        spin(0.04)
    must(written(path) and not os.path.exists(path_of("two")))

    # Many threads ask at once: one at a time gets it, and each stretch is written whole.
    got = collections.Counter()

    def asks(i):
        mine = path_of("of%d.folded" % i)
        for _ in range(30):
            try:
                with codeheap.flame_profile(mine):
                    spin(0.01)
                got["done"] += 1
                os.remove(mine)
            except RuntimeError as error:
                must("runs already" in str(error), error)
                got["refused"] += 1
    threads = [threading.Thread(target=asks, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    must(got["done"] + got["refused"] == 120 and got["done"] > 0 and not codeheap.is_active(), got)


def case_profile_waits_for_no_list_of_threads():
    """The mutex of CPython's lists lies before the first interpreter's address."""
    codeheap.activate()
    api = ctypes.pythonapi
    api.PyInterpreterState_Head.restype = ctypes.c_void_p
    words = (ctypes.c_void_p * 16).in_dll(api, "_PyRuntime")
    mutex = ctypes.c_void_p(words[list(words).index(api.PyInterpreterState_Head()) - 1])
    must(api.PyThread_acquire_lock(mutex, 0) == 1)
    try:
        refuses(RuntimeError, "list of threads is locked", codeheap.flame_profile(path_of("locked")).start)
    finally:
        api.PyThread_release_lock(mutex)


def case_profile_that_is_not_written_masks_nothing():
    folder = path_of("goes")

    def stretch(error):
        os.mkdir(folder)
        with codeheap.flame_profile(os.path.join(folder, "x.svg")):
            os.rmdir(folder)
            if error:
                raise error
    must("No such file" in str(refuses(OSError, "", stretch, None)))
    mine = ValueError("mine")
    try:
        stretch(mine)
    except ValueError as error:
        must(error is mine and "No such file" in error.__notes__[0], error)
    said, _ = ended("""
folder = path + ".d"
os.mkdir(folder)
with codeheap.flame_profile(folder + "/x.svg"):
    os.rmdir(folder)
    sys.exit(4)
""", code=4)
    must("codeheap: " in said and "No such file" in said and said.count("\n") == 1, said)
    # What was sampled before the program took the profiler's signal is written.
    path = path_of("taken.folded")
    profile = codeheap.flame_profile(path, wall=True).start()
    spin(0.04)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    must("samples are missing: CH_E_OS: the profile ended" in str(refuses(RuntimeError, "", profile.stop)))
    must(written(path) and not codeheap.is_active())
    # What was there is as it was; and the next one is as good as the first.
    path = path_of("kept.folded")
    with codeheap.flame_profile(path, wall=True):
        spin(0.04)
    must(written(path) and not codeheap.is_active())


class Interrupted:
    """A module; a signal's handler raises right behind the nth call of one function of it."""

    def __init__(self, real, name, nth):
        self.real, self.name, self.nth = real, name, nth

    def __getattr__(self, name):
        function = getattr(self.real, name)
        if name != self.name:
            return function

        def call(*args):
            result = function(*args)
            self.nth -= 1
            if self.nth == 0:
                raise KeyboardInterrupt
            return result
        return call


def case_profile_that_is_interrupted_is_not_left_running():
    """^C while a stretch begins or ends: there is the file or there was no stretch, and the next one begins."""
    from codeheap import profile as part
    path = path_of("interrupted.folded")
    for name, function, nth, has_begun in (
            ("os", "getpid", 1, False), ("_codeheap", "profile_start", 1, False), ("atexit", "register", 1, False),
            ("os", "getpid", 2, True), ("_codeheap", "profile_end", 1, True), ("_codeheap", "deactivate", 1, True),
            ("atexit", "unregister", 1, True)):
        what, real, begun = (name, function, nth), getattr(part, name), False
        setattr(part, name, Interrupted(real, function, nth))
        try:
            with codeheap.flame_profile(path, wall=True):
                begun = True
                spin(0.04)
            raise AssertionError(what)
        except KeyboardInterrupt:
            pass
        setattr(part, name, real)
        must(begun == has_begun and os.path.exists(path) == begun and not codeheap.is_active(), what, begun)
        with codeheap.flame_profile(path, wall=True):
            spin(0.04)
        must(written(path) and not codeheap.is_active(), what)


def case_profile_begins_and_ends_often():
    path = path_of("often.svg")
    profile = codeheap.flame_profile(path, title="often & <again>\0", icicle=True, reversed=True)
    codeheap.activate()
    for _ in range(300):
        with profile:
            leaf()
    with open(path) as file:
        text = file.read()
    must(text.lstrip().startswith(("<?xml", "<svg")) and "often &#38; &#60;again&#62;\u2400" in text, text[:300])
    must(os.listdir(here) == ["often.svg"], os.listdir(here))


if __name__ == "__main__":
    try:
        run(globals())
    finally:
        import shutil
        shutil.rmtree(here, ignore_errors=True)
