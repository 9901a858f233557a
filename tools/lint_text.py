#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The part of `make lint` that reads text: includes, conditionals, words, lengths, documentation, quotes.

Prints every finding as file:line: text and exits 1 if there is one. Symbols and compilers are lint.sh's part.
"""
import fnmatch
import glob
import os
import re
import sys

sys.dont_write_bytecode = True
from rooms import PUBLIC, PUBLIC_CXX, ROOMS, files_of_rooms, is_upward, part_of, ports  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/breaks"))
from programs import program_of, sources  # noqa: E402

# What an observer knows of the library beside its own room: the public headers, the listener, and what needs no heap.
OBSERVERS = {"flame": ("os/meta.h",),
             "observe": ("arch/arch.h", "arch/base.h", "arch/registers.h", "os/files.h", "os/meta.h", "os/os.h", "os/text.h", "os/linux.h", "os/threads.h", "os/locks/lock.h", "unwind/unwind.h", "flame/flame.h",
                         "codeheap/profile.h", "codeheap/guest_look.h", "codeheap/listener.h", "codeheap/base/why.h", "codeheap/base/sized.h")}
CLIENTS = ["hosts", "examples", "bench", "stress", "tools"]
# What files of the library's own tools see beside the public headers.
TOOLS = {"tools/callgrind/elf_blocks.c": ("os/os.h", "sinks/elf_image.h"), "tools/callgrind/jitdump.h": ("unwind/sink.h",),
         "tools/callgrind/output.c": ("flame/flame.h",), "tools/callgrind/stacks.h": ("flame/flame.h",),
         "tools/codeheap-top/output.c": ("flame/flame.h",), "tools/codeheap-top/reader.h": ("observe/stats_file.h",),
         "tools/tidy/broken_contracts.c": ("codeheap/*/*.h", "invalidate/*.h")}
# Programs of every folder draw with it; it sees the C library only.
DRAWING = "tools/draw/"
CODE = (".c", ".h", ".hpp", ".S", ".cc")
TEXT = CODE + (".md", ".sh", ".py", ".scm", ".pml", ".list", ".in", ".map", ".mk", ".1", ".3", ".7", ".html", ".svg", ".def", ".s", ".supp")
LINE_COLUMNS, FUNCTION_LINES, FILE_LINES, HEADER_LINES, HEADER_FUNCTIONS = 100, 60, 800, 1000, 60
README_LINES = 100
MAKEFILE_LINES = 250  # what is not the library's is in mk/
# A system dependency and the only file of the library that may include it, or the one for handlers and the one for all
# others; None: any one file.
DEPENDENCIES = [
    (r"sys/mman\.h", "os/linux.c"), (r"jemalloc/.*", "os/meta.c"), (r"gc(/.*)?\.h|gc/.*", "codeheap/gc_bdw.c"),
    (r"libunwind.*\.h", None), (r"(elf|libelf|gelf)\.h", None), (r"valgrind/.*", None),
    (r"link\.h", ("os/linux_threads.c", "observe/linux_images.c")),
]
# Macros of compilers, C++ and sanitizers; each other one that a compiler makes says which machine or system it is for.
PLATFORM = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\b"
                      r"(__(?!cplusplus\b|cpp_exceptions\b|clang__|has_feature\b|GNUC__|SANITIZE_)\w+|_WIN\d\d|linux|unix)\b")
GAP = r"[\s*/#;]+"
WORDS = re.compile(r"\b(for" + GAP + r"now|currently|phase" + GAP + r"\d+|TODO|FIXME|hack(?:s|ed|y|ish)?|"
                   r"work-?arounds?|place-?holders?)\b", re.I)
FOREIGN = re.compile(r"/work/|/tmp/helpers|shared/(?:DESIGN|STYLE)")
KEYS = ["in", "out", "ret", "lock", "safe", "cost", "note"]
findings = 0


def find(path, line, text):
    global findings
    findings += 1
    print(f"{path}:{line}: {text}")


def files():
    for folder, names, leaves in os.walk("."):
        names[:] = sorted(n for n in names if not (folder == "." and n in ("build", ".git")) and n != "__pycache__")
        for leaf in sorted(leaves):
            path = os.path.relpath(os.path.join(folder, leaf), ".")
            if path.endswith(TEXT) or leaf in ("Makefile", "LICENSE", ".clang-format", ".gitignore") or folder == "./.ci":
                yield path


def strip_comments(text):
    """Comments and string contents become blanks; line numbers stay."""
    token = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)

    def blank(match):
        s = match.group(0)
        if s[0] in "\"'":
            return s[0] + " " * (len(s) - 2) + s[-1]
        return re.sub(r"[^\n]", " ", s)
    return token.sub(blank, text)


def strip_comments_only(text):
    token = re.compile(r"(\"(?:\\.|[^\"\\\n])*\")|/\*.*?\*/|//[^\n]*", re.S)
    return token.sub(lambda m: m.group(1) or re.sub(r"[^\n]", " ", m.group(0)), text)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


# Of a public function: an array, or a callback for each of many. Without a `cost` line it says O(1).
MANY = re.compile(r"\bsize_t (?:n|count)\b|\(\*visit\)")
# Whatever refuses says why (base/why.h): a status stands as a value in ch__because() and ch__told() only.
STATUS = re.compile(r"ch__(?:because(?:_user)?|told)\([^,;\"()]*|(?:[!=]=|case)\s*CH_E_\w+|(CH_E_\w+)")


def check_statuses(path, bare):
    if path.split("/")[0] not in ("codeheap", "invalidate") or path in PUBLIC + (PUBLIC_CXX,):
        return
    for m in STATUS.finditer(bare):
        if m.group(1):
            find(path, line_of(bare, m.start()), f"{m.group(1)} without a sentence: ch__because(), or ch__told() where it was made before")


def check_includes(path, lines, users):
    room = path.split("/")[0]
    for n, line in enumerate(lines, 1):
        m = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not m:
            continue
        quoted, name = m.group(1) == '"', m.group(2)
        target = name.split("/")[0]
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if quoted and not os.path.exists(name):
            # A host is a program of its own and may name the headers beside it by their bare names.
            if room not in CLIENTS or not os.path.exists(beside):
                find(path, n, f"\"{name}\" is not a path from the root of the tree")
            name = beside
            target = name.split("/")[0]
        if room in ROOMS:
            for i, (pattern, only) in enumerate(DEPENDENCIES):
                if re.fullmatch(pattern, name):
                    users.setdefault(i, []).append((path, n, name))
                    allowed = (only,) if isinstance(only, str) else only
                    if allowed and path not in allowed:
                        find(path, n, f"<{name}> may be included by {' and '.join(allowed)} only")
            if quoted and target in ROOMS:
                if is_upward(path, name):
                    find(path, n, f"{part_of(path)}/ must not know {part_of(name)}/ ({name})")
                if room in OBSERVERS and target != room and name not in OBSERVERS[room]:
                    find(path, n, f"{room}/ sees the public header, the listener and the system only ({name})")
                if room in ("unwind", "sinks") and target == "pages":
                    find(path, n, f"{room}/ must not know pages/ ({name})")
            elif quoted:
                find(path, n, f"the library must not include {name}")
        elif room in CLIENTS and target in ROOMS and name not in PUBLIC + (PUBLIC_CXX,):
            if not any(fnmatch.fnmatch(name, seen) for seen in TOOLS.get(path, ())):
                find(path, n, f"{room}/ sees the public headers only ({name})")
        elif room in CLIENTS and room != "tools" and target in ("tools", "tests") and not name.startswith(DRAWING):
            find(path, n, f"{room}/ must not know {target}/ ({name})")
        if quoted and path.startswith(DRAWING) and not name.startswith(DRAWING):
            find(path, n, f"{DRAWING} sees the C library only ({name})")
        if path in PUBLIC and name not in ("stddef.h", "stdint.h", "stdbool.h", "string.h", PUBLIC[0]):
            find(path, n, f"a public header must not include {name}")


def check_tools(texts):
    """What a tool or an observer may see beside the public headers, it includes."""
    for path, names in (TOOLS | OBSERVERS).items():
        text = texts.get(path) or "".join(texts[file] for file in texts if file.startswith(path + "/"))
        for name in names if text else ():
            if not any(fnmatch.fnmatch(found, name) for found in re.findall(r'#\s*include\s*"([^"]+)"', text)):
                find(path, 1, f"includes no {name}, which tools/lint_text.py lets it see")


def check_lengths(path, lines):
    if path.startswith("tests/old/"):  # a release's header, as it was
        return
    has_reason = any("length:" in line for line in lines[:30])
    if len(lines) > FILE_LINES and not has_reason and path not in PUBLIC:
        find(path, 1, f"{len(lines)} lines, at most {FILE_LINES} without a `length:` reason in the head")
    for n, line in enumerate(lines, 1):
        columns = len(line.expandtabs(8))
        if columns > LINE_COLUMNS:
            find(path, n, f"{columns} columns, at most {LINE_COLUMNS}")
    if not path.endswith((".c", ".cc")):
        return
    start = None
    for n, line in enumerate(lines, 1):
        if start is None and re.match(r"[A-Za-z_{]", line) and line.rstrip().endswith("{") and \
                not re.match(r"(?:static |const |extern )*(?:struct|enum|union)\s*\w*\s*\{|.*=\s*\{|extern \"C\"|namespace", line):
            start = n
        elif start is not None and line.rstrip() == "}":
            above = lines[max(0, start - 15):start]
            if n - start + 1 > FUNCTION_LINES and not has_reason and not any("length:" in a for a in above):
                find(path, start, f"a function of {n - start + 1} lines, at most {FUNCTION_LINES} without a `length:` reason")
            start = None
        elif start is not None and re.match(r"\}", line):
            start = None


def check_public(path, text):
    if text.count("\n") > HEADER_LINES:
        find(path, 1, f"more than {HEADER_LINES} lines")
    bare = strip_comments(text)
    names = []
    for m in re.finditer(r"\bCH_API\b([^;{}#]*?)\b(ch_\w+)\s*\(", bare):
        if "define" in bare[bare.rfind("\n", 0, m.start()) + 1:m.start()]:
            continue
        name, line = m.group(2), line_of(text, m.start())
        names.append(name)
        start = bare.rfind("\n", 0, m.start()) + 1
        comment = re.search(r"/\*((?:(?!\*/).)*)\*/\s*$", text[:start], re.S)
        if not comment or not comment.group(1).lstrip().startswith(name + ":"):
            find(path, line, f"{name} has no comment that starts with its name")
            continue
        keys = re.findall(r"^ \*\s{1,3}(in|out|ret|lock|safe|cost|note)\b", comment.group(1), re.M)
        order = [KEYS.index(k) for k in keys]
        if order != sorted(set(order)):
            find(path, line, f"{name}: keys {' '.join(keys)}; the order is {' '.join(KEYS)}, each once")
        returns_void = re.fullmatch(r"(?:\s|CH_\w+(?:\([^)]*\))?)*void\s*", m.group(1)) is not None
        if "ret" not in keys and not returns_void:
            find(path, line, f"{name}: no `ret` line")
        if "safe" not in keys:
            find(path, line, f"{name}: no `safe` line")
        if "cost" not in keys and MANY.search(",".join(arguments(bare, m.end() - 1))):
            find(path, line, f"{name}: no `cost` line, though it is given or visits many")
    if path == PUBLIC[0] and len(names) > HEADER_FUNCTIONS:
        find(path, 1, f"{len(names)} functions, at most {HEADER_FUNCTIONS}")


def dedent(lines):
    margin = min((len(l) - len(l.lstrip()) for l in lines if l.strip()), default=0)
    return [l[margin:].rstrip() for l in lines]


def quotes(lines, core):
    """Whether core stands in lines, whatever its indentation there."""
    return any(dedent(lines[i:i + len(core)]) == core for i in range(len(lines) - len(core) + 1))


def check_quotes():
    smallest = "examples/smallest.c"
    if not os.path.exists("README.md"):
        print("note: no README.md, its quote of examples/smallest.c is not compared")
        return
    readme = open("README.md").read().split("\n")
    if len(readme) > README_LINES + 1:
        find("README.md", 1, f"{len(readme) - 1} lines, at most {README_LINES}")
    if not os.path.exists(smallest):
        return find(smallest, 1, "missing")
    main = open(smallest).read().rstrip("\n").split("\n")
    if "int main(void)" not in main:
        return find(smallest, 1, "has no line `int main(void)`")
    main = main[main.index("int main(void)"):]
    if len(main) > 10:
        find(smallest, 1, f"main has {len(main)} lines, at most 10")
    if not quotes(readme, main):
        find("README.md", 1, f"does not quote the program of {smallest} word for word")
    header = [re.sub(r"^ \*", "", l) for l in open(PUBLIC[0]).read().split("\n")]
    if not quotes(header, dedent(main[2:-1])):
        find(PUBLIC[0], 1, f"does not quote the calls of {smallest} word for word")


def check_document_quotes(path, text):
    """Code that a document says to be from an example is the example's own, line by line."""
    for m in re.finditer(r"^From \[([^\]]+)\]\([^)]*\):\n\n```c\n(.*?)\n```$", text, re.M | re.S):
        name, core = m.group(1), m.group(2).split("\n")
        if not os.path.exists(name):
            find(path, line_of(text, m.start()), f"there is no {name} to quote")
        elif not quotes(open(name).read().split("\n"), core):
            find(path, line_of(text, m.start()), f"what is said to be from {name} is not in it word for word")
    for name in set(re.findall(r"\]\(\.\./(examples/embed_\w+\.c)\)", text)):
        if f"From [{name}](" not in text:
            find(path, 1, f"quotes nothing of {name}")


