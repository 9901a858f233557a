#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The part of `make lint` that holds tests/adversaries.md, tests/breaks/*.rows and the tests together.

Every scenario has a row, every row tests that exist and mutants that are planted, and that make one of these tests fail; the drivers a row names are those of its tests. Prints every finding as file:line: text; exits 1 if there is
one.
"""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/breaks"))
from programs import program_of, sources
from rows import all_rows

TABLE = "tests/adversaries.md"
SCENARIOS = 55
SUFFIXES = {"_polls": "P", "_signals": "S", "_host": "H", "_host_that_stops": "T", "_boehm": "B"}
DRIVERS = {"EVERY_DRIVER": "PSHB", "OWN_DRIVER": "PSH", "STOPPING_DRIVER": "STB", "THREADED_DRIVER": "PSB",
           "SHARED_DRIVER": "PSHTB", "UNDER_VALGRIND": "PSHB"}
STAGES = {"POLLS": "P", "SIGNALS": "S", "HOST": "H", "BOEHM": "B"}
findings = 0


def find(path, line, text):
    global findings
    findings += 1
    print(f"{path}:{line}: {text}")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class Case:
    """A test as the sources have it: one name, run with some drivers, in a program for each architecture."""

    def __init__(self, name, path, line):
        self.name, self.path, self.line = name, path, line
        self.programs = {program_of(path)}
        self.drivers = set()
        self.is_open = False  # a macro of its own makes several of it, with endings that only it knows

    def runs_as(self, name):
        if name == self.name:
            return True
        ending = name[len(self.name):]
        return name.startswith(self.name) and (self.is_open or SUFFIXES.get(ending) in self.drivers)


def cases_of_c(path, cases):
    text = read(path)
    # A macro of the file's own may stand for one of these, where a build leaves cases out.
    own = dict(re.findall(r"define ([A-Z_]+)\(\w+\) (%s)\(" % "|".join(DRIVERS), text))
    for m in re.finditer(r"^([A-Z][A-Z_]*)\(([a-z]\w*)\b(?:, (_\w+))?([^\n]*)", text, re.M):
        macro, name, suffix = own.get(m.group(1), m.group(1)), m.group(2), m.group(3)
        base, drivers = name, set(DRIVERS.get(macro, ""))
        if macro == "STAGE_CASE":
            drivers = {SUFFIXES[suffix]} if suffix in SUFFIXES else set()
        elif macro == "STAGE_HOST_THAT_STOPS_CASE":
            drivers = {"T"}
        elif macro == "STAGE_BOEHM_CASE":
            drivers = {"B"}
        elif macro not in DRIVERS and name.endswith(tuple(SUFFIXES)):
            ending = next(suffix for suffix in SUFFIXES if name.endswith(suffix))
            base, drivers = name[:-len(ending)], {SUFFIXES[ending]}
        elif macro.startswith("TEST"):
            # What it begins with says nothing of drivers; the stage that its body starts does.
            body = text[m.end():text.find("\n}", m.end())]
            drivers = drivers or {STAGES[d] for d in re.findall(r"stage_new\(STAGE_(\w+)\)", body)}
            drivers |= {"T"} if "stage_new_host(" in body else set()
        elif macro not in DRIVERS and not re.search(r"define " + macro + r"\((?:name|case)_?\b", text):
            continue
        case = cases.setdefault(base, Case(base, path, text.count("\n", 0, m.start()) + 1))
        case.drivers |= drivers
        case.programs |= Case(base, path, 0).programs
        case.is_open |= not drivers and not macro.startswith("TEST")


def cases_of_sh(path, cases):
    for n, line in enumerate(read(path).split("\n"), 1):
        m = re.match(r"(?:case_)?([a-z]\w*)\(\)", line)
        if m:
            cases.setdefault(m.group(1), Case(m.group(1), path, n))


def all_cases():
    cases = {}
    for path in sorted(source for source in sources() if not source.endswith(".sh")):
        cases_of_c(path, cases)
    for path in sorted(source for source in sources() if source.endswith(".sh")):
        cases_of_sh(path, cases)
    return cases


def lines_of_planted(planted):
    """(file, line, mutant, program, case)"""
    return [(row.path, case.line, row.name, case.program.split(":")[-1], case.case)
            for row in planted for case in row.cases if case.program not in ("stress", "corpus")]


class Row:
    def __init__(self, line, cells):
        self.line = line
        self.number = int(cells[0]) if len(cells) == 5 else 0
        tests, mutants, self.where = cells[-3:]
        self.tests = re.findall(r"`([a-z]\w*)`", tests)
        self.mutants = re.findall(r"\b[A-Z][A-Z_0-9]{3,}\b", mutants)


def rows_of_table():
    rows = []
    for n, line in enumerate(read(TABLE).split("\n"), 1):
        cells = [c.strip() for c in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if (len(cells) == 5 and cells[0].isdigit()) or (len(cells) == 3 and cells[0].startswith("`")):
            rows.append(Row(n, cells))
    return rows


def check_where(row, cases):
    """Drivers of a scenario's row: all that its tests have, and none that no test has."""
    named = set(re.match(r"[PSHTB()]*", row.where).group(0)) - set("()")
    had, may_be_polls = set(), False
    for name in row.tests:
        if name in cases:
            had |= cases[name].drivers
            may_be_polls |= not cases[name].drivers
    for letter in "PSHTB":
        if letter in had and letter not in named:
            find(TABLE, row.line, f"scenario {row.number}: its tests run on {letter}, which the row does not name")
        if letter in named and letter not in had and not (letter == "P" and may_be_polls):
            find(TABLE, row.line, f"scenario {row.number}: no test of the row runs on {letter}")


