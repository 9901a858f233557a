# SPDX-License-Identifier: MIT
"""flame_profile: the library's sampling profiler over a stretch of a program."""

# What few programs have imported themselves comes where it is needed: some look whether they have.
import _thread
import atexit
import collections
import contextlib
import os
import stat
import sys

import _codeheap

#: What a profile has: samples; those that found no room; those whose stack was deeper than 512 frames; threads.
ProfileCounts = collections.namedtuple("ProfileCounts", "samples dropped cut threads")

DEFAULT_RATE = 997

# A handler of Python's may start or stop one in the midst of either.
_lock = _thread.RLock()
_running = None


def _forget_of_parent():
    global _lock, _running
    _lock = _thread.RLock()
    _running = None
    _codeheap.profile_forget()


os.register_at_fork(after_in_child=_forget_of_parent)


def _must_be_writable(path):
    """What a later write would say: a regular file is made beside, and takes the place of the one that is there; all
    else, and what a link leads to, is written to where it is."""
    is_link = os.path.islink(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, os.strerror(21), path)
    if mode and (is_link or not stat.S_ISREG(mode)):
        if not os.access(path, os.W_OK):
            raise PermissionError(13, os.strerror(13), path)
        return
    if is_link:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.unlink(os.path.realpath(path))
        return
    try:
        import tempfile
        # As long as the name of the library's temporary file, which keeps 64 bytes of the name at most.
        kept = min(len(os.fsencode(os.path.basename(path))), 64)
        file, name = tempfile.mkstemp(prefix="0" * kept + ".", dir=os.path.dirname(path))
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno), path) from None
    os.close(file)
    os.unlink(name)


class flame_profile(contextlib.ContextDecorator):
    """Profiles a stretch of the program and writes a flame graph of its functions.

        with codeheap.flame_profile("work.svg"):
            work()

    or start() and stop(), or as a decorator of a function that is not recursive; as often as wanted, each time the file
    is written anew. All threads are sampled that call functions. Functions run on trampolines meanwhile, and go on to
    where that was so before. A process has one profile at a time; a child of fork has none until it starts its own.

    rate      samples for each second of a thread's CPU time
    wall      of time instead: threads that wait are sampled, too
    title     of the graph
    icicle    the root is at the top
    reversed  stacks begin with the innermost frame
    folded    text instead of SVG, `outer;inner COUNT`; None: when the file's name ends in .folded or .txt
    memory_bytes  for samples and stacks; 0 = 64 MiB; what finds no room is counted

    The file is written however the stretch ends: by an exception, which is never masked (what goes wrong then is a note
    of it), with its generator or thread, and at the end of the program; not by os._exit and signals that kill."""

    def __init__(self, path, rate=DEFAULT_RATE, title=None, wall=False, icicle=False, reversed=False, folded=None,
                 memory_bytes=0):
        path = os.fsdecode(path)
        if not path or "\0" in path:
            raise ValueError("no path: %r" % path)
        if not isinstance(rate, int) or not 0 < rate <= 20000:
            raise ValueError("the rate %r is none of 1 to 20000" % (rate,))
        if title is not None and not isinstance(title, str):
            raise TypeError("the title %r is no text" % (title,))
        self.path, self.rate, self.title, self.wall = path, rate, title, wall
        self.icicle, self.reversed, self.memory_bytes = icicle, reversed, memory_bytes
        self.folded = path.endswith((".folded", ".txt")) if folded is None else bool(folded)
        #: ProfileCounts of the last stretch
        self.counts = None
        self._has_callers = True
        self._started_in = None
        self._mark = None

    def start(self):
        """Begins the stretch. OSError: the file cannot be written; RuntimeError: a profile runs, or no code is made."""
        global _running
        mark = object()
        try:
            self._start(mark)
        except BaseException:
            # A signal's handler may raise behind any call: who does not begin leaves nothing that runs.
            with _lock:
                if self._mark is mark and self._started_in is not None:
                    self._started_in = _running = None
                    _codeheap.profile_abandon()
                    if self._has_activated:
                        _codeheap.deactivate()
                    atexit.unregister(self._at_exit)
            raise
        return self

    # The same function, for a signal's handler may raise between two.
    __enter__ = start

    def _start(self, mark):
        global _running
        import codeheap
        with _lock:
            if _running:
                raise RuntimeError("a profile runs already, for " + _running.path)
            # The stretch may go to another folder.
            path, here = os.path.abspath(self.path), os.getpid()
            _must_be_writable(path)
            has_activated = not codeheap.is_active()
            try:
                if has_activated:
                    codeheap.activate()
                atexit.register(self._at_exit)
                _codeheap.profile_start(self.rate, self.wall, self.memory_bytes, self._has_callers)
            except BaseException:
                # Not one that a signal's handler has begun in the midst of this.
                if _running is None:
                    _codeheap.profile_abandon()
                if has_activated:
                    _codeheap.deactivate()
                atexit.unregister(self._at_exit)
                raise
            self._has_activated, self._absolute = has_activated, path
            self._mark, self._started_in, _running = mark, here, self

    def stop(self):
        """Ends it and writes the file; the counts, None in a child of fork. OSError: the file is as it was;
        RuntimeError: the program took SIGPROF, and the file has what was sampled before."""
        try:
            return self._stop()
        except BaseException:
            # A signal's handler has raised before anything was stopped.
            if self._started_in is not None:
                self._stop()
            raise

    def _stop(self):
        global _running
        with _lock:
            if self._started_in is None:
                raise RuntimeError("this profile does not run")
            if self._started_in != os.getpid():
                self._started_in = None
                return None
            # What C cannot read would be said now, when the samples are all there is.
            title = self.title and self.title.replace("\0", "\u2400").encode("utf-8", "replace").decode()
            try:
                self.counts = ProfileCounts(*_codeheap.profile_end(
                    self._absolute, title, self.folded, self.icicle, self.reversed))
            finally:
                self._started_in = _running = None
                if self._has_activated:
                    _codeheap.deactivate()
                atexit.unregister(self._at_exit)
        return self.counts

    def _at_exit(self):
        """Where the stretch is still open: a thread that goes on, a generator that nobody closed."""
        try:
            if self._started_in is not None:
                self.stop()
        except Exception as error:
            print("codeheap: %s" % error, file=sys.stderr)

    def __exit__(self, kind, error, trace):
        try:
            if self._started_in is not None:
                self.stop()
        except Exception as failure:
            if error is None:
                raise
            note = "codeheap: %s" % failure
            error.add_note(note)
            # Nobody prints these.
            if isinstance(error, (SystemExit, GeneratorExit)):
                print(note, file=sys.stderr)
        return False

    def __call__(self, function):
        import inspect
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function) or \
                inspect.isasyncgenfunction(function):
            raise TypeError("%s returns before it runs: use `with` inside" % function.__qualname__)
        return super().__call__(function)