def check_guarantees():
    """Every promise has its section, and every test, mutant, invariant, file and call that is named there exists."""
    path = "docs/guarantees.md"
    if not os.path.exists(path):
        print(f"note: no {path}, its names are not looked up")
        return
    text = open(path).read()
    if text.count("\n") > 250:
        find(path, 1, f"{text.count(chr(10))} lines, at most 250")
    if "docs/guarantees.md" not in open("README.md").read():
        find("README.md", 1, f"does not lead to {path}")
    design, header = open("docs/design.md").read(), "".join(open(h).read() for h in PUBLIC if os.path.exists(h))
    tests = "".join(open(f).read() for f in sources() + glob.glob("tests/support/*.[ch]*"))
    cases = set(re.findall(r"\b[A-Z_]+\(\s*(\w+)", tests)) | set(re.findall(r"^case_(\w+)", tests, re.M))
    mutants = set(re.findall(r"^mutant (\w+)$", "".join(open(f).read() for f in glob.glob("tests/breaks/*.rows")), re.M))
    switches = set()
    for f in os.listdir("docs/model"):
        if f.endswith(".pml"):
            switches |= set(re.findall(r"^#ifn?def (\w+)", open(os.path.join("docs/model", f)).read(), re.M))
    for promise in re.findall(r"^\| (P\d+) \|", design, re.M):
        part = re.search(rf"^### {promise}:(.*?)(?=^##)", text, re.M | re.S)
        if not part or not re.search(r"\bI\d+\b", part.group(1)) or "Tests: `" not in part.group(1):
            find(path, 1, f"{promise} has no section with an invariant and tests")
    for m in re.finditer(r"\bI(\d+)\b", text):
        if f"- **I{m.group(1)}, " not in design:
            find(path, line_of(text, m.start()), f"docs/design.md has no invariant I{m.group(1)}")
    for m in re.finditer(r"`([^`\s]+)`", text):
        name = m.group(1)
        if "/" in name:
            known = os.path.exists(name)
        elif re.fullmatch(r"(ch|CH)_\w*", name):
            known = name in ("ch_",) or re.search(rf"\b{name}\b", header)
        elif re.fullmatch(r"[A-Z][A-Z0-9_]+", name):
            known = name in mutants or name in switches
        elif name.count("_") >= 3:
            known = any(name + driver in cases for driver in ("", "_polls", "_signals", "_host", "_host_that_stops", "_boehm"))
        else:
            continue
        if not known:
            find(path, line_of(text, m.start()), f"`{name}` is no test, mutant, call or file of this tree")


