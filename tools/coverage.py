#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""coverage.py FOLDER: what the tests ran of the library, from the counts below FOLDER (make coverage).

Prints a table of lines and branches by file, and all of them; with -v also each line and branch that nothing ran.
Exits 1 below 95 % of the lines or 85 % of the branches.

What is counted: the lines that gcc made code of in the rooms of the library, headers too, and the two ways out of each
conditional jump. Left out, by these rules only:
  - the ways out of CH_ASSERT and CH_MOVE: the false one is a broken invariant, which a right program does not have;
  - a line whose comment, or the comment line above it, begins with `cannot run: ` and gives the reason.
"""
import argparse
import collections
import glob
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from rooms import ROOMS  # noqa: E402

LEAST_LINES, LEAST_BRANCHES = 95.0, 85.0
ASSERTED = re.compile(r"\bCH_(ASSERT|MOVE)\(")
MARK = re.compile(r"(/\*|//) cannot run: [^\s*]")


class File:
    """The counts of one source file, summed over all objects that have code of it."""

    def __init__(self, path):
        self.lines = {}  # number -> count
        self.branches = collections.defaultdict(dict)  # line -> (function, index of the arc) -> count
        with open(path, encoding="utf-8") as f:
            self.text = f.read().split("\n")
        marked = [bool(MARK.search(line)) for line in self.text]
        alone = [bool(re.match(r"\s*/[*/] cannot run: [^\s*]", line)) for line in self.text]
        self.left_out = {n + 1 for n in range(len(marked)) if marked[n] or (n and alone[n - 1])}

    def add(self, line):
        n = line["line_number"]
        if n > len(self.text):
            sys.exit("coverage: the sources have changed since they were built")
        if n in self.left_out:
            return
        self.lines[n] = self.lines.get(n, 0) + line["count"]
        if ASSERTED.search(self.text[n - 1]):
            return
        at = self.branches[n]
        for i, arc in enumerate(arc for arc in line["branches"] if not arc["throw"]):
            key = line.get("function_name", ""), i
            at[key] = at.get(key, 0) + arc["count"]

    def arcs(self):
        return [count for at in self.branches.values() for count in at.values()]


def counted_files(folder):
    notes = [path for room in ROOMS for path in glob.glob(f"{folder}/{room}/**/*.gcno", recursive=True)]
    if not notes:
        sys.exit(f"coverage: no counts below {folder}: make coverage builds them")
    files = {}
    with tempfile.TemporaryDirectory() as scratch:
        command = ["gcov", "--json-format", "--branch-counts", "--branch-probabilities", "--hash-filenames"]
        done = subprocess.run(command + [os.path.abspath(path) for path in notes], cwd=scratch, capture_output=True,
                              text=True, check=False)
        if done.returncode:
            sys.exit(f"coverage: gcov failed:\n{done.stderr}")
        for path in glob.glob(f"{scratch}/*.gcov.json.gz"):
            with gzip.open(path, "rt", encoding="utf-8") as f:
                report = json.load(f)
            for entry in report["files"]:
                name = os.path.relpath(os.path.join(report["current_working_directory"], entry["file"]))
                if name.split(os.sep)[0] not in ROOMS or not entry["lines"]:
                    continue
                file = files.setdefault(name, None) or File(name)
                files[name] = file
                for line in entry["lines"]:
                    file.add(line)
    return files


def percent(some, all_of_them):
    return 100.0 * some / all_of_them if all_of_them else 100.0


def row(name, lines, branches):
    return (f"{name:34} {sum(map(bool, lines)):6}/{len(lines):<6} {percent(sum(map(bool, lines)), len(lines)):6.1f}"
            f" {sum(map(bool, branches)):6}/{len(branches):<6} {percent(sum(map(bool, branches)), len(branches)):6.1f}")


def print_missing(name, file):
    for n in sorted(set(file.lines) | set(file.branches)):
        arcs = file.branches.get(n, {})
        if not file.lines.get(n):
            print(f"{name}:{n}: never: {file.text[n - 1].strip()}")
        elif not all(arcs.values()):
            ways = " ".join("+" if count else "-" for count in arcs.values())
            print(f"{name}:{n}: {ways}: {file.text[n - 1].strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("-v", action="store_true", help="name what nothing ran")
    options = parser.parse_args()
    files = counted_files(options.folder)
    if options.v:
        for name in sorted(files):
            print_missing(name, files[name])
    print(f"{'':34} {'lines':>13} {'%':>6} {'branches':>13} {'%':>6}")
    for name in sorted(files):
        print(row(name, list(files[name].lines.values()), files[name].arcs()))
    lines = [count for file in files.values() for count in file.lines.values()]
    branches = [arc for file in files.values() for arc in file.arcs()]
    print(row("all", lines, branches))
    of_lines = percent(sum(map(bool, lines)), len(lines))
    of_branches = percent(sum(map(bool, branches)), len(branches))
    if of_lines < LEAST_LINES or of_branches < LEAST_BRANCHES:
        print(f"coverage: below {LEAST_LINES:g} % of the lines or {LEAST_BRANCHES:g} % of the branches", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
