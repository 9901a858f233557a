# SPDX-License-Identifier: MIT
"""Runs cases of test programs, some at a time, in the environment that make gives them (test_environment in mk/tests.mk).

A case runs in a session of its own (build.run), which is killed when the case has ended. What killed programs leave in
/tmp goes with this process, which has a /tmp of its own.
"""
import glob
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

from build import SKIPPED, run as run_program

LIST_LIMIT_S = 60


class Job:
    """One case of one program; after its run also its verdict and seconds."""

    def __init__(self, program, case, limit, signal_, mode):
        self.program, self.case, self.limit, self.signal, self.mode = program, case, limit, signal_, mode
        self.base = os.path.basename(program)
        self.environment, self.scratch = {}, None
        self.verdict, self.seconds = None, 0.0

    def of(self, program):
        """The same case of another program, a broken one."""
        return Job(program, self.case, self.limit, self.signal, self.mode)


def alone():
    """Runs this program again in a mount namespace, where the system allows it and no work lies in /tmp."""
    if os.environ.get("CODEHEAP_BREAKS_ALONE") or os.geteuid() or os.getcwd().startswith("/tmp"):
        return
    os.environ["CODEHEAP_BREAKS_ALONE"] = "1"
    mount = "mount -t tmpfs -o mode=1777,size=2g tmpfs /tmp"
    if subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True, check=False).returncode == 0:
        os.execvp("unshare", ["unshare", "--mount", "sh", "-c", mount + ' && exec "$@"', "sh", sys.executable] + sys.argv)


def end(*_):
    """Ends this process; each child leads a session."""
    for path in glob.glob("/proc/self/task/*/children"):
        with open(path, encoding="ascii") as f:
            for child in f.read().split():
                try:
                    os.killpg(int(child), signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass
    os._exit(130)


def protect():
    """Cases write no core, and are the kernel's first victims when memory runs out; they end when this process is told to."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as f:
            f.write("500")
    except OSError:
        pass
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def make_room():
    """What killed programs left does not fill a /tmp of our own: compilers and the next cases need it."""
    usage = shutil.disk_usage("/tmp")
    # Whoever sets the word by hand has no /tmp of its own.
    if os.environ.get("CODEHEAP_BREAKS_ALONE") and os.path.ismount("/tmp") and usage.free < usage.total // 2:
        for path in glob.glob("/tmp/*") + glob.glob("/tmp/.[!.]*"):
            if os.path.isdir(path) and not os.path.islink(path):
                remove(path)
            else:
                os.remove(path)


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)


def listed(build, program):
    """The cases that `make check` runs; the timed ones are none of them."""
    text = subprocess.run([*build.emulator, program], capture_output=True, text=True, check=True, timeout=LIST_LIMIT_S).stdout
    slow = float(os.environ.get("CODEHEAP_TEST_SLOW", "1"))
    for line in text.splitlines():
        name, limit, signal_, mode = (line.split() + ["-"])[:4]
        if mode != "timed":
            yield Job(program, name, float(limit) * slow, int(signal_), mode)


class Turns:
    """A case that fills the machine runs while no other one does."""

    def __init__(self):
        self.changed = threading.Condition()
        self.count, self.is_taken = 0, False

    def enter(self, is_alone):
        with self.changed:
            self.changed.wait_for(lambda: not self.is_taken and not (is_alone and self.count))
            self.is_taken = is_alone
            self.count += 1

    def leave(self):
        with self.changed:
            self.count -= 1
            self.is_taken = False
            self.changed.notify_all()


turns = Turns()


def verdict_of(job, status):
    if status is None:
        return "timed out"
    if status == SKIPPED:
        return "skipped"
    if status == -job.signal:  # 0 where the case ends by itself
        return "passed"
    return "failed" if status >= 0 or job.signal else f"died of signal {-status}"


def run(build, job, limit=None):
    """Sets the job's verdict: passed, skipped, failed, died of signal N, or timed out."""
    if job.scratch:
        os.makedirs(job.scratch, exist_ok=True)
    turns.enter(job.mode == "alone")
    began = time.monotonic()
    try:
        status = run_program(build, os.path.abspath(job.program), [job.case], limit or job.limit, job.environment)
        job.verdict = verdict_of(job, status)
    finally:
        job.seconds = time.monotonic() - began
        make_room()
        turns.leave()
    return job.verdict


def run_all(build, jobs, done, parallel=2):
    """Runs the jobs and calls done(job) for each, one call at a time."""
    left, lock = list(reversed(jobs)), threading.Lock()

    def work():
        while True:
            with lock:
                if not left:
                    return
                job = left.pop()
            run(build, job)
            with lock:
                done(job)

    in_threads(work, parallel)


def in_threads(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
