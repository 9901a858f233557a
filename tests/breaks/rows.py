#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The planted mutants: tests/breaks/*.rows. Each row is a text of the tree, the same text broken, and who notices:

    mutant NO_REGION_FENCE
    in codeheap/base/heap.h
     		/* a line that stays, to say which one of several texts is meant */
    -		text as it is
    +		text broken
    fails adversary_membarrier frozen_heap_stands_still_without_membarrier 5

Lines that begin with a blank or with `-` stand in the file one behind the other, at one place only; those with a blank
or with `+` take their place. A row has as many `in` as places are broken; a place in a file of another architecture is
left as it is. `fails` names who must notice: a test program and its case, `stress` and a level, or `corpus`; a number
at its end says how often a race is tried. ARCH:PROGRAM is the program that is built for ARCH. An empty line ends a row;
`#` begins a comment outside of a text.

Run by `make lint`, it prints as file:line: text what does not hold in the tree; exits 1 if there is anything."""
import glob
import os
import re
import sys

FOLDER, ORDERS = "tests/breaks", "tests/orders"


class Place:
    def __init__(self, file, line):
        self.file, self.line = file, line
        self.lines = []  # (" ", "-" or "+", text)

    def text(self, without):
        return "".join(text + "\n" for sign, text in self.lines if sign != without)

    def count_in(self, text):
        found, at = 0, ("\n" + text).find("\n" + self.text("+"))
        while at >= 0:
            found, at = found + 1, ("\n" + text).find("\n" + self.text("+"), at + 1)
        return found

    def break_in(self, text):
        """The text of the file, broken."""
        before, behind = ("\n" + text).split("\n" + self.text("+"))
        return (before + "\n" + self.text("-") + behind)[1:]


class Case:
    def __init__(self, line, words):
        self.line = line
        self.tries = int(words.pop()) if len(words) > 2 and words[-1].isdigit() else 1
        self.program = words[0] if words else ""
        self.case = words[1] if len(words) > 1 else ""
        self.is_wrong = len(words) != (1 if self.program == "corpus" else 2)

    def label(self):
        if self.program == "corpus":
            return "the programs of fuzz/corpus"
        return f"level {self.case} of the stress" if self.program == "stress" else self.case


class Row:
    def __init__(self, path, line, name):
        self.path, self.line, self.name = path, line, name
        self.places, self.cases = [], []

    def broken_files(self, read):
        """{file: its text, broken}; read(file) gives a file's text, or None where the build does not have it."""
        broken = {}
        for place in self.places:
            text = broken.get(place.file, read(place.file))
            if text is not None:
                broken[place.file] = place.break_in(text)
        return broken


def parse(path, text, find):
    rows, row, place = [], None, None
    for n, line in enumerate(text.split("\n"), 1):
        if place and line[:1] in (" ", "-", "+"):
            place.lines.append((line[0], line[1:]))
            continue
        words = line.split()
        place = None
        if not words:
            row = None
        elif words[0] == "mutant" and len(words) == 2:
            row = Row(path, n, words[1])
            rows.append(row)
        elif words[0] == "in" and len(words) == 2 and row:
            place = Place(words[1], n)
            row.places.append(place)
        elif words[0] == "fails" and row:
            row.cases.append(Case(n, words[1:]))
        elif not line.startswith("#"):
            find(path, n, "is no line of a row: see tests/breaks/rows.py")
    return rows


def read_file(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def all_rows(find=lambda path, line, text: sys.exit(f"{path}:{line}: {text}"), folder=FOLDER):
    rows = []
    for path in sorted(glob.glob(folder + "/*.rows")):
        rows += parse(path, read_file(path), find)
    return rows


def check(row, find):
    if not re.fullmatch(r"[A-Z][A-Z_0-9]{3,}", row.name):
        find(row.path, row.line, f"{row.name} is no name of a mutant")
    if not row.places:
        find(row.path, row.line, f"{row.name} breaks nothing")
    if not row.cases:
        find(row.path, row.line, f"nobody must notice {row.name}")
    for case in row.cases:
        if case.is_wrong:
            find(row.path, case.line, "fails PROGRAM CASE [TRIES], fails stress LEVEL, or fails corpus")
    texts = {}
    for place in row.places:
        if place.text("+") == place.text("-") or not place.text("+"):
            find(row.path, place.line, f"{row.name} changes no text")
        elif not os.path.isfile(place.file):
            find(row.path, place.line, f"there is no {place.file}")
        else:
            text = texts.setdefault(place.file, read_file(place.file))
            count = place.count_in(text)
            if count != 1:
                find(row.path, place.line, f"the text of {row.name} stands {count} times in {place.file}, not once")
            else:
                texts[place.file] = place.break_in(text)


def main():
    findings = []

    def find(path, line, text):
        findings.append(f"{path}:{line}: {text}")

    rows, seen = all_rows(find), {}
    # make orders runs those (tests/orders/run.py).
    rows += all_rows(find, ORDERS)
    for row in rows:
        check(row, find)
        first = seen.setdefault(row.name, row)
        if first is not row:
            find(row.path, row.line, f"{row.name} is a row of {first.path}, too")
    needed = {case.case for row in rows for case in row.cases}
    for path in sorted(glob.glob(ORDERS + "/cases_*.c")):
        for name in re.findall(r'^\t\{"(\w+)"', read_file(path), re.M):
            if name not in needed:
                find(path, 1, f"no row shows that the case {name} can fail")
    print("\n".join(findings) if findings else f"note: {len(rows)} mutants stand once where their rows say")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
