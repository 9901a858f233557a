# SPDX-License-Identifier: MIT
"""Python functions as named, garbage-collected code on libcodeheap.

While it is active each Python function runs through a trampoline of its own: a block of code named
`py::qualname:file`, which profilers, debuggers and unwinders see as a frame, and which is collected
when the function is gone and no stack holds it. Built for CPython 3.11.

    import codeheap
    codeheap.activate(sinks={"perfmap"})
    with codeheap.profiling(sinks={"jitdump"}):      # for perf and other profilers outside
        work()
    with codeheap.flame_profile("work.svg"):          # by the library's own
        work()
    codeheap.deactivate()

`python3.11 -m codeheap script.py` runs a whole program so. The environment gives defaults:

    CODEHEAP_PYTHON_MODE           trampolines; forward (a hook that does nothing else); kept (no
                                   trampoline is ever freed, a model of CPython 3.12)
    CODEHEAP_PYTHON_POOL_BYTES     bytes of the pool
    CODEHEAP_PYTHON_FORK           copy, cow, none: the code of a child of fork
    CODEHEAP_PYTHON_COLLECT_EVERY  a collection at every Nth call
    CODEHEAP_PYTHON_REUSE          0: the trampoline of a function that dies is not kept for the
                                   next one of the same name
    CODEHEAP_SINKS, CODEHEAP_WX, CODEHEAP_DEAD_NAMES, JITDUMPDIR: the library's own
"""

import atexit
import collections
import contextlib
import os
import sys

if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 11):
    raise ImportError("codeheap is built for CPython 3.11, this is %s %d.%d" % (
        sys.implementation.name, *sys.version_info[:2]))

import _codeheap
from codeheap.profile import ProfileCounts, flame_profile

__all__ = ["activate", "deactivate", "is_active", "mode", "discard", "collect", "check", "stats", "sinks", "set_sinks",
           "flush", "backtrace", "profiling", "flame_profile", "Counts", "ProfileCounts", "Sink", "version"]

version = "%d.%d" % (_codeheap.VERSION_MAJOR, _codeheap.VERSION_MINOR)

#: What discard and deactivate did: blocks freed at once, and blocks that a stack holds.
Counts = collections.namedtuple("Counts", "freed kept")
#: A table of the outside world: whether it is told, its file or "", the errno that switched it off or 0.
Sink = collections.namedtuple("Sink", "is_on path errno")

_is_registered = False


def _bits(names):
    if isinstance(names, str):
        names = names.replace(",", " ").split()
    bits = 0
    for name in names:
        if name not in _codeheap.SINKS:
            raise ValueError("there is no sink %r; there are %s" % (name, ", ".join(_codeheap.SINKS)))
        bits |= _codeheap.SINKS[name]
    # No sink is a wish of its own: 0 means the default.
    return bits or _codeheap.SINKS["none"]


def _number(name, default="0"):
    text = os.environ.get(name, default)
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("%s=%s is no number" % (name, text)) from None


def activate(mode=None, *, pool_bytes=None, backend="auto", fork=None, sinks=None, dead_names="replaced",
             collect_every=None, reuse=None):
    """Runs each Python function of this interpreter through a trampoline from its next call on.

    The first activation in the process makes the heap: pool_bytes, backend, fork and dead_names are
    its own from then on. sinks, a set of names, replaces those that are on; where one of them fails
    nothing is active that was not before."""
    global _is_registered
    was_active = is_active()
    bits = 0 if sinks is None else _bits(sinks)
    _codeheap.activate(
        mode=os.environ.get("CODEHEAP_PYTHON_MODE", "trampolines") if mode is None else mode,
        pool_bytes=_number("CODEHEAP_PYTHON_POOL_BYTES") if pool_bytes is None else pool_bytes,
        backend=backend,
        fork=os.environ.get("CODEHEAP_PYTHON_FORK", "copy") if fork is None else fork,
        sinks=bits,
        dead_names=dead_names,
        collect_every=_number("CODEHEAP_PYTHON_COLLECT_EVERY") if collect_every is None else collect_every,
        reuse=bool(_number("CODEHEAP_PYTHON_REUSE", "1") if reuse is None else reuse))
    if not _is_registered:
        _is_registered = True
        atexit.register(_codeheap.end)
    if bits:
        before = [name for name, sink in globals()["sinks"]().items() if sink.is_on]
        try:
            _codeheap.set_sinks(bits)
        except BaseException:
            if not was_active:
                deactivate()
            set_sinks(before)
            raise


def deactivate():
    """Python functions run plainly again; throws the code away, save what a stack holds."""
    return Counts(*_codeheap.deactivate())


def mode():
    """off, forward, trampolines or kept."""
    return _codeheap.mode()


def is_active():
    return _codeheap.mode() != "off"


def discard():
    """Throws all code of this interpreter away; it is made again as functions are called."""
    return Counts(*_codeheap.discard())


def collect():
    """One collection; how many blocks it freed. Nobody needs to call it."""
    return _codeheap.collect()


def check():
    """Looks at every invariant of the heap; RuntimeError says which one does not hold."""
    _codeheap.check()


def stats():
    """Counters and gauges of the heap, by the names of the library's struct ch_stats."""
    return _codeheap.stats()


def sinks():
    """The sinks by name, each with is_on, path and errno."""
    return {name: Sink(*_codeheap.sink_status(bit)) for name, bit in _codeheap.SINKS.items() if name != "none"}


def set_sinks(names):
    """Tells these tables and no others; one that comes on is told of all code that lives."""
    _codeheap.set_sinks(_bits(names))


def flush():
    """Writes what sinks have buffered."""
    _codeheap.flush()


def backtrace():
    """The frames of the caller's C stack by name, innermost first: native ones and functions."""
    return _codeheap.backtrace()


@contextlib.contextmanager
def profiling(sinks=("unwind", "perfmap"), **options):
    """Active, with these sinks, for a stretch; afterwards everything is as it was before. For profilers outside;
    flame_profile is the one inside, and needs no sink."""
    wanted = _bits(sinks) | _codeheap.SINKS["unwind"]
    with contextlib.ExitStack() as undo:
        if not is_active():
            activate(**options)
            undo.callback(deactivate)
        before = [name for name, sink in globals()["sinks"]().items() if sink.is_on]
        undo.callback(set_sinks, before)
        _codeheap.set_sinks(wanted)
        undo.callback(flush)
        yield
