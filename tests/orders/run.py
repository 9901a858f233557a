#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make orders: the cases of tests/orders/ in a weak memory, as they are and with each row of orders.rows.

A row is a text of the library, the same text with a weaker order, and the case that must fail then, in the form of
tests/breaks/rows.py. The files that it breaks are compiled anew, and of a header's what the case runs of it.

    run.py [NAME...]     the rows of these names; without one all of them, behind the cases themselves
"""
import concurrent.futures
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time

sys.path[:0] = ["tests/breaks", "tools"]
from rooms import ROOMS  # noqa: E402
from rows import all_rows, read_file  # noqa: E402

HERE = "tests/orders"
BUILD = os.environ.get("CODEHEAP_BUILD", "build/gc-none-san-thread")
SCRATCH = os.path.join(BUILD, "orders")
OBJECTS = os.path.join(BUILD, "obj-test")
CC = "gcc"
FLAGS = ("-std=gnu11 -O1 -g -fno-omit-frame-pointer -fno-pie -ftls-model=initial-exec -pthread -Wall -Wextra -Wshadow -Werror "
         "-DCH_TESTING=1 -DCH_TEST_BDW=0 -DCH_ALLOC_MALLOC=1").split()
FLAGS.append(f'-DCH_TEST_CODE="tests/support/code_{platform.machine()}.h"')
WRAPPED = ("memcpy memset ch__meta_alloc ch__meta_free ch__os_protect ch__os_futex_wait ch__os_futex_wake ch__os_membarrier_fence "
           "ch__os_membarrier_core_sync ch__os_thread_start ch__os_timer_start ch__os_timer_stop ch__os_unmap "
           "ch__arch_serialize ch__lock_self ch__os_signal_install ch__os_signal_sender ch__os_thread_signal ch__os_timer_expired sigaction").split()
# What a case runs of a header's functions, besides its own file.
USES = {
    "regions": ["codeheap/base/region.c"],
    "regions_fenced": ["codeheap/base/region.c"],
    "poll_word": ["codeheap/events/trigger.c", "codeheap/collect/poll.c"],
    "stop": ["codeheap/base/park.c", "codeheap/base/region.c", "codeheap/collect/world.c"],
    "table": ["codeheap/graph/handles.c", "codeheap/base/table.c"],
    "left_heap": ["codeheap/base/heaps.c"],
    "listeners": ["codeheap/events/listener.c"],
    "cell": ["codeheap/graph/owner.c", "invalidate/entry.c", "codeheap/graph/handles.c"],
    "locks": ["os/locks/lock.c", "codeheap/base/park.c", "codeheap/graph/owner.c"],
    "linked": ["invalidate/stub.c", "invalidate/link.c"],
    "serialize": ["codeheap/base/park.c", "codeheap/base/region.c"],
    "apart": ["pages/pool.c", "pages/chunks.c", "pages/spans.c", "codeheap/places/find.c",
              "codeheap/look/code_at.c", "codeheap/life/open.c"],
    "cause": ["codeheap/places/place.c"],
    "edge": ["codeheap/graph/side_list.c"],
    "late_site": ["codeheap/look/code_at.c", "invalidate/link.c"],
    "reuse": ["codeheap/life/open.c", "codeheap/life/commit.c", "codeheap/collect/death.c",
              "codeheap/places/find.c", "codeheap/graph/handles.c", "codeheap/graph/branch.c", "codeheap/look/code_at.c", "invalidate/link.c"],
    "calls": ["codeheap/life/open.c", "codeheap/life/commit.c", "codeheap/collect/death.c", "codeheap/places/find.c",
              "codeheap/graph/handles.c", "codeheap/graph/branch.c", "codeheap/look/code_at.c", "invalidate/link.c"],
    "names": ["codeheap/places/place.c", "codeheap/graph/names.c"],
    "place": ["codeheap/life/open.c", "codeheap/life/commit.c", "codeheap/collect/death.c",
              "codeheap/places/place.c", "codeheap/graph/side_list.c", "codeheap/graph/names.c", "codeheap/places/tombstone.c"],
}
LIMIT_S = 400
# What proves nothing: it passes, there is no such case, memory.c is unable, there is no end.
UNSEEN = (0, 2, 3, "killed")


def compile_to(source, object, first=None):
    include = (["-I", first] if first else []) + ["-I."]
    instrument = [] if source.endswith(("memory.c", "main.c")) else ["-fsanitize=thread"]
    os.makedirs(os.path.dirname(object), exist_ok=True)
    subprocess.run([CC, *FLAGS, *instrument, *include, "-c", "-o", object, source], check=True)


def has_source(object):
    """Those of files that are gone stay in the build's folder."""
    stem = os.path.relpath(object, OBJECTS)[:-2]
    return os.path.exists(stem) or os.path.exists(stem + ".c")


