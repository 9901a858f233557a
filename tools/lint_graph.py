#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The part of `make lint` that keeps the library free of knots: the graph of its files, where a file uses each file that
defines a symbol which it refers to, has no cycle. Then every file can be read, tested and linked with those below it only.
A room, and a part of codeheap/, uses itself and those before it.

Arguments: the objects of a plain build. Prints each strongly connected component as a finding, file:line: text, with a
shortest cycle through it (file -symbol-> file); exits 1 if there is one. With --levels it prints every file behind the files
that it uses instead, with its level: 0 uses no other.
"""
import collections
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from rooms import is_upward, part_of  # noqa: E402

# What arch/base.h declares and every room calls; tests/support/stand_in.c has it for those that are linked without codeheap/.
LEFT_TO_CODEHEAP = {"ch__panic"}


def source_of(path):
    """build/obj/pages/pool.o -> pages/pool.c"""
    name = re.sub(r"^.*?\bobj/", "", path)
    return re.sub(r"\.o$", "", name) if name.endswith(".S.o") else re.sub(r"\.o$", ".c", name)


def symbols_of(path):
    """Global names that the object defines, and those that it needs."""
    said = subprocess.run([os.environ.get("CROSS", "") + "nm", "-g", path], capture_output=True, text=True, check=True).stdout
    defined, needed = set(), set()
    for line in said.splitlines():
        kind, name = line.split()[-2:]
        (needed if kind in "Uwv" else defined).add(name)
    return defined, needed


def graph_of(objects):
    """file -> {file that it uses: the symbols that it uses of it}"""
    symbols = {source_of(path): symbols_of(path) for path in objects}
    home = {name: file for file, (defined, _) in symbols.items() for name in defined}
    graph = {file: collections.defaultdict(list) for file in symbols}
    for file, (_, needed) in symbols.items():
        for name in sorted(needed):
            if home.get(name, file) != file:
                graph[file][home[name]].append(name)
    return graph


def components_of(graph):
    """Strongly connected ones, those that others use first; by Tarjan, without recursion."""
    number, low, stack, on_stack, components = {}, {}, [], set(), []
    for root in sorted(graph):
        work = [] if root in number else [(root, iter(sorted(graph[root])))]
        while work:
            file, rest = work[-1]
            if file not in number:
                number[file] = low[file] = len(number)
                stack.append(file)
                on_stack.add(file)
            for used in rest:
                if used not in number:
                    work.append((used, iter(sorted(graph[used]))))
                    break
                if used in on_stack:
                    low[file] = min(low[file], number[used])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[file])
                if low[file] == number[file]:
                    at = stack.index(file)
                    components.append(sorted(stack[at:]))
                    on_stack -= set(stack[at:])
                    del stack[at:]
    return components


def shortest_cycle(graph, component):
    """Files of the component, each using the next one, and the last one the first."""
    best = None
    for first in component:
        before, queue = {first: None}, collections.deque([first])
        while queue and first not in graph[queue[0]]:
            file = queue.popleft()
            for used in sorted(graph[file]):
                if used in component and used not in before:
                    before[used] = file
                    queue.append(used)
        way = [queue[0]]
        while way[0] != first:
            way.insert(0, before[way[0]])
        if not best or len(way) < len(best):
            best = way
    return best


def line_in(file, name):
    with open(file, encoding="utf-8") as text:
        for number, line in enumerate(text, 1):
            if re.search(rf"\b{name}\b", line):
                return number
    return 1


def main(arguments):
    objects = [path for path in arguments if not path.startswith("-")]
    graph = graph_of(objects)
    components = components_of(graph)
    if "--levels" in arguments:
        level = {}
        for component in components:
            below = [level[used] for file in component for used in graph[file] if used not in component]
            level.update(dict.fromkeys(component, max(below, default=-1) + 1))
        for file in sorted(graph, key=lambda file: (level[file], file)):
            print(f"{level[file]:2} {file}: {' '.join(sorted(graph[file]))}")
        return 0
    knots = [component for component in components if len(component) > 1]
    for knot in knots:
        way = shortest_cycle(graph, knot)
        text = way[0]
        for file, used in zip(way, way[1:] + way[:1]):
            text += f" -{graph[file][used][0]}-> {used}"
        first = graph[way[0]][(way[1:] + way[:1])[0]][0]
        print(f"{way[0]}:{line_in(way[0], first)}: {len(knot)} files use each other: {text}"
              + (f" (all: {' '.join(knot)})" if len(knot) > len(way) else ""))
    upward = [(file, used, name) for file in sorted(graph) for used in sorted(graph[file]) for name in graph[file][used]
              if is_upward(file, used) and name not in LEFT_TO_CODEHEAP]
    for file, used, name in upward:
        print(f"{file}:{line_in(file, name)}: {part_of(file)}/ must not use {part_of(used)}/: -{name}-> {used}")
    return 1 if knots or upward else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
