#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Do the contracts of arch/base.h hold, and would clang say so if they did not? Reads commands of clang, one a line on
standard input, each of one source of the library. The library must be without a finding, as it is and as tests have it;
each mutant of mutants.list (tests/breaks) must be one. Prints findings as file:line: text; exits 1 if there are
any."""
from concurrent.futures import ThreadPoolExecutor
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/breaks"))
from rows import all_rows, read_file

SAID = re.compile(r"^(\S+?):(\d+):\d+: (?:warning|(?:fatal )?error): (.*)$", re.M)


def ask(command, *more):
    done = subprocess.run(command.split() + ["-Wthread-safety", "-fsyntax-only", *more], capture_output=True, text=True)
    found = [(path, int(line), text) for path, line, text in SAID.findall(done.stderr)]
    return found or [(command.split()[-1], 1, f"clang ended with {done.returncode}")] * (done.returncode != 0)


def is_seen(row, path, commands):
    """Whether clang says that a contract is broken when the file is broken so."""
    command = next(command for command in commands if command.split()[-1] == path)
    with tempfile.TemporaryDirectory() as folder:
        for file, text in row.broken_files(read_file).items():
            copy = os.path.join(folder, file)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            with open(copy, "w", encoding="utf-8") as out:
                out.write(text)
        said = ask(f"{command.removesuffix(path)} -I{folder} {folder}/{path}")
        return any("[-Wthread-safety" in text for _, _, text in said)


def main(list_path):
    wanted = {}
    with open(list_path, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                wanted[line.split()[0]] = line.split()[1]
    commands = sys.stdin.read().splitlines()
    found = []
    with ThreadPoolExecutor(int(os.environ.get("JOBS") or 2)) as pool:
        plain = pool.map(ask, commands)
        tested = pool.map(lambda command: ask(command, "-DCH_TESTING=1"), commands)
        rows = [row for row in all_rows() if row.name in wanted]
        asked = pool.map(lambda row: is_seen(row, wanted[row.name], commands), rows)
        found += [f"{path}:{line}: {text}" for said in plain for path, line, text in said]
        found += [f"{path}:{line}: {text} (as tests have it)" for said in tested for path, line, text in said]
        seen = {row.name for row, is_found in zip(rows, asked) if is_found}
    found += [f"{path}:1: nobody sees the mutant {name}" for name, path in wanted.items() if name not in seen]
    for finding in sorted(set(found)):
        print(finding)
    print(f"note: contracts hold in {len(commands)} files, and {len(seen)} mutants break one")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