def library_objects():
    found = (os.path.join(folder, f) for room in ROOMS for folder, _, files in os.walk(os.path.join(OBJECTS, room)) for f in files)
    return sorted(o for o in found if o.endswith(".o") and has_source(o)) + [os.path.join(OBJECTS, "tests/support/lock_self.o")]


def link(program, own, instead):
    """instead: {object below OBJECTS: what takes its place}"""
    objects = [instead.get(os.path.relpath(o, OBJECTS), o) for o in library_objects()]
    wraps = "-Wl," + ",".join(f"--wrap={name}" for name in WRAPPED)
    subprocess.run([CC, "-no-pie", "-pthread", "-o", program, wraps, *own, *objects, "-lm", "-ldl"], check=True)


def sources():
    return sorted(os.path.join(HERE, f) for f in os.listdir(HERE) if f.endswith(".c"))


def object_of(source, folder=None):
    return os.path.join(folder or SCRATCH, os.path.basename(source)[:-1] + "o")


def run(program, *cases):
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:  # a case that fails leaves its files
        try:
            done = subprocess.run([os.path.abspath(program), *cases], capture_output=True, text=True, timeout=LIMIT_S, cwd=folder)
            status, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            status, output = "killed", ""
    return status, output.strip(), time.time() - begun


def try_row(row):
    texts, folder = row.broken_files(read_file), os.path.join(SCRATCH, row.name)
    shutil.rmtree(folder, ignore_errors=True)
    for file, text in texts.items():
        os.makedirs(os.path.join(folder, os.path.dirname(file)), exist_ok=True)
        open(os.path.join(folder, file), "w").write(text)
    anew = [f for f in texts if f.endswith(".c")]
    own = {s: object_of(s) for s in sources()}
    if len(anew) < len(texts):
        anew += [s for case in row.cases for s in USES.get(case.case, []) if s not in anew]
        for source in [s for s in own if "/cases_" in s]:
            own[source] = object_of(source, folder)
            compile_to(source, own[source], folder)
    instead = {}
    for source in anew:
        instead[source[:-1] + "o"] = os.path.join(folder, source[:-1] + "o")
        compile_to(os.path.join(folder, source) if source in texts else source, instead[source[:-1] + "o"], folder)
    program = os.path.join(folder, "orders")
    link(program, list(own.values()), instead)
    said = []
    for case in row.cases:
        status, output, seconds = run(program, case.case)
        last = output.split("\n")[-1] if output else str(status)
        said.append((status not in UNSEEN, f"{last[:90]} ({seconds:.1f} s)"))
    shutil.rmtree(folder)
    return ("ok" if all(caught for caught, _ in said) else "FAIL"), "; ".join(text for _, text in said)


def main():
    names = sys.argv[1:]
    rows = [row for row in all_rows(folder=HERE) if not names or row.name in names]
    unknown = sorted(set(names) - {row.name for row in rows})
    if unknown:
        print(f"orders: no row is {' or '.join(unknown)}")
        return 2
    os.makedirs(SCRATCH, exist_ok=True)
    for source in sources():
        compile_to(source, object_of(source))
    program, failed = os.path.join(SCRATCH, "orders"), 0
    link(program, [object_of(s) for s in sources()], {})
    if not names:
        status, output, seconds = run(program)
        print(output)
        if status != 0:
            print(f"FAIL as it is: {status}")
            return 1
        print(f"ok   as it is ({seconds:.0f} s)")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for row, (verdict, text) in zip(rows, pool.map(try_row, rows)):
            failed += verdict != "ok"
            print(f"{verdict:4} {row.name:32} {text}", flush=True)
    print(f"{len(rows) - failed} noticed, {failed} not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
