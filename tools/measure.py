#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`make measure`: the size of the library in figures. Arguments: the objects of a plain build. Prints the tables; --write puts
them between the two marks of docs/design.md, --check says which figure there is off by more than 2 in 100, and --shape, which
needs no object, whether the rows there are those of the tree. Exits 1 if a finding was printed.

Code of the ports to other machines has no object in this build: its lines have rows of their own.
"""
import collections
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from lint_graph import components_of, graph_of, source_of  # noqa: E402
from rooms import GUESTS, PUBLIC, ROOMS, files_of_rooms, ports  # noqa: E402

DOCUMENT, MACHINE, OFF = "docs/design.md", "x86_64", 0.02
MARKS = ("<!-- make measure WRITE=1 writes these tables -->", "<!-- end of the tables of make measure -->")
# Of libraries of their own, above the core: the row of each, and those headers in codeheap/ that are theirs.
DRIVERS = ("codeheap/gc_bdw.c",)
HEADERS_OF = {"codeheap/codeheap_bdw.h": "codeheap/gc_bdw.c", "codeheap/profile.h": "observe/"}
FUNCTION_LINES = (10, 20, 40, 60)
HEADERS = 8


def sources():
    """path -> its lines"""
    return {path: open(path, encoding="utf-8").read().split("\n")[:-1] for path in files_of_rooms()}


def port_of(path):
    """The other machine that the file is for, or None."""
    return next((name for name in ports() if name != MACHINE and re.search(rf"(^|[/_]){name}\.", path)), None)


def text_bytes(objects):
    """source -> bytes of code, constants and unwind tables in its object; not its note, of which a library has one"""
    said = subprocess.run(["size", "-A", *objects], capture_output=True, text=True, check=True).stdout
    counted = {}
    for part in said.strip().split("\n\n"):
        lines = part.strip().splitlines()
        sizes = [line.split() for line in lines if re.match(r"\.(text|rodata|eh_frame)", line)]
        counted[source_of(lines[0].split()[0])] = sum(int(words[1]) for words in sizes)
    return counted


def functions_of(lines):
    """(lines, name) of each function: in this tree its braces, and no others but those of an initializer, start a line."""
    for n, line in enumerate(lines):
        if line == "{" and not lines[n - 1].rstrip().endswith("="):
            first = n
            while lines[first - 1] and not re.search(r"(\*/|[;}])$", lines[first - 1]) and lines[first - 1][0] != "#":
                first -= 1
            names = re.findall(r"\b(ch_\w+|[a-z]\w+)\s*\(", " ".join(lines[first:n]))
            yield lines.index("}", n) - n + 1, names[0] if names else "?"


def table(head, rows):
    out = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return out + ["| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) + " |" for row in rows] + [""]


def rooms_table(texts, sizes):
    lines, size = collections.Counter(), collections.Counter()
    for path, text in texts.items():
        folder = HEADERS_OF.get(path, path if path in DRIVERS else os.path.dirname(path) + "/")
        port = port_of(path)
        lines[f"port to {port}" if port else folder] += len(text)
        size[folder] += sizes.get(path, 0)
    ports = sorted(name for name in lines if name.startswith("port"))
    guests = [name for name in lines if name.split("/")[0] in GUESTS or name in DRIVERS]
    core = [name for room in ROOMS for name in sorted(lines) if name.split("/")[0] == room and name not in guests]

    def rows(names):
        return [[f"`{name}`", lines[name], size[name]] for name in names]

    return table(["", "lines", "bytes of text"],
                 rows(core) + [["**the core**", sum(lines[name] for name in core), sum(size[name] for name in core)]] +
                 [[name, lines[name], "-"] for name in ports] + rows(guests))


def functions_table(texts):
    lengths = sorted(function for path, text in texts.items() if not path.endswith(".S") for function in functions_of(text))
    rows, above = [], 0
    for at_most in FUNCTION_LINES:
        rows.append([f"{above + 1} to {at_most} lines", sum(above < n <= at_most for n, _ in lengths)])
        above = at_most
    longest, name = lengths[-1]
    return table(["functions, from brace to brace", ""],
                 rows + [[f"more than {above} lines", sum(n > above for n, _ in lengths)],
                         [f"lines of the longest, `{name}`", longest]])


def headers_table(texts):
    readers = collections.Counter(name for text in texts.values() for line in text
                                  for name in re.findall(r'^#\s*include "([^"]+)"', line))
    headers = sorted(((len(text), path) for path, text in texts.items() if path.endswith(".h")), reverse=True)
    median = headers[len(headers) // 2][0]
    return table([f"the {HEADERS} longest headers of {len(headers)} (median: {median} lines)", "lines", "files that include it"],
                 [[f"`{path}`", length, readers[path]] for length, path in headers[:HEADERS]])


def graph_table(objects):
    graph = graph_of(objects)
    knots = [component for component in components_of(graph) if len(component) > 1]
    said = subprocess.run(["tools/public_names.sh", *PUBLIC], capture_output=True, text=True, check=True).stdout
    return table(["graph and interface", ""],
                 [["files with an object", len(graph)], ["edges from file to file", sum(map(len, graph.values()))],
                  ["components of more than one file", len(knots)], ["public symbols", len(said.split())]])


def measured(objects):
    texts = sources()
    return rooms_table(texts, text_bytes(objects)) + functions_table(texts) + headers_table(texts) + graph_table(objects)


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def in_document():
    """Text of the document before, between and behind the marks."""
    text = open(DOCUMENT, encoding="utf-8").read()
    if [text.count(mark) for mark in MARKS] != [1, 1]:
        sys.exit(f"{DOCUMENT}:1: needs each of these lines once: {' '.join(MARKS)}")
    before, rest = text.split(MARKS[0])
    return [before, *rest.split(MARKS[1])]


def check_shape():
    """Names of rooms, and the first cells of the other tables that hang on no figure."""
    before, said, _ = in_document()
    names = {cells(line)[0] for line in said.split("\n")}
    folders = {f"`{os.path.dirname(path)}/`" for path in files_of_rooms() if not port_of(path) and path not in DRIVERS}
    wrong = sorted(folders - names) + sorted(name for name in names - folders if name.endswith("/`"))
    wrong += [row for row in ("**the core**", "public symbols", "components of more than one file") if row not in names]
    for name in wrong:
        print(f"{DOCUMENT}:{before.count(chr(10)) + 1}: the table of `make measure` is another tree's ({name}): make measure WRITE=1")
    return 1 if wrong else 0


def number(cell):
    return int(cell.replace(",", "")) if re.fullmatch(r"[\d,]+", cell) else None


def check_figures(fresh):
    before, said, _ = in_document()
    first, said = before.count("\n") + 1, said.split("\n")[1:-1]
    stale = [] if len(said) == len(fresh) else [(first, "rows were added or taken away")]
    for at, (old, new) in enumerate(zip(said, fresh)):
        for was, is_now in zip(map(number, cells(old)), map(number, cells(new))):
            if was is not None and is_now is not None and abs(was - is_now) > OFF * max(was, is_now):
                stale.append((first + 1 + at, f"{cells(new)[0]}: {was:,} here, {is_now:,} in the tree"))
    for at, text in stale:
        print(f"{DOCUMENT}:{at}: {text}: make measure WRITE=1")
    return 1 if stale else 0


def main(arguments):
    if "--shape" in arguments:
        return check_shape()
    objects = [path for path in arguments if not path.startswith("-")]
    if not any(source_of(path) == f"arch/{MACHINE}.c" for path in objects):
        sys.exit(f"measure: the figures are those of a build for {MACHINE}")
    fresh = measured(objects)
    if "--check" in arguments:
        return check_figures(fresh)
    if "--write" in arguments:
        before, _, behind = in_document()
        with open(DOCUMENT, "w", encoding="utf-8") as out:
            out.write(before + MARKS[0] + "\n" + "\n".join(fresh) + "\n" + MARKS[1] + behind)
        return 0
    print("\n".join(fresh))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