def check_table():
    """Each row of the cases that cannot run somewhere names programs and cases of the tree. A program's text has at least half
    of a name's words in a row: macros and scripts put some before or behind them."""
    path = "tests/cannot_run.list"
    if not os.path.exists(path):
        return
    texts = {program_of(f) + (".sh" if f.endswith(".sh") else ""): open(f).read() for f in sources()}
    for script in texts:  # it may take the names from its host
        host = re.match(r"host_([a-z]+).*\.sh$", script)
        for path_of_host in glob.glob(f"hosts/{host.group(1)}/*.c*") if host else []:
            texts[script] += open(path_of_host).read()
    for n, line in enumerate(open(path), 1):
        columns = [column.strip() for column in line.split("|")]
        if line.startswith("#") or not line.strip():
            continue
        if len(columns) != 3 or not all(columns):
            find(path, n, "not `program/case,case | where | why`")
            continue
        for names in columns[0].split():
            program, _, patterns = names.partition("/")
            text = "\n".join(t for p, t in texts.items() if fnmatch.fnmatch(p, program))
            if not text:
                find(path, n, f"no program is named {program}")
            for pattern in patterns.split(","):
                words = max(re.split(r"[*?[\]]+", pattern), key=len).strip("_").split("_")
                least = (len(words) + 1) // 2
                if not any("_".join(words[k:k + least]) in text for k in range(len(words) - least + 1)):
                    find(path, n, f"{program} has no case {pattern}")


