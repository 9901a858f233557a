#!/bin/bash
# SPDX-License-Identifier: MIT
# codeheap-top on the statistics file of a running Scheme, of one that ended and of one that was killed; in a terminal; on
# files that are broken, and on a disk that is full. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
build=$(realpath -m "$build")
here=$PWD
top=$build/codeheap-top
cases="top_shows_a_scheme_under_stress:300 top_knows_how_a_process_ended:180 top_refreshes_in_a_terminal:600
top_draws_whole_pages:120 top_shows_what_the_file_says:60 top_draws_no_names_of_a_hostile_file:120 top_refuses_broken_files:600 top_of_a_full_disk:120 top_takes_no_wrong_words:60"

if [ $# = 0 ]; then
  # What breaks copies of the sources belongs to `make mutants`.
  [ -z "${CODEHEAP_TEST_BROKEN:-}" ] || cases=top_broken_rules_are_noticed:600
  list_cases $cases
  exit 0
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/tool-top.XXXXXX") || exit 1
writer=
end_writer() { [ -z "$writer" ] || kill -KILL $writer 2>/dev/null; }
trap 'end_writer; rm -rf "$work"' EXIT
fail() { echo "codeheap-top: $*" >&2; exit 1; }

# The sum in the head of a file: a file that is changed gets it again, so that each field is judged by itself.
cat >"$work/stats_sum.py" <<'PYTHON'
import struct
def checksum(body):
    s = 0x9e3779b97f4a7c15 ^ len(body)
    for (word,) in struct.iter_unpack("<Q", body):
        s = ((s ^ word) * 0xff51afd7ed558ccd) & ((1 << 64) - 1)
        s ^= s >> 32
    return s
PYTHON
export PYTHONPATH=$work
cat >"$work/stress.scm" <<'SCM'
(define (work n)
  (let loop ((i 0))
    (if (< i n) (begin (eval `(begin (define (f x) (+ x ,i)) (f ,i))) (loop (+ i 1))))))
(let loop () (begin (work 1000) (loop)))
SCM

# A Scheme that compiles and drops procedures without end; its number is $writer.
start_stress() { # start_stress FILE
  CODEHEAP_STATS=$1 "$build/scheme" --jit "$work/stress.scm" >"$work/out" 2>&1 </dev/null &
  writer=$!
  until [ -s "$1" ] && "$top" --json "$1" >"$work/json" 2>/dev/null; do
    kill -0 $writer 2>/dev/null || fail "no file came: $(head -3 "$work/out")"
    sleep 0.05
  done
}
# look TO WORDS...: what it shows of a living process. Its writer may be off the processor in the midst of a state for longer
# than one look waits.
look() {
  until "$top" "${@:2}" >"$1" 2>"$work/err"; do
    grep -q 'not whole' "$work/err" && kill -0 $writer || fail "${*:2}: $(cat "$work/err" "$work/out")"
  done
}
end_stress() {
  kill -TERM $writer 2>/dev/null
  wait $writer 2>/dev/null
  writer=
}

top_shows_a_scheme_under_stress() {
  start_stress "$work/file"
  # Other programs may keep its threads waiting, the one that writes and the one that works: each figure is waited for.
  local end=$((SECONDS + 120))
  until
    look "$work/first" --json "$work/file"
    python3 -c 'import json, sys; s = json.load(sys.stdin); sys.exit(len(s["samples"]) < 5 or len(s["pauses"]) < 5 or not s["stats"]["blocks_freed"])' <"$work/first"
  do
    [ $SECONDS -lt $end ] || fail "no five samples and pauses: $(head -c 1500 "$work/first")"
    sleep 0.2
  done
  until
    look "$work/second" --json "$work/file"
    python3 - "$work/first" "$work/second" <<'PYTHON'
import json, sys
a, b = (json.load(open(path)) for path in sys.argv[1:])
names = ("blocks_opened", "bytes_opened", "blocks_freed", "cycles")
sys.exit(b["state"] == "running" and not all(b["stats"][n] > a["stats"][n] for n in names))
PYTHON
  do sleep 0.2; done
  look "$work/view" "$work/file"
  look "$work/svg" --svg "$work/file"
  CODEHEAP_STATS=$work/file look "$work/once" --once
  end_stress
  python3 - "$work" <<'PYTHON' || fail "what it shows is wrong"
import json, re, sys
import xml.etree.ElementTree as tree
work = sys.argv[1]
a, b = (json.loads(open(f"{work}/{n}").read()) for n in ("first", "second"))
assert a["state"] == b["state"] == "running" and a["process"] == "scheme" and a["heap"] == 1, a["state"]
assert b["written_ns"] > a["written_ns"]
for name in ("blocks_opened", "bytes_opened", "blocks_freed", "cycles"):
    assert b["stats"][name] > a["stats"][name] > 0, name
for state in (a, b):
    # Blocks and numbers are looked at one after the other, while the program runs: kinds add up with each other.
    def total(kinds, what):
        return sum(k[what] for k in state[kinds].values())
    for what in ("live_bytes", "live_blocks", "notentrant_bytes", "dead_bytes"):
        assert total("owner_kinds", what) == total("block_kinds", what), what
    assert state["owner_kinds"]["scm"]["live_blocks"] > 10
    assert len(state["samples"]) > 3 and len(state["pauses"]) > 3
    assert all(x["at_ns"] < y["at_ns"] for x, y in zip(state["samples"], state["samples"][1:]))
    assert state["pages"] and all(p["free_bytes"] <= state["stats"]["page_bytes"] * p["pages"] for p in state["pages"])
svg = tree.parse(f"{work}/svg").getroot()
space = "{http://www.w3.org/2000/svg}"
panel, = (g for g in svg.iter(space + "g") if g.get("class") == "panel")
shown = [r for r in panel.iter(space + "rect") if r.get("class") in ("hot", "cold", "notentrant", "dead")]
assert int(panel.get("data-cycles")) >= b["stats"]["cycles"] and len(shown) >= 10
view = open(f"{work}/view").read()
for what in ("running", "backend " + b["backend"], "scm", "pauses", "a second", "pages in use"):
    assert what in view, what
assert re.search(r"opened [1-9]\d* blocks", view), view
assert max(map(len, view.splitlines())) <= 100 and "\033" not in view
assert open(f"{work}/once").read().startswith("codeheap-top: scheme")
PYTHON
}

top_knows_how_a_process_ended() {
  CODEHEAP_STATS=$work/file.%p "$build/scheme" -e '(code-stats)' >"$work/out" 2>&1 </dev/null || fail "scheme: $(cat "$work/out")"
  "$top" "$work"/file.* >"$work/view" || fail "no view of an ended process"
  grep -q 'ended' "$work/view" || fail "it does not say that the process ended: $(head -1 "$work/view")"
  "$top" --json "$work"/file.* >"$work/json" && "$top" --json "$work"/file.* | cmp - "$work/json" || fail 'two looks at one state'
  python3 - "$work/json" "$work/out" "$work/view" <<'PYTHON' || fail "its last figures are not those of the program"
import json, re, sys
state, said = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
said = {n.replace("-", "_"): int(v) for n, v in re.findall(r"\(([a-z-]+) \. (\d+)\)", said)}
assert state["state"] == "ended" and said
for name in ("pool_bytes", "page_bytes", "cycles", "blocks_freed", "pages_now", "blocks_now"):
    assert state["stats"][name] == said[name], (name, state["stats"][name], said[name])
view, stats = open(sys.argv[3]).read(), state["stats"]
assert f"{stats['blocks_now']} blocks ({stats['blocks_notentrant_now']} not entrant), {stats['branches_now']} branches" in view, view
assert f"{stats['pages_now']} of " in view and f"at most {stats['pages_peak']};" in view, view
PYTHON
  while
    start_stress "$work/killed"
    kill -KILL "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$work/json")" || fail "it is not there to be killed"
    wait $writer 2>/dev/null
    writer=
    ! "$top" --json "$work/killed" >"$work/gone" 2>"$work/err"
  do
    # Seldom it is killed while it writes.
    grep -q 'not whole' "$work/err" || fail "$(cat "$work/err")"
    rm "$work/killed"
  done
  grep -q '"state":"gone"' "$work/gone" || fail 'a killed process is not gone'
  "$top" "$work/killed" | grep -q 'gone' || fail 'the view does not say so'
}

top_refreshes_in_a_terminal() {
  start_stress "$work/file"
  CODEHEAP_STATS=$work/ended "$build/scheme" -e '(+ 1 2)' >/dev/null 2>&1 </dev/null || fail scheme
  python3 - "$top" "$work/file" "$work/ended" <<'PYTHON' || fail "the terminal view is wrong"
import fcntl, os, pty, select, signal, struct, sys, termios, time

def be_shell(args):
    """The program is a job of this process. Without one, nobody could continue it."""
    ready, go = os.pipe()
    job = os.fork()
    if job == 0:
        os.read(ready, 1)
        os.execv(args[0], args)
    os.setpgid(job, job)
    os.tcsetpgrp(0, job)
    os.write(go, b"x")
    os._exit(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]))

def look(args, rows, columns, acts, has_shell=False):
    """What the program wrote to a terminal of this size, and its status. Of acts, each happens once its condition holds of the
    whole looks since the one before, none of which needs to be read in time."""
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if has_shell:
            be_shell(args)
        os.execv(args[0], args)
    start, text, acts, mark = time.monotonic(), b"", list(acts), 0
    while time.monotonic() - start < 170:
        if acts and acts[0][0]([one.decode() for one in text[mark:].split(b"\033[H")[1:] if b"\033[J" in one]):
            mark = len(text)
            acts.pop(0)[1](pid, fd)
        if select.select([fd], [], [], 0.05)[0]:
            try:
                more = os.read(fd, 1 << 16)
            except OSError:
                break
            if not more:
                break
            text += more
    else:
        os.kill(pid, signal.SIGKILL)
    return text.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def seen(count):
    return lambda looks: len(looks) >= count

def changed(looks):
    return len(looks) >= 4 and len(set(looks)) > 1

def lost(looks):
    return any("No such file" in one for one in looks)

def found(looks):
    return any("No such file" not in one for one in looks)

def quit(pid, fd):
    os.write(fd, b"q")

def resize(rows, columns):
    def act(pid, fd):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(pid, signal.SIGWINCH)
    return act

top, running, file = sys.argv[1:]
text = "not whole" # its writer may be off the processor in the midst of a state for longer than the first look waits
while "not whole" in text.split("\033[H")[0]:
    text, status = look([top, "-d", "0.2", running], 24, 80, [(changed, quit)])
assert status == 0, status
assert text.startswith("\033[?1049h") and text.rstrip().endswith("\033[?1049l"), "the screen that was there comes back"
looks = text.split("\033[H")[1:]
assert len(looks) >= 4, len(looks)
assert len(set(looks)) > 1, "it does not refresh"
for one in looks:
    lines = one.split("\033[J")[0].replace("\033[K", "").rstrip("\r\n").split("\r\n")
    assert len(lines) <= 23 and max(map(len, lines)) <= 80, (len(lines), max(map(len, lines)))
text, status = look([top, "-d", "0.2", "-n", "3", file], 10, 40, [])
assert status == 0 and len(text.split("\033[H")) == 4, "-n"
for one in text.split("\033[H")[1:]:
    lines = one.split("\033[J")[0].replace("\033[K", "").rstrip("\r\n").split("\r\n")
    assert len(lines) <= 9 and max(map(len, lines)) <= 40, lines
    assert len(lines[0]) == 40 and lines[0].endswith(">"), lines[0]
text, status = look([top, "-d", "300", file], 24, 80, [(seen(1), resize(12, 50)), (seen(1), quit)])
looks = text.split("\033[H")[1:]
assert status == 0 and len(looks) >= 2, "another size of the window is a reason to look"
assert max(map(len, looks[-1].split("\033[J")[0].replace("\033[K", "").split("\r\n"))) <= 50
text, status = look([top, "-d", "300", file], 24, 80, [(seen(1), lambda pid, fd: os.kill(pid, signal.SIGTERM))])
assert status == 0 and text.rstrip().endswith("\033[?1049l"), "a signal is no reason to leave the terminal as it is"
text, status = look([top, "-d", "300", file], 24, 80, [(seen(1), lambda pid, fd: os.write(fd, b"\x1c"))])
assert status == 0 and text.rstrip().endswith("\033[?1049l"), "SIGQUIT leaves the terminal as it is"
def is_stopped(pid):
    return open(f"/proc/{pid}/stat").read().rsplit(")")[-1].split()[0] == "T"

def stop(pid, fd):
    os.write(fd, b"\x1a")
    until = time.monotonic() + 100
    job = os.tcgetpgrp(fd)
    while not is_stopped(job):
        assert time.monotonic() < until, "it does not stop"
        time.sleep(0.05)
    assert termios.tcgetattr(fd)[3] & termios.ECHO, "the shell's terminal shows nothing that is typed"
    os.kill(job, signal.SIGCONT)
text, status = look([top, "-d", "300", file], 24, 80, [(seen(1), stop), (seen(1), quit)], has_shell=True)
assert status == 0 and text.count("\033[?1049l") == text.count("\033[?1049h") == 2, (status, text)
# Without a shell nobody could continue the program.
def go_on(pid, fd):
    os.write(fd, b"\x1a")
    time.sleep(1)
    assert not is_stopped(pid), "nobody continues it"
text, status = look([top, "-d", "300", file], 24, 80, [(seen(1), go_on), (seen(1), quit)])
assert status == 0 and text.count("\033[?1049l") == text.count("\033[?1049h") == 2, (status, text)
# The program ends, another one makes the file anew: the view stays.
text, status = look([top, "-d", "0.2", file], 24, 80, [
    (seen(1), lambda pid, fd: os.rename(file, file + ".away")), (lost, lambda pid, fd: os.rename(file + ".away", file)), (found, quit)])
looks = text.split("\033[H")[1:]
assert status == 0 and any("No such file" in one for one in looks) and "No such file" not in looks[-1], (status, looks[-1])
# What is said at the end is for the screen that comes back.
text, status = look([top, "-d", "0.2", file], 24, 80, [(seen(1), lambda pid, fd: os.rename(file, file + ".away")), (lost, quit)])
assert status == 1 and "No such file" in text.split("\033[?1049l")[1], text
text, status = look([top, "-d", "0.2", file + ".none"], 24, 80, [])
assert status == 1, "a file that never was"
PYTHON
  end_stress
}

# A heap of more blocks than the file has room for: of a page there is all in the picture or nothing, and how many there are
# more is in the picture, too.
top_draws_whole_pages() {
  cat >"$work/many.scm" <<'SCM'
(define (make i) (if (< i 9000) (begin (eval `(begin (define (,(string->symbol (string-append "f" (number->string i))) x) (+ x ,i)) (,(string->symbol (string-append "f" (number->string i))) 1))) (make (+ i 1)))))
(make 0)
SCM
  CODEHEAP_STATS=$work/many "$build/scheme" --jit "$work/many.scm" >"$work/out" 2>&1 </dev/null || fail "scheme: $(head -3 "$work/out")"
  "$top" --svg "$work/many" >"$work/svg" && "$top" --json "$work/many" >"$work/json" || fail 'no picture'
  python3 - "$work" <<'PYTHON' || fail 'a page is drawn in part'
import json, re, sys
import xml.etree.ElementTree as tree
state, svg = json.load(open(f"{sys.argv[1]}/json")), tree.parse(f"{sys.argv[1]}/svg").getroot()
space = "{http://www.w3.org/2000/svg}"
panel, = (g for g in svg.iter(space + "g") if g.get("class") == "panel")
shown, rows = {}, []
for r in panel.iter(space + "rect"):
    if r.get("class") == "free":
        rows.append(int(r.get("y")))
    else:
        shown[int(r.get("y"))] = shown.get(int(r.get("y")), 0) + float(r.get("width"))
pages = [p for p in state["pages"] if p["blocks"]]
assert len(pages) > 130, len(pages)
assert 0 < len(rows) < len(pages) and set(shown) <= set(rows), (len(rows), len(pages))
for y, p in zip(sorted(rows), pages):
    used = p["hot_bytes"] + p["cold_bytes"] + p["notentrant_bytes"] + p["dead_bytes"]
    wanted = 520 * min(1, used / state["stats"]["page_bytes"])
    assert p["pages"] > 1 or abs(shown[y] - wanted) < 0.006 * p["blocks"] * 2 + 0.1, (p, shown[y], wanted)
assert int(panel.get("data-drawn")) <= sum(p["blocks"] for p in pages)
more, = (t for t in panel.iter(space + "text") if "more pages" in (t.text or ""))
assert int(re.search(r"\d+", more.text).group()) == len(pages) - len(rows), (more.text, len(pages), len(rows))
assert max(rows) < int(more.get("y")) < int(svg.get("height")), (more.get("y"), svg.get("height"))
PYTHON
}

# Each figure of a made-up file at its place: in the view of a process that runs and of one that ended, as JSON, in the picture.
top_shows_what_the_file_says() {
  cat >"$work/made.py" <<'PYTHON'
import json, os, struct, subprocess, sys, time
from stats_sum import checksum
import xml.etree.ElementTree as tree
top, out = sys.argv[1:]
K, MS, S = 1 << 10, 10**6, 10**9
def section(kind, form, rows, left_out=0):
    rows = b"".join(struct.pack(form, *(x.encode() if isinstance(x, str) else x for x in row)) for row in rows)
    bytes_ = struct.calcsize(form)
    return struct.pack("<IIII", kind, bytes_, len(rows) // bytes_, left_out) + rows
names = ("pool_bytes page_bytes pages_now pages_peak committed_bytes_now metadata_bytes_now blocks_now blocks_notentrant_now branches_now "
         "owners_now threads_now fibers_now pause_ns_last pause_ns_max cycles cycles_abandoned hot_bytes_now cold_bytes_now").split()
values = (64 * K, 4 * K, 8, 9, 40 * K, 3 << 20, 11, 2, 5, 6, 7, 8, 999_900, 2_500 * MS, 12, 3, 4000, 500)
kinds = (("few", 1, 100, 2, 200, 3, 300), ("more", 4, 4096, 0, 0, 0, 0), ("none", 0, 0, 0, 0, 0, 0), ("\033[1mal", 4, 4096, 0, 0, 0, 0))
samples = [(i * S, 10 * i, 2048 * i, 4 * i * i, 1024 * i * i, 3 * i, 2 * i, 77) for i in range(5)]
pauses = [(i, 9 * MS) for i in range(2)] + [(i, 1 * MS) for i in range(2, 33)] + [(33, 7 * MS)]
pages = [(i, 1, kind, 1, hot, cold, gone, dead, free, 0) for i, (kind, hot, cold, gone, dead, free) in enumerate((
    (0, 2000, 100, 0, 0, 1900), (1, 2100, 0, 0, 0, 1900), (2, 2100, 0, 0, 0, 1900), (3, 2100, 0, 0, 0, 1900),
    (0, 100, 0, 0, 0, 3900), (0, 100, 0, 2000, 0, 1900), (0, 100, 0, 10, 2000, 1900), (0, 0, 0, 0, 0, 4000)))]
parts = [(0, 2048, 0), (2048, 1024, 1), (4096 + 1024, 512, 2), (4096 + 3072, 4096, 3)]
def body_of(last, dead):
    return (section(1, "<40s96s", (("process", "made"), ("version", "1.2.3"), ("backend", "dual"), ("sinks", "unwind,gdb")))
            + section(2, "<40sQ", zip(names, (last if n == "pause_ns_last" else v for n, v in zip(names, values))))
            + section(3, "<40s6Q", kinds) + section(4, "<40s6Q", [kinds[0][:6] + (dead,)])
            + section(5, "<8Q", samples) + section(6, "<QQ", pauses) + section(7, "<10I", pages, 5)
            + section(8, "<II", ((at, size | kind << 28) for at, size, kind in parts)))
def say(state, *words, last=999_900, dead=300, ago=3000.5):
    body = body_of(last, dead)
    with open(out, "wb") as file:
        file.write(b"CHSTATS\0" + struct.pack("<IIQQQQIIII", 0x01020304, 1, 2, len(body), checksum(body), 5, os.getpid(), 3, state, 0) + body)
    os.utime(out, (time.time() - ago,) * 2)
    return subprocess.run([top, *words, out], capture_output=True, check=True, text=True, timeout=60).stdout
view = say(0).splitlines()
bar = lambda text: "[" + text.ljust(60, ".") + "]"
wanted = [
    f"codeheap-top: made, process {os.getpid()}, heap 3, running",
    "library    libcodeheap 1.2.3, backend dual, sinks unwind,gdb; written ",
    "pool       " + bar("#" * 30) + " 32.0 KiB of 64.0 KiB",
    "code       " + bar("#!x") + " 300 B",
    "           # live 100 B, ! not entrant 200 B, x dead 300 B, . free 31.4 KiB",
    "pages      8 of 4.0 KiB, at most 9; committed 40.0 KiB, metadata 3.0 MiB",
    "now        11 blocks (2 not entrant), 5 branches, 6 owners, 7 threads, 8 fibers",
    "a second   opened 10 blocks, 2.0 KiB; freed 24, 6.0 KiB; invalidated 3; cycles 2.0",
    "pauses     last 999.9 us, longest 2.50 s, 12 cycles (3 given up) [" + "." * 31 + "#]",
    "owners                 blocks         live  not entrant         dead",
    "?[1mal                      4      4.0 KiB          0 B          0 B",
    "more                        4      4.0 KiB          0 B          0 B",
    "few                         6        100 B        200 B        300 B",
    "kinds                  blocks         live  not entrant         dead",
    "few                         6        100 B        200 B        300 B",
    "pages in use: # code, T trampolines, D data, + more free than code, ! not entrant, x dead",
    "#T#D+!x."]
for i, (a, b) in enumerate(zip(view, wanted)):
    assert a.startswith(b) and 3000 <= float(a[len(b):].split()[0]) < 3400 if i == 1 else a == b, (a, b)
assert len(view) == len(wanted), view
view = say(1, last=12_340_000, dead=3000).splitlines()
assert view[0] == wanted[0].replace("running", "ended; the figures are its last ones"), view[0]
assert view[7] == "a second   -" and view[8].startswith("pauses     last 12.34 ms, "), view
assert view[3] == "code       " + bar("#!xxxx") + " 300 B", view[3]
assert say(1, ago=-100).splitlines()[1] == wanted[1] + "0.0 s ago", "the clock was set back"
state = json.loads(say(0, "--json"))
assert state["pid"] == os.getpid() and state["heap"] == 3 and state["written_ns"] == 5
assert state["stats"] == dict(zip(names, values))
fields = [f"{a}_{b}" for a in ("live", "notentrant", "dead") for b in ("blocks", "bytes")]
assert state["owner_kinds"] == {name: dict(zip(fields, rest)) for name, *rest in kinds}, state["owner_kinds"]
fields = "at_ns blocks_opened bytes_opened blocks_freed bytes_freed blocks_invalidated cycles code_bytes".split()
assert state["samples"] == [dict(zip(fields, row)) for row in samples], state["samples"]
assert state["pauses"] == [{"at_ns": at, "ns": ns} for at, ns in pauses]
fields = "page pages kind blocks hot_bytes cold_bytes notentrant_bytes dead_bytes free_bytes".split()
words = ("code", "trampolines", "own_frames", "data")
assert state["pages"] == [dict(zip(fields, (*row[:2], words[row[2]], *row[3:9]))) for row in pages], state["pages"]
assert state["pages_left_out"] == 5
svg = tree.fromstring(say(0, "--svg"))
space = "{http://www.w3.org/2000/svg}"
panel, = (g for g in svg.iter(space + "g") if g.get("class") == "panel")
assert panel.get("data-drawn") == "2" and panel.get("data-cycles") == "12"
shown = [(r.get("class"), float(r.get("x")), float(r.get("width"))) for r in panel.iter(space + "rect")]
assert shown == [("free", 20, 520), ("free", 20, 520), ("hot", 20, 260), ("cold", 280, 130),
                 ("notentrant", 150, 65), ("dead", 410, 130)], shown
legend = zip((r.get("class") for r in svg.findall(space + "rect")[1:]), (t.text for t in svg.findall(space + "text")[1:]))
assert dict(legend) == {"hot": "hot code", "cold": "cold code and stubs", "notentrant": "not entrant", "dead": "dead, not reused yet",
                        "free": "free, filled with traps"}
texts = [t.text for t in panel.iter(space + "text")]
assert "11 blocks, 0 bytes of code (4000 hot, 500 cold)" in texts and "and 11 more pages" in texts, texts
PYTHON
  python3 "$work/made.py" "$top" "$work/made" || fail 'a figure is wrong'
}

refuses() {
  "$top" "$1" 2>"$work/err"
  [ $? = 1 ] || fail "it does not refuse $1, or dies of it: $(cat "$work/err")"
}
top_refuses_broken_files() {
  local n spoilt=40
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || spoilt=150
  "$top" "$work/none" 2>"$work/err" && fail 'a file that is not there'
  grep -q 'No such file' "$work/err" || fail "$(cat "$work/err")"
  mkfifo "$work/pipe"
  refuses "$work/pipe"
  refuses "$work"
  echo 'nothing of the kind, but longer than the head of a statistics file would be' >"$work/text"
  "$top" "$work/text" 2>"$work/err" && fail 'a text'
  grep -q 'no statistics file' "$work/err" || fail "$(cat "$work/err")"
  CODEHEAP_STATS=$work/file "$build/scheme" -e '(+ 1 2)' >/dev/null 2>&1 </dev/null || fail scheme
  cat >"$work/spoil.py" <<'PYTHON'
import json, random, struct, subprocess, sys
from stats_sum import checksum
top, source, out, count, first = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
whole = open(source, "rb").read()
size = struct.unpack_from("<Q", whole, 24)[0]
assert checksum(whole[64:64 + size]) == struct.unpack_from("<Q", whole, 32)[0]
# Heads of sections, where the lengths are.
heads, at = [], 64
while at < 64 + size:
    heads.append(at)
    _, entry, n, _ = struct.unpack_from("<IIII", whole, at)
    at += 16 + (entry * n + 7) // 8 * 8
refused = 0
for seed in range(first, first + count):
    r = random.Random(seed)
    bad = bytearray(whole)
    for _ in range(r.choice((1, 1, 2, 5))):
        where = r.choice(heads) + r.randrange(12) if r.random() < 0.6 else r.randrange(64, 64 + size)
        bad[where] = r.choice((0, 1, 255, 128, r.randrange(256)))
    if r.random() < 0.2:
        bad = bad[:64 + (r.randrange(size) & ~7)]
        struct.pack_into("<Q", bad, 24, len(bad) - 64)
    struct.pack_into("<Q", bad, 32, checksum(bytes(bad[64:])))
    open(out, "wb").write(bad)
    for form in ([], ["--json"], ["--svg"]):
        done = subprocess.run([top, *form, out], capture_output=True, timeout=60)
        assert done.returncode in (0, 1), (seed, form, done.returncode, done.stderr[-2000:])
        assert (done.returncode == 0) != bool(done.stderr), (seed, form, done.stderr)
        assert not any(b < 32 and b != 10 or b > 126 for b in done.stdout), (seed, form)
        refused += done.returncode
assert 0 < refused < 3 * count, refused
# No name ends, and a number behind each looks like more of it.
endless = bytearray(whole)
for at in heads:
    kind, entry, n, _ = struct.unpack_from("<IIII", whole, at)
    for i in range(at + 16, at + 16 + entry * n, entry) if kind in (2, 3, 4) else ():
        endless[i:i + 48] = b"%02d" % (i // entry % 100) + b"x" * 46
struct.pack_into("<Q", endless, 32, checksum(bytes(endless[64:64 + size])))
open(out, "wb").write(endless)
state = json.loads(subprocess.run([top, "--json", out], capture_output=True, check=True, timeout=60).stdout)
names = [*state["stats"], *state["owner_kinds"], *state["block_kinds"]]
assert len(state["block_kinds"]) > 1 and {len(name) for name in names} == {39}, names
# A section of a later version is stepped over, whatever its entries are; one of a known kind has possible lengths, and comes once.
first, second = (struct.unpack_from("<I", whole, at)[0] for at in heads[:2])
for kind, entry, n, is_read in ((99, 4, 6, True), (99, 0, 9, True), (99, 1, 3 << 20, True), (99, 8, 1 << 30, False),
                                (first, 4, 6, False), (first, 8, 0, True), (second, 8, 0, False)):
    others = whole[heads[kind == first]:64 + size]
    body = struct.pack("<IIII", kind, entry, n, 0) + bytes((entry * n + 7 & ~7) % (1 << 23)) + others
    head = bytearray(whole[:64])
    struct.pack_into("<QQ", head, 24, len(body), checksum(body))
    open(out, "wb").write(head + body)
    done = subprocess.run([top, "--json", out], capture_output=True, timeout=60)
    assert (done.returncode == 0) == is_read, (kind, entry, n, done.stderr)
PYTHON
  python3 "$work/spoil.py" "$top" "$work/file" "$work/bad" $spoilt 1 || fail 'a spoilt file'
  # The same, read by a program that watches its own memory.
  gcc -std=gnu11 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -I. -o "$work/watched" tools/{codeheap-top,draw}/*.c flame/flame_text.c ||
    fail 'the program that watches itself does not build'
  python3 "$work/spoil.py" "$work/watched" "$work/file" "$work/bad" $spoilt 1000 || fail 'a spoilt file'
  cat >"$work/name.py" <<'PYTHON'
import json, struct, subprocess, sys
from stats_sum import checksum
top, source, out = sys.argv[1:]
whole = bytearray(open(source, "rb").read())
size = struct.unpack_from("<Q", whole, 24)[0]
for name in ('λ "关" \\ 🔥é', "\x7f\n<&", "\U0010ffff\u0800\u07ff"):
    for rest in (b"", b"\xff\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80", b"\xe2\x82"):
        # The first text's name is "process"; its text is behind it.
        at = whole.index(b"process\0", 64) + 40
        whole[at:at + 96] = (name.encode() + rest).ljust(96, b"\0")
        struct.pack_into("<Q", whole, 32, checksum(whole[64:64 + size]))
        open(out, "wb").write(whole)
        said = json.loads(subprocess.run([top, "--json", out], capture_output=True, check=True, timeout=60).stdout)["process"]
        assert said == name + "\ufffd" * len(rest), (said, name, rest)
        seen = subprocess.run([top, out], capture_output=True, check=True, timeout=60).stdout
        assert not any(b < 32 and b != 10 or b > 126 for b in seen), (seen, name)
# A name that fills its room has no end in the file.
for kind in (1, 2, 3, 4):
    at, bad = 64, bytearray(whole)
    while struct.unpack_from("<I", bad, at)[0] != kind:
        _, entry, n, _ = struct.unpack_from("<IIII", bad, at)
        at += 16 + (entry * n + 7) // 8 * 8
    bad[at + 16:at + 56] = b"n" * 40
    struct.pack_into("<Q", bad, 32, checksum(bad[64:64 + size]))
    open(out, "wb").write(bad)
    said = subprocess.run([top, "--json", out], capture_output=True, check=True, timeout=60).stdout
    assert b'"' + b"n" * 39 + b'"' in said, (kind, said)
PYTHON
  python3 "$work/name.py" "$top" "$work/file" "$work/bad" || fail 'a name of other letters'
  for n in 0 7 8 16 63; do
    head -c $n "$work/file" >"$work/bad"
    refuses "$work/bad"
  done
  # A torn state is not shown: the sequence is odd, and nobody goes on.
  cp "$work/file" "$work/bad"
  printf '\003' | dd of="$work/bad" bs=1 seek=16 conv=notrunc 2>/dev/null
  "$top" "$work/bad" 2>"$work/err" && fail 'a torn state'
  grep -q 'not whole: its writer went' "$work/err" || fail "$(cat "$work/err")"
  # The same of a process that lives and holds no lock: this one.
  python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("=4I", int(sys.argv[1]), 1, 1, 0))' $$ |
    dd of="$work/bad" bs=1 seek=48 conv=notrunc 2>/dev/null
  "$top" "$work/bad" 2>"$work/err" && fail 'a torn state of a living writer'
  grep -q 'not whole: its writer stands still' "$work/err" || fail "$(cat "$work/err")"
  # A file that was just made, and that its writer holds: here longer than one look waits.
  python3 - "$top" "$work/made" <<'PYTHON' || fail 'a file that was just made'
import fcntl, struct, subprocess, sys
with open(sys.argv[2], "wb") as made:
    fcntl.fcntl(made, fcntl.F_OFD_SETLK, struct.pack("=hhiqqii", fcntl.F_WRLCK, 0, 0, 0, 0, 0, 0))
    said = subprocess.run(sys.argv[1:], capture_output=True, text=True, timeout=100).stderr
    assert "not whole: its writer stands still" in said, said
PYTHON
  cp "$work/file" "$work/bad"
  printf 'X' | dd of="$work/bad" bs=1 seek=300 conv=notrunc 2>/dev/null
  refuses "$work/bad"
  # The largest body that it reads, whose checksum is wrong, of this process: few tries, not one for each millisecond.
  python3 - "$work/bad" $$ <<'PYTHON' || fail 'no large file'
import os, struct, sys
with open(sys.argv[1], "wb") as bad:
    bad.write(b"CHSTATS\0" + struct.pack("<IIQQQQIIII", 0x01020304, 1, 2, 64 << 20, 1, 0, int(sys.argv[2]), 1, 0, 0))
    bad.truncate(64 + (64 << 20))
PYTHON
  (ulimit -t 60; exec "$top" "$work/bad") 2>"$work/err" && fail 'a large state that is none'
  grep -q 'not whole: its writer stands still' "$work/err" || fail "a large file: $(cat "$work/err")"
  # Rates that no integer holds: 2^60 bytes in a nanosecond.
  python3 - "$work/bad" $$ <<'PYTHON' || fail 'no file with rates'
import struct, sys
from stats_sum import checksum
body = struct.pack("<IIII", 5, 64, 2, 0) + struct.pack("<8Q", *[1] * 8) + struct.pack("<8Q", 2, 2, 1 + (1 << 60), *[1] * 5)
head = struct.pack("<IIQQQQIIII", 0x01020304, 1, 2, len(body), checksum(body), 0, int(sys.argv[2]), 1, 0, 0)
open(sys.argv[1], "wb").write(b"CHSTATS\0" + head + body)
PYTHON
  "$top" "$work/bad" >"$work/view" && grep -q 'opened [0-9]* blocks, 10485[67][0-9]*\.[0-9] TiB;' "$work/view" || fail "$(cat "$work/view")"
  refuses "$work/file" >/dev/full
  "$top" "$work/file" >/dev/null || fail 'the file as it was'
}

# A file may say anything; the picture is opened in a browser.
top_draws_no_names_of_a_hostile_file() {
  CODEHEAP_STATS=$work/file "$build/scheme" -e '(+ 1 2)' >/dev/null 2>&1 </dev/null || fail scheme
  cat >"$work/hostile.py" <<'PYTHON'
import re, struct, subprocess, sys
from stats_sum import checksum
import xml.etree.ElementTree as tree
top, source, out = sys.argv[1:]
whole = bytearray(open(source, "rb").read())
size = struct.unpack_from("<Q", whole, 24)[0]
def say(before, after):
    at = whole.index(before + b"\0", 64)
    whole[at:at + len(after) + 1] = after + b"\0"
say(b"blocks_invalidated", b'x onload=alert(1) y')
say(b"cycles", b'x/><q')
say(b"process", b'process')
# An element with two attributes of one name is no XML.
say(b"blocks_freed", b'drawn')
say(b"pages_now", b'page_bytes')
say(b"scheme", b'<script>\x01\xe9alert(2)</script>')
struct.pack_into("<Q", whole, 32, checksum(whole[64:64 + size]))
open(out, "wb").write(whole)
svg = subprocess.run([top, "--svg", out], capture_output=True, check=True, timeout=60).stdout
root = tree.fromstring(svg)
for node in root.iter():
    assert node.tag.split("}")[1] in ("svg", "style", "rect", "text", "g"), node.tag
    for name in node.attrib:
        assert re.fullmatch("data-[a-z0-9_]+|class|x|y|width|height|fill|viewBox|font-(family|size)", name), name
assert "data-blocks_now" in svg.decode()
PYTHON
  python3 "$work/hostile.py" "$top" "$work/file" "$work/bad" || fail 'a name of the file is more than text'
}

# There is room for the beginning of a state only: the program runs as without the file, which is not taken for whole.
top_of_a_full_disk() {
  local said wanted program=hosts/scheme/programs/fib.scm
  wanted=$("$build/scheme" --jit "$program" </dev/null 2>&1)
  said=$(unshare -rm bash -c '
    mount -t tmpfs -o size=8k none "$1" 2>/dev/null || exit 77
    head -c 4096 /dev/zero >"$1/filler" || exit 77
    CODEHEAP_STATS=$1/file "$2" --jit "$3" || exit 1
    [ -s "$1/file" ] && [ "$(stat -c %s "$1/file")" -le 4096 ] || exit 2
    "$4" "$1/file" >/dev/null 2>&1 && exit 3
    exit 0' bash "$work" "$build/scheme" "$program" "$top" 2>&1 </dev/null)
  case $? in
    0) [ "$said" = "$wanted" ] || fail "the program said $said" ;;
    77) echo 'skip: no file system of its own can be mounted'; exit 77 ;;
    2) fail 'the disk was not full' ;;
    3) fail 'a part of a state is shown' ;;
    *) fail "the program ended: $said" ;;
  esac
}

# What is wrong is named, in one line.
top_takes_no_wrong_words() {
  local words named
  unset CODEHEAP_STATS
  while IFS='|' read -r words named; do
    "$top" $words >"$work/out" 2>"$work/err" </dev/null
    [ $? = 2 ] || fail "'$words' is no wrong usage"
    [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" = 1 ] && grep -qF -- "codeheap-top: $named" "$work/err" ||
      fail "'$words' said: $(cat "$work/out" "$work/err")"
  done <<'WORDS'
|FILE: missing
-d|-d: needs a number from 0.05 to 86400
-d x file|-d: needs
-d 0 file|-d: needs
-d nan file|-d: needs
-n 0 file|-n: needs a number from 1 to 1000000000
-n -1 file|-n: needs
-n 1.5 file|-n: needs a whole number
-n 1000000001 file|-n: needs a number from 1 to 1000000000
--no-such file|--no-such: no such option
file other|other: a second file
--json --svg file|--svg: --json or --svg?
--svg --once --json file|--json: --json or --svg?
WORDS
  "$top" -d 86400 -n 1000000000 "$work/none" 2>/dev/null
  [ $? = 1 ] || fail 'the largest numbers are wrong words'
  "$top" --help | grep -q -- '--svg' || fail '--help'
}

# try CASE TOP: runs the case with this program in a folder of its own.
try() {
  rm -rf "$work/case"
  mkdir "$work/case"
  cp "$work/stress.scm" "$work/case"
  (trap end_writer EXIT; work=$work/case top=$2; "$1")
}
# rule CASE FILE PATTERN TEXT: in a copy of the program the pattern becomes another text; the case must notice.
rule() {
  local broken=$work/broken
  ! is_new "$1" || try "$1" "$top" || fail "$1 itself"
  rm -rf "$broken"
  mkdir -p "$broken/tools"
  cp -r tools/codeheap-top tools/draw "$broken/tools"
  sed -i "s@$3@$4@" "$broken/tools/$2"
  ! cmp -s "tools/$2" "$broken/tools/$2" || fail "there is no '$3' in $2 to break"
  (cd "$broken" && gcc -std=gnu11 -O1 -w -I. -I"$here" -o top tools/{codeheap-top,draw}/*.c "$here/flame/flame_text.c") 2>"$work/err" || fail "$3: $(cat "$work/err")"
  try "$1" "$broken/top" >/dev/null 2>&1 && fail "$1 does not notice when '$3' is '$4'"
  return 0
}

top_broken_rules_are_noticed() {
  rule top_refuses_broken_files codeheap-top/reader.c 'ch__stats_checksum(body, head->body_bytes) == head->checksum' '1'
  rule top_refuses_broken_files codeheap-top/reader.c 'head->sequence % 2' '0'
  rule top_refuses_broken_files codeheap-top/reader.c 'i += 1 + (head->body_bytes >> 20)' 'i++'
  rule top_refuses_broken_files codeheap-top/view.c 'BYTES(RATE(bytes_opened))' 'BYTES((uint64_t)RATE(bytes_opened))'
  rule top_refuses_broken_files codeheap-top/reader.c 'memcmp(head->magic, CH__STATS_FILE_MAGIC, sizeof head->magic) != 0' '0'
  rule top_refuses_broken_files codeheap-top/reader.c 'bytes > end - at ||' ''
  rule top_refuses_broken_files codeheap-top/reader.c 'bytes > end - at ||' '& section.entry_bytes < 8 ||'
  rule top_refuses_broken_files codeheap-top/reader.c 'section->entry_bytes < 8 ||' ''
  rule top_refuses_broken_files codeheap-top/reader.c '!stats->list.at' '!0'
  rule top_shows_what_the_file_says codeheap-top/view.c 'stats->age_s < 0 ? 0.0 : ' ''
  rule top_knows_how_a_process_ended codeheap-top/view.c 'return "ended"' 'return "running"'
  rule top_knows_how_a_process_ended codeheap-top/reader.c 'return lock.l_type != F_UNLCK' 'return true'
  rule top_refuses_broken_files codeheap-top/reader.c 'lock.l_type != F_UNLCK ||' ''
  rule top_shows_a_scheme_under_stress codeheap-top/reader.c 'return TAKE(samples)' 'return true'
  rule top_knows_how_a_process_ended codeheap-top/reader.c 'stats->numbers.at\[i\].value' '0'
  rule top_refreshes_in_a_terminal codeheap-top/main.c '{SIGQUIT, note_end}, ' ''
  rule top_refreshes_in_a_terminal codeheap-top/main.c '{SIGTSTP, note_stop}, ' ''
  rule top_refreshes_in_a_terminal codeheap-top/main.c '		stop();' '		raise(SIGSTOP);'
  rule top_refreshes_in_a_terminal codeheap-top/main.c 'raise(SIGTSTP)' 'raise(SIGSTOP)'
  rule top_refreshes_in_a_terminal codeheap-top/main.c '^	fflush(stdout);' '	;'
  rule top_draws_whole_pages draw/draw_heap.c 'more pages' 'more of them'
  rule top_shows_what_the_file_says codeheap-top/view.c 'to <= at' 'to == at'
  rule top_shows_what_the_file_says codeheap-top/view.c 'at\[last\].at_ns - at\[first\].at_ns < RATE_NS' '1'
  rule top_shows_what_the_file_says codeheap-top/view.c '(double)ns / 1e6' '(double)ns / 1e3'
  rule top_shows_what_the_file_says codeheap-top/view.c 'stats->pauses.at + stats->pauses.count - count' 'stats->pauses.at'
  rule top_shows_what_the_file_says codeheap-top/output.c 'heap.pages_left_out = stats->pages.left_out' 'heap.pages_left_out = 0'
  rule top_shows_what_the_file_says draw/draw_heap.c 'if (x + width > panel->left + BAR_WIDTH)' 'if (0)'
  rule top_draws_no_names_of_a_hostile_file draw/draw_heap.c 'if (is_attribute(heap, i))' 'if (1)'
  rule top_draws_no_names_of_a_hostile_file draw/draw_heap.c 'i < n; i++' '0; i++'
  rule top_draws_no_names_of_a_hostile_file draw/draw_heap.c 'strcmp(name, "drawn") != 0' '1'
  rule top_draws_no_names_of_a_hostile_file draw/draw_heap.c "putc(c < ' ' || c > '~' ? '?' : c, file)" 'putc(c, file)'
  rule top_refuses_broken_files codeheap-top/view.c " && text\[i\] <= '~'" ''
  rule top_refuses_broken_files codeheap-top/reader.c 'stats->numbers.at\[i\].name\[CH__STATS_NAME_BYTES - 1\] = 0;' ';'
  rule top_refuses_broken_files codeheap-top/reader.c 'stats->owner_kinds.at\[i\].name\[CH__STATS_NAME_BYTES - 1\] = 0;' ';'
  rule top_refuses_broken_files codeheap-top/reader.c 'i < stats->block_kinds.count; i++' 'i < 1; i++'
}

run_listed "$1" $cases top_broken_rules_are_noticed
