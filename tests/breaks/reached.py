#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The index of which case reaches which line of the library, and what is asked of it.

    reached.py make BUILD PROGRAM...   runs every case of the programs of a counting build, writes BUILD/reached.json
    reached.py of INDEX FILE           the programs and cases that run lines of the file, and its planted mutants

tests/support/reached.c marks the blocks of code that a case runs, in the object's machine code; the debug information says which
lines a block has. The index keeps each file's text, so that it serves while the sources change: a line that stands
elsewhere since is found again, and one that came since has no case.
"""
import bisect
import collections
import difflib
import functools
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../tools")]
import cases  # noqa: E402
import rows  # noqa: E402
from build import Build, settings_of_make  # noqa: E402
from rooms import ROOMS  # noqa: E402

MARKER = "__sanitizer_cov_trace_pc"
ROW = re.compile(r"^(\S+\.[chS])\s+(\d+)\s+(0x[0-9a-f]+|0)\b")
PLACED = re.compile(r"^ \.text +0x([0-9a-f]+) +0x([0-9a-f]+) (?:.*/)?(\w+)\.a\((\w+)\.o\)$", re.M)
SHOWN_CASES = 12
LONGEST_S = 100  # a case that is killed then has marked what it reached, too
CALL_BYTES = 5  # of an instruction that calls the marker: x86-64, where the index is made


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Blocks:
    """The blocks of one object: where each begins, and the lines that it has."""

    def __init__(self, path, source):
        calls = re.findall(rf"^([0-9a-f]+) .* {MARKER} ", output_of("readelf", "-rW", path), re.M)
        # A call's operand is relocated; the mark lies behind its four bytes.
        self.marks = sorted(int(at, 16) + 4 for at in calls)
        functions = re.findall(r"^ *\d+: ([0-9a-f]+) +\S+ FUNC ", output_of("readelf", "-sW", path), re.M)
        functions = sorted({int(at, 16) for at in functions})
        # What a function begins with lies before the call of its first block.
        begins = []
        for n, mark in enumerate(self.marks):
            function = functions[bisect.bisect_right(functions, mark) - 1]
            begins.append(function if n == 0 or self.marks[n - 1] < function else mark - CALL_BYTES)
        self.lines = collections.defaultdict(set)  # mark -> (file, line)
        rows = sorted(self.rows(path, source))
        for n, (at, file, line) in enumerate(rows):
            last = max(at, rows[n + 1][0] - 1) if n + 1 < len(rows) else at
            for block in range(bisect.bisect_right(begins, at) - 1, bisect.bisect_right(begins, last)):
                if block >= 0:
                    self.lines[self.marks[block]].add((file, line))

    @staticmethod
    def rows(path, source):
        headers = {os.path.basename(h): h for room in ROOMS for h in glob.glob(f"{room}/**/*.h", recursive=True)}
        file = source
        for text in output_of("objdump", "--dwarf=decodedline", path).splitlines():
            row = ROW.match(text)
            if row:
                base = row[1]
                of = file if os.path.basename(file) == base else source if os.path.basename(source) == base \
                    else headers.get(base)
                if of and int(row[2]):
                    yield int(row[3], 16), of, int(row[2])
            elif text.endswith(":") and not {part.strip(".:") for part in text.split("/")[-3:-1] or [text]}.isdisjoint(ROOMS):
                file = os.path.normpath(text[:-1])


def blocks_of_library(build):
    found = {}
    for room in ROOMS:
        for source in glob.glob(f"{room}/**/*.c", recursive=True):
            path = f"{build}/obj-test/{source[:-2]}.o"
            if os.path.exists(path):
                found[room, os.path.basename(source)[:-2]] = Blocks(path, source)
            if os.path.exists(path) and source == "codeheap/gc_bdw.c":
                found["alone", "gc_bdw"] = found[room, "gc_bdw"]
    return found


def marks_of_program(program, blocks):
    """Offset of each mark of the program -> the lines of its block."""
    with open(program + ".map", encoding="utf-8") as f:
        text = f.read()
    placed = PLACED.findall(text)
    placed += [(at, size, room, name) for at, size, room, name in
               re.findall(r"^ \.text +0x([0-9a-f]+) +0x([0-9a-f]+) .*/(\w+)/(\w+)\.o$", text, re.M) if room in ROOMS]
    lines = {}
    for at, size, room, name in placed:
        of = blocks.get((room, name))
        if of and int(size, 16):
            for mark in of.marks:
                lines[int(at, 16) + mark] = of.lines[mark]
    return lines


def make(build, programs):
    what_runs = Build(build, settings_of_make())
    blocks = blocks_of_library(build)
    folder = f"{build}/reached"
    os.makedirs(folder, exist_ok=True)
    environment = {"GCOV_PREFIX": os.path.abspath(f"{folder}/counts")}
    names, seconds = [], []
    reached = collections.defaultdict(lambda: collections.defaultdict(int))  # file -> line -> bits of cases
    unlike = []

    def read(job):
        number = len(names)
        names.append(f"{job.base} {job.case}")
        seconds.append(round(job.seconds, 2))
        if job.verdict not in ("passed", "skipped"):
            unlike.append(f"{job.base} {job.case}: {job.verdict}")
        path = f"{job.scratch}/{job.base}"
        if os.path.exists(path):
            with open(path, "rb") as f:
                marks = [at.start() for at in re.finditer(b"\1", f.read())]
            for mark in marks:
                for file, line in lines_of[job.base].get(mark, ()):
                    reached[file][line] |= 1 << number
        cases.remove(job.scratch)

    jobs, lines_of = [], {}
    for program in programs:
        lines_of[os.path.basename(program)] = marks_of_program(program, blocks)
        jobs += cases.listed(what_runs, program)
    for n, job in enumerate(jobs):
        job.limit = min(job.limit, LONGEST_S)
        job.scratch = f"{folder}/{n}"
        job.environment = dict(environment, CODEHEAP_REACHED=os.path.abspath(job.scratch))
    began = time.monotonic()
    cases.run_all(what_runs, jobs, read)
    cases.remove(folder)
    every = {line for of in blocks.values() for at in of.lines.values() for line in at}
    write(f"{build}/reached.json", names, seconds, reached, every)
    for line in unlike:
        print(f"note: {line}")
    print(f"{len(names)} cases in {time.monotonic() - began:.0f} s: {build}/reached.json")


def write(path, names, seconds, reached, every):
    """Lines that the same cases reach share one set, a number in base 16 whose bit n is case n."""
    sets, files = {}, {}
    for file in sorted({file for file, _ in every}):
        lines = {}
        for line in sorted(line for of, line in every if of == file):
            bits = reached[file].get(line, 0)
            lines[line] = sets.setdefault(bits, len(sets))
        with open(file, encoding="utf-8") as f:
            files[file] = {"text": f.read().split("\n"), "lines": lines}
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump({"cases": names, "seconds": seconds, "sets": [f"{bits:x}" for bits in sets], "files": files}, f)
    os.replace(path + ".new", path)


class Index:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            index = json.load(f)
        self.made = os.path.getmtime(path)
        self.cases = index["cases"]
        self.seconds = index["seconds"]
        self.sets = [int(bits, 16) for bits in index["sets"]]
        self.files = index["files"]

    def lines(self, file):
        """Line of the file as it is -> the bits of the cases that run it; 0 for code that none runs."""
        entry = self.files.get(file)
        if not entry or not os.path.exists(file):
            return {}
        with open(file, encoding="utf-8") as f:
            text = f.read().split("\n")
        moved = {}
        if text == entry["text"]:
            moved = {n: n for n in range(len(text))}
        else:
            for old, new, size in difflib.SequenceMatcher(None, entry["text"], text, False).get_matching_blocks():
                moved.update((old + n, new + n) for n in range(size))
        return {moved[int(line) - 1] + 1: self.sets[of] for line, of in entry["lines"].items()
                if int(line) - 1 in moved}

    def cases_of(self, bits):
        return [n for n in range(len(self.cases)) if bits >> n & 1]

    @functools.lru_cache(None)
    def lines_by_case(self, file):
        """How many of the file's lines each case runs, by its number."""
        count = collections.Counter()
        for bits in self.lines(file).values():
            count.update(self.cases_of(bits))
        return count

    def is_older(self):
        sources = [path for room in ROOMS + ("tests",) for path in glob.glob(f"{room}/**/*.[ch]*", recursive=True)]
        return sum(os.path.getmtime(path) > self.made for path in sources)