def check_models():
    """A function that a model names is one of the library."""
    folder = "docs/model"
    if not os.path.isdir(folder):
        return
    code = "".join(open(f).read() for f in files_of_rooms())
    words = set(re.findall(r"\bch_\w+", code))
    for leaf in sorted(f for f in os.listdir(folder) if f.endswith(".pml")):
        path = os.path.join(folder, leaf)
        text = open(path).read()
        for m in re.finditer(r"\bch_\w+", text):
            if m.group(0) not in words:
                find(path, line_of(text, m.start()), f"the library has no {m.group(0)}")


def arguments(text, at):
    """Of the call whose bracket opens at `at`."""
    depth, start, found = 0, at + 1, []
    for i in range(at, len(text)):
        depth += (text[i] in "([") - (text[i] in ")]")
        if depth == 0 or (depth == 1 and text[i] == ","):
            found.append(text[start:i])
            start = i + 1
        if depth == 0:
            break
    return found


def atomic_operations(text):
    """Those with an explicit order: offset, last name of the atomic, operation and order."""
    for m in re.finditer(r"\b(?:(?:__)?atomic_(\w+?)(?:_strong|_weak)?(?:_explicit|_n)?|CH_(LOAD|STORE)_RELAXED)\s*\(", text):
        found = arguments(text, m.end() - 1)
        operation = m.group(1) or m.group(2).lower()
        is_fence = operation.endswith("fence")
        orders = re.findall(r"(?:memory_order_|__ATOMIC_)(\w+)", " ".join(found if is_fence else found[1:]))
        name = operation if is_fence else re.sub(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]", "", found[0])
        if m.group(2):
            orders = ["relaxed"]
        if orders:
            yield m.start(), re.findall(r"\w+", name)[-1], f"{operation} {'/'.join(dict.fromkeys(orders)).lower()}"


