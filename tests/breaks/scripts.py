#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the scripts of the tests break in copies of sources, each in one line: `rule [CASE] FILE PATTERN TEXT` for sed,
`breaks SCENARIO STACKS FILE TEXT TEXT` of texts as they are, `breaks FILE SED CASE..`.

Run by `make lint`, it prints as file:line: text which line changes nothing in its file: the run that breaks would end
there. Exits 1 if there is any."""
import glob
import os
import re
import shlex
import subprocess
import sys

from rows import read_file

FOLDERS = ("tools/callgrind", "tools", "flame")


def change_of(words):
    """(the file, what changes its text), or None where the line names no file."""
    for at, word in enumerate(words[1:], 1):
        for path in (f"{folder}/{word}" for folder in FOLDERS if "." in word):
            if os.path.isfile(path) and len(words) > at + 2:
                old, new = words[at + 1], words[at + 2]
                if words[0] == "rule":
                    return path, sed(f"s@{old}@{new}@")
                return path, lambda text: text.replace(old, new) if text.count(old) == 1 else text
    path = f"hosts/scheme/{words[1]}.c"
    return (path, sed(words[2])) if os.path.isfile(path) else None


def sed(change):
    def changed(text):
        done = subprocess.run(["sed", change], input=text, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else text

    return changed


def main():
    count, findings = 0, []
    for script in sorted(glob.glob("tests/*/*.sh")):
        text = read_file(script)
        for line in re.finditer(r"^ +(?:rule|breaks) (?:.*\\\n)*.*$", text, re.M):
            count, n = count + 1, 1 + text.count("\n", 0, line.start())
            change = change_of(shlex.split(line.group().replace("\\\n", "")))
            if not change:
                findings.append(f"{script}:{n}: names no file to break")
                continue
            source = read_file(change[0])
            if change[1](source) == source:
                findings.append(f"{script}:{n}: changes nothing in {change[0]}")
    print("\n".join(findings) if findings else f"note: {count} lines of scripts break what they name")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
