#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""unplanned.py: breaks that nobody planned, and whether the tests notice (make breaks).

    unplanned.py run --build=FOLDER --index=FILE [--seconds=N] [--seed=N] [--room=NAME] [--count=N] [--rest]
                     [--again=FILE] PROGRAM...
    unplanned.py lint            judges the list of equivalent breaks: tests/breaks/equivalent.list

A break is one of tests/breaks/operators.py on a line that the index (tests/breaks/reached.py) says is run: rooms in turn, then a
line, an operator on it, and one of its breaks, by the seed. The file is compiled, or, of a header, all that use it, and
each program is linked that has cases that reach the line. They run until one fails, or, where they are very many, for as
long as MOST_S says. With --rest all of them run, and then the rest of the core tier. With --again the survivors of a run,
whose output is in the file, are shown to all cases that reach them. What a row of `make orders` breaks is passed over: no
case here runs on a weak memory. A failure counts when the same case passes on the unbroken program, and, unless it died or
hung, fails again.

Verdicts: caught; timed out (caught by a limit); survived; equivalent: the same machine code; judged equivalent: a person
said why in the list; no break: it does not compile. The last line counts caught and timed out as caught.
"""
import argparse
import collections
import json
import os
import random
import re
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases  # noqa: E402
import operators  # noqa: E402
import reached  # noqa: E402
import rows  # noqa: E402
from build import Broken, Build, BuildFailed, settings_of_make  # noqa: E402
from rooms import ORDER  # noqa: E402
from users import Users  # noqa: E402

EQUIVALENT = "tests/breaks/equivalent.list"
# Code that a case runs in this time, with counts and beside other work, is broken when it takes ten times as long.
LEAST_LIMIT_S = 15
LINK_S = 0.1
UNKNOWN_S = 0.3  # what a case may take that the index does not know
# All cases that reach a line of every path take as long as `make check`: without --rest the first ones of this time run.
MOST_S = 100
# Rules that are stated, words to valgrind, which are none to a program that runs without it, and hints to the processor.
LEFT_ALONE = re.compile(r"CH_ASSERT|CH_MOVE|CH_CHECK|_Static_assert|has_(?:frozen|stopped)\(|\w*_valgrind\w*\(|"
                        r"ch__granules_revoke_unused\(|ch__holds_nothing\(|__builtin_prefetch\(")


def read_equivalent(path=EQUIVALENT):
    """Entries of four lines, `file function: why`, then the text as it is behind `-` and broken behind `+`, which an
    empty statement need not have; then none."""
    rows = []
    if not os.path.exists(path):
        return rows
    with open(path, encoding="utf-8") as f:
        entries = [entry for entry in re.split(r"\n\s*\n", f.read()) if not entry.lstrip().startswith("#")]
    for entry in entries:
        lines = [line for line in entry.strip("\n").split("\n") if line]
        head = re.match(r"(\S+) (\w+): (\S.*)", lines[0]) if lines else None
        old = [" ".join(line[1:].split()) for line in lines[1:] if line[0] == "-"]
        new = [" ".join(line[1:].split()) for line in lines[1:] if line[0] == "+" and line[1:].strip() != ";"]
        rows.append((head[1], head[2], old, new) if head and old else (entry.strip().split("\n")[0], None, [], []))
    return rows


def squeezed(text):
    return [" ".join(line.split()) for line in text.split("\n")]


def lint():
    known = 0
    for file, function, old, _ in read_equivalent():
        if function is None:
            print(f"{EQUIVALENT}:1: not an entry: {file}")
        elif not os.path.exists(file):
            print(f"{EQUIVALENT}:1: there is no {file}")
        else:
            with open(file, encoding="utf-8") as f:
                text = f.read()
            source = operators.Source(text)
            # A file may have it twice, of which one is compiled.
            body = [line for name, brace in source.functions() if name == function
                    for line in text.split("\n")[source.line(source.tokens[brace].at) - 1:
                                                 source.line(source.tokens[source.tokens[brace].partner].at)]]
            if not body:
                print(f"{EQUIVALENT}:1: {file} has no function {function}")
            for line in old:
                if body and line not in squeezed("\n".join(body)):
                    print(f"{EQUIVALENT}:1: {file}, {function}: no line is: {line}")
        known += 1
    return known


class Candidate:
    def __init__(self, file, source, one, bits, line):
        self.file, self.source, self.one, self.bits, self.line = file, source, one, bits, line
        self.left = 0  # cases that reach it and were not run

    def changed(self):
        """The lines as they are behind `-`, and broken behind `+`; both texts have as many lines."""
        old, new = self.source.text.split("\n"), self.one.apply(self.source.text).split("\n")
        touched = set()
        for begin, end, _ in self.one.parts:
            touched.update(range(self.source.line(begin) - 1, self.source.line(max(begin, end - 1))))
        out, runs = [], [n for n in sorted(touched) if n - 1 not in touched]
        for n in runs:
            behind = next(at for at in range(n, len(old) + 1) if at not in touched)
            out += [sign + line for sign, of in (("-", old), ("+", new)) for line in of[n:behind] if line.strip()]
        return out

    def key(self):
        changed = self.changed()
        return (self.file, self.one.function, [" ".join(line[1:].split()) for line in changed if line[0] == "-"],
                [" ".join(line[1:].split()) for line in changed if line[0] == "+" and line[1:].strip() != ";"])


def candidates_of(index, file):
    """line -> operator -> breaks that a case reaches"""
    with open(file, encoding="utf-8") as f:
        text = f.read()
    lines_run = index.lines(file)
    source, found = operators.breaks_of(text)
    text_lines = text.split("\n")
    of = {}
    for one in found:
        if one.function.startswith("prefetch"):  # a hint to the processor
            continue
        bits, code = 0, False
        for begin, end in one.about:
            first, last = source.line(begin), source.line(max(begin, end - 1))
            if any(LEFT_ALONE.search(text_lines[n - 1]) for n in range(first, last + 1)):
                code = None
                break
            mine = [lines_run[n] for n in range(first, last + 1) if n in lines_run]
            before = first
            while not mine and before > 1 and first - before < 4:
                before -= 1
                mine = [lines_run[before]] if before in lines_run else []
            for set_ in mine:
                bits |= set_
        if code is not None and bits:
            line = source.line(one.about[0][0])
            of.setdefault(line, {}).setdefault(one.operator, []).append(Candidate(file, source, one, bits, line))
    return of


class Picker:
    def __init__(self, index, rooms, seed):
        self.random = random.Random(seed)
        self.rooms = rooms
        self.lines = {room: [] for room in rooms}
        for file in sorted(index.files):
            room = next((room for room in rooms if file.startswith(room + "/")), None)
            # What is behind pool->is_translated runs under Valgrind, as tests/tool/valgrind.sh has it run.
            if os.path.basename(file) == "valgrind.c":
                continue
            if room and os.path.exists(file):
                of = candidates_of(index, file)
                self.lines[room] += [of[line] for line in sorted(of)]
        self.turn, self.seen = 0, set()
        self.weak = {}
        for row in rows.all_rows(folder=rows.ORDERS):
            for file, text in row.broken_files(rows.read_file).items():
                self.weak.setdefault(file, []).append(text)

    def next(self):
        for _ in range(1000):
            room = self.rooms[self.turn % len(self.rooms)]
            self.turn += 1
            if not self.lines[room]:
                continue
            of = self.random.choice(self.lines[room])
            one = self.random.choice(of[self.random.choice(sorted(of))])
            key = one.file, tuple(one.one.parts)
            if key not in self.seen and one.one.apply(one.source.text) not in self.weak.get(one.file, ()):
                self.seen.add(key)
                return one
        return None


class Again:
    """The breaks that survived an earlier run, whose output it reads."""

    def __init__(self, index, path):
        with open(path, encoding="utf-8") as f:
            records = [json.loads(line) for line in f if line.startswith('{"file"')]
        self.left = []
        for record in records:
            if record["verdict"] != "survived":
                continue
            of = candidates_of(index, record["file"])
            found = [one for line in of.values() for one in line.get(record["operator"], ())
                     if one.one.function == record["function"] and one.changed() == record["diff"]]
            if not found:
                print(f"note: {record['file']}: {record['function']} has no such break any more: {record['diff']}")
            self.left += sorted(found, key=lambda one: abs(one.line - record["line"]))[:1]
        self.left.reverse()

    def next(self):
        return self.left.pop() if self.left else None


class Runner:
    def __init__(self, options, index):
        self.options, self.index = options, index
        self.build = Build(options.build, settings_of_make())
        self.programs = {os.path.basename(program): program for program in options.programs}
        self.known = [(file, function, old, new) for file, function, old, new in read_equivalent()]
        self.users = Users(self.build)
        self.rows = rows.all_rows()
        self.whole, self.lock = {}, threading.Lock()
        self.jobs = {base: {job.case: job for job in cases.listed(self.build, program)}
                     for base, program in self.programs.items()}

    def plan(self, candidate, affected):
        """[(program, [(seconds, case)])] that reach the break, and how many more there are. First come those that notice a
        planted mutant of the file and the room's unit cases, then quick cases that run much of the file. A case that has
        gone since the index was made is none; one that came since runs where others of its program reach the break."""
        lines, seconds, names = self.index.lines_by_case(candidate.file), self.index.seconds, self.index.cases
        unit = f"unit_{candidate.file.split('/')[0]}_"
        named = {f"{case.program} {case.case}" for row in self.rows if any(p.file == candidate.file for p in row.places)
                 for case in row.cases}
        order = sorted(self.index.cases_of(candidate.bits),
                       key=lambda n: (names[n] not in named and not names[n].startswith(unit),
                                      (seconds[n] + LINK_S) / (lines[n] + 1) ** 2))
        every = [(*names[n].split(), seconds[n]) for n in order]
        known = set(names)
        every[:0] = [(base, case, UNKNOWN_S) for base in dict.fromkeys(base for base, *_ in every)
                     for case in self.jobs.get(base, {}) if f"{base} {case}" not in known]
        there = {place[:2] for place in every}
        every[:0] = [(base, case, UNKNOWN_S) for base in self.inlined_in(affected) for case in self.jobs[base]
                     if (base, case) not in there]
        of, left, spent = {}, 0, 0.0
        for base, case, usual in every:
            if case not in self.jobs.get(base, {}):
                continue
            spent += usual
            if spent > MOST_S and not self.options.rest and not self.options.again:
                left += 1
            else:
                of.setdefault(base, []).append((usual, case))
        return [(base, sorted(of[base])) for base in of], left

    def inlined_in(self, affected):
        """Programs of unit cases that have the function of a header in their own objects, of which the index has no lines."""
        own = {made for made in affected if "/tests/unit/" in made}
        return [base for base in sorted(self.programs)
                if base.startswith("unit_") and own.intersection(self.build.objects_of(base))]

    def rest(self, plan):
        """The other cases of the core tier."""
        ran = {(base, case) for base, of in plan for _, case in of}
        known = {tuple(name.split()): seconds for name, seconds in zip(self.index.cases, self.index.seconds)}
        return [(base, sorted((known.get((base, case), 1.0), case) for case in self.jobs[base] if (base, case) not in ran))
                for base in sorted(self.jobs) if not base.startswith("tool_")]

    def run_case(self, base, program, case, usual):
        job = self.jobs[base][case].of(program)
        return cases.run(self.build, job, min(job.limit, max(LEAST_LIMIT_S, 10 * usual)))

    def failure(self, base, broken, case, usual):
        """The verdict of the case where the break made it fail, else None."""
        verdict = self.run_case(base, broken, case, usual)
        if verdict in ("passed", "skipped") or self.run_case(base, self.programs[base], case, usual) != "passed":
            return None
        if verdict == "failed" and self.run_case(base, broken, case, usual) in ("passed", "skipped"):
            return None
        return verdict

    def is_equivalent(self, broken, file, text):
        """Whether the library's objects stay as they were."""
        folders = tuple(f"{self.build.folder}/obj-test/{room}/" for room in reached.ROOMS)
        for made in sorted(made for made in broken.affected if made.startswith(folders)):
            with self.lock:
                if (file, made) not in self.whole:
                    with Broken(self.build, {file: text}) as same:
                        self.whole[file, made] = code_of(same.compile(made))
            if code_of(broken.compile(made)) != self.whole[file, made]:
                return False
        return True

    def judge(self, candidate):
        """The verdict, by whom, and the cases that passed over it."""
        if candidate.key() in self.known:
            return "judged equivalent", None, []
        file, text = candidate.file, candidate.source.text
        affected = self.users.of(file, candidate.one.function)
        with Broken(self.build, {file: candidate.one.apply(text)}, affected) as broken:
            try:
                if self.is_equivalent(broken, file, text):
                    return "equivalent", None, []
            except BuildFailed:
                return "no break", None, []
            return self.judge_by_cases(candidate, broken)

    def judge_by_cases(self, candidate, broken):
        passed = []
        plan, candidate.left = self.plan(candidate, broken.affected)
        for base, of in plan + (self.rest(plan) if self.options.rest else []):
            try:
                program = broken.link(base)
            except BuildFailed:  # it is not made of the file
                continue
            for usual, case in of:
                how = self.failure(base, program, case, usual)
                if how:
                    return "timed out" if how == "timed out" else "caught", f"{base} {case}: {how}", passed
                passed.append(f"{base} {case}")
            os.remove(program)
        return "survived", None, passed


