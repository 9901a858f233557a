#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""mutate.py PROGRAM MAP INPUTS SEED PROFILE...

Pieces of the profiles, changed at random, go to PROGRAM MAP (tests/callgrind/read_many.c): each must
be read, or refused with a line and a reason. What breaks the program is kept beside the first profile.
"""
import random
import re
import struct
import subprocess
import sys

program, path_of_map, inputs_wanted, seed, *paths = sys.argv[1:]
rng = random.Random(int(seed))
profiles = [open(path, "rb").read().split(b"\n") for path in paths]
WORDS = [b"fn=", b"cfn=", b"fl=(1)", b"fi=", b"fe=(2)", b"ob=", b"cob=", b"calls=1 +1", b"jump=2 *", b"jcnd=1/2 -3", b"(1)",
         b"(99999999999999999999) x", b"(18446744073709551615) y", b"+18446744073709551615", b"-1", b"*", b"0x",
         b"0xffffffffffffffff", b"18446744073709551616", b"events: Ir Dr Ir", b"events:", b"positions: instr bb line",
         b"positions: line line line line", b"part: 2", b"pid: 1", b"totals: 1", b"summary: ", b"'2", b"'", b"fn=(1) 0x1000",
         b"ob=(9) ???", b"\0", b"\xff", b"#", b" ", b"\t", b"=", b":", b".", b"version: 1", b"cfl=(3) ", b"rcalls=1 1"]


def piece():
    lines = rng.choice(profiles)
    body = next(i for i, line in enumerate(lines) if line.startswith(b"events:")) + 1
    start = rng.randrange(body, len(lines))
    piece = lines[start:start + rng.randrange(1, 60)]
    # What is in front of the piece: a function, a position to count from, and names.
    places = [line for line in lines[:body] if line.startswith(b"positions:")]
    width = len(places[0].split()) - 1 if places else 1
    head = [b"fl=(1) name1", b"fn=(1) name1", b"1000000 " * width + b"1"]
    return lines[:body] + [re.sub(rb"=\((\d+)\)$", rb"=(\1) name\1", line) for line in head + piece]


def change(lines):
    i = rng.randrange(len(lines))
    line = lines[i]
    at = rng.randrange(len(line) + 1)
    kind = rng.randrange(9)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(i, rng.choice(lines))
    elif kind == 2:
        lines[i] = line[:at] + bytes([rng.randrange(256)]) + line[at + 1:]
    elif kind == 3:
        lines[i] = line[:at] + line[at + 1:]
    elif kind == 4:
        lines[i] = line[:at] + rng.choice(WORDS) + line[at:]
    elif kind == 5:
        lines.insert(i, rng.choice(WORDS))
    elif kind == 6:
        lines[i] = line[:at]
    elif kind == 7:
        lines[i] = re.sub(rb"\d+", lambda m: rng.choice([m[0], b"0", b"18446744073709551615", b"0x10"]), line)
    else:
        j = rng.randrange(len(lines))
        lines[i], lines[j] = lines[j], lines[i]
    if not lines:
        lines.append(b"")


counts = {"read": 0, "refused": 0}
while sum(counts.values()) < int(inputs_wanted) or min(counts.values()) <= 200:
    inputs = []
    for _ in range(300):
        lines = piece()
        for _ in range(rng.choice([0, 1, 1, 2, 3, 10])):
            change(lines)
        text = b"\n".join(lines)
        inputs.append(text[:rng.randrange(len(text) + 1)] if rng.random() < 0.05 else text)
    ran = subprocess.run([program, path_of_map], input=b"".join(struct.pack("=I", len(t)) + t for t in inputs),
                         capture_output=True)
    said = ran.stdout.decode(errors="replace").splitlines()
    bad = next((i for i, line in enumerate(said) if not re.match(r"read \d+ \d+$|refused [1-9]\d* .", line)), None)
    if ran.returncode or bad is not None or len(said) != len(inputs):
        bad = len(said) if bad is None else bad
        open(paths[0] + ".breaks", "wb").write(inputs[min(bad, len(inputs) - 1)])
        sys.exit("seed %s: status %d, %s\n%s\n%r" % (seed, ran.returncode, said[bad:bad + 1],
                                                      ran.stderr.decode(errors="replace")[:3000], inputs[min(bad, 299)][-1500:]))
    for line in said:
        counts[line.split()[0]] += 1
print("%(read)d read, %(refused)d refused" % counts)
