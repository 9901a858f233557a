#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The page of `make demo` in a browser: demo_page.py FOLDER: ten kept promises, the tables and curves with what was measured, and
both pictures drawn. Exits 1 with what is otherwise."""
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from chromium import Browser, Failure, check  # noqa: E402

SEEN = """
    function cells(table) {
        return Array.from(document.querySelectorAll(table + ' tr'), function (row) {
            return Array.from(row.querySelectorAll('td'), function (cell) { return cell.innerText; }); }).filter(function (row) { return row.length; });
    }
    return {promises: cells('#promises'), loop: cells('#loop'), modes: cells('#modes'), title: document.title,
        points: Array.from(document.querySelectorAll('polyline'), function (line) { return line.points.length; }),
        pictures: Array.from(document.images, function (image) { return image.complete ? image.naturalWidth : 0; }),
        wide: document.documentElement.scrollWidth - document.documentElement.clientWidth};
"""


def look(browser, folder):
    browser.open(os.path.join(folder, "index.html"))
    seen = browser.run(SEEN)
    check([row[:2] for row in seen["promises"]] == [[f"P{n}", "kept"] for n in range(1, 11)], "promises:", seen["promises"])
    check(all(len(row) == 4 and len(row[3]) > 15 for row in seen["promises"]), "a promise without evidence:", seen["promises"])
    check("10 of 10" in seen["title"], "title:", seen["title"])
    check(seen["loop"] and all(float(cell) > 0 for cell in seen["loop"][0][1:]), "the loop:", seen["loop"])
    check(len(seen["modes"]) >= 5 and all(re.fullmatch(r"\d+\.\d+", cell) for row in seen["modes"] for cell in row[1:]), "modes:", seen["modes"])
    check(seen["points"] == [50, 50], "points of the curves:", seen["points"])
    check(len(seen["pictures"]) == 2 and all(width > 100 for width in seen["pictures"]), "pictures:", seen["pictures"])
    check(seen["wide"] <= 0, "the page is wider than the window by", seen["wide"])
    check(not browser.errors(), "the browser complains")


browser = None
try:
    browser = Browser(sys.argv[1])
    look(browser, sys.argv[1])
except Failure as failure:
    print(f"demo_page: {failure}", file=sys.stderr)
    sys.exit(1)
finally:
    if browser:
        browser.end()
