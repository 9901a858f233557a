#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Flame graphs in Debian's chromium, driven over WebDriver: browser.py SCENARIO STACKS SVG [SCENARIO STACKS SVG..]
[PICTURE.png], or browser.py each_fails LIST FOLDER/any.

STACKS are the lines that draw.c read; what must be seen is computed from them, not from the SVG. Exits 1 with what is
otherwise. Everything that the browser writes goes below the folder of SVG."""
import os
import re
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from chromium import Browser, Failure, check  # noqa: E402

LEFT, FULL = 10, 1180
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
CONTROL, ESCAPE, ENTER, TAB, UP, DOWN, ARROW_LEFT, ARROW_RIGHT = (
    "\ue009", "\ue00c", "\ue007", "\ue004", "\ue013", "\ue015", "\ue012", "\ue014")
SECONDS = 480


# ---- what must be seen -----------------------------------------------------------------------------------------------
KINDS = dict(zip("nijcto", ("native", "interpreter", "hot", "cold", "trampoline", "other")))


class Expected:
    """Boxes by their path of (name, class): (start, weight, own weight)."""

    def __init__(self, path, is_reversed):
        weights = {}
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file.read().split("\n"):
                if line:
                    weight, *frames = line.split("\t")
                    stack = [(frame[1:], KINDS[frame[0]]) for frame in frames]
                    stack = tuple(reversed(stack) if is_reversed else stack)
                    weights[stack] = weights.get(stack, 0) + int(weight)
        self.total = sum(weights.values())
        sums = {}
        for stack, weight in weights.items():
            for depth in range(1, len(stack) + 1):
                sums[stack[:depth]] = sums.get(stack[:depth], 0) + weight
        order = list(KINDS.values())
        self.boxes, after = {(): (0, self.total, 0)}, {(): 0}
        for path in sorted(sums, key=lambda p: [(name.encode(errors="surrogateescape"), order.index(kind)) for name, kind in p]):
            start = after[path[:-1]]
            after[path[:-1]] += sums[path]
            after[path] = start
            self.boxes[path] = (start, sums[path], weights.get(path, 0))

    def share_of(self, matches):
        spans = [(start, start + weight) for path, (start, weight, _) in self.boxes.items() if path and matches(path[-1][0])]
        covered, end = 0, 0
        for first, last in sorted(spans):
            covered += max(0, last - max(first, end))
            end = max(end, last)
        return covered


# ---- what is seen ----------------------------------------------------------------------------------------------------
SEEN = """return Array.from(document.querySelectorAll('.frame'), function (node) {
    var box = node.querySelector('rect').getBoundingClientRect(), text = node.querySelector('text');
    return {name: node.querySelector('title').textContent.split('\\n')[0], about: node.querySelector('title').textContent,
        depth: +node.dataset.depth, start: +node.dataset.start, count: +node.dataset.count, x: box.x, y: box.y,
        width: box.width, height: box.height, shown: getComputedStyle(node).display !== 'none',
        'class': node.getAttribute('class'), label: text ? text.textContent : '',
        fill: getComputedStyle(node.querySelector('rect')).fill, opacity: +getComputedStyle(node).opacity,
        textWidth: text ? text.getComputedTextLength() : 0};
});"""


class Page:
    def __init__(self, browser, stacks, svg, is_icicle=False, is_reversed=False):
        self.browser, self.is_icicle = browser, is_icicle
        self.expected = Expected(stacks, is_reversed)
        browser.open(svg)
        self.seen = browser.run(SEEN)
        check(not browser.errors(), "the browser complains")
        check(browser.run("return performance.getEntriesByType('resource').length") == 0, "something is fetched")

    def again(self):
        self.seen = self.browser.run(SEEN)
        return self.seen

    def paths(self):
        """Each box with its path, by the order in which they stand in the file."""
        stack = []
        for box in self.seen:
            del stack[box["depth"]:]
            stack.append((box["name"], box["class"].split()[1]))
            yield tuple(stack[1:]), box

    def box(self, *names):
        for path, box in self.paths():
            if tuple(name for name, _ in path) == names:
                return box
        raise Failure("there is no box", names)

    def click(self, *names):
        box = self.box(*names)
        self.browser.pointer(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, True)
        self.again()

    def text(self, selector):
        return self.browser.run("var e = document.querySelector(arguments[0]); return e ? e.textContent : null", selector)

    def matched(self):
        return {path for path, box in self.paths() if "match" in box["class"].split()}


def is_near(a, b, by=0.02):
    return abs(a - b) <= by


def check_geometry(page):
    boxes = dict(page.paths())
    check(len(boxes) == len(page.seen), "two boxes have one place")
    check(set(boxes) == set(page.expected.boxes), "not the boxes that the stacks make:",
          set(boxes) ^ set(page.expected.boxes))
    root = boxes[()]
    for path, (start, weight, own) in page.expected.boxes.items():
        box = boxes[path]
        check(is_near(box["x"], LEFT + FULL * start / page.expected.total), path, "begins elsewhere:", box)
        check(is_near(box["width"], FULL * weight / page.expected.total), path, "has another width:", box)
        row = len(path) * 17 * (1 if page.is_icicle else -1)
        check(is_near(box["y"], root["y"] + row), path, "lies in another row:", box)
        if path:
            parent = boxes[path[:-1]]
            check(box["x"] >= parent["x"] - 0.001, path, "begins left of its parent")
            check(box["x"] + box["width"] <= parent["x"] + parent["width"] + 0.001, path, "is wider than its parent")
        check(f"{weight:,} samples" in box["about"], path, "has another weight:", box["about"])
        check(f"{100 * weight / page.expected.total:.2f} %" in box["about"], path, "has another share:", box["about"])
    check_labels(page)


def check_labels(page):
    for path, box in page.paths():
        label, name = box["label"], path[-1][0] if path else "all"
        if not box["shown"]:
            continue
        check(label in ("", name) or label.endswith("…") and name.startswith(label[:-1]), path, "is called", label)
        check(box["textWidth"] + 3 <= box["width"] + 0.5 or not label, path, "has a name wider than it:", box)
        check(label or box["width"] < 30 or not name, path, "has room for its name and none:", box)
        check(label == name or box["textWidth"] + 3 > box["width"] - 24, path, "is cut though there is room:", box)


TEXTS = """return Array.from(document.querySelectorAll('text, input, button, label'), function (node) {
    var box = node.getBoundingClientRect();
    return {text: node.textContent, inFrame: !!node.closest('.frame'), inLabel: node.tagName === 'label',
        x: box.x, y: box.y, right: box.right, bottom: box.bottom};
}).filter(function (box) { return !box.inFrame && !box.inLabel && box.right > box.x; });"""


def check_texts_apart(page):
    """No text above or below the boxes lies over another or out of the picture."""
    texts = page.browser.run(TEXTS)
    check(len(texts) >= 8, "there is hardly any text:", texts)
    top = min(box["y"] for box in page.seen)
    bottom = max(box["y"] + box["height"] for box in page.seen)
    for i, a in enumerate(texts):
        check(a["x"] >= 0 and a["right"] <= 1200, a, "is out of the picture")
        check(a["bottom"] <= top + 0.5 or a["y"] >= bottom - 0.5, a, "lies over the boxes")
        for b in texts[:i]:
            check(a["x"] >= b["right"] or b["x"] >= a["right"] or a["y"] >= b["bottom"] or b["y"] >= a["bottom"], a,
                  "lies over", b)


# ---- colours ---------------------------------------------------------------------------------------------------------
# Machado, Oliveira, Fernandes 2009: linear RGB as it looks without one kind of cones.
EYES = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def lab(colour, eye):
    linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    r, g, b = (min(1, max(0, sum(w * c for w, c in zip(row, linear)))) for row in EYES[eye])
    x, y, z = ((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505, 0.2126 * r + 0.7152 * g + 0.0722 * b,
               (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089)
    x, y, z = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def check_colours(page):
    fills = page.browser.run("""return Array.from(document.querySelectorAll('.legend .kind'), function (node) {
        return [node.getAttribute('class').split(' ')[1], getComputedStyle(node.querySelector('rect')).fill]; });""")
    colours = {kind: tuple(int(c) for c in re.findall(r"\d+", fill)[:3]) for kind, fill in fills}
    check(set(colours) == set(KINDS.values()), "the legend has", colours)
    for box in page.seen:
        fill = tuple(int(c) for c in re.findall(r"\d+", box["fill"])[:3])
        check(fill == colours[box["class"].split()[1]], "another colour than in the legend:", box)
    for eye in EYES:
        for a in colours:
            for b in colours:
                apart = sum((p - q) ** 2 for p, q in zip(lab(colours[a], eye), lab(colours[b], eye))) ** 0.5
                check(a == b or apart >= 14, "to eyes with", eye, a, "looks like", b, round(apart, 1))


# ---- scenarios -------------------------------------------------------------------------------------------------------
def prefer(browser, scheme):
    browser.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
        "features": [{"name": "prefers-color-scheme", "value": scheme}]}})


def draws(browser, stacks, svg):
    prefer(browser, "light")
    page = Page(browser, stacks, svg)
    check_geometry(page)
    check_texts_apart(page)
    check_colours(page)
    background = "return getComputedStyle(document.querySelector('.background')).fill"
    light = browser.run(background)
    prefer(browser, "dark")
    dark = browser.run(background)
    check(light == "rgb(255, 255, 255)" and sum(int(c) for c in re.findall(r"\d+", dark)) < 120, "no dark scheme:", dark)


def icicle(browser, stacks, svg):
    check_geometry(Page(browser, stacks, svg, is_icicle=True))


def reverses(browser, stacks, svg):
    page = Page(browser, stacks, svg, is_icicle=True, is_reversed=True)
    check_geometry(page)
    page.click(page.seen[1]["name"])
    check(is_near(page.seen[1]["width"], FULL, 0.1), "a click does not zoom")


def needs_no_script(browser, stacks, svg):
    """The same picture where scripts do not run: as a file without one, and as an image of a page."""
    bare = os.path.join(browser.folder, "bare.svg")
    with open(svg, encoding="utf-8") as file:
        text = re.sub(r"<script>.*</script>", "", file.read(), flags=re.S)
    check("<script" not in text, "scripts are left")
    with open(bare, "w", encoding="utf-8") as file:
        file.write(text)
    page = Page(browser, stacks, bare)
    check_geometry(page)
    holder = os.path.join(browser.folder, "holder.html")
    with open(holder, "w", encoding="utf-8") as file:
        file.write(f'<!DOCTYPE html><title>x</title><img src="{os.path.basename(svg)}">')
    browser.open(holder)
    size = browser.run("var i = document.images[0]; return [i.complete, i.naturalWidth, i.naturalHeight]")
    check(size[0] and size[1] == 1200 and size[2] > 100, "as an image it has the size", size)


def check_zoomed(page, *names):
    start, weight, _ = next(v for p, v in page.expected.boxes.items() if tuple(n for n, _ in p) == names)
    for path, box in page.paths():
        its_start, its_weight, _ = page.expected.boxes[path]
        own = tuple(name for name, _ in path)
        is_around, is_inside = own == names[:len(own)] and own != names, own[:len(names)] == names
        check(box["shown"] == (is_around or is_inside), own, "is seen though not zoomed to, or not seen")
        if is_around:
            check(is_near(box["x"], LEFT, 0.1) and is_near(box["width"], FULL, 0.1), own, "does not fill the width:", box)
            check(box["opacity"] < 1, own, "is not faded")
        elif is_inside:
            check(is_near(box["x"], LEFT + FULL * (its_start - start) / weight, 0.1), own, "begins elsewhere:", box)
            check(is_near(box["width"], FULL * its_weight / weight, 0.1), own, "has another width:", box)
            check(box["opacity"] == 1, own, "is faded")
    check_labels(page)


def zooms(browser, stacks, svg):
    page = Page(browser, stacks, svg)
    before = page.seen
    page.click("main", "run", "fib")
    check_zoomed(page, "main", "run", "fib")
    page.click("main", "run", "fib", "fib")
    check_zoomed(page, "main", "run", "fib", "fib")
    page.click("main")
    check_zoomed(page, "main")
    reset = browser.run("var b = document.querySelector('button').getBoundingClientRect(); return [b.x + 5, b.y + 5]")
    browser.pointer(*reset, True)
    browser.pointer(1250, 5, False)
    check(page.again() == before, "the button does not bring all back")
    page.click("start", "worker")
    check_zoomed(page, "start", "worker")
    page.click()
    browser.pointer(1250, 5, False)
    check(page.again() == before, "a click on the root does not bring all back")
    box = page.box("main", "run", "fib")
    browser.pointer(box["x"] + 5, box["y"] + 5, False)
    about = page.text(".details text")
    weight = next(v[1] for p, v in page.expected.boxes.items() if tuple(n for n, _ in p) == ("main", "run", "fib"))
    check("fib" in about and f"{weight:,} samples" in about and "%" in about, "hovering says", about)
    check_texts_apart(page)
    check(not browser.errors(), "the browser complains")


def searches(browser, stacks, svg):
    page = Page(browser, stacks, svg)

    def search(term, matches):
        browser.keys("f", held=CONTROL)
        active = browser.run("return document.activeElement.tagName.toLowerCase()")
        check(active == "input", "Ctrl-F leads to", active)
        browser.run("document.activeElement.select()")
        browser.keys(*term)
        page.again()
        wanted = {path for path in page.expected.boxes if path and matches(path[-1][0])}
        check(page.matched() == wanted, term, "marks", page.matched() ^ wanted, "wrongly")
        covered = page.expected.share_of(matches)
        share = f"{100 * covered / page.expected.total:.2f} % ({covered:,} samples)"
        check(share in page.text(".matched"), term, "matches", page.text(".matched"), "not", share)
        fills = {box["fill"] for path, box in page.paths() if path in wanted}
        others = {box["fill"] for path, box in page.paths() if path not in wanted}
        check(not fills & others, term, "does not change the colour")
        browser.keys(ESCAPE)
        page.again()
        check(not page.matched() and page.text(".matched") == "", "Escape leaves marks")

    search("fib", lambda name: "fib" in name.lower())
    search("^f.b$", lambda name: name == "fib")
    search("car|malloc", lambda name: "car" in name or "malloc" in name)
    search("int*)", lambda name: "int*)" in name)
    search("Fib", lambda name: "Fib" in name)
    search("vm::push(", lambda name: "vm::push(" in name)
    search("nothing of this", lambda name: False)
    browser.keys("/", "a", "l", "l")
    page.again()
    wanted = {path for path in page.expected.boxes if path and "all" in path[-1][0].lower()}
    check(wanted and page.matched() == wanted, "the root is marked, or not what has its letters")
    check_texts_apart(page)
    check(not browser.errors(), "the browser complains")


def obeys_keys(browser, stacks, svg):
    page = Page(browser, stacks, svg)
    browser.keys(TAB)

    def chosen():
        page.again()
        marked = [tuple(n for n, _ in path) for path, box in page.paths() if "chosen" in box["class"].split()]
        check(len(marked) <= 1, "several are chosen:", marked)
        return marked[0] if marked else None

    for keys, wanted in (((UP,), ("main",)), ((UP, UP), ("main", "run", "fib")), ((DOWN,), ("main", "run")),
                         ((DOWN, ARROW_RIGHT), ("start",)), ((ARROW_RIGHT,), ("start",)), ((ARROW_LEFT,), ("main",)),
                         ((ARROW_LEFT, ARROW_LEFT), ("[dropped]",))):
        browser.keys(*keys)
        check(chosen() == wanted, keys, "choose", chosen(), "not", wanted)
        check(page.text(".details text").startswith(wanted[-1]), "the line says", page.text(".details text"))
    browser.keys(ARROW_RIGHT, UP, ENTER)
    page.again()
    check_zoomed(page, "main", "run")
    browser.keys(ESCAPE)
    page.again()
    check(page.box("start")["shown"], "Escape does not reset")
    check(not browser.errors(), "the browser complains")


def shows_any_name(browser, stacks, svg):
    page = Page(browser, stacks, svg)
    check_geometry(page)
    kinds = browser.run("return Array.from(document.querySelectorAll('svg *'), function (e) { return e.localName; })")
    check(kinds.count("script") == 1 and kinds.count("rect") == len(page.seen) + len(KINDS) + 1,
          "a name is part of the document")
    for path, box in list(page.paths())[1:]:
        if box["width"] > 10:
            page.click(*(name for name, _ in path))
            check(browser.run("return window.wasRun === undefined"), "a name is run")
            browser.keys(ESCAPE)
            page.again()


SCENARIOS = {function.__name__: function for function in
             (draws, icicle, reverses, needs_no_script, zooms, searches, obeys_keys, shows_any_name)}


def each_fails(browser, lines):
    """Lines of a scenario, its stacks and a broken graph, tab-separated: prints those that nothing is noticed of."""
    for line in lines:
        scenario, stacks, svg, what = line.rstrip("\n").split("\t")
        try:
            SCENARIOS[scenario](browser, stacks, svg)
        except Failure as failure:
            print(f"noticed: {what}: {failure}"[:200])
            continue
        raise Failure(scenario, "passes though it is broken:", what)


def main():
    words = sys.argv[1:]
    scenario, stacks, svg = words[:3]
    folder = os.path.dirname(os.path.abspath(svg))
    browser = None

    def give_up(*_):
        raise TimeoutError
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        browser = Browser(folder)
        if scenario == "each_fails":
            with open(stacks, encoding="utf-8") as file:
                each_fails(browser, file)
            words = []
        while len(words) >= 3:
            scenario, stacks, svg, *words = words
            SCENARIOS[scenario](browser, stacks, svg)
        if words:
            browser.picture(words[0])
    except (Failure, TimeoutError) as failure:
        print(f"{scenario}: {failure!r}", file=sys.stderr)
        sys.exit(1)
    finally:
        signal.alarm(0)
        if browser:
            browser.end()


main()
