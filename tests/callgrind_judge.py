#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""callgrind_judge.py BEFORE AFTER MAP [by-name] [parts] [NAME=LOW..HIGH ...]

Reads two profiles with a reader of its own. Nodes of the first are what the perf map says of them;
the second must have the same nodes, costs, calls, jumps and headers, under one name a node, and
callgrind_annotate must find the same sums in both (not of several parts, which it does not read).
NAME is called so often.
"""
import collections
import re
import subprocess
import sys

before, after, path, words = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
blocks = []
for line in open(path):
    start, size, name = line.rstrip("\n").split(" ", 2)
    blocks.append((int(start, 16), int(size, 16), name))


def block_at(address):
    return next((b for b in reversed(blocks) if b[0] <= address < b[0] + b[1]), None)


def piece_of(text):
    block = re.fullmatch("0x[0-9a-f]+", text) and block_at(int(text, 16))
    if block and "by-name" in words:
        return block[2]
    return block or text


def node_of(ob, fl, fn):
    """What a node is, whatever it is called: the pieces of its name as blocks."""
    pieces = fn.split("'")
    first = pieces[0] if ob != "???" else piece_of(pieces[0])
    return (ob, fl, first) + tuple(piece_of(p) for p in pieces[1:])


def read(path, node, every_line_moves=False):
    ids, got = {}, collections.Counter()
    where, called, last, header, state = {}, {}, [], [], None
    for line in open(path):
        line = line.rstrip("\n")
        spec = re.match(r"(c?ob|fl|fi|fe|fn|c?f[iln]|cfn|jfi|jfn)=(?:\((\d+)\) ?)?(.*)", line)
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
        if not line or not re.match(r"[0-9+*-]|calls=|jump=|jcnd=", line):
            header.append(line)
            if line.startswith("positions:"):
                last = [0] * (len(line.split()) - 1)
            continue
        head = re.match(r"(calls|jump|jcnd)=(\S+) (.*)", line)
        fields = (head.group(3) if head else line).split()
        at = []
        for old, field in zip(last, fields):
            at.append(old if field == "*" else old + int(field) if field[0] in "+-" else int(field, 0))
        me = node(where.get("ob", ""), where["in"], where["fn"])
        if head:
            state = (head.group(1), head.group(2), tuple(at))
            continue
        costs = [int(c) for c in fields[len(last):]]
        if every_line_moves or not state:
            last = at
        if state and state[0] == "calls":
            to = node(called.get("ob", where.get("ob", "")), called.get("fl", where["fl"]), called["fn"])
            got["count", me, to, state[2], tuple(at)] += int(state[1])
            for i, c in enumerate(costs):
                got["inclusive", me, to, tuple(at), i] += c
            called = {}
        elif state:
            got["jump", me, state, tuple(at), called.get("jump fl"),
                node(where.get("ob", ""), "", called.get("jump fn", ""))] += 1
            called = {}
        else:
            for i, c in enumerate(costs):
                got["self", me, where["fl"], tuple(at), i] += c
        state = None
    return got, header, [n for (kind, _), n in ids.items() if kind == "fn"]


wanted, head, _ = read(before, node_of)
# Labels of the second profile: the block that each means.
labels = {}
for start, size, name in blocks:
    labels[f"{name} @0x{start:x}"] = (start, size, name)
    labels[name] = name if "by-name" in words else None if name in labels else (start, size, name)
used = {n for key in wanted for part in key if isinstance(part, tuple) for n in part if isinstance(n, tuple) and len(n) == 3}
names = collections.Counter(name for _, _, name in used)
for start, size, name in used:
    if "by-name" not in words:
        labels[name] = (start, size, name) if names[name] == 1 else "two blocks"


def meant(ob, fl, fn):
    pieces = fn.split("'")
    first = labels.get(pieces[0]) or pieces[0] if ob == "???" else pieces[0]
    return (ob, fl, first) + tuple(labels.get(p) or p for p in pieces[1:])


got, got_head, functions = read(after, meant)
assert head == got_head, "headers differ"
assert wanted, "an empty profile"
if wanted != got:
    sys.exit("callgrind-names: differ: %s\n%s" % (list((wanted - got).items())[:3], list((got - wanted).items())[:3]))
# Readers that let the costs of a call move the position find the same.
assert read(after, meant, every_line_moves=True)[0] == got, "other readers find other positions"


def annotated(path):
    """Self costs of each function as callgrind_annotate has them, anonymous ones by what they are."""
    text = subprocess.run(["callgrind_annotate", "--threshold=100", "--auto=no", "--show=Ir", path], check=True,
                          capture_output=True, text=True).stdout
    sums = collections.Counter()
    for cost, fl, fn, ob in re.findall(r"^ *([\d,]+) \([ 0-9.]+%\)  ([^:\n]*):(.*?)(?: \[([^\[\n]*)\])?$", text, re.M):
        sums[(meant if path == after else node_of)(ob, fl, fn)] += int(cost.replace(",", ""))
    return sums


def tree(path):
    """Calls and their costs as callgrind_annotate has them, of callers (<) and callees (>)."""
    text = subprocess.run(["callgrind_annotate", "--threshold=100", "--auto=no", "--show=Ir", "--tree=both", "--inclusive=yes",
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
            for caller, (c, n) in callers:
                sums["<", caller, me, "cost"] += c
                sums["<", caller, me, "calls"] += n
            callers = []
        else:
            sums[">", me, node, "cost"] += what[0]
            sums[">", me, node, "calls"] += what[1]
    return sums


if "parts" not in words:
    one, two = tree(before), tree(after)
    assert len(one) > 50 and one == two, (len(one), (one - two).most_common(3), (two - one).most_common(3))
    one, two = annotated(before), annotated(after)
    assert len(one) > 50 and one == two, (len(one), (one - two).most_common(3), (two - one).most_common(3))


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
