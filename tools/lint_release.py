#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The part of `make lint` that keeps what only tests use out of the library: no release object has a global that a header
shows to tests only (#if CH_TESTING), nor one that the library itself never names but to declare and define it, or names
beside that in blocks of checked builds and of tests only (#if CH_CHECK >= 2, #if CH_TESTING). And the part
that keeps threads and timers out of the core (P10): only guests call what starts one. (That the core uses nothing of a
guest's room, lint_graph.py holds.)
Arguments: the objects. Prints every finding as file:line: text; exits 1 if there is one."""
import collections
import re
import sys

sys.dont_write_bytecode = True
from lint_graph import source_of, symbols_of  # noqa: E402
from rooms import GUESTS, files_of_rooms  # noqa: E402

NAME = re.compile(r"\bch__\w+")
NOT_RELEASED = re.compile(r"#\s*if\s+(CH_CHECK >= 2|CH_TESTING)\b")
STARTS = {"pthread_create", "thrd_create", "timer_create"}


def released(text):
    """The lines that a release compiles, as far as blocks of checked builds and of tests go."""
    lines, blocks = [], []  # of each #if that is open: whether it leaves the lines out that come next
    for line in text.split("\n"):
        if re.match(r"#\s*if", line):
            blocks.append(bool(NOT_RELEASED.match(line)))
        elif re.match(r"#\s*el", line) and blocks:
            blocks[-1] = False
        elif re.match(r"#\s*endif", line) and blocks:
            blocks.pop()
        elif not any(blocks):
            lines.append(line)
    return "\n".join(lines)


def main(objects):
    named, anywhere, shown_to_tests, findings = collections.Counter(), set(), {}, []
    for path in files_of_rooms():
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), file.read(), flags=re.S)
        named.update(NAME.findall(released(text)))
        anywhere.update(NAME.findall(text))
        for block in re.finditer(r"^#if CH_TESTING\n(.*?)^#(?:else|endif)", text, re.M | re.S):
            for name in NAME.finditer(block.group(1)) if path.endswith(".h") else ():
                line = text.count("\n", 0, block.start(1) + name.start()) + 1
                shown_to_tests.setdefault(name.group(), f"{path}:{line}")
    symbols = {path: symbols_of(path) for path in objects}
    for path, (defined, needed) in symbols.items():
        source = source_of(path)
        if source.split("/")[0] not in GUESTS:
            findings += [f"{source}:1: the core starts no thread and no timer (P10): {name}" for name in sorted(needed & STARTS)]
        for name in filter(NAME.match, sorted(defined)):
            if name in shown_to_tests:
                findings.append(f"{shown_to_tests[name]}: {name} is for tests, and {path} has it")
            # What stands in such a block only is in no object but of a checked build.
            elif named[name] <= 2 and (named[name] or name not in anywhere):
                findings.append(f"{path}:1: only tests use {name}")
    print("\n".join(findings), end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
