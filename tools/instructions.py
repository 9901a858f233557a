#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""instructions.py BENCH LIST [--write]: how many instructions each hot path takes, counted by callgrind in `BENCH --counted`,
and how many bytes of side memory (rows `bytes_*`, which the program prints).

LIST has a line `path number` each, the baseline in the tree. Prints both and exits 1 if a path takes 5 % more than
its line says, or has none. With --write LIST becomes what was counted.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

MORE = 0.05
MARK = re.compile(r"^desc: Trigger: Client Request: (\S+) (\d+)$", re.M)
SUM = re.compile(r"^summary: (\d+)", re.M)
BYTES = re.compile(r"^(bytes_\w+) (\d+)$", re.M)


def count(bench):
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", bench, "--counted"],
                             capture_output=True, text=True, check=False, timeout=600)
        if run.returncode:
            sys.exit(f"instructions: valgrind {bench} --counted: exit {run.returncode}\n{run.stderr[-2000:]}")
        counted = {name: int(n) for name, n in BYTES.findall(run.stdout)}
        for path in glob.glob(os.path.join(glob.escape(folder), "out.*")):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            mark, total = MARK.search(text), SUM.search(text)
            if mark and total:
                counted[mark[1]] = round(int(total[1]) / int(mark[2]))
        return counted


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return {name: int(n) for name, n in (line.split() for line in file if not line.startswith("#"))}
    except FileNotFoundError:
        return {}


def main():
    bench, path = sys.argv[1:3]
    counted, before = count(bench), read(path)
    if "--write" in sys.argv[3:]:
        with open(path, "w", encoding="utf-8") as file:
            file.write("# Instructions of one turn of each path of bench/counted.c, and bytes of side memory a block, by\n"
                       "# `make instructions WRITE=1`.\n")
            file.writelines(f"{name} {n}\n" for name, n in sorted(counted.items()))
        return 0
    worse = [name for name in before if name not in counted]
    print(f"{'path':20} {'before':>8} {'counted':>8}")
    for name, n in sorted(counted.items()):
        is_worse = name not in before or n > before[name] * (1 + MORE)
        worse += [name] if is_worse else []
        print(f"{name:20} {before.get(name, '-'):>8} {n:>8}{'  worse' if is_worse else ''}")
    print(f"{len(counted)} paths, {len(worse)} take over {MORE * 100:.0f} % more or are in one list only")
    return 1 if worse or not counted else 0


if __name__ == "__main__":
    sys.exit(main())
