#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The part of docs/man/codeheap.3 that the public headers say: every function with its arguments and its first sentence,
and every status with its text. Without arguments it compares and prints what differs, as file:line: text, with exit code
1; with --write it puts the headers' text into the page."""
import re
import sys
import textwrap

sys.dont_write_bytecode = True
from rooms import PUBLIC  # noqa: E402

PAGE = "docs/man/codeheap.3"
KEY = re.compile(r"^ \*\s{1,3}(?:in|out|ret|lock|safe|cost|note)\b")
TITLES = {"vm": "VM instances", "look": "Looking things up", "graph": "What a block is attached to", "heap": "Heaps",
          "thread": "Threads", "fiber": "Fibers", "owner": "Owners", "block": "Blocks", "trampoline": "Trampolines",
          "assumption": "Assumptions", "invalidate": "Invalidation", "collect": "Collection", "sinks": "Sinks",
          "status": "Statuses", "configuration": "Configuration"}
# Of a header that has no sections.
HEADER_TITLES = {"codeheap/collector.h": "For a collector of the VM's own (collector.h)",
                 "codeheap/look.h": "For tools of the VM's own (look.h)",
                 "codeheap/codeheap_bdw.h": "With the Boehm collector (codeheap_bdw.h)",
                 "codeheap/profile.h": "Profiles (profile.h)"}


def sentence(text):
    """Text as lines of a page: one for each sentence, nothing that the formatter would take for a request."""
    text = re.sub(r"\s+", " ", text).strip().replace("\\", "\\e").replace("`", "")
    lines = re.split(r"(?<=[.;])\s+(?=[A-Z])", text if text.endswith(".") else text + ".")
    lines = [part for line in lines for part in textwrap.wrap(line, 80, break_on_hyphens=False)]
    return ["\\&" + line if line[0] in ".'" else line for line in lines]


def arguments(text):
    """The arguments of a prototype, split at commas that no parenthesis holds."""
    parts, depth, part = [], 0, ""
    for c in re.sub(r"\s+", " ", text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += c
    return parts + [part.strip()]


def functions(path):
    """(section, name, return type, arguments, first sentence) of each function that a header declares."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    pattern = re.compile(r"/\* --- (\w+) --- \*/|/\* (ch_\w+): ((?:(?!\*/).)*)\*/\s*(?:CH_API|static inline)\s+([^;{]*?)\b(\w+)"
                         r"\(((?:[^;{])*?)\)\s*[;{]", re.S)
    section = None
    for match in pattern.finditer(text):
        if match.group(1):
            section = match.group(1)
            continue
        name, comment, kind = match.group(2), match.group(3), match.group(4)
        if name != match.group(5):
            sys.exit(f"{path}: the comment of {match.group(5)} speaks of {name}")
        lines = []
        for line in comment.split("\n"):
            if KEY.match(line):
                break
            lines.append(re.sub(r"^ \* ?", "", line))
        kind = " ".join(kind.replace("CH_CHECKED", "").split())
        yield section, name, kind, arguments(match.group(6)), sentence(" ".join(lines))


def statuses():
    with open(PUBLIC[0], encoding="utf-8") as file:
        text = file.read()
    return re.findall(r"X\((CH_\w+), \"([^\"]*)\"\)", text[text.index("CH_STATUS_LIST(X)"):text.index("enum ch_status {")])


def expected():
    """Both parts of the page, by the word that their comments give them."""
    out, last = [], None
    for path in PUBLIC:
        for section, name, kind, args, text in functions(path):
            title = TITLES[section] if section else HEADER_TITLES[path]
            if title != last:
                out += [".El"] if last else []
                out += [f".Ss {title}", ".Bl -tag -width 4n"]
                last = title
            quoted = " ".join('"' + arg + '"' for arg in args)
            out += [".It Xo", f'.Ft "{kind}"', f".Fn {name} {quoted}", ".Xc", *text]
    out.append(".El")
    listed = [".Bl -tag -width CH_E_THREAD"]
    for name, text in statuses():
        listed += [f".It Dv {name}", *sentence(text)]
    return {"functions": out, "statuses": listed + [".El"]}


def main():
    with open(PAGE, encoding="utf-8") as file:
        page = file.read().split("\n")
    wrong = 0
    for part, lines in expected().items():
        start, end = (next((i for i, line in enumerate(page) if line == f'.\\" {word} {part}'), None) for word in
                      ("the headers'", "end of the headers'"))
        if start is None or end is None:
            sys.exit(f"{PAGE}:1: no part for the headers' {part}")
        have = page[start + 1:end]
        if sys.argv[1:] == ["--write"]:
            page[start + 1:end] = lines
        elif have != lines:
            at = next((i for i, pair in enumerate(zip(have, lines)) if pair[0] != pair[1]), min(len(have), len(lines)))
            wanted = lines[at] if at < len(lines) else "nothing more"
            print(f"{PAGE}:{start + 2 + at}: the headers' {part} differ, from `{wanted}` on: run tools/man_functions.py --write")
            wrong = 1
    if sys.argv[1:] == ["--write"]:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write("\n".join(page))
    return wrong


if __name__ == "__main__":
    sys.exit(main())
