#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The report of `make demo`: a line for each promise with the attack and what came of it, the loop of half a million procedures
beside others, the programs by their modes; the same with pictures in demo/index.html of the build. Each figure is measured by
this run. Exits 1 where a promise broke. CODEHEAP_DEMO_TIMES: procedures of the loop (programs run shorter by as much), CODEHEAP_DEMO_PEERS=0: without the others.
"""
import glob
import html
import os
import platform
import re
import shutil
import string
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
os.chdir(os.path.join(HERE, "../.."))
BUILD = os.environ.get("CODEHEAP_BUILD", "build")
OUT = os.path.join(BUILD, "demo")
SCHEME = os.path.join(BUILD, "scheme")
PROGRAMS = "hosts/scheme/programs"
WHOLE = 500000
TIMES = int(os.environ.get("CODEHEAP_DEMO_TIMES", WHOLE))
# Before that many procedures the process is still growing to its size: the names of the dead are kept up to a number.
GROWN_AFTER, GROWTH_MOST_KIB = 10000, 2048
# How often a program is loaded in one process: some half a second in the interpreter each.
REPEATED = {"fib": 8, "tak": 10, "queens": 10, "sieve": 8, "deriv": 8, "quicksort": 6, "matrix": 3, "closures": 6, "flonums": 4}

NAMES = ("code that can be returned to is never freed", "unreachable blocks are freed one by one",
         "no mapping is writable and executable", "freed code traps, and the trap names it", "no table knows a freed block",
         "an address resolves in a signal handler", "any block may be invalidated at any time", "a full pool still serves",
         "fork isolates", "idle cost is nil")
verdicts = {}


class Ran:
    """A program that ran: what it printed, its exit code, its seconds, the most memory that it had resident."""

    def __init__(self, words, limit=120, env=None, keep=None):
        with open(keep or os.path.join(OUT, "last.out"), "w+") as out, open(os.path.join(OUT, "last.err"), "w+") as err:
            begin = time.monotonic()
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, **(env or {})})
            self.peak_kib = 0
            # A process says its own peak, while it lives.
            while child.poll() is None:
                self.look(child.pid)
                if time.monotonic() - begin > limit:
                    child.kill()
                time.sleep(0.01)
            self.seconds = time.monotonic() - begin
            self.status = child.returncode
            out.seek(0), err.seek(0)
            self.out, self.err = out.read(), err.read()

    def look(self, pid):
        try:
            with open(f"/proc/{pid}/status") as status:
                self.peak_kib = max([self.peak_kib] + [int(kib) for kib in re.findall(r"VmHWM:\s+(\d+)", status.read())])
        except OSError:
            pass


def scheme(*words, **more):
    return Ran([SCHEME, *words], **more)


def stats_of(text):
    """name -> number of the last (code-stats) in the text"""
    last = text.rfind("((")
    return {name: int(number) for name, number in re.findall(r"\(([a-z-]+) \. (\d+)\)", text[last:])} if last >= 0 else {}


def said_with_stats(program, *switches):
    """What a compiled program printed, and (code-stats) behind it."""
    return scheme("--jit", *switches, "-e", f'(begin (load "{program}.scm") (code-stats))').out


def judge(promise, is_kept, evidence):
    was_kept, said = verdicts.get(promise, (True, []))
    verdicts[promise] = (was_kept and bool(is_kept), said + [evidence])


def said_before(verdict, text):
    """The line in front of a program's verdict."""
    found = re.search(rf"(.*)\n{verdict} verdict: (\w+)", text)
    return (found[1].strip(), found[2] == "kept") if found else ("it did not end", False)


# ---- the promises ----

def adversary():
    ran = scheme("--jit", "hosts/demo/adversary.scm", limit=60)
    judge(1, ran.out == open("hosts/demo/adversary.out").read(),
          "a procedure removed itself while it ran, here, in a fiber, on another thread: each ran to its end")


def chain():
    text = Ran([os.path.join(BUILD, "demo/chain")], limit=60).out
    judge(2, "chain verdict: kept" in text, "of A -> B -> C -> D, B invalidated: C and D freed")
    trap = re.search(r"block (`.*?`).*?, (freed in collection \d+ because .*?);.* return address.* in block (`.*?`)", text)
    judge(4, "trap verdict: kept" in text and trap and (trap[1], trap[3]) == ("`link-D`", "`link-C`"),
          f"jumped from {trap[3]} into freed code of {trap[1]}: the trap names both, {trap[2]}" if trap
          else "jumped into freed code: no report")
    judge(5, "names verdict: kept" in text, "asked the perf map after B, C and D, which are freed: it names A alone; every site of the heap decodes")


def short_promises():
    text = Ran([os.path.join(BUILD, "demo/promises")], limit=60).out
    for promise in (3, 6, 9, 10):
        evidence, is_kept = said_before(f"P{promise}", text)
        judge(promise, is_kept, evidence)


