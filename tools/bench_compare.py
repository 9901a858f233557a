#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench_compare.py OLD NEW: lists what got worse by more than 15 % between two bench.json files; exits 1 if anything did.

Compared is `ratio` (ours to the peer of the same run) where both have one, else `ours`. Whether more or less is better
is read from the row's goal: `<= x` or `>= x` as text, or else from its unit (a rate or a speed-up is better when larger).
"""
import json
import sys

WORSE_BY = 0.15
LARGER_IS_BETTER = ("/s", "x", "speedup", "rate", "scale")


def rows(path):
    with open(path) as f:
        return {row["name"]: row for row in json.load(f)["rows"]}


def larger_is_better(row):
    goal = str(row.get("goal", "")).strip()
    if goal.startswith(("<", "≤")):
        return False
    if goal.startswith((">", "≥")):
        return True
    unit = str(row.get("unit", ""))
    return any(unit == mark or unit.endswith(mark) for mark in LARGER_IS_BETTER)


def value(row, key):
    v = row.get(key)
    return v if isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0 else None


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        old, new = rows(sys.argv[1]), rows(sys.argv[2])
    except (OSError, ValueError, KeyError) as e:
        print(f"bench-compare: {e}", file=sys.stderr)
        return 2
    worse = 0
    for name in sorted(old):
        if name not in new or (value(old[name], "ours") and new[name].get("ours") is None):
            print(f"{name}: no longer measured")
            worse += 1
            continue
        key = "ratio" if value(old[name], "ratio") and value(new[name], "ratio") else "ours"
        a, b = value(old[name], key), value(new[name], key)
        if a is None or b is None:
            continue
        change = (a / b if larger_is_better(new[name]) else b / a) - 1
        if change > WORSE_BY:
            worse += 1
            print(f"{name}: {key} {a:g} -> {b:g} {new[name].get('unit', '') if key == 'ours' else ''} "
                  f"({change * 100:.0f} % worse)")
    print(f"{len(old)} rows compared, {worse} worse by more than {WORSE_BY * 100:.0f} %")
    return 1 if worse else 0


sys.exit(main())