def code_of(path):
    """Sections and symbols without what is for debuggers."""
    bare = path + ".bare"
    reached.output_of("objcopy", "--strip-debug", path, bare)
    with open(bare, "rb") as f:
        content = f.read()
    os.remove(bare)
    return content


def tell(candidate, verdict, by, passed, seconds):
    record = {"file": candidate.file, "line": candidate.line, "function": candidate.one.function,
              "operator": candidate.one.operator, "diff": candidate.changed(), "verdict": verdict, "by": by,
              "passed": len(passed), "left": candidate.left if verdict == "survived" else 0, "seconds": round(seconds, 1)}
    print(json.dumps(record), flush=True)
    if verdict == "survived":
        print(f"survivor: {candidate.file}:{candidate.line}: {candidate.one.function}: {candidate.one.operator}")
        print("\n".join(f"  {line}" for line in candidate.changed()))
        programs = collections.Counter(name.split()[0] for name in passed)
        print("  passed over by " + ", ".join(f"{base} ({n})" for base, n in programs.most_common()), flush=True)
        if candidate.left:
            print(f"  {candidate.left} more cases reach it, which REST=1 runs")
        print("  such as " + ", ".join(name.split()[1] for name in passed[:6]), flush=True)
    return record


def summary(records, seed):
    rooms = {}
    for record in records:
        of = rooms.setdefault(record["file"].split("/")[0], collections.Counter())
        of[record["verdict"]] += 1
    names = ("caught", "timed out", "survived", "equivalent", "judged equivalent", "no break")
    print(f"{'seed ' + str(seed):12}" + "".join(f"{name:>19}" for name in names))
    for room in reached.ROOMS:
        if room in rooms:
            print(f"{room:12}" + "".join(f"{rooms[room][name]:19}" for name in names))

    def counts(of):
        equivalent, caught = of["equivalent"] + of["judged equivalent"], of["caught"] + of["timed out"]
        return {"breaks": equivalent + caught + of["survived"], "caught": caught, "equivalent": equivalent}

    every = counts(sum(rooms.values(), collections.Counter()))
    every["rooms"] = {room: counts(rooms[room]) for room in reached.ROOMS if room in rooms}
    print(json.dumps(every, separators=(",", ":")))