def check_orders():
    """Each atomic operation with an order has a row in the table of orders, and each that a row names is there."""
    path = "docs/memory_orders.md"
    if not os.path.isfile(path):
        print(f"note: no {path}, atomics are not looked up")
        return
    text = open(path).read()
    rows, last_word = [], re.compile(r"`(?:[\w.]*\.)?(\w+)`")
    for m in re.finditer(r"^\| (`.*?) \| (.*?) \|", text, re.M):
        said = {(f, o.strip()) for f, ops in re.findall(r"`([\w.]+)` ([^;]+)", m.group(2)) for o in ops.split(",")}
        rows.append((m.start(), set(last_word.findall(m.group(1))), said, set()))
    known = set(last_word.findall(text[text.index("## Relaxed only"):])).union(*(row[1] for row in rows))
    codes = {f: open(f).read() for f in files_of_rooms() if f.endswith((".c", ".h"))}
    whole = "".join(codes.values())
    for m in re.finditer(r"`(?:\w+\.)*(?!pml`)(\w+)`", text):
        if m.group(1) not in whole:
            find(path, line_of(text, m.start()), f"no file of the library has {m.group(1)}")
    for file, code in codes.items():
        for at, name, operation in atomic_operations(strip_comments(code)):
            use = (os.path.basename(file), operation)
            fits = [row for row in rows if name in row[1] and use in row[2]]
            for row in fits:
                row[3].add(use)
            if name not in known or not (fits or operation.endswith(" relaxed")):
                find(file, line_of(code, at), f"{path} has no row of `{name}` with {operation} in {use[0]}")
    for at, names, said, seen in rows:
        for file, operation in sorted(said - seen):
            find(path, line_of(text, at), f"{file} has no {operation} of {' or '.join(sorted(names))}")


