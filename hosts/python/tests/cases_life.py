# SPDX-License-Identifier: MIT
"""Life and death of trampolines: made when a function is called, kept while a stack holds them, collected after it."""

import asyncio
import ctypes
import gc
import sys
import threading

import codeheap
from rig import collect_all, must, named, rss_kib, run, tries


def define_and_call(times):
    for _ in range(times):
        exec("def test(): return 1", globals())
        test()


def stays_flat(loop, times, first=None, **options):
    """Resident memory, blocks and code stay where they are after a first part. The bounds: on a machine where collections
    take much of the time the heap asks for one after 1 MiB of code died, some 22,000 blocks, and 2,048 wait."""
    codeheap.activate(**options)
    loop(first or times // 10)
    rss, before = rss_kib(), codeheap.stats()
    loop(times)
    grown, after = rss_kib() - rss, codeheap.stats()
    must(grown < 8192, "resident memory grew", grown)
    must(after["blocks_now"] < 30000, "blocks", after["blocks_now"])
    must(after["code_bytes_peak"] < 2 << 20, "code", after["code_bytes_peak"])
    must(after["owners_now"] < 32000, "owners", after["owners_now"])
    return before, after


def run_beside(helpers, threads, stop):
    """Runs the threads to their ends beside helpers, which end when they are told to stop."""
    for t in helpers + threads:
        t.start()
    for t in threads:
        t.join()
    stop.set()
    for t in helpers:
        t.join()


def case_hundreds_of_thousands_of_definitions_stay_flat():
    stays_flat(define_and_call, tries(500000, 150000))


def case_definitions_are_collected_without_reuse():
    times = tries(150000, 60000)
    before, after = stays_flat(define_and_call, times, reuse=False)
    freed = after["blocks_freed"] - before["blocks_freed"]
    must(freed > times / 3 * 5, "collected", freed)
    must(after["cycles"] - before["cycles"] > times // 18000, after["cycles"])


def case_definitions_of_other_names_are_collected():
    def loop(times):
        for i in range(times):
            names = {}
            exec("def test%d(): return 1" % i, names)
            names["test%d" % i]()
    # The library remembers the names of the last 65,536 blocks that were freed.
    before, after = stays_flat(loop, 60000, first=70000)
    must(after["blocks_freed"] - before["blocks_freed"] > 30000, after["blocks_freed"])


def case_definitions_in_a_full_pool_run_all_the_same():
    codeheap.activate(pool_bytes=1 << 20)
    functions = []
    for i in range(40000):
        names = {}
        exec("def test%d(): return %d" % (i, i), names)
        functions.append(names["test%d" % i])
        must(functions[-1]() == i)
    must(codeheap.stats()["opens_full"] > 0, "the pool was never full")
    must(all(f() == i for i, f in enumerate(functions)))
    del functions, names
    gc.collect()
    collect_all()
    before = codeheap.stats()["blocks_committed"]
    define_and_call(100)
    must(codeheap.stats()["blocks_committed"] > before, "room came, and no code is made")


def case_nothing_is_freed_in_the_mode_that_keeps():
    codeheap.activate("kept")
    define_and_call(20000)
    collect_all()
    must(codeheap.stats()["blocks_now"] > 40000, codeheap.stats()["blocks_now"])
    must(codeheap.stats()["blocks_freed"] == 0)


def case_each_function_has_a_frame_of_its_name():
    codeheap.activate()
    must(named("case_each_function_has_a_frame_of_its_name") == 0)  # it was entered before

    class Thing:
        def méthode(self, depth):
            return named("case_each_function_has_a_frame_of_its_name.<locals>.Thing.méthode") if depth == 0 \
                else self.méthode(depth - 1)

    must(Thing().méthode(6) == 7)
    must((lambda: named("case_each_function_has_a_frame_of_its_name.<locals>.<lambda>"))() == 1)
    generator = (named("case_each_function_has_a_frame_of_its_name.<locals>.<genexpr>") for _ in range(2))
    must(list(generator) == [1, 1])
    odd = {}
    exec(compile("def odd():\n return here()", "a\nb\udc80c", "exec"), odd)
    odd["here"] = lambda: [name for name in codeheap.backtrace() if name.startswith("py::odd:")]
    must(len(odd["odd"]()) == 1, odd["odd"]())
    must("\n" not in odd["odd"]()[0])


def case_discard_and_deactivate_inside_trampolined_frames():
    codeheap.activate()

    def deep(n, act):
        if n:
            return deep(n - 1, act) + 1
        must(named("case_discard_and_deactivate_inside_trampolined_frames.<locals>.deep") == 51)
        counts = act()
        must(counts.kept >= 2, counts)
        # Under it are frames whose code was thrown away.
        must(named("case_discard_and_deactivate_inside_trampolined_frames.<locals>.deep") >= 51)
        collect_all()
        codeheap.check()
        return 0

    for _ in range(20):
        must(deep(50, codeheap.discard) == 50)
        must(deep(50, codeheap.deactivate) == 50)
        must(not codeheap.is_active())
        codeheap.activate()
    collect_all()
    must(codeheap.stats()["blocks_notentrant_now"] < 60, codeheap.stats()["blocks_notentrant_now"])


def case_a_function_dies_while_it_runs():
    codeheap.activate(reuse=False)
    names = {"must": must, "collect_all": collect_all, "gc": gc, "named": named}
    exec("""
def dies():
    global dies
    del dies
    gc.collect()
    collect_all()
    must(named("dies") == 1)
    return 42
""", names)
    must(names["dies"]() == 42)
    gc.collect()
    must(collect_all() > 0)


def case_suspended_generators_and_coroutines():
    def numbers():
        n = 0
        while True:
            n += (yield n) or 1

    # The exception is on its way while the function gets its record.
    before = numbers()
    codeheap.activate()
    try:
        before.throw(KeyError("early"))
    except KeyError as error:
        must(error.args == ("early",))

    async def tick(n):
        for _ in range(n):
            await asyncio.sleep(0)
            if n == 7:
                codeheap.discard()
        return n

    async def agen():
        for i in range(5):
            yield i
            await asyncio.sleep(0)

    generators = [numbers() for _ in range(50)]
    must([next(g) for g in generators] == [0] * 50)
    codeheap.discard()
    collect_all()
    must([next(g) for g in generators] == [1] * 50)
    codeheap.deactivate()
    must([g.send(5) for g in generators] == [6] * 50)
    codeheap.activate()
    must([next(g) for g in generators] == [7] * 50)

    async def main():
        found = [i async for i in agen()]
        return found, await asyncio.gather(*(tick(n) for n in range(20)))
    for act in (codeheap.discard, codeheap.deactivate, codeheap.activate):
        must(asyncio.run(main()) == ([0, 1, 2, 3, 4], list(range(20))))
        act()
    for g in generators[:25]:
        try:
            g.throw(KeyError("thrown"))
        except KeyError:
            pass
    del generators
    gc.collect()
    collect_all()


def case_four_threads_turn_it_on_and_off():
    codeheap.activate()
    failures, stop = [], threading.Event()

    def work(seed):
        try:
            for i in range(600):
                def step(n):
                    return 0 if n == 0 else 1 + step(n - 1)
                must(step(30 + seed) == 30 + seed)
                names = {}
                exec("def f(g):\n yield from g\n", names)
                must(list(names["f"](range(5))) == [0, 1, 2, 3, 4])
                act = (codeheap.discard, codeheap.deactivate, codeheap.activate, codeheap.collect)[(i + seed) % 4]

                def inside(n):
                    if n:
                        return inside(n - 1)
                    act()
                inside(10)
        except BaseException as error:
            failures.append(error)

    def background():
        while not stop.wait(0.0001):
            sorted(range(100), key=lambda x: -x)

    sys.setswitchinterval(1e-5)
    helpers = [threading.Thread(target=background) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    run_beside(helpers, threads, stop)
    must(not failures, failures)


def case_the_first_activation_is_of_four_threads():
    """How evaluators lie on a stack is learnt by running Python, while others run theirs."""
    stop, failures, barrier = threading.Event(), [], threading.Barrier(4)

    def step(n):
        return n and step(n - 1)

    def busy():
        while not stop.is_set():
            step(20)

    def work():
        try:
            barrier.wait()
            codeheap.activate()
            must(step(20) == 0 and codeheap.is_active())
        except BaseException as error:
            failures.append(error)

    sys.setswitchinterval(1e-6)
    helpers = [threading.Thread(target=busy) for _ in range(3)]
    threads = [threading.Thread(target=work) for _ in range(4)]
    run_beside(helpers, threads, stop)
    must(not failures, failures)
    must(codeheap.stats()["vms_now"] == 2)
    must(named("case_the_first_activation_is_of_four_threads.<locals>.step") == 0)
    must((lambda: named("case_the_first_activation_is_of_four_threads.<locals>.<lambda>"))() == 1)


def case_threads_hold_their_code_while_they_wait():
    """A thread waits in C code, deep in functions whose code another thread throws away."""
    codeheap.activate()
    inside, go_on, found = threading.Semaphore(0), threading.Semaphore(0), []

    def deep(n):
        if n:
            return deep(n - 1) + 1
        inside.release()
        go_on.acquire()
        found.append(named("case_threads_hold_their_code_while_they_wait.<locals>.deep"))
        return 0

    threads = [threading.Thread(target=lambda: found.append(deep(40)), daemon=True) for _ in range(4)]
    for t in threads:
        t.start()
    for _ in threads:
        inside.acquire()
    kept = codeheap.discard().kept
    collect_all()
    must(kept >= 1, kept)
    must(codeheap.stats()["stack_roots_last"] >= 4 * 41, codeheap.stats()["stack_roots_last"])
    # Other code would take the places of what is freed too early.
    define_and_call(5000)
    for _ in threads:
        go_on.release()
    for t in threads:
        t.join()
    must(sorted(found) == [40] * 4 + [41] * 4, found)


def case_threads_come_and_go():
    codeheap.activate()
    for _ in range(50):
        threads = [threading.Thread(target=define_and_call, args=(5,)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    collect_all()
    must(codeheap.stats()["threads_now"] <= 9, codeheap.stats()["threads_now"])


def case_threads_of_c_come_to_python():
    """Threads that Python did not start, each with a thread state that comes and goes with its call."""
    libc = ctypes.CDLL(None)
    codeheap.activate()
    done = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def start(_):
        def deep(n):
            return codeheap.collect() and 0 if n == 0 else deep(n - 1) + 1
        define_and_call(20)
        done.append(deep(30))
        codeheap.discard()
        done.append(named("case_threads_of_c_come_to_python.<locals>.start"))

    for _ in range(20):
        threads = (ctypes.c_ulong * 4)()
        for i in range(4):
            must(libc.pthread_create(ctypes.byref(threads, 8 * i), None, start, None) == 0)
        for thread in threads:
            libc.pthread_join(ctypes.c_ulong(thread), None)
    must(sorted(done) == [1] * 80 + [30] * 80, done)
    must(codeheap.stats()["threads_now"] <= 2, codeheap.stats()["threads_now"])


def case_greenlets_are_not_discarded_under():
    """Where the package greenlet is imported stacks may be copied away; a module of its name stands for it."""
    codeheap.activate()
    define_and_call(10)
    sys.modules["greenlet"] = sys
    try:
        codeheap.discard()
    except RuntimeError as error:
        must("greenlets" in str(error))
    else:
        raise AssertionError("discarded")
    must(codeheap.deactivate() == (0, 0) and not codeheap.is_active())
    must(codeheap.stats()["blocks_notentrant_now"] == 0)
    del sys.modules["greenlet"]
    codeheap.activate()
    must(codeheap.discard().freed > 0)


def case_collections_at_each_call():
    codeheap.activate(collect_every=1)
    define_and_call(200)
    case_suspended_generators_and_coroutines()
    must(codeheap.stats()["cycles"] > 400, codeheap.stats()["cycles"])


if __name__ == "__main__":
    run(globals())