def show(path, file):
    index = Index(path)
    older = index.is_older()
    if older:
        print(f"note: {older} sources are younger than the index; `make test-index` makes it again, in minutes")
    lines = index.lines(file)
    if not lines:
        sys.exit(f"tests-of: the index has no code of {file}")
    of_program = collections.Counter()
    for bits in lines.values():
        of_program.update({index.cases[n].split()[0] for n in index.cases_of(bits)})
    print(f"{file}: {sum(map(bool, lines.values()))} of its {len(lines)} lines with code are run, by")
    for program, count in sorted(of_program.items(), key=lambda item: (-item[1], item[0])):
        print(f"  {count:5} {program}")
    print("most of them by the cases")
    for n, count in sorted(index.lines_by_case(file).items(), key=lambda item: (-item[1], item[0]))[:SHOWN_CASES]:
        print(f"  {count:5} {index.cases[n]}  {index.seconds[n]:.1f} s")
    planted = [row for row in rows.all_rows() if any(place.file == file for place in row.places)]
    if planted:
        print("its planted mutants, and who notices them")
    for row in planted:
        print(f"  {row.name}: " + ", ".join(sorted({f"{case.program} {case.case}".strip() for case in row.cases})))


def main():
    if len(sys.argv) > 3 and sys.argv[1] == "make":
        cases.alone()
        cases.protect()
        make(sys.argv[2], sys.argv[3:])
    elif len(sys.argv) == 4 and sys.argv[1] == "of":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        show(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