def machines():
    """What there is a port to, by the names of its files and of macros: riscv64 and __riscv."""
    return [re.compile(rf"(?<![A-Za-z])(?:{re.escape(name)}|__{re.sub('[_0-9]+$', '', name)}\w*)") for name in ports()]


def is_of_a_machine(path):
    return any(name in path for name in ports())


def check_ports(texts):
    """Each file that names two machines is a place where a port adds something: docs/porting.md lists and counts them."""
    with_two = {}
    for path, text in texts.items():
        if is_of_a_machine(path) or path.startswith(("docs/", "tests/tool/lint")) or path.endswith(".md") or \
                path == "tests/cannot_run.list":
            continue
        bare = strip_comments_only(text) if path.endswith(CODE) else re.sub(r"^\s*#(?!if|elif|include).*", "", text, flags=re.M)
        found = [m for m in (pattern.search(bare) for pattern in machines()) if m]
        if len(found) > 1:
            with_two[path] = line_of(bare, min(m.start() for m in found))
    table = texts.get("docs/porting.md", "")
    said = re.search(r"^A port also adds a few lines to these (\d+) files:\n\n\|.*\n\|.*\n((?:\|.*\n)*)", table, re.M)
    rows = re.findall(r"^\| `([^`]+)`", said.group(2), re.M) if said else []
    for path in sorted(set(with_two) - set(rows)):
        find(path, with_two[path], "names machines, and no row of docs/porting.md says what a port adds here")
    at = line_of(table, said.start()) if said else 1
    for path in sorted(set(rows) - set(with_two)):
        find("docs/porting.md", at, f"{path} names no two machines")
    if said and int(said.group(1)) != len(rows):
        find("docs/porting.md", at, f"there are {len(rows)} files, not {said.group(1)}")


def main():
    users, texts = {}, {}
    for path in files():
        try:
            text = texts[path] = open(path, encoding="utf-8").read()
        except UnicodeDecodeError:
            find(path, 1, "is not UTF-8")
            continue
        lines = text.split("\n")
        name = os.path.basename(path)
        if not path.startswith("tools/lint"):
            for m in WORDS.finditer(text):
                find(path, line_of(text, m.start()), f"word `{' '.join(m.group(0).split())}`")
            for m in FOREIGN.finditer(text):
                find(path, line_of(text, m.start()), f"a path outside the repository: {m.group(0)}")
        if re.match(r"(.*_)?(utils?|misc|common)(_.*)?\.[ch]$", name):
            find(path, 1, "named by pattern, not by subject")
        if path.endswith(CODE + (".sh", ".py")) and not any("SPDX-License-Identifier: MIT" in l for l in lines[:3]):
            find(path, 1, "no SPDX line")
        if path.endswith(CODE):
            check_statuses(path, strip_comments(text))
            bare = strip_comments(text).split("\n")
            # Strings are blanked above, but an include's name is one: it is read from the raw line.
            check_includes(path, [raw if "include" in b else "" for raw, b in zip(lines, bare)], users)
            if path != "arch/arch.h" and not re.match(r"os/linux\w*\.c$", path) and not is_of_a_machine(path):
                for n, line in enumerate(bare, 1):
                    m = PLATFORM.match(line)
                    if m:
                        find(path, n, f"#if on {m.group(1)}: such a choice belongs to arch/arch.h or os/linux*.c")
            check_lengths(path, lines)
            if path.endswith(".h") and path.split("/")[0] in ROOMS and path not in PUBLIC and "\n#pragma once\n" not in text:
                find(path, 1, "has no #pragma once")
        if path in PUBLIC:
            check_public(path, text)
        if path == "Makefile" and len(lines) > MAKEFILE_LINES:
            find(path, 1, f"{len(lines)} lines, at most {MAKEFILE_LINES}: parts that do not build the library are in mk/")
        if path.endswith(".md"):
            check_document_quotes(path, text)
    for i, places in users.items():
        for path, n, name in places:
            if path != places[0][0] and not isinstance(DEPENDENCIES[i][1], tuple):
                find(path, n, f"<{name}> is already {places[0][0]}'s: one dependency, one file")
    check_ports(texts)
    check_tools(texts)
    check_quotes()
    check_guarantees()
    check_table()
    check_models()
    check_orders()
    return 1 if findings else 0


sys.exit(main())