def check_row(row, cases, planted, lines):
    for name in row.tests:
        if name not in cases:
            find(TABLE, row.line, f"no test is named {name}")
    tests = [cases[name] for name in row.tests if name in cases]
    if not row.mutants and not row.number:
        find(TABLE, row.line, "a row without a mutant")
    for mutant in row.mutants:
        if mutant not in planted:
            find(TABLE, row.line, f"no mutant is named {mutant}")
        elif not any(m == mutant and t.runs_as(c) for _, _, m, _, c in lines for t in tests):
            find(TABLE, row.line, f"no test of this row fails under {mutant}")


def check_scenarios(rows, cases):
    by_number = {}
    for row in rows:
        if row.number in by_number and row.number:
            find(TABLE, row.line, f"a second row for scenario {row.number}")
        by_number[row.number] = row
    for number in range(1, SCENARIOS + 1):
        own, row = f"s{number:02}_", by_number.get(number)
        if not row:
            find(TABLE, 1, f"scenario {number} has no row")
            continue
        if not any(name.startswith(own) for name in row.tests):
            find(TABLE, row.line, f"scenario {number} names no test {own}...")
        if not row.mutants:
            find(TABLE, row.line, f"scenario {number} has no mutant")
        check_where(row, cases)
        for case in cases.values():
            if case.name.startswith(own) and case.name not in row.tests:
                find(case.path, case.line, f"{case.name} is not in the row of scenario {number} of {TABLE}")


def check_planted(planted, lines, cases, rows):
    named = {mutant for row in rows for mutant in row.mutants}
    for row in planted:
        if row.name not in named:
            find(row.path, row.line, f"{TABLE} does not name {row.name}")
    for case in cases.values():
        # A shell test breaks its product by itself.
        if re.match(r"s\d\d_", case.name) and not case.path.endswith(".sh") and \
                not any(case.runs_as(name) for *_, name in lines):
            find(case.path, case.line, f"{case.name} fails under no mutant of tests/breaks")
    for path, line, mutant, program, name in lines:
        if not any(c.runs_as(name) and program in c.programs for c in cases.values()):
            find(path, line, f"{program} has no case {name}")


def main():
    cases, planted, rows = all_cases(), all_rows(find), rows_of_table()
    lines, names = lines_of_planted(planted), {row.name for row in planted}
    for what, path in ((planted, "tests/breaks"), (rows, TABLE)):
        if not what:
            find(path, 1, "nothing is listed here")
    check_scenarios(rows, cases)
    for row in rows:
        check_row(row, cases, names, lines)
    check_planted(planted, lines, cases, rows)
    return 1 if findings else 0


sys.exit(main())
