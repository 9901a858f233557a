#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""graph.py PRINTED PROFILE...

Reads the profiles with a reader of its own and wants PRINTED, which tests/callgrind/print_graph says
of them, to be the same call graph. Then each line of standard input must be true of it:

  calls CALLER CALLEE N     so many calls, as an edge of one caller and one callee; 0: there is no edge
  callers NAME NAME..       exactly these call the first; callees: exactly these it calls
  loops NAME..              exactly these call themselves
  nodes NAME N              so many nodes have the name
  file NAME BASENAME        the source file of the node
  event NAME                costs of the event are not all 0

A name is a function, or function@part of its file or object. [names] of the fixture's own: callees in
other objects than those that `own PART..` says are left out, as are callers.
"""
import collections
import re
import sys

SPEC = re.compile(r"(c?ob|fl|fi|fe|fn|cfi|cfl|cfn|jfi|jfn)=\s*(?:\((\d+)\)\s*)?(.*)")


class Graph:
    """Nodes are (object, file, function)."""

    def __init__(self):
        self.self_costs = collections.defaultdict(collections.Counter)
        self.calls = collections.Counter()
        self.inclusive = collections.defaultdict(collections.Counter)
        self.events, self.parts, self.positions = [], 0, set()

    def read(self, path):
        ids, width, events = {}, 1, []
        ob = fl = at = fn = None
        callee, pending = {}, None
        for line in open(path, errors="surrogateescape"):
            line = line.rstrip("\n")
            if not line.strip() or line.startswith("#"):
                continue
            spec = SPEC.fullmatch(line)
            if spec:
                key, number, name = spec.groups()
                space = "ob" if key.endswith("ob") else "fn" if key.endswith("fn") else "fl"
                if number:
                    name = ids[space, number] = name or ids[space, number]
                if key[0] == "j":
                    continue
                if key[0] == "c":
                    callee[space] = name
                    continue
                callee = {}
                if key == "ob":
                    ob = name
                elif key == "fl":
                    fl = at = name
                elif key == "fn":
                    fn, at = name, fl
                else:
                    at = name
                continue
            words = line.split()
            if line.startswith(("calls=", "rcalls=")):
                called = (callee.get("ob", ob), callee.get("fl", at), callee["fn"])
                pending = ((ob or "", fl or "", fn), tuple(x or "" for x in called))
                self.calls[pending] += int(words[0].partition("=")[2])
            elif line.startswith(("jump=", "jcnd=")):
                pending = "jump"
            elif re.match(r"[0-9+*-]", line):
                costs = {e: int(c) for e, c in zip(events, words[width:]) if c != "."}
                if pending is None:
                    self.self_costs[ob or "", fl or "", fn].update(costs)
                elif pending != "jump":
                    self.inclusive[pending].update(costs)
                pending, callee = None, {}
            elif words[0] == "positions:":
                width = len(words) - 1
                self.positions |= set(words[1:])
            elif words[0] == "events:":
                events = words[1:]
                self.events += [e for e in events if e not in self.events]
                self.parts += 1
                ob = fl = at = fn = None

    def nodes(self):
        return sorted(set(self.self_costs) | {n for edge in self.calls for n in edge},
                      key=lambda n: [x.encode(errors="surrogateescape") for x in n])

    def printed(self):
        nodes = self.nodes()
        number = {n: i for i, n in enumerate(nodes)}
        costs = lambda counter: "".join("\t%d" % counter[e] for e in self.events)
        total = collections.Counter()
        for counter in self.self_costs.values():
            total.update(counter)
        yield "events" + "".join("\t" + e for e in self.events)
        yield "parts\t%d\t%d\t%d" % (self.parts, "instr" in self.positions, "line" in self.positions)
        yield "totals" + costs(total)
        for n in nodes:
            base, mark, rest = (n[2][1:] if n[2] else "").partition("'")
            level = re.match(r"\d+(?![^'])", rest)
            yield "node\t%s\t%s\t%s\t%s\t%d\t%d%s" % (*n, n[2][:1] + base, int(level[0]) if level else 0,
                                                    n[0] in ("", "???"), costs(self.self_costs[n]))
        for a, b in sorted(self.calls, key=lambda e: (number[e[0]], number[e[1]])):
            yield "edge\t%d\t%d\t%d%s" % (number[a], number[b], self.calls[a, b], costs(self.inclusive[a, b]))


def is_named(node, name):
    """Functions may have an @ and spaces in their names; then what is behind the last @ is no file."""
    function, mark, place = name.rpartition("@")
    return node[2] == name or bool(mark) and node[2] == function and (place in node[0] or place in node[1])


class Judge:
    def __init__(self, graph):
        self.graph, self.nodes, self.own = graph, graph.nodes(), [""]

    def one(self, name):
        found = [n for n in self.nodes if is_named(n, name)]
        assert len(found) == 1, "%s is %s" % (name, found)
        return found[0]

    def is_own(self, node):
        return any(part in node[0] for part in self.own)

    def names(self, nodes):
        return sorted(n[2] for n in nodes if self.is_own(n))

    def check(self, words):
        verb, rest, g = words[0], words[1:], self.graph
        if verb == "own":
            self.own = rest
        elif verb == "calls":
            got = sum(n for (a, b), n in g.calls.items() if is_named(a, rest[0]) and is_named(b, rest[1]))
            assert got == int(rest[2]), "%d calls" % got
            assert got or all(any(is_named(n, name) for n in self.nodes) for name in rest[:2]), "no such node"
        elif verb in ("callers", "callees"):
            me = self.one(rest[0])
            got = self.names([a if verb == "callers" else b for a, b in g.calls if (b if verb == "callers" else a) == me])
            assert got == sorted(rest[1:]), got
        elif verb == "loops":
            got = self.names([a for a, b in g.calls if a == b])
            assert got == sorted(rest), got
        elif verb == "nodes":
            got = sum(is_named(n, rest[0]) for n in self.nodes)
            assert got == int(rest[1]), "%d nodes" % got
        elif verb == "file":
            assert self.one(rest[0])[1].rpartition("/")[2] == rest[1], self.one(rest[0])
        elif verb == "event":
            assert any(c[rest[0]] for c in g.self_costs.values()), "none"
        else:
            raise AssertionError("what is that?")


def main():
    graph = Graph()
    for path in sys.argv[2:]:
        graph.read(path)
    got = open(sys.argv[1], errors="surrogateescape").read().split("\n")[:-1]
    wanted = list(graph.printed())
    for a, b in zip(wanted + [""] * (len(got) - len(wanted)), got + [""] * (len(wanted) - len(got))):
        if a != b:
            sys.exit("the graph is another:\n  wanted %s\n  got    %s" % (a, b))
    judge = Judge(graph)
    for line in sys.stdin:
        words = re.findall(r'"([^"]*)"|(\S+)', line)
        if words:
            try:
                judge.check([a or b for a, b in words])
            except AssertionError as why:
                sys.exit("not so: %s: %s" % (line.strip(), why))


main()