def outputs():
    """The programs' outputs while their code is replaced under them, and in a pool of two pages, which is full in each program."""
    names = sorted(path[:-4] for path in glob.glob(PROGRAMS + "/*.scm") if os.path.exists(path[:-4] + ".out"))
    wrong, replaced = [], 0
    for name in names:
        text = said_with_stats(name, "--discard-every=5000")
        replaced += stats_of(text).get("blocks-invalidated", 0)
        wrong += [] if text.startswith(open(name + ".out").read()) else [name]
    judge(7, not wrong and replaced,
          f"threw away all code at each 5,000th call of {len(names)} programs, {replaced:,} blocks in all: "
          f"{len(names) - len(wrong)} print what the interpreter prints")
    wrong, full = [], []
    for name in ("fib", "tak", "queens", "deriv", "redefine"):
        wanted = open(f"{PROGRAMS}/{name}.out").read()
        text = said_with_stats(f"{PROGRAMS}/{name}", "--pool=8192", "--page=4096")
        full.append(stats_of(text).get("opens-full", 0))
        wrong += [] if text.startswith(wanted) else [name]
    judge(8, not wrong and all(full), f"ran {len(full)} programs in a pool of 8 KiB, which had no space for code {sum(full):,} times: "
          f"{', '.join(wrong) or 'none'} failed")


# ---- the loop ----