def run(options):
    index = reached.Index(options.index)
    older = index.is_older()
    if older:
        print(f"note: {older} sources are younger than the index; `make test-index` makes it again, in minutes")
    began = time.monotonic()
    runner = Runner(options, index)
    picker = Again(index, options.again) if options.again else \
        Picker(index, [options.room] if options.room else list(reached.ROOMS), options.seed)
    records, lock = [], threading.Lock()
    left = [options.count]

    def work():
        while True:
            with lock:
                candidate = picker.next() if left[0] and time.monotonic() - began < options.seconds else None
                left[0] -= 1 if left[0] > 0 else 0
            if candidate is None:
                return
            at = time.monotonic()
            verdict, by, passed = runner.judge(candidate)
            with lock:
                records.append(tell(candidate, verdict, by, passed, time.monotonic() - at))

    cases.in_threads(work, options.parallel)
    summary(records, options.seed)


def main():
    if sys.argv[1:] == ["lint"]:
        lint()
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=["run"])
    parser.add_argument("--build", required=True)
    parser.add_argument("--index", required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", default="")
    parser.add_argument("--count", type=int, default=-1)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--rest", action="store_true")
    parser.add_argument("--again", default="")
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()
    if options.room and options.room not in ORDER:
        sys.exit(f"breaks: no room {options.room}")
    cases.alone()
    cases.protect()
    run(options)


if __name__ == "__main__":
    main()
