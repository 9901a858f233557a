#!/bin/bash
# SPDX-License-Identifier: MIT
# Every program of examples/ runs and exits 0; the moving collector's program fails when it leaves out one of the calls
# that it is about. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh

# breaks SED: moving.c so changed ends with a check of its own that failed, or in freed code.
breaks() {
  sed "$1" examples/moving.c >"$work/moving.c"
  cmp -s examples/moving.c "$work/moving.c" && fail "nothing was changed by $1"
  "${CC:-gcc}" -std=c11 -O2 -w -I. -o "$work/moving" "$work/moving.c" "$build/libcodeheap.a" -lm -pthread || fail "it does not build"
  "$work/moving" >"$work/said" 2>&1
  local status=$?
  [ $status = 1 ] || [ $status = 133 ] || [ $status = 139 ] || fail "changed by $1 it ends with $status: $(cat "$work/said")"
}
case_refs_stay_as_they_were_in_a_major_collection() { breaks 's/^\treturn evacuate(w);/\tevacuate(w);\n\treturn w;/'; }
case_refs_stay_as_they_were_in_a_minor_collection() { breaks 's/^\tw = evacuate(w);/\tevacuate(w);/'; }
case_refs_are_not_visited_in_a_minor_collection() { breaks 's/ok(ch_refs_visit(.*));/(void)0;/'; }
case_all_refs_are_visited_in_a_minor_collection() { breaks 's/CH_REFS_YOUNG, visit/CH_REFS_ALL, visit/'; }
case_young_refs_are_forgotten_too_early() { breaks 's/\*is_young = .*;/*is_young = false;/'; }
case_young_refs_are_never_forgotten() { breaks 's/\*is_young = .*;/*is_young = true;/'; }
case_refs_are_not_attached() { breaks 's/ok(ch_ref_attach(.*));/(void)0;/'; }
case_owners_are_not_marked() { breaks 's/ch_mark_owner(marker.*;/(void)marker;/'; }
case_stacks_are_not_marked() { breaks 's/ch_mark_stacks(marker);//'; }

# Without a heap the library's callers do without code: the numbers are right, and the program ends.
case_library_without_a_heap() {
  CODEHEAP_WX=nonsense "$build/examples/library" >"$work/said" 2>&1 || fail "it ends with $?"
  grep -q '^wrong: 0; 10 collections .*, 0 late$' "$work/said" || fail "$(cat "$work/said")"
}

# Memory is short at each commit, or each assumption is broken: the block is still open, and the program is the last one to
# know of it.
case_embed_gives_back_what_cannot_be_committed() {
  local example library
  cat >"$work/refusing.h" <<'C'
#include <codeheap/codeheap.h>
#include <stdio.h>
#include <stdlib.h>
static inline void expect_none_open(struct ch_heap *heap)
{
	struct ch_stats stats = {.size = sizeof stats};
	if (ch_heap_stats(heap, &stats) || stats.blocks_open_now || !stats.blocks_opened)
		exit(99);
	puts("looked");
}
#ifdef ASSUMES
#define ch_block_assume(block, assumption) CH_E_STALE
#else
#define ch_block_commit(codes, count) CH_E_MEMORY
#endif
#define ch_heap_collect(heap) (expect_none_open(heap), ch_heap_collect(heap))
#define ch_heap_stats(heap, stats) (expect_none_open(heap), ch_heap_stats(heap, stats))
C
  while read -r example define; do
    library=$build/libcodeheap.a
    [ $example != embed_boehm ] || library="$build/libcodeheap-bdw.a -lgc"
    [ $example != embed_boehm ] || [ -f "$build/libcodeheap-bdw.a" ] || continue
    "${CC:-gcc}" -std=c11 -O1 -w -I. $define -include "$work/refusing.h" -o "$work/$example" "examples/$example.c" $library \
      -lm -pthread || fail "$example does not build"
    "$work/$example" >"$work/said" 2>&1
    [ $? != 99 ] && grep -q looked "$work/said" || fail "$example $define: $(tail -n 3 "$work/said")"
  done <<'END'
embed_precise
embed_precise -DASSUMES
embed_refcount
embed_refcount -DASSUMES
embed_boehm
embed_boehm -DASSUMES
embed_threads
lazy
END
}

# profile_into FILE.folded: one run; it leaves $work/p.svg, too.
profile_into() {
  "$build/examples/profile" "$work/p.svg" "$1" >"$work/said" || fail "it ends with $?"
  grep -qE '^[0-9]+ samples of 1 thread, 0 dropped; in ' "$work/said" || fail "$(cat "$work/said")"
}

# Two files: well-formed, each loop under main in both. Which of the loops the kernel's ticks find in half a second is luck
# on a busy machine, so it runs until both were found.
case_profile() {
  until profile_into "$work/p.folded" && grep -q ';slow ' "$work/p.folded" && grep -q ';quick ' "$work/p.folded"; do :; done
  python3 - "$work/p.svg" "$work/p.folded" <<'END' || fail "$(cat "$work/p.folded")"
import re, sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
names = {t.text.split("\n")[0] for t in root.iter("{http://www.w3.org/2000/svg}title") if t.text}
assert {"slow", "quick"} <= {n.split(" ")[0] for n in names} and "slow and quick" in names, names
lines = open(sys.argv[2]).read().splitlines()
assert all(re.fullmatch("[^;]+(;[^;]+)* [1-9][0-9]*", line) for line in lines)
leaves = [line.rsplit(" ", 1)[0].split(";") for line in lines]
assert all("main" in stack for stack in leaves if stack[-1] in ("slow", "quick")), leaves
END
}

# Over several runs the loops have their shares. One run is too short for that on a busy machine, where one sample may
# stand for a tenth of a second.
case_profile_shares() {
  local i
  for i in 1 2 3 4 5 6 7 8; do profile_into "$work/$i.folded"; done
  python3 - "$work"/*.folded <<'END' || fail "$(cat "$work"/*.folded)"
import sys
counts = {"slow": 0, "quick": 0}
for line in (line for path in sys.argv[1:] for line in open(path)):
    stack, count = line.rsplit(" ", 1)
    leaf = stack.split(";")[-1]
    if leaf in counts:
        assert "main" in stack.split(";"), stack
        counts[leaf] += int(count)
share = counts["slow"] / (counts["slow"] + counts["quick"])
assert sum(counts.values()) >= 320 and 0.55 < share < 0.92, counts
END
}

if [ $# = 0 ]; then
  for c in examples/*.c; do
    case ${CODEHEAP_TEST_GC:-bdw}/$c in none/*boehm*) continue ;; esac
    case $c in */profile.c) printf '%s\n' 'example_profile 120 0 -' 'example_profile_shares 120 0 timed'; continue ;; esac
    case $c in */library.c) printf 'example_%s 60 0 -\n' library_without_a_heap embed_gives_back_what_cannot_be_committed ;; esac
    [ ! -f "$c" ] || echo "example_$(basename "$c" .c) 60 0 -"
  done
  declare -F | sed -n '/case_\(profile\|library\|embed\)/!s/^declare -f case_\(.*\)/moving_\1 120 0 -/p'
  exit 0
fi
case $1 in example_profile | example_profile_shares | example_library_* | example_embed_gives_*) ;; example_*) exec "$build/examples/${1#example_}" ;; esac
make_work
name=${1#moving_}
"case_${name#example_}"
