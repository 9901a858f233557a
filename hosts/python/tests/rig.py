# SPDX-License-Identifier: MIT
"""What the cases share: each is a function that is run in a process of its own, by its name."""

import atexit
import contextlib
import os
import sys

import codeheap


def must(fact, *what):
    if not fact:
        raise AssertionError(*what)


def tries(all_of_them, some):
    """With LONG=1 as many as are known."""
    return all_of_them if os.environ.get("CODEHEAP_TEST_LONG") == "1" else some


def rss_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def collect_all():
    """Code that died is gone: a second cycle gives back what waited for a core synchronization."""
    return codeheap.collect() + codeheap.collect()


def named(text):
    """How many frames of functions with this name are on the C stack."""
    return sum(name.startswith("py::" + text + ":") for name in codeheap.backtrace())


def perf_map_path(pid=None):
    return "/tmp/perf-%d.map" % (pid or os.getpid())


def clear_perf_map(pid=None):
    """What this process has written, or one that had its number, with another user perhaps."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(perf_map_path(pid))


def leave_foreign_perf_map():
    """A file of another user's process that had this number stays his: a child goes on, under a number of its own."""
    with contextlib.suppress(FileNotFoundError):
        while os.geteuid() not in (0, os.lstat(perf_map_path()).st_uid):
            child = os.fork()
            if child:
                os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)


@contextlib.contextmanager
def no_perf_map():
    """A folder is where the file would be."""
    clear_perf_map()
    os.mkdir(perf_map_path())
    try:
        yield
    finally:
        os.rmdir(perf_map_path())


def run(cases):
    leave_foreign_perf_map()
    # Children of fork have maps of their own.
    atexit.register(clear_perf_map)
    names = sys.argv[1:]
    if not names:
        print(*[name for name in cases if name.startswith("case_")])
    for name in names:
        cases[name]()
        if codeheap.is_active():
            codeheap.check()


def refuses(kind, text, call, *args, **options):
    try:
        call(*args, **options)
    except kind as error:
        must(text in str(error), error)
        return error
    raise AssertionError("not refused: " + text)
