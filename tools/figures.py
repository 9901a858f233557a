#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""figures.py BENCH.json CAUSES PAGE: writes the page of figures: each row of `make bench`, and of each that missed its goal
how far it is from it, and why.

CAUSES has a line `row: why` for each row that misses its goal. A row that misses and has no line there is an error, as is
a line whose row no bench has.
"""
import json
import sys

HEAD = """# Figures

Written by `make bench WRITE=1`, from one run on one machine: {machine}, gcc {compiler}.
Medians of *n* runs, or the best one where the row says so; ours, the peer and the limit are measured in turn. *ratio* is
ours to the peer, or to the limit where the goal is of the limit. *spread* is the middle half of our runs, as a part of
their median. *of goal* is how many times the goal a row takes that misses it.

| row | unit | ours | peer | limit | ratio | goal | of goal | n | spread | peer; note |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def number(value):
    return "" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def distance(row):
    """How many times its goal the row takes, or None if it meets it, or was not measured."""
    if row["met"] is not False or row["ours"] is None:
        return None
    sign, goal = row["goal"].split("= ")
    value = row["ratio"] if row["goal_is_of_ratio"] else row["ours"]
    return value / float(goal) if sign == "<" else float(goal) / value


def line(row):
    far = distance(row)
    goal = row["goal"] + (" x" if row["goal"] and row["goal_is_of_ratio"] else "")
    what = "; ".join(text for text in (row["peer_name"], row["note"]) if text)
    cells = [f"`{row['name']}`", row["unit"], number(row["ours"]), number(row["peer"]), number(row["limit"]),
             number(row["ratio"]), goal, f"{far:.2f}" if far else "", str(row["runs"]), f"{row['spread'] * 100:.0f} %", what]
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |\n"


def main():
    measured, causes_path, page = sys.argv[1:4]
    with open(measured, encoding="utf-8") as file:
        bench = json.load(file)
    with open(causes_path, encoding="utf-8") as file:
        causes = dict(text.strip().split(": ", 1) for text in file if text.strip() and not text.startswith("#"))
    rows = bench["rows"]
    missed = [row for row in rows if distance(row)]
    wrong = [f"{name}: no such row" for name in causes if name not in {row["name"] for row in rows}]
    wrong += [f"{row['name']}: missed, and no cause in {causes_path}" for row in missed if row["name"] not in causes]
    text = HEAD.format(**bench) + "".join(map(line, rows))
    text += f"\n{sum(bool(row['goal']) for row in rows)} rows have a goal, {len(missed)} miss it.\n\n## Why\n\n"
    text += "".join(f"- `{row['name']}`, {distance(row):.2f} of its goal: {causes.get(row['name'], '?')}\n" for row in missed)
    with open(page, "w", encoding="utf-8") as file:
        file.write(text)
    print("\n".join(wrong + [f"{page}: {len(rows)} rows, {len(missed)} missed"]))
    return 1 if wrong else 0


sys.exit(main())
