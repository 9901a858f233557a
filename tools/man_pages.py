#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tools/man_pages.py FOLDER: a manual page of section 3 for each public function, made of its contract in the header, with
the structures and lists of constants that its arguments name. FOLDER is made anew, and holds these pages alone."""
import os
import re
import shutil
import sys

sys.dont_write_bytecode = True
from man_functions import PAGE, arguments, sentence, statuses  # noqa: E402
from rooms import PUBLIC  # noqa: E402

KEYS = ("in", "out", "ret", "lock", "safe", "cost", "note")
LIBRARIES = {"codeheap/codeheap_bdw.h": "codeheap-bdw", "codeheap/profile.h": "codeheap-profile codeheap"}
FUNCTION = re.compile(r"/\* (ch_\w+): ((?:(?!\*/).)*)\*/\s*(?:CH_API|static inline)\s+([^;{]*?)\b\1\(((?:[^;{])*?)\)\s*[;{]", re.S)
# A comment that speaks of several functions: up to the last of them it belongs to each.
SHARED = re.compile(r"/\* The calls from here to (ch_\w+) ((?:(?!\*/).)*)\*/", re.S)
TYPE = re.compile(r"^(?:/\*(?:(?!\*/).)*\*/\n)?(?:struct|enum) (ch_\w+) \{(?:\n.*?^|[^\n]*)\};\n", re.M | re.S)
MACRO = re.compile(r"^#define (\w+_LIST)\(X\).*?[^\\]\n", re.M | re.S)


def contract(comment):
    """Key -> its lines, without what marks a comment; the sentence in front has the key ""."""
    parts, key = {"": []}, ""
    for line in comment.rstrip().split("\n"):
        text = re.sub(r"^ \* ?", "", line)
        match = re.match(r" ?(in|out|ret|lock|safe|cost|note)\s+(?=\S)", text)
        if match:
            key = match.group(1)
            parts[key] = []
            text = " " * 6 + text[match.end():]
        parts[key].append(text[6:] if key and text[:6].isspace() else text.strip() if key else text)
    return parts


def items(lines):
    """(names, text) of each argument that `in` or `out` tells of: a name, two blanks, a text that goes on indented."""
    found = []
    for line in lines:
        match = re.match(r"(\w+(?:, \w+)*) {2,}(\S.*)$", line)
        if match:
            found.append([match.group(1), match.group(2)])
        elif found:
            found[-1][1] += " " + line.strip()
        else:
            found.append(["", line.strip()])
    return found


def told(text):
    """Sentences with a capital where they begin, but for a name of the interface."""
    lines = sentence(text)
    return lines if re.match(r"\w*(_|\(|\d)", lines[0]) else [lines[0][:1].upper() + lines[0][1:], *lines[1:]]


def listed(tag, pairs):
    out = [f".Bl -tag -width {tag}"]
    for macro, name, text in pairs:
        out += [f".It {macro} {name.replace(',', ' ,')}", *(sentence(text) if text else [])]
    return out + [".El"]


def literal(text):
    lines = (line.expandtabs(8).replace("\\", "\\e") for line in text.rstrip("\n").split("\n"))
    return [".Bd -literal", *("\\&" + line if line[:1] in (".", "'") else line for line in lines), ".Ed"]


def definitions(texts):
    """Name of a type -> its text in the header, with the list that it is made from."""
    out = {}
    for text in texts.values():
        lists = {m.group(1): m.group(0) for m in MACRO.finditer(text)}
        for match in TYPE.finditer(text):
            used = re.search(r"\b(\w+_LIST)\(X\)", match.group(0))
            out[match.group(1)] = (lists.get(used.group(1), "") if used else "") + match.group(0)
    return out


def named(text, types):
    """The types that a text names, and those that their texts name."""
    found, texts = [], [text]
    for text in texts:
        new = [name for name in dict.fromkeys(re.findall(r"\b(?:struct|enum) (ch_\w+)", text)) if name in types]
        new = [name for name in new if name != "ch_status" and name not in found]
        found += new
        texts += [types[name] for name in new]
    return found


def returned(parts, general):
    text = " ".join(line.strip() for line in parts.get("ret", []))
    pairs = []
    for part in re.split(r"\s\|\s(?=CH_)", text):
        match = re.match(r"(CH_\w+)\s*(.*)", part)
        if not match or match.group(1) not in general:
            return told(text) if text else ["None."]
        pairs.append(("Dv", match.group(1), match.group(2) or general[match.group(1)]))
    return listed("CH_E_THREAD", pairs)


def page(path, name, comment, kind, args, shared, types, general, date):
    parts = contract(comment)
    short = re.split(r"[.:;](?:\s|$)", " ".join(" ".join(parts[""]).split()))[0].replace("`", "")
    quoted = " ".join('"' + arg + '"' for arg in arguments(args))
    out = ['.\\" Made by tools/man_pages.py of ' + path, ".Dd " + date, f'.Dt {name.upper()} 3 "libcodeheap manual"', ".Os libcodeheap",
           ".Sh NAME", f".Nm {name}", f".Nd {short}", ".Sh SYNOPSIS",
           f".Dl cc program.c $(pkg-config --cflags --libs {LIBRARIES.get(path, 'codeheap')})", f".In {path}",
           f'.Ft "{kind}"', f".Fn {name} {quoted}", ".Sh DESCRIPTION", *told(" ".join(parts[""]))]
    for key in ("in", "out"):
        if key in parts:
            pairs = items(parts[key])
            if pairs[0][0] == "":
                out += [".Pp", *told(" ".join(text for _, text in pairs))]
            else:
                out += [".Pp", "It takes" if key == "in" else "It gives", *listed("Ds", [("Fa", n, t) for n, t in pairs])]
    for text in (shared, " ".join(parts.get("note", []))):
        out += [".Pp", *told(text)] if text else []
    for found in named(args, types):
        out += literal(types[found])
    out += [".Sh RETURN VALUES", *returned(parts, general)]
    rows = [("Sy", word, " ".join(parts[key])) for key, word in (("safe", "Callers"), ("lock", "Locks"), ("cost", "Cost")) if key in parts]
    return out + [*([".Sh CALLERS AND COST"] + listed("Callers", rows) if rows else []), ".Sh SEE ALSO", ".Xr codeheap 3 ,", ".Xr codeheap 7"]


def main():
    folder = sys.argv[1]
    texts = {path: open(path, encoding="utf-8").read() for path in PUBLIC if os.path.exists(path)}
    types, general = definitions(texts), dict(statuses())
    with open(PAGE, encoding="utf-8") as file:
        date = re.search(r"^\.Dd (.*)$", file.read(), re.M).group(1)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for path, text in texts.items():
        found = [(m.start(), m) for m in FUNCTION.finditer(text)]
        ends = {m.group(1): at for at, m in found}
        shared = [(m.start(), ends.get(m.group(1), -1), m.group(2)) for m in SHARED.finditer(text)]
        for at, match in found:
            common = " ".join("It wants" + re.sub(r"\n \* ?", " ", said)[4:] for begin, end, said in shared
                              if begin < at <= end and said.startswith("want"))
            lines = page(path, match.group(1), match.group(2), " ".join(match.group(3).replace("CH_CHECKED", "").split()), match.group(4),
                         common, types, general, date)
            with open(f"{folder}/{match.group(1)}.3", "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
    return 0


sys.exit(main())
