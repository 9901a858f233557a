#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make mutants: breaks the code in one way at a time, as the rows say (rows.py), and runs who must notice. A mutant is
caught when the test fails, dies or does not end; without the break the test must pass. Prints a line for each and
`N passed, N failed`; exits 1 when one was not caught. A test that is skipped on this machine, as tests/cannot_run.list says,
or is for another machine proves nothing: its line begins with `--`.

    planted.py                         all rows, then scripts that break copies of what they test
    planted.py NAME                    rows of this name, program or case, of a pattern of names, or of NAME.rows
    planted.py --programs NAME         the programs that those rows need, for make
    planted.py --link NAME PROGRAM TO  PROGRAM broken so, kept at TO; PROGRAM may be stress or corpus

CODEHEAP_BUILD is the folder of the build, JOBS how many run at a time."""
import concurrent.futures
import fnmatch
import glob
import os
import re
import shutil
import subprocess
import sys
import threading
import time

from build import NO_SUCH_CASE, SKIPPED, SPECIAL, Broken, Build, BuildFailed, run, settings_of_make
from programs import program_of
from rows import all_rows, read_file

LIMIT = 25           # seconds for a broken case, or ten times as long as it takes unbroken
LIMIT_UNBROKEN = 150
STRESS_SECONDS = 60  # the stress must find a mutant within these
MACHINES = [os.path.basename(name)[:-2] for name in glob.glob("arch/*.S")]


def machine_of(program):
    """The architecture that a program is for; "" for that of the build."""
    for machine in MACHINES:
        if program.startswith(machine + ":") or program.endswith("_" + machine):
            return machine
    return ""


def cross_build_of(machine):
    """The folder of a foreign build, and what make is told. Where Debian has no libraries there is no libgc and no jemalloc."""
    with open(f"tools/machines/{machine}.list", encoding="utf-8") as file:
        has_libraries = any(line.startswith("debian ") for line in file)
    prefix = f"{machine}-linux-gnu-"
    folder, settings = f"cross-{machine}-linux-gnu", [f"CROSS={prefix}", f"CC={prefix}gcc"]
    return (folder, settings) if has_libraries else (folder + "-gc-none", settings + ["GC=none", "ALLOC=malloc"])


class Runner:
    def __init__(self, folder):
        self.build = Build(folder, settings_of_make())
        self.has_bdw = self.build.vars.get("GC", "bdw") != "none"
        self.cross = {}
        self.lock = threading.Lock()
        self.without = {}  # (build, program, case): [lock, status, seconds]
        self.passed = self.failed = 0

    def say(self, verdict, name, text):
        with self.lock:
            self.passed += verdict == "ok"
            self.failed += verdict == "not ok"
            print(f"{verdict} {name}: {text}", flush=True)

    def build_for(self, program):
        """The build that has the program, and its name there; None: it is for another machine."""
        machine, name = machine_of(program), program.split(":")[-1]
        if not machine or machine == self.build.vars.get("ARCH"):
            return self.build, name
        folder, settings = cross_build_of(machine)
        path = os.path.join(self.build.folder, folder)
        with self.lock:
            if machine not in self.cross:
                self.cross[machine] = Build(path, settings) if os.path.isdir(path) else None
        build = self.cross[machine]
        return (build, name) if build and build.has_program(name) and not build.is_old(name) else (None, name)

    def words_of(self, case, seconds):
        if case.program == "corpus":
            return sorted(glob.glob("fuzz/corpus/*"))
        if case.program == "stress":
            return [f"--levels={case.case}", f"--seconds={seconds}", "--seed=1", "--minimise-ms=0"]
        return [case.case]

    def may_skip(self, program, case):
        words = [os.path.join(self.build.folder, "tests/runner"), "-l", "tests/cannot_run.list", "-q", "skip", program, case]
        return subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode == 0

    def status_without(self, build, program, case):
        key = (build.folder, program, case.case)
        with self.lock:
            entry = self.without.setdefault(key, [threading.Lock(), False, 0])
        with entry[0]:
            if entry[1] is False:
                started = time.monotonic()
                entry[1] = run(build, build.path_of(program), self.words_of(case, STRESS_SECONDS // 3), LIMIT_UNBROKEN)
                entry[2] = time.monotonic() - started
        return entry[1:]

    def check(self, row, case, broken):
        """broken(build): the Broken of this row for a build."""
        if not self.has_bdw and (case.program in ("stress",) or case.program.startswith("bdw_") or case.case.endswith("_boehm")):
            return
        build, program = self.build_for(case.program)
        if not build:
            return self.say("--", row.name, f"{case.program} is for another machine, and no build of it is of these sources")
        if not build.has_program(program):
            return self.say("not ok", row.name, f"{case.program} is not built")
        status, seconds = self.status_without(build, program, case)
        if status == SKIPPED and self.may_skip(program, case.case):
            return self.say("--", row.name, f"{case.label()} is for another machine")
        if status != 0:
            return self.say("not ok", row.name, f"{case.label()} fails without it")
        path = broken(build).link(program)
        for _ in range(case.tries):
            status = run(build, path, self.words_of(case, STRESS_SECONDS), max(LIMIT, 10 * seconds))
            if status not in (0, SKIPPED, NO_SUCH_CASE):
                break
        if status in (0, SKIPPED, NO_SUCH_CASE):
            return self.say("not ok", row.name, f"{case.label()} does not notice")
        how = "did not end" if status is None else "failed" if status > 0 else f"died of signal {-status}"
        return self.say("ok", row.name, f"{case.label()} {how}")

    def run_row(self, row, cases):
        made = {}

        def broken(build):
            if build.folder not in made:
                texts = row.broken_files(lambda file: read_file(file) if file in build.includers else None)
                made[build.folder] = Broken(build, texts).__enter__()
            return made[build.folder]

        try:
            for case in cases:
                try:
                    self.check(row, case, broken)
                except BuildFailed as words:
                    said = [line for line in str(words).split("\n") if line]
                    wrong = [line for line in said if "error" in line or "undefined" in line]
                    self.say("not ok", row.name, f"{case.label()}: {(wrong or said or ['does not build'])[0]}")
        finally:
            for one in made.values():
                one.__exit__()

    def run_script(self, script):
        """What breaks copies of its product by itself."""
        environment = dict(os.environ, CODEHEAP_TEST_BROKEN="1")
        case, seconds = subprocess.run([script], capture_output=True, text=True, env=environment, check=False).stdout.split()[:2]
        try:
            done = subprocess.run([script, case], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=int(seconds), check=False)
            last = (done.stdout + done.stderr).strip().split("\n")[-1]
            if done.returncode == SKIPPED and self.may_skip(program_of(script) + ".sh", case):
                return self.say("--", case, last)
            said = (last or f"it ended with {done.returncode}") if done.returncode else ""
        except subprocess.TimeoutExpired:
            said = "it did not end"
        self.say("not ok" if said else "ok", case, said or f"{script} noticed each")


def chosen(pattern):
    """(row, its cases) that the pattern means: of a row all, else those of a program or case."""
    for row in all_rows():
        if not pattern or fnmatch.fnmatchcase(row.name, pattern) or os.path.basename(row.path) == pattern:
            yield row, row.cases
        else:
            cases = [case for case in row.cases if pattern in (case.program, case.case)]
            if cases:
                yield row, cases


def link_one(name, program, to):
    build = Build(os.environ.get("CODEHEAP_BUILD", "build"), settings_of_make())
    row = next(row for row in all_rows() if row.name == name)
    with Broken(build, row.broken_files(lambda file: read_file(file) if file in build.includers else None)) as broken:
        shutil.copy(broken.link(program), to)


def main(arguments):
    folder = os.environ.get("CODEHEAP_BUILD", "build")
    if arguments[:1] == ["--link"]:
        return link_one(*arguments[1:])
    if arguments[:1] == ["--programs"]:
        programs = {case.program for _, cases in chosen(arguments[1]) for case in cases if not machine_of(case.program)
                    or machine_of(case.program) == os.uname().machine}
        print(*(os.path.join(folder, SPECIAL.get(name, "tests/" + name.split(":")[-1])) for name in sorted(programs)))
        return 0
    pattern = arguments[0] if arguments else ""
    os.environ["LC_ALL"] = "C.UTF-8"  # as make check has it
    os.environ.setdefault("CODEHEAP_TEST_STORM_MS", "2000")
    runner = Runner(folder)
    rows = list(chosen(pattern))
    if not rows:
        print(f"mutants: no row, program or case is {pattern}")
        return 2
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS") or 2)) as pool:
        for done in [pool.submit(runner.run_row, row, cases) for row, cases in rows]:
            done.result()
    if not pattern:
        for script in sorted(glob.glob("tests/tool/*.sh") + glob.glob("tests/host/*.sh")):
            if "CODEHEAP_TEST_BROKEN" in read_file(script):
                runner.run_script(script)
    print(f"{runner.passed} passed, {runner.failed} failed")
    return 0 if runner.passed and not runner.failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