def share_of_library():
    """Of the loop's processor time, what is inside the library, by its own profiler: libc and libgc count for who called them."""
    file = os.path.join(OUT, "churn.folded")
    scheme("--jit", "--sinks=unwind,perfmap", "--profile=" + file, "--profile-rate=500", "hosts/demo/churn.scm",
           env={"CHURN": str(TIMES // 5), "CODEHEAP_PERF_MAP_DIR": OUT})
    objects = glob.glob(os.path.join(BUILD, "obj/hosts/scheme/*.o"))
    symbols = subprocess.run(["nm", "--defined-only", *objects], capture_output=True, text=True).stdout if objects else ""
    own = set(re.findall(r" [tT] (\w+)", symbols))
    inside = whole = 0
    for line in open(file) if os.path.exists(file) else ():
        stack, count = line.rsplit(" ", 1)
        callers = (frame.split(".")[0] for frame in reversed(stack.split(";")))
        caller = next((frame for frame in callers if frame.startswith("ch_") or frame in own), "")
        whole += int(count)
        inside += int(count) if caller.startswith("ch_") else 0
    return inside / whole if whole and own else None


def churn():
    ran = scheme("--jit", "--sinks=unwind,perfmap", "hosts/demo/churn.scm", keep=os.path.join(OUT, "churn.out"),
                 env={"CHURN": str(TIMES), "CODEHEAP_PERF_MAP_DIR": OUT})
    points = [(int(at), int(kib), stats_of(stats).get("code-bytes-now", 0))
              for at, kib, stats in re.findall(r"^at (\d+) VmRSS:\s+(\d+) kB\n(.*)$", ran.out, re.M)]
    stats = stats_of(ran.out)
    grown = [kib for at, kib, _ in points if at >= GROWN_AFTER]
    grew = grown[-1] - grown[0] if grown else GROWTH_MOST_KIB + 1
    judge(2, len(points) >= 50 and grew <= GROWTH_MOST_KIB and stats.get("blocks-opened", 0) >= TIMES,
          f"made, called and dropped {TIMES:,} procedures: resident memory {grew:+,} KiB after the first {GROWN_AFTER:,}")
    return ran, points


PEERS = (
    ("LuaJIT, each traced", "luajit", ["-Ohotloop=1", "-e", "jit.off(true, false) for i = 1, {n} do "
     "loadstring('function test() for j = 1, 10 do end return 1 end')() test() end"]),
    ("LuaJIT as it is (interprets it)", "luajit", ["-e", "for i = 1, {n} do loadstring('function test() return 1 end')() test() end"]),
    ("Ruby, YJIT at the first call", "ruby", ["--yjit", "--yjit-call-threshold=1", "-e",
                                              "i = 0; while i < {n}; eval('def test; 1; end'); test; i += 1; end"]),
    ("Ruby as it is (interprets it)", "ruby", ["-e", "i = 0; while i < {n}; eval('def test; 1; end'); test; i += 1; end"]),
    ("CPython (interprets it)", "/usr/bin/python3", ["-c", "for i in range({n}): exec('def test(): return 1'); test()"]),
)


def loop_rows(ours, share):
    inside = f", {share:.0%} of it in the library" if share is not None else ""
    rows = [("libcodeheap's Scheme, each compiled; unwinder and perf map told" + inside, f"{ours.seconds:.2f}", f"{ours.peak_kib / 1024:.1f}")]
    for name, program, words in PEERS if os.environ.get("CODEHEAP_DEMO_PEERS") != "0" else ():
        if not shutil.which(program):
            rows.append((name, "not installed", ""))
            continue
        ran = Ran([program, *(word.replace("{n}", str(TIMES)) for word in words)])
        failed = None if ran.status == 0 else "not done in 120 s" if ran.status == -9 else "failed"
        rows.append((name, failed or f"{ran.seconds:.2f}", f"{ran.peak_kib / 1024:.1f}"))
    return rows


# ---- the programs ----

def mode_rows():
    """Each program's time, less the start of its process, as a ratio to the interpreter's."""
    rows = []
    for name, often in REPEATED.items():
        times = max(1, often * TIMES // WHOLE)
        text = f'(begin (define (again n) (if (> n 0) (begin (load "{PROGRAMS}/{name}.scm") (again (- n 1))))) (again {times}))'
        took = {}
        for mode in ("interp", "jit", "arena"):
            start = min(scheme("--" + mode, "-e", "0").seconds for _ in range(3))
            took[mode] = max(scheme("--" + mode, "-e", text).seconds - start, 0.001)
        rows.append((name, f"{took['interp']:.2f}", f"{took['interp'] / took['jit']:.1f}", f"{took['interp'] / took['arena']:.1f}"))
    return rows


# ---- pictures ----

def pictures():
    """The pool before and after a collection, and where the time went."""
    names = " ".join(f'"{PROGRAMS}/{name}.scm"' for name in
                     ("closures", "escapes", "flonums", "generators", "higher", "matrix", "quicksort", "records", "redefine", "strings"))
    heap, flames = os.path.join(OUT, "heap.svg"), os.path.join(OUT, "profile.svg")
    for path in (heap, flames):
        if os.path.exists(path):
            os.remove(path)
    scheme("--jit", "-e", f'(begin (for-each load (list {names})) (code-discard!) (load "{PROGRAMS}/queens.scm") '
           f'(load "{PROGRAMS}/fib.scm") (code-map "{heap}"))')
    scheme("--jit", "--profile=" + flames, "--profile-rate=250", "-e",
           f'(begin (define (again n) (if (> n 0) (begin (load "{PROGRAMS}/deriv.scm") (again (- n 1))))) (again 20))')
    for promise, path in ((2, heap), (6, flames)):
        if not os.path.exists(path):
            judge(promise, False, f"{path} was not written")


def curve(points, column, title):
    """One of the two values over the loop, as a picture from 0 on."""
    values = [(at, row[column]) for at, *row in points]
    top = max((value for _, value in values), default=0)
    high = top * 1.15 or 1
    line = " ".join(f"{40 + at * 810 / TIMES:.1f},{130 - value * 120 / high:.1f}" for at, value in values)
    return (f'<figure><figcaption>{html.escape(title)}; at most {top:,}</figcaption><svg class="curve" viewBox="0 0 860 150" role="img">'
            f'<path d="M40 5V130H850" fill="none" stroke="#888"/><text x="40" y="146">0</text><text x="850" y="146" text-anchor="end">{TIMES:,}</text>'
            f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="2"/></svg></figure>')


def rows_of(rows):
    return "\n".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)


def write_page(head, lines, loop, modes, points):
    page = string.Template(open(os.path.join(HERE, "page.html")).read()).substitute(
        head=html.escape(head), promises=rows_of(lines), loop=rows_of(loop), modes=rows_of(modes), times=f"{TIMES:,}",
        kept=sum(is_kept for is_kept, _ in verdicts.values()), of=len(NAMES),
        live=curve(points, 1, "live bytes of code, over the procedures made"),
        resident=curve(points, 0, "resident KiB of the process, over the procedures made"))
    path = os.path.join(OUT, "index.html")
    with open(path, "w") as file:
        file.write(page)
    return path


# ---- the report ----

def main():
    os.makedirs(OUT, exist_ok=True)
    head = f"libcodeheap on {platform.machine()}, Linux {platform.release()}, {os.cpu_count()} processors"
    adversary()
    ours, points = churn()
    for step in (chain, short_promises, outputs, pictures):
        step()
    lines = [(f"P{n}", "kept" if verdicts[n][0] else "BROKEN", NAMES[n - 1], "; ".join(verdicts[n][1])) for n in sorted(verdicts)]
    print(head + ": each promise, how it was attacked, and what came of it\n")
    for promise, verdict, _, evidence in lines:
        print(f"{promise:3} {verdict:6} {evidence}", flush=True)
    loop, modes = loop_rows(ours, share_of_library()), mode_rows()
    print(f"\n{TIMES:,} times: make a procedure by eval and call it{'':27}seconds  peak MiB")
    for name, seconds, mib in loop:
        print(f"  {name:74}{seconds:>9}{mib:>10}")
    print("\nprograms, times as fast as the interpreter     interpreter s     compiled    in a plain RWX arena")
    for name, interpreter, compiled, arena in modes:
        print(f"  {name:40}{interpreter:>18}{compiled:>13}{arena:>24}")
    path = write_page(head, lines, loop, modes, points)
    kept = sum(is_kept for is_kept, _ in verdicts.values())
    print(f"\nThe same with pictures: {path}")
    print(f"{kept} of {len(NAMES)} promises kept. Read next: examples/min.c, then docs/embedding.md")
    return 0 if kept == len(NAMES) else 1


sys.exit(main())
