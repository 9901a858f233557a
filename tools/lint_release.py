#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The part of `make lint` that keeps what only tests use out of the library: no release object has a global that a header
shows to tests only (#if CH_TESTING), nor one that the library itself never names but to declare and define it. And the part
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
STARTS = {"pthread_create", "thrd_create", "timer_create"}


def main(objects):
    named, shown_to_tests, findings = collections.Counter(), {}, []
    for path in files_of_rooms():
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), file.read(), flags=re.S)
        named.update(NAME.findall(text))
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
            elif named[name] <= 2:
                findings.append(f"{path}:1: only tests use {name}")
    print("\n".join(findings), end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
