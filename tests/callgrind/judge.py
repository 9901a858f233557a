#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""judge.py BEFORE AFTER MAP [by-name] [parts] [NAME=LOW..HIGH ...]

Reads two profiles with a reader of its own. Nodes of the first are what the perf map says of them;
the second must have the same nodes, costs, calls, jumps and headers, under one name a node, and
callgrind_annotate must find the same sums in both (not of several parts, which it does not read).
NAME is called so often.
"""
import collections
import functools
import re
import subprocess
import sys

before, after, path, words = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
blocks, used = [], set()
for line in open(path):
    start, size, name = line.rstrip("\n").split(" ", 2)
    blocks.append((int(start, 16), int(size, 16), name))


def block_at(address):
    return next((b for b in reversed(blocks) if b[0] <= address < b[0] + b[1]), None)


def piece_of(text):
    block = re.fullmatch("0x[0-9a-f]+", text) and block_at(int(text, 16))
    if block and "by-name" in words:
        return block[2]
    if block:
        used.add(block)
    return block or text


@functools.lru_cache(None)
def node_of(ob, fl, fn):
    """What a node is, whatever it is called: the pieces of its name as blocks."""
    pieces = fn.split("'")
    first = pieces[0] if ob != "???" else piece_of(pieces[0])
    return (ob, fl, first) + tuple(piece_of(p) for p in pieces[1:])


SPEC = re.compile(r"(c?ob|fl|fi|fe|fn|c?f[iln]|cfn|jfi|jfn)=(?:\((\d+)\) ?)?(.*)")
HEAD = re.compile(r"(calls|jump|jcnd)=(\S+) (.*)")


def positions_from(last, fields):
    return [old if field == "*" else old + int(field) if field[0] in "+-" else int(field, 0) for old, field in zip(last, fields)]


def read(path, node, every_reader=False):
    """Of every reader: also one that lets the costs of calls and jumps move the position."""
    ids, got, rows, most = {}, collections.Counter(), {}, 0

    def add(key, costs):
        nonlocal most
        row = rows.setdefault(key, [])
        if len(row) < len(costs):
            row += [0] * (len(costs) - len(row))
            most = max(most, len(row))
        for i, c in enumerate(costs):
            row[i] += c

    where, called, last, moved, header, state = {}, {}, [], [], [], None
    for line in open(path):
        line = line.rstrip("\n")
        spec = SPEC.match(line)
        if spec:
            key, number, name = spec.groups()
            kind = "ob" if "ob" in key else "fn" if key.endswith("fn") else "fl"
            if number:
                name = ids[kind, number] = name or ids[kind, number]
            if key[0] == "j":
                called["jump " + kind] = name
            elif key[0] == "c":
                called[kind] = name
            else:
                where[kind] = name
                if key == "fl" or key == "fn":
                    where["in"] = where.get("fl", "")
            continue
        head = HEAD.match(line)
        if not head and (not line or line[0] not in "0123456789+*-"):
            header.append(line)
            if line.startswith("positions:"):
                last = moved = [0] * (len(line.split()) - 1)
            continue
        fields = (head.group(3) if head else line).split()
        at = positions_from(last, fields)
        if every_reader:
            assert positions_from(moved, fields) == at, "other readers find other positions: %s" % line
        me = node(where.get("ob", ""), where["in"], where["fn"])
        if head:
            state = (head.group(1), head.group(2), tuple(at))
            continue
        costs = [int(c) for c in fields[len(last):]]
        moved = at
        if not state:
            last = at
        if state and state[0] == "calls":
            to = node(called.get("ob", where.get("ob", "")), called.get("fl", where["fl"]), called["fn"])
            got["count", me, to, state[2], tuple(at)] += int(state[1])
            add(("inclusive", me, to, tuple(at)), costs)
            called = {}
        elif state:
            got["jump", me, state, tuple(at), called.get("jump fl"),
                node(where.get("ob", ""), "", called.get("jump fn", ""))] += 1
            called = {}
        else:
            add(("self", me, where["fl"], tuple(at)), costs)
        state = None
    # Costs that are not written are 0.
    got = dict(got) | {key: tuple(row + [0] * (most - len(row))) for key, row in rows.items()}
    return got, header, [n for (kind, _), n in ids.items() if kind == "fn"]


wanted, head, _ = read(before, node_of)
# Labels of the second profile: the block that each means.
labels = {}
for start, size, name in blocks:
    labels[f"{name} @0x{start:x}"] = (start, size, name)
    labels[name] = name if "by-name" in words else None if name in labels else (start, size, name)
names = collections.Counter(name for _, _, name in used)
for start, size, name in used:
    if "by-name" not in words:
        labels[name] = (start, size, name) if names[name] == 1 else "two blocks"


@functools.lru_cache(None)
def meant(ob, fl, fn):
    pieces = fn.split("'")
    first = labels.get(pieces[0]) or pieces[0] if ob == "???" else pieces[0]
    return (ob, fl, first) + tuple(labels.get(p) or p for p in pieces[1:])


got, got_head, functions = read(after, meant, every_reader=True)
assert head == got_head, "headers differ"
assert wanted, "an empty profile"
if wanted != got:
    sys.exit("callgrind-names: differ: %s\n%s" % tuple([(key, one[key]) for key in one if other.get(key) != one[key]][:3]
                                                      for one, other in ((wanted, got), (got, wanted))))

def annotated(path):
    """What callgrind_annotate has, anonymous functions by what they are: of each its own costs (*), and calls and their costs
    of its callers (<) and callees (>)."""
    text = subprocess.run(["callgrind_annotate", "--threshold=100", "--auto=no", "--show=Ir", "--tree=both", "--inclusive=no",
                           path], check=True, capture_output=True, text=True).stdout
    sums, callers, me = collections.Counter(), [], None
    for cost, mark, fl, fn, times, ob in re.findall(
            r"^ *([\d,]+) \([ 0-9.]+%\)  ([<*>]) +([^:\n]*):(.*?)(?: \(([\d,]+)x\))?(?: \[([^\[\n]*)\])?$", text, re.M):
        node = (meant if path == after else node_of)(ob, fl, fn)
        what = [int(cost.replace(",", "")), int((times or "0").replace(",", ""))]
        if mark == "<":
            callers.append((node, what))
        elif mark == "*":
            me = node
            sums["*", me] += what[0]
            for caller, (c, n) in callers:
                sums["<", caller, me, "cost"] += c
                sums["<", caller, me, "calls"] += n
            callers = []
        else:
            sums[">", me, node, "cost"] += what[0]
            sums[">", me, node, "calls"] += what[1]
    return sums


if "parts" not in words:
    one, two = annotated(before), annotated(after)
    assert one == two, ((one - two).most_common(3), (two - one).most_common(3))
    for mark in "<*>":
        assert sum(key[0] == mark for key in one) > 50, "callgrind_annotate has too little"


def calls(name):
    """How often it is called, at whatever depth of recursion, by whomever."""
    return sum(n for key, n in got.items() if key[0] == "count" and
               any(isinstance(p, tuple) and p[2] == name or p == name for p in key[2][2:3]))


for word in words:
    name, is_range, limits = word.rpartition("=")
    if is_range:
        low, high = map(int, limits.split(".."))
        assert low <= calls(name) <= high, "%s is called %d times" % (name, calls(name))
        if "by-name" in words:
            assert name in functions and not any(n.startswith(name + " @") for n in functions), name
print("%d costs and edges of %d functions" % (len(got), len(functions)))
