#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which functions a signal handler can reach: from the roots of a list along the calls of the built objects, function
by function, statics too. Each function that is reached and defined nowhere must be one that the list allows. Calls
through pointers are edges of the list. Usage: signal_reach.py BUILD LIST ARCH; prints findings, exits 1 if there are any."""
from fnmatch import fnmatchcase
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from rooms import ROOMS  # noqa: E402

HEAD = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
PART = re.compile(r"\.(?:isra|constprop|part|cold)\b.*")  # of one function, for the compiler's reasons
NO_CODE = re.compile(r"^\.(?!text)")
RELOCATION = re.compile(r"^\s+[0-9a-f]+: R_")
TOOLS = os.environ.get("CROSS", "")


PLACE = r"[0-9a-f]+ <([^>+]+)(?:\+0x[0-9a-f]+)?>"
MACHINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "machines")


class Code:
    """What the disassembly of one architecture says of calls (tools/machines/NAME.list). A jump through a register is a
    call like any other unless it is a switch; what is called by a relocation of its own is no pointer."""
    def __init__(self, arch):
        self.allowed, words = set(), {}
        with open(f"{MACHINES}/{arch}.list", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.rstrip("\n").partition(" ")
                if key == "allow":
                    self.allowed.update(value.split())
                words[key] = value.replace("PLACE", PLACE)

        def word(key):
            return re.compile(words.get(key, r"(?!)"))
        self.target, self.relocation, self.pointer = map(word, ("target", "relocation", "pointer"))
        self.switch, self.adds, self.direct = map(word, ("switch", "adds", "direct"))
        self.near, self.variable = map(word, ("near", "variable"))


def calls_of(path, code):
    """Function -> names that its code refers to, and the functions in order."""
    text = subprocess.run([f"{TOOLS}objdump", "-dr", "--no-show-raw-insn", path], capture_output=True, text=True,
                          check=True).stdout
    calls, now, before, lines = {}, None, "", text.splitlines()
    for line, behind in zip(lines, lines[1:] + [""]):
        head = HEAD.match(line)
        if head and head.group(1).startswith(".L"):
            continue
        if head:
            now = calls.setdefault(PART.sub("", head.group(1)), set())
        elif now is not None and RELOCATION.match(line):
            if code.near.search(before) and code.variable.search(line):
                now.add("*")
            now.update(PART.sub("", name) for name in code.relocation.findall(line) if not NO_CODE.match(name))
            continue
        elif now is not None:
            # A target that a relocation fills in is shown as what lies behind: the next function, at the end of one.
            if not RELOCATION.match(behind):
                now.update(PART.sub("", name) for name in code.target.findall(line) if not name.startswith(".L"))
            is_switch = code.switch.search(line) and code.adds.search(before)
            if code.pointer.search(line) and not is_switch and not code.direct.search(before):
                now.add("*")
        before = line
    return calls


def data_of(path):
    """Symbols that are no functions."""
    text = subprocess.run([f"{TOOLS}nm", path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in text.splitlines() if line.split()[-2] in "bBdDrRV"}


def read_list(path):
    roots, edges, allowed = [], {}, set()
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if words[0] == "root":
                roots.append((words[1], number))
            elif words[0] == "edge":
                edges.setdefault(words[1], []).extend(words[2:])
            else:
                allowed.update(words[1:])
    return roots, edges, allowed


def main(build, list_path, arch):
    objects, defined, found = {}, {}, []
    built = os.environ.get("CODEHEAP_OBJECTS", "").split()
    code = Code(arch)
    for folder, _, names in sorted(os.walk(f"{build}/obj")):
        room = os.path.relpath(folder, f"{build}/obj")
        for name in sorted(names):
            unit = f"{room}/{name}"
            if room.split("/")[0] not in ROOMS or not name.endswith(".o") or name == "meta_malloc.o":
                continue
            # A file that has moved leaves its object behind.
            if built and f"{build}/obj/{unit}" not in built:
                continue
            objects[unit] = (calls_of(f"{folder}/{name}", code), data_of(f"{folder}/{name}"))
            for symbol in objects[unit][0]:
                if symbol.startswith("ch_"):
                    defined[symbol] = unit
    data = {symbol for _, symbols in objects.values() for symbol in symbols}
    roots, edges, allowed = read_list(list_path)
    allowed |= code.allowed
    seen, waiting = set(), []

    def is_allowed(name):
        return any(fnmatchcase(name, pattern) for pattern in allowed)

    for root, number in roots:
        unit, function = root.split(":")
        if unit == "codeheap/gc_bdw.o" and os.environ.get("GC") == "none":
            continue
        if function not in objects.get(unit, ({},))[0]:
            found.append(f"{list_path}:{number}: there is no function {root}")
        waiting.append((unit, function, function))
    for edge in edges:
        unit, function = edge.split(":")
        if function not in objects.get(unit, ({},))[0]:
            found.append(f"{list_path}:1: there is no function {edge}, which an edge leaves")
    while waiting:
        unit, function, way = waiting.pop()
        if (unit, function) in seen:
            continue
        seen.add((unit, function))
        nexts = [(unit, name) for name in objects.get(unit, ({},))[0].get(function, ())]
        nexts += [tuple(edge.split(":")) for edge in edges.get(f"{unit}:{function}", ())]
        for where, name in nexts:
            if name == "*":
                if f"{unit}:{function}" not in edges:
                    found.append(f"{list_path}:1: {unit}:{function} calls through a pointer that no edge names")
            elif name in objects.get(where, ({},))[0]:
                waiting.append((where, name, f"{way} > {name}"))
            elif name in defined:
                waiting.append((defined[name], name, f"{way} > {name}"))
            elif not is_allowed(name) and name not in data and not name.startswith((".", "_GLOBAL_OFFSET_TABLE_")):
                found.append(f"{list_path}:1: a signal handler reaches {name} by {way}")
    for finding in sorted(set(found)):
        print(finding)
    print(f"note: {len(seen)} functions are reached by {len(roots)} handlers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
