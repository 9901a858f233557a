#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""outputs.py json PROFILE JSON | folded PROFILE FOLDED .. | elf DUMP FOLDER LIST [SOURCE] | mutate FILE COUNT OUT

Judges what callgrind-names makes of a profile that has its names already, or of a jitdump, with readers and rules of its
own. `elf` asks objdump, nm, and for lines of SOURCE gdb. `mutate` writes OUT.1 to OUT.COUNT, each the file with some bytes
or lines made wrong.
"""
import collections
import json
import os
import random
import re
import struct
import subprocess
import sys


def fail(text):
    sys.exit("callgrind-names: " + text)


# ---- profiles: self costs by (object, file, function), calls and inclusive costs by pairs of them
def read(path):
    ids, events, width = {}, [], 1
    own, calls, inclusive = collections.Counter(), collections.Counter(), collections.Counter()
    where, called, pending = {}, {}, None
    for line in open(path, encoding="utf-8", errors="surrogateescape"):
        line = line.strip("\n")
        spec = re.match(r"(c?ob|fl|fi|fe|fn|cfi|cfl|cfn|jfi|jfn)=(?:\((\d+)\) ?)?(.*)", line)
        if spec:
            key, number, name = spec.groups()
            space = "ob" if "ob" in key else "fn" if key.endswith("fn") else "fl"
            if number:
                name = ids[space, number] = name or ids[space, number]
            if key in ("fl", "fi", "fe"):
                where["line"] = name
            if key in ("ob", "fl", "fn"):
                where[space] = name
            if key == "fn":
                where["line"] = where.get("fl", "")
            if key[0] == "c":
                called[space] = name
        elif line.startswith("positions:"):
            width = len(line.split()) - 1
        elif line.startswith("events:"):
            if events and events != line.split()[1:]:
                fail("the judge knows parts with the same events only")
            events, where, called = line.split()[1:], {}, {}
        elif line.startswith("calls="):
            pending = int(line[6:].split()[0])
        elif line.startswith(("jump=", "jcnd=")):
            pending = "jump"
        elif re.match(r"[0-9+*-]", line):
            me = (where.get("ob", ""), where.get("fl", ""), where["fn"])
            costs = [int(c) for c in line.split()[width:]]
            if pending is None:
                for i in range(len(events)):
                    own[me, i] += costs[i] if i < len(costs) else 0
            elif pending != "jump":
                to = (called.get("ob", where.get("ob", "")), called.get("fl", where.get("line", "")), called["fn"])
                calls[me, to] += pending
                for i, c in enumerate(costs):
                    inclusive[me, to, i] += c
                called = {}
            pending = None
    return events, own, calls, inclusive


# ---- redaction
def without_version(path):
    return re.sub(r"(-[0-9]*\.[0-9.]*)?\.so(\.[0-9.]+)?$", ".so", path)


def label_paths(paths):
    labels = {}
    for parts in range(1, 64):
        ends = {p: without_version("/".join([x for x in p.split("/") if x][-parts:])) for p in paths}
        counts = collections.Counter(ends.values())
        for p in paths:
            if p not in labels and counts[ends[p]] == 1:
                labels[p] = ends[p]
    return {p: labels.get(p, p.split("/")[-1]) for p in paths}


def redacted(name, is_anonymous):
    pieces = []
    for piece in name.split("'"):
        if re.fullmatch("0x[0-9a-f]+", piece):
            piece = "[unnamed]"
        elif is_anonymous:
            piece = re.sub(r" @0x[0-9a-f]+(\+[0-9]+)?$", "", piece)
            piece = re.sub(r'(^|[ :@(<\[,="])/(?=[A-Za-z0-9._~]).*/', r"\1", piece)
            piece = re.sub(r"(?<![A-Za-z0-9])0x[0-9a-f]{6,}", "[address]", piece)
        else:
            piece = re.sub(r"@@?[A-Z][A-Za-z0-9_.]*$", "", piece)
            piece = re.sub(r'(^|[ :@(<\[,="])/(?=[A-Za-z0-9._~]).*/', r"\1", piece)
        pieces.append(piece)
    return "'".join(pieces)


def judge_json(profile, path):
    events, own, calls, inclusive = read(profile)
    nodes = {n for n, _ in own} | {n for pair in calls for n in pair}
    objects, files = label_paths({n[0] for n in nodes}), label_paths({n[1] for n in nodes})
    name = {n: (objects[n[0]], files[n[1]], redacted(n[2], n[0] in ("", "???"))) for n in nodes}
    order = sorted(set(name.values()), key=lambda n: tuple(part.encode() for part in n))
    place = {n: i for i, n in enumerate(order)}
    costs = collections.Counter()
    for (n, i), cost in own.items():
        costs[place[name[n]], i] += cost
    edges = collections.Counter()
    edge_costs = collections.Counter()
    for (a, b), count in calls.items():
        edges[place[name[a]], place[name[b]]] += count
        for i in range(len(events)):
            edge_costs[place[name[a]], place[name[b]], i] += inclusive[a, b, i]
    every = range(len(events))
    wanted = {"format": "callgrind-names 1", "events": events,
              "nodes": [{"object": o, "file": f, "function": n, "costs": [costs[k, i] for i in every]}
                        for k, (o, f, n) in enumerate(order)],
              "edges": [{"caller": a, "callee": b, "calls": edges[a, b], "costs": [edge_costs[a, b, i] for i in every]}
                        for a, b in sorted(edges)]}
    got = json.load(open(path, encoding="utf-8"))
    for key in wanted:
        if isinstance(wanted[key], str) and wanted[key] != got.get(key):
            fail("%s is %s" % (key, got.get(key)))
        for one, two in zip(wanted[key], got[key]):
            if one != two:
                fail("%s: wanted %s, is %s" % (key, one, two))
    if wanted != got:
        fail("the JSON has another length")
    if len(order) < 3 or not edges:
        fail("a graph of nothing")
    print("%d nodes, %d edges" % (len(order), len(edges)))


# ---- stacks
def judge_folded(*paths):
    for profile, path in zip(paths[::2], paths[1::2]):
        judge_stacks(profile, path)


def judge_stacks(profile, path):
    events, own, calls, _ = read(profile)
    functions = collections.Counter()
    for (n, i), cost in own.items():
        functions[n[2]] += cost if i == 0 else 0
    names = {n[2] for n, _ in own} | {n[2] for pair in calls for n in pair}
    edges = {(a[2], b[2]) for a, b in calls}

    def function_of(label):
        label = label if label in names else label.rsplit(" (", 1)[0]
        if label not in names:
            fail("%s is no function" % label)
        return label

    leaves, seen = collections.Counter(), 0
    for line in open(path, encoding="utf-8"):
        stack, weight = line.rstrip("\n").rsplit(" ", 1)
        frames = stack.split(";")
        if len(set(frames)) != len(frames):
            fail("a frame is twice in %s" % stack)
        route = [function_of(f) for f in frames]
        for pair in zip(route, route[1:]):
            if pair not in edges:
                fail("%s does not call %s" % pair)
        if int(weight) <= 0:
            fail("a stack without weight: %s" % stack)
        leaves[route[-1]] += int(weight)
        seen += 1
    for name in names:
        if leaves[name] != functions[name]:
            fail("%s: its stacks have %d, its own cost is %d" % (name, leaves[name], functions[name]))
    if sum(leaves.values()) != sum(functions.values()) or not seen:
        fail("the stacks do not add up")
    print("%d stacks, %d %s" % (seen, sum(leaves.values()), events[0]))


# ---- jitdumps
def blocks_of(data):
    at, lines = struct.unpack_from("<I", data, 8)[0], None
    while at + 16 <= len(data):
        kind, size, time = struct.unpack_from("<IIQ", data, at)
        if at + size > len(data):
            break
        if kind == 2:
            address, count = struct.unpack_from("<QQ", data, at + 16)
            here, lines = at + 32, (address, [])
            for _ in range(count):
                pc, line, _column = struct.unpack_from("<QII", data, here)
                end = data.index(b"\0", here + 16)
                lines[1].append((pc, line, data[here + 16:end].decode()))
                here = end + 1
        elif kind == 0:
            _pid, _tid, _vma, address, length, index = struct.unpack_from("<IIQQQQ", data, at + 16)
            name, code = data[at + 56:at + size].split(b"\0", 1)
            own = lines[1] if lines and lines[0] == address else []
            if len(code) != length:
                fail("the judge cannot read this dump")
            if name != b"[freed]":
                yield index, time, address, code, name.decode("utf-8", "surrogateescape"), own
            lines = None
        at += size


def disassembled(paths):
    """What objdump shows of each: address and bytes of its lines."""
    shown = {}
    for k in range(0, len(paths), 200):
        text = subprocess.run(["objdump", "-d", "--wide", "--show-raw-insn", "-z", *paths[k:k + 200]], capture_output=True,
                              text=True, errors="surrogateescape").stdout
        parts = re.split(r"^(.*):     file format .*$", text, flags=re.M)
        for path, body in zip(parts[1::2], parts[2::2]):
            found = re.findall(r"^ *([0-9a-f]+):\t((?:[0-9a-f]{2,8} )+)", body, re.M)
            shown[path] = [(int(at, 16), raw.split()) for at, raw in found]
    return shown


def symbols_of(paths):
    text = "".join(subprocess.run(["nm", "-S", "-A", *paths[k:k + 200]], capture_output=True, text=True,
                                  errors="surrogateescape").stdout for k in range(0, len(paths), 200))
    return dict(line.split(":", 1) for line in text.splitlines())


def judge_elf(dump, folder, listed, source=None):
    rows = [line.rstrip("\n").split(" ", 5) for line in open(listed, encoding="utf-8", errors="surrogateescape")]
    blocks = list(blocks_of(open(dump, "rb").read()))
    if len(rows) != len(blocks) or len(rows) < 10 or sorted(os.listdir(folder)) != sorted(r[4] for r in rows):
        fail("%d blocks, %d in the list, %d files" % (len(blocks), len(rows), len(os.listdir(folder))))
    places, with_lines = collections.Counter(), []
    paths = [os.path.join(folder, row[4]) for row in rows]
    shown, symbols = disassembled(paths), symbols_of(paths)
    for (index, time, address, length, leaf, name), block in zip(rows, blocks):
        if (int(index), int(time), int(address, 16), int(length), name) != (*block[:3], len(block[3]), block[4]):
            fail("the list has %s for %s" % (name, block[4]))
        path = os.path.join(folder, leaf)
        at, code = block[2], b""
        for pc, raw in shown[path]:
            if pc != at + len(code):
                fail("%s: objdump goes on at %x" % (leaf, pc))
            code += bytes.fromhex("".join(raw)) if len(raw[0]) == 2 else b"".join(
                bytes.fromhex(word)[::-1] for word in raw)
        if code != block[3]:
            fail("%s: objdump shows other bytes than the dump has" % leaf)
        symbol = symbols[path].split(" ", 3)
        if (int(symbol[0], 16), int(symbol[1], 16), symbol[2], symbol[3]) != (at, len(code), "T", name):
            fail("%s: its symbol is %s" % (leaf, symbol))
        places[at] += 1
        if source and block[5] and len(with_lines) < 20:
            with_lines.append((path, block, name))
    if source:
        if len(with_lines) < 3:
            fail("no block has lines")
        judge_lines(with_lines, source)
    print("%d objects, %d addresses had several owners" % (len(rows), sum(n > 1 for n in places.values())))


def judge_lines(objects, source):
    """One gdb looks at all of them, one after the other."""
    asked, words = [], ["gdb", "-nx", "-batch"]
    for path, block, name in objects:
        pc, line, file = next(entry for entry in block[5] if entry[1] and entry[0] < block[2] + len(block[3]))
        asked.append((path, name, line, file))
        words += ["-ex", "file " + path, "-ex", "info line *0x%x" % pc, "-ex", "info symbol 0x%x" % pc, "-ex", r"echo \n\f\n"]
    answers = subprocess.run(words, capture_output=True, text=True).stdout.split("\n\f\n")
    if len(answers) != len(asked) + 1:
        fail("gdb says %s" % answers)
    for (path, name, line, file), said in zip(asked, answers):
        if 'Line %d of "%s"' % (line, file) not in said:
            fail("%s: gdb says %s" % (path, said))
        if name not in said or not os.path.basename(file) in said:
            fail("%s: gdb does not know %s: %s" % (path, name, said))
        if source not in file:
            fail("%s is of the file %s" % (name, file))


# ---- damage
def mutate(path, count, out):
    whole = open(path, "rb").read()
    for seed in range(1, int(count) + 1):
        open("%s.%d" % (out, seed), "wb").write(mutated(whole, random.Random(seed)))


def mutated(whole, rng):
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at, kind = rng.randrange(len(data) or 1), rng.randrange(6)
        if kind == 0:
            data[at:at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del data[at:at + rng.choice((1, 4, 16, 100))]
        elif kind == 2:
            data[at:at] = data[at:at + rng.choice((1, 8, 64))]
        elif kind == 3:
            data[at:at + 4] = struct.pack("<I", rng.choice((0, 1, 15, 16, 0x7fffffff, 0x80000000, 0xffffffff)))
        elif kind == 4:
            data[at:at + 8] = struct.pack("<Q", rng.choice((0, 1, 1 << 31, 1 << 63, (1 << 64) - 1)))
        else:
            del data[at:]
    return data


{"json": judge_json, "folded": judge_folded, "elf": judge_elf, "mutate": mutate}[sys.argv[1]](*sys.argv[2:])
