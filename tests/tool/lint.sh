#!/bin/bash
# SPDX-License-Identifier: MIT
# Every rule of tools/lint_text.py, signal_reach.py, lint_adversaries.py and of tests/breaks finds what it is there to find:
# each case plants one offence in a clean small tree. That the small trees are clean is a case of its own.
# Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
root=$PWD
spdx='/* SPDX-License-Identifier: MIT */'

# found_by CHECKER FILE FINDING: the checker fails and reports FINDING for that file.
found_by() {
  local said
  said=$(python3 "$root/$1") && fail "nothing found: $said"
  echo "$said" | grep -F -- "$3" | grep -q "^$2:[0-9]*: " || fail "no finding '$3' for $2 in: $said"
}
found() { found_by tools/lint_text.py "$@"; }
# offend FILE TEXT FINDING: TEXT is appended to FILE (made with an SPDX line if it is new) and must be found.
offend() {
  mkdir -p "$(dirname "$1")"
  [ -f "$1" ] || echo "$spdx" >"$1"
  printf '%b\n' "$2" >>"$1"
  found "$1" "$3"
}
# unoffended CHECKER: it finds nothing.
unoffended() {
  local said
  said=$(python3 "$root/tools/$1") || fail "the clean tree has findings: $said"
}
case_clean_trees_have_no_findings() {
  unoffended lint_text.py
  write_guarantees
  unoffended lint_text.py
  mkdir scenarios && cd scenarios || exit 1
  catalogue
  unoffended lint_adversaries.py
}
many() { local i; for ((i = 0; i < $1; i++)); do echo "$2"; done; }

case_upward_include() {
  echo "$spdx" >codeheap/look.h
  offend pages/pool.c '#include "codeheap/look.h"' 'must not know codeheap/'
}
case_unwind_knows_no_pages() {
  mkdir -p os pages && echo "$spdx" >pages/pages.h && echo "$spdx" >os/os.h
  printf '%s\n' "$spdx" '#include "os/os.h"' >unwind/walk.c
  offend unwind/walk.c '#include "pages/pages.h"' 'unwind/ must not know pages/'
}
case_sinks_know_no_pages() {
  echo "$spdx" >pages/pages.h
  offend sinks/sinks.c '#include "pages/pages.h"' 'sinks/ must not know pages/'
}
case_unwinder_knows_no_table_of_sinks() {
  echo "$spdx" >sinks/sinks.h
  offend unwind/sink_libgcc.c '#include "sinks/sinks.h"' 'unwind/ must not know sinks/'
}
case_observer_sees_no_block() {
  mkdir -p observe && echo "$spdx" >codeheap/block.h
  offend observe/profile.c '#include "codeheap/block.h"' 'sees the public header, the listener and the system only'
}
case_core_knows_no_observer() {
  mkdir -p observe && echo "$spdx" >observe/profile.h
  offend codeheap/heap.c '#include "observe/profile.h"' 'must not know observe/'
}
case_graph_knows_no_invalidation() {
  mkdir -p codeheap/graph invalidate && echo "$spdx" >invalidate/link.h
  offend codeheap/graph/block.c '#include "invalidate/link.h"' 'codeheap/graph/ must not know invalidate/'
}
case_invalidation_knows_no_collection() {
  mkdir -p codeheap/collect invalidate && echo "$spdx" >codeheap/collect/mark.h
  offend invalidate/link.c '#include "codeheap/collect/mark.h"' 'invalidate/ must not know codeheap/collect/'
}
case_header_is_read_once() {
  offend pages/pool.h '#ifndef CH_PAGES_POOL_H\n#define CH_PAGES_POOL_H\n#endif' 'has no #pragma once'
}
case_host_sees_public_headers_only() {
  echo "$spdx" >codeheap/block.h
  offend hosts/toy/toy.c '#include "codeheap/block.h"' 'public headers only'
}
case_host_knows_no_tool() {
  mkdir -p hosts tools/draw tools/top && echo "$spdx" | tee tools/draw/draw.h >tools/top/view.h
  printf '%s\n' "$spdx" '#include "tools/draw/draw.h"' >hosts/toy.c
  unoffended lint_text.py
  offend hosts/toy.c '#include "tools/top/view.h"' 'must not know tools/'
}
case_tool_sees_what_its_row_says() {
  local name
  mkdir -p flame tools/callgrind
  for name in os/meta flame/flame flame/tree; do
    printf '%s\n' "$spdx" '#pragma once' >"$name.h"
  done
  found flame 'includes no os/meta.h'
  echo '#include "os/meta.h"' >>flame/tree.h
  offend tools/callgrind/stacks.h '#include "flame/tree.h"' 'public headers only'
  found tools/callgrind/stacks.h 'includes no flame/flame.h'
  printf '%s\n' "$spdx" '#include "flame/flame.h"' >tools/callgrind/stacks.h
  unoffended lint_text.py
  offend tools/callgrind/graph.c '#include "flame/flame.h"' 'public headers only'
}
case_drawing_sees_no_tool() {
  mkdir -p tools/draw && echo "$spdx" >tools/view.h
  offend tools/draw/draw.c '#include "tools/view.h"' 'sees the C library only'
}
case_mman_has_one_file() { offend pages/pool.c '#include <sys/mman.h>' 'os/linux.c only'; }
case_jemalloc_has_one_file() { offend codeheap/heap.c '#include <jemalloc/jemalloc.h>' 'os/meta.c only'; }
case_libgc_has_one_file() { offend codeheap/mark.c '#include <gc/gc_mark.h>' 'codeheap/gc_bdw.c only'; }
case_elf_has_one_file() {
  printf '%s\n' "$spdx" '#include <elf.h>' >unwind/gdb.c
  offend unwind/walk.c '#include <elf.h>' 'one dependency, one file'
}
case_link_has_one_file() { offend unwind/walk.c '#include <link.h>' 'os/linux_threads.c and observe/linux_images.c only'; }
case_platform_conditional() { offend codeheap/mark.c '#if defined(__loongarch__)\n#endif' '#if on __loongarch__'; }
case_place_of_a_port_that_no_table_names() {
  mkdir -p arch; touch arch/x86_64.S arch/aarch64.S
  offend codeheap/mark.c 'static const char *const machines[] = {"x86_64", "aarch64"};' 'names machines'
}
case_place_of_a_port_that_is_gone() {
  mkdir -p arch; touch arch/x86_64.S arch/aarch64.S
  offend docs/porting.md 'A port also adds a few lines to these 1 files:\n\n| place | what |\n|---|---|\n| `codeheap/gone.c` | nothing |' 'names no two machines'
}
case_places_of_a_port_that_are_miscounted() {
  mkdir -p arch; touch arch/x86_64.S arch/aarch64.S
  offend docs/porting.md 'A port also adds a few lines to these 3 files:\n\n| place | what |\n|---|---|' 'there are 0 files'
}
case_word_over_two_lines() { offend codeheap/mark.c '/* it is so for\n''\x20* now */' 'word `for'; }
case_word_of_time() { offend docs/x.md 'It is Current''ly so.' '`Current''ly`'; }
case_word_numbered_stage() { offend docs/x.md 'in ph''ase 2 of it' '`ph''ase 2`'; }
case_word_in_a_manual_page() { offend docs/man/x.3 'to be FIX''ME' '`FIX''ME`'; }
case_word_todo() { offend tools/x.sh '# TO''DO' '`TO''DO`'; }
case_long_line() { offend pages/pool.c "int x; /* $(many 100 y | tr -d '\n') */" 'columns, at most 100'; }
case_long_function() {
  offend pages/pool.c "int f(void) {\n$(many 60 '  ;')\n}" 'a function of 62 lines'
}
case_long_file() { offend pages/pool.c "$(many 800 'int x;')" 'at most 800'; }
case_long_makefile() { offend Makefile "$(many 250 '# x')" 'are in mk/'; }
case_no_licence_line() { echo "int x;" >pages/pool.c; found pages/pool.c 'no SPDX line'; }
case_public_function_without_comment() { offend codeheap/codeheap.h 'CH_API int ch_x(void);' 'has no comment'; }
case_public_function_without_ret() {
  offend codeheap/codeheap.h '/* ch_x: does\n * safe  any thread */\nCH_API int ch_x(void);' 'no `ret` line'
}
case_public_function_without_safe() {
  offend codeheap/codeheap.h '/* ch_x: does\n * in    y  a */\nCH_API void ch_x(int y);' 'no `safe` line'
}
case_public_function_with_keys_out_of_order() {
  offend codeheap/codeheap.h '/* ch_x: does\n * safe  any\n * ret   one */\nCH_API int ch_x(void);' 'the order is'
}
case_public_header_includes_more() { offend codeheap/codeheap.h '#include <stdio.h>' 'must not include stdio.h'; }
case_quote_differs_in_readme() { sed -i 's/return 7/return 8/' README.md; found README.md 'does not quote'; }
case_readme_is_too_long() { yes | head -n 100 >>README.md; found README.md '107 lines, at most 100'; }
case_quote_differs_in_header() {
  sed -i 's/return 7/return 8/' codeheap/codeheap.h
  found codeheap/codeheap.h 'does not quote'
}
write_embedding() { # write_embedding EXAMPLE LINE: a document that quotes one line of it
  printf '%s\n' "$spdx" 'int main(void) {' '  return 0;' '}' >examples/embed_x.c
  printf '%s\n' "See [it](../examples/embed_x.c)." '' "From [$1](../$1):" '' '```c' "$2" '```' >docs/embedding.md
}
case_quote_in_a_document_differs() {
  write_embedding examples/embed_x.c 'return 0;'
  python3 "$root/tools/lint_text.py" >/dev/null || fail 'a right quote is a finding'
  write_embedding examples/embed_x.c 'return 1;'
  found docs/embedding.md 'is not in it word for word'
}
case_quote_in_a_document_of_no_file() {
  write_embedding examples/embed_y.c 'return 0;'
  found docs/embedding.md 'there is no examples/embed_y.c to quote'
}
case_quote_in_a_document_is_missing() {
  write_embedding examples/embed_x.c 'return 0;'
  sed -i '/^From/d' docs/embedding.md
  found docs/embedding.md 'quotes nothing of examples/embed_x.c'
}
case_smallest_example_without_main() { sed -i '/int main/d' examples/smallest.c; found examples/smallest.c 'has no line'; }
case_smallest_example_is_too_long() { sed -i '$s/^/\n\n\n\n\n\n\n/' examples/smallest.c; found examples/smallest.c 'at most 10'; }

# reaches C-TEXT FINDING: of a handler in codeheap/a.o, which calls what codeheap/b.o defines, with the list as it is. Each is a
# folder, its build and list, for judge_reached.
reaches() {
  local to=$((count += 1))
  mkdir -p $to/obj/codeheap
  cp list $to
  ln a.o $to/obj/codeheap/a.o
  printf '%s\n' "$1" | ${CROSS}gcc -O2 -fPIC -x c -c -o $to/obj/codeheap/b.o - || fail 'b.o'
  printf '%s\n' "$2" >$to/finding
}
# Python starts once for all of them.
judge_reached() { # judge_reached ARCH
  python3 - "$root/tools" "$1" "$count" <<'END' || exit 1
import contextlib, io, sys
tools, arch, count = sys.argv[1:]
sys.path.insert(0, tools)
sys.dont_write_bytecode = True
import signal_reach
for number in range(1, int(count) + 1):
    said, finding = io.StringIO(), open(f"{number}/finding").read().rstrip("\n")
    with contextlib.redirect_stdout(said):
        found = signal_reach.main(str(number), f"{number}/list", arch)
    if bool(found) != bool(finding) or finding not in said.getvalue():
        sys.exit(f"{number}: no finding '{finding}' in: {said.getvalue()}")
END
}
reaches_no_more() { # reaches_no_more ARCH
  local arch=$1 count=0
  export CROSS=''
  [ "$(uname -m)" = "$arch" ] || CROSS=$arch-linux-gnu-
  command -v ${CROSS}gcc >/dev/null || { echo "skip: there is no ${CROSS}gcc"; exit 77; }
  printf '%s\n' 'static int n; void ch__b(void); __attribute__((noinline)) static void sub(void) { ch__b(); n++; }' \
    'void handler(int s); void handler(int s) { if (s) sub(); n++; }' | ${CROSS}gcc -O1 -fPIC -x c -c -o a.o - || fail 'a.o'
  printf '%s\n' 'root codeheap/a.o:handler' 'allow getpid' >list
  reaches 'int getpid(void); void ch__b(void); int n; void ch__b(void) { n = getpid(); }' ''
  reaches 'void *malloc(unsigned long); void ch__b(void); void *p; void ch__b(void) { p = malloc(9); }' \
    'a signal handler reaches malloc by handler > sub > ch__b'
  reaches 'void *malloc(unsigned long); void *ch__b(void); void *ch__b(void) { return malloc(9); }' \
    'a signal handler reaches malloc by handler > sub > ch__b'
  reaches 'void free(void *); extern void (*q)(void *); void ch__b(void); void ch__b(void) { q = free; }' \
    'a signal handler reaches free by handler > sub > ch__b'
  reaches 'void ch__b(void); void (*p)(void); void ch__b(void) { p(); p(); }' 'calls through a pointer that no edge names'
  reaches 'void ch__b(void); extern void (*p)(void) __attribute__((visibility("hidden"))); void ch__b(void) { p(); }' \
    'calls through a pointer that no edge names'
  reaches 'void ch__b(void (**)(void)); void ch__b(void (**p)(void)) { void (*f)(void) = *p; *p = 0; f(); }' \
    'calls through a pointer that no edge names'
  reaches 'int getpid(void); int ch__b(int); int ch__b(int n) { switch (n) { case 0: return getpid() + 1; case 1: return 7;
    case 2: return n * getpid(); case 3: return n / 3; case 4: return n ^ 5; case 5: return n << 9; } return 1; }' ''
  # Side by side in the object: what lies behind the jump of the one is no call of the other.
  reaches '#define COLD __attribute__((cold, noinline))
    int getpid(void); void *malloc(unsigned long); int ch__b(void); void *ch__c(void); int ch__d(void); COLD int ch__d(void) { return getpid(); }
    COLD int ch__b(void) { return getpid(); } COLD void *ch__c(void) { return malloc(9); }' ''
  echo 'edge codeheap/b.o:ch__b' >>list
  reaches 'void ch__b(void); void (*p)(void); void ch__b(void) { p(); p(); }' ''
  echo 'edge codeheap/a.o:gone' >>list
  reaches 'void ch__b(void); void ch__b(void) {}' 'there is no function codeheap/a.o:gone, which an edge leaves'
  sed -i '$d' list
  echo 'root codeheap/a.o:nobody' >>list
  reaches 'void ch__b(void); void ch__b(void) {}' 'there is no function codeheap/a.o:nobody'
  judge_reached "$arch"
}
case_signal_handler_reaches_no_more_than_it_may() { reaches_no_more "$(uname -m)"; }
case_signal_handler_of_another_machine_reaches_no_more() {
  local machine is_one=false
  for machine in "$root"/arch/*.S; do
    machine=$(basename "$machine" .S)
    [ "$machine" = "$(uname -m)" ] || ! command -v "$machine-linux-gnu-gcc" >/dev/null || {
      is_one=true
      mkdir "of-$machine"
      (cd "of-$machine" && reaches_no_more "$machine") || exit
    }
  done
  [ $is_one = true ] || { echo 'skip: there is no cross compiler'; exit 77; }
}
# A tree of 55 scenarios and one row beside them; `catalogued FILE FINDING`: the table's checker fails and reports it.
catalogue() {
  local n
  mkdir -p tests/breaks tests/adversary
  printf '%s\n' '| | scenario | test | mutant | where |' '|---|---|---|---|---|' >tests/adversaries.md
  printf '%s\n' 'int broken = 0;' 'int torn = 0;' >codeheap/a.c
  printf '%s\n' 'mutant BROKEN' 'in codeheap/a.c' '-int broken = 0;' '+int broken = 1;' >tests/breaks/a.rows
  for ((n = 1; n <= 55; n++)); do
    printf '| %d | of it | `s%02d_is_survived` | BROKEN | PSHB |\n' $n $n >>tests/adversaries.md
    printf 'EVERY_DRIVER(s%02d_is_survived)\n{\n}\n' $n >>tests/adversary/all.c
    printf 'fails adversary_all s%02d_is_survived_polls\n' $n >>tests/breaks/a.rows
  done
  printf '%s\n' '| `other_is_survived` | TORN | P |' >>tests/adversaries.md
  printf 'TEST(other_is_survived)\n{\n\tstage_new(STAGE_POLLS);\n}\n' >>tests/adversary/all.c
  printf '%s\n' 'mutant TORN' 'in codeheap/a.c' ' int broken = 0;' '-int torn = 0;' '+int torn = 1;' \
    'fails adversary_all other_is_survived' >tests/breaks/b.rows
}
catalogued() { found_by tools/lint_adversaries.py "$@"; }
case_scenario_without_a_row() {
  catalogue
  sed -i '/^| 40 |/d' tests/adversaries.md
  catalogued tests/adversaries.md 'scenario 40 has no row'
}
case_scenario_with_two_rows() {
  catalogue
  sed -i 's/^| 41 |/| 40 |/' tests/adversaries.md
  catalogued tests/adversaries.md 'a second row for scenario 40'
}
case_scenario_without_a_test_of_its_own() {
  catalogue
  sed -i '/^| 7 |/s/s07_/s08_/' tests/adversaries.md
  catalogued tests/adversaries.md 'scenario 7 names no test s07_'
}
case_scenario_without_a_mutant() {
  catalogue
  sed -i '/^| 7 |/s/BROKEN//' tests/adversaries.md
  catalogued tests/adversaries.md 'scenario 7 has no mutant'
}
case_scenario_on_more_drivers_than_its_row() {
  catalogue
  sed -i '/^| 7 |/s/PSHB/PSB/' tests/adversaries.md
  catalogued tests/adversaries.md 'scenario 7: its tests run on H'
}
case_scenario_on_fewer_drivers_than_its_row() {
  catalogue
  sed -i 's/EVERY_DRIVER(s07/THREADED_DRIVER(s07/' tests/adversary/all.c
  catalogued tests/adversaries.md 'scenario 7: no test of the row runs on H'
}
case_test_of_the_table_is_gone() {
  catalogue
  sed -i 's/other_is_survived)/another_is_survived)/' tests/adversary/all.c
  catalogued tests/adversaries.md 'no test is named other_is_survived'
}
case_test_of_a_scenario_is_not_in_the_table() {
  catalogue
  printf 'TEST(s07_is_survived_twice)\n{\n}\n' >>tests/adversary/all.c
  catalogued tests/adversary/all.c 's07_is_survived_twice is not in the row of scenario 7'
}
case_test_of_a_scenario_that_no_mutant_fails() {
  catalogue
  printf 'TEST(s07_is_survived_twice)\n{\n}\n' >>tests/adversary/all.c
  sed -i 's/`s07_is_survived`/&, `s07_is_survived_twice`/' tests/adversaries.md
  catalogued tests/adversary/all.c 's07_is_survived_twice fails under no mutant of tests/breaks'
}
case_mutant_of_the_table_is_gone() {
  catalogue
  rm tests/breaks/b.rows
  catalogued tests/adversaries.md 'no mutant is named TORN'
}
planted() { found_by tests/breaks/rows.py "$@"; }
case_mutant_that_nobody_must_notice() {
  catalogue
  sed -i '/^fails/d' tests/breaks/b.rows
  planted tests/breaks/b.rows 'nobody must notice TORN'
}
case_mutant_whose_text_is_gone() {
  catalogue
  sed -i 's/torn/worn/' codeheap/a.c
  planted tests/breaks/b.rows 'the text of TORN stands 0 times in codeheap/a.c'
}
case_mutant_whose_text_stands_twice() {
  catalogue
  cat codeheap/a.c codeheap/a.c >codeheap/b.c
  mv codeheap/b.c codeheap/a.c
  planted tests/breaks/a.rows 'the text of BROKEN stands 2 times in codeheap/a.c'
}
case_mutant_of_two_rows() {
  catalogue
  sed -i 's/TORN/BROKEN/' tests/breaks/b.rows
  planted tests/breaks/b.rows 'BROKEN is a row of tests/breaks/a.rows, too'
}
case_mutant_that_changes_nothing() {
  catalogue
  sed -i 's/^+int torn = 1/+int torn = 0/' tests/breaks/b.rows
  planted tests/breaks/b.rows 'TORN changes no text'
}
case_case_of_a_weak_memory_that_nothing_fails() {
  catalogue
  mkdir tests/orders
  printf '\t{"stop", 1},\n' >tests/orders/cases_a.c
  planted tests/orders/cases_a.c 'no row shows that the case stop can fail'
}
case_line_that_belongs_to_no_row() {
  catalogue
  echo 'mutant' >>tests/breaks/b.rows
  planted tests/breaks/b.rows 'is no line of a row'
}
# What a script breaks in copies of sources, in a tree with one of each kind of line.
scripts_that_break() {
  mkdir -p tests/tool tests/host tools/callgrind hosts/scheme flame
  printf '%s\n' 'int good;' 'int bad;' | tee tools/callgrind/a.c hosts/scheme/a.c >flame/b.c
  printf '%s\n' 'f() {' "  rule some_case a.c '^int good' 'int worse'" "  rule a.c 'int bad' \\" "    'int worse'" \
    "  breaks draws plain b.c 'int bad' 'int worse'" '}' >tests/tool/a.sh
  printf '%s\n' 'g() {' "  breaks a 's/^int good/int worse/' case" '}' >tests/host/b.sh
  python3 "$root/tests/breaks/scripts.py" | grep -qx 'note: 4 lines of scripts break what they name' || fail 'the clean tree has findings'
}
broken_script() { found_by tests/breaks/scripts.py "$@"; }
case_script_breaks_a_line_that_is_gone() {
  scripts_that_break
  echo "int good;" | tee tools/callgrind/a.c >flame/b.c
  echo "int bad;" >hosts/scheme/a.c
  broken_script tests/tool/a.sh 'changes nothing in tools/callgrind/a.c'
  broken_script tests/tool/a.sh 'changes nothing in flame/b.c'
  broken_script tests/host/b.sh 'changes nothing in hosts/scheme/a.c'
}
case_script_breaks_text_that_stands_twice() {
  scripts_that_break
  echo 'int bad;' >>flame/b.c
  broken_script tests/tool/a.sh 'changes nothing in flame/b.c'
}
case_script_breaks_a_file_that_is_gone() {
  scripts_that_break
  rm flame/b.c
  broken_script tests/tool/a.sh 'names no file to break'
}
case_mutant_that_the_table_does_not_name() {
  catalogue
  sed -i 's/TORN/BENT/' tests/breaks/b.rows
  catalogued tests/breaks/b.rows 'tests/adversaries.md does not name BENT'
}
case_mutant_shown_with_a_test_of_another_row() {
  catalogue
  sed -i 's/^fails adversary_all s07_/fails adversary_all s08_/' tests/breaks/a.rows
  catalogued tests/adversaries.md 'no test of this row fails under BROKEN'
}
case_line_of_a_case_that_is_gone() {
  catalogue
  sed -i 's/s07_is_survived_polls/s07_is_survived_elsewhere/' tests/breaks/a.rows
  catalogued tests/breaks/a.rows 'adversary_all has no case s07_is_survived_elsewhere'
}

# What only tests use is in no release object.
released() { # released SOURCE HEADER FINDING
  mkdir -p pages
  printf '%s\n' "$2" >pages/a.h
  printf '%s\n' '#include "pages/a.h"' "$1" >pages/a.c
  gcc -I. -c -o a.o pages/a.c || exit 1
  local said
  said=$("$root/tools/lint_release.py" a.o) && fail "nothing found: $said"
  echo "$said" | grep -qF -- "$3" || fail "no finding '$3' in: $said"
}
case_global_that_only_tests_use() {
  released 'int ch__only(void) { return 1; }' 'int ch__only(void); /* ch__only */' 'only tests use ch__only'
}
case_global_that_only_checked_builds_use() {
  printf -v header '%s\n' 'int ch__only(void);' '#if CH_CHECK >= 2' '#if CH_LATER' 'static inline int ch__a(void) { return ch__only(); }' \
    '#endif' '#endif'
  released 'int ch__only(void) { return 1; }' "$header" 'only tests use ch__only'
}
case_global_that_a_release_uses_behind_a_checked_block() {
  mkdir -p pages
  printf '%s\n' 'int ch__used(void);' '#if CH_CHECK >= 2' 'int ch__a(void);' '#else' '#define A ch__used()' '#endif' >pages/a.h
  printf '%s\n' '#include "pages/a.h"' 'int ch__used(void) { return 1; }' 'int used(void);' 'int used(void) { return A; }' >pages/a.c
  gcc -I. -c -o a.o pages/a.c || exit 1
  local said
  said=$("$root/tools/lint_release.py" a.o) || fail "refused: $said"
}
case_global_for_tests_in_a_release_object() {
  printf -v header '%s\n' '#define CH_TESTING 1' '#if CH_TESTING' 'int ch__pretended(void);' '#endif'
  released 'int ch__pretended(void) { return 1; } int ch__a(void) { return ch__pretended(); }' "$header" \
    'ch__pretended is for tests, and a.o has it'
}

# What starts a thread or a timer is a guest's.
case_core_starts_no_thread() {
  local said
  object observe/profiler.c 'int pthread_create(void); int timer_create(void); int profile(void);
    int profile(void) { return pthread_create() + timer_create(); }'
  said=$("$root/tools/lint_release.py" obj/*/*.o) || fail "refused: $said"
  object codeheap/look.c 'int pthread_create(void); int timer_create(void); int look(void);
    int look(void) { return pthread_create() + timer_create(); }'
  said=$("$root/tools/lint_release.py" obj/*/*.o) && fail 'nothing found'
  [ "$said" = "$(printf 'codeheap/look.c:1: the core starts no thread and no timer (P10): %s\n' pthread_create timer_create)" ] || fail "$said"
}

# No file of the library uses one that uses it, over whatever others.
object() { # object FILE TEXT: obj/FILE.o
  mkdir -p "$(dirname "$1")" "obj/$(dirname "$1")"
  printf '%s\n' "$2" >"$1"
  gcc -I. -c -o "obj/${1%.c}.o" "$1" || exit 1
}
three_files() { # three_files TEXT: of the lowest
  object pages/pool.c "$1"
  object codeheap/find.c 'int ch__pool_has(void); int ch__find(void); int ch__find(void) { return ch__pool_has(); }'
  object codeheap/mark.c 'int ch__find(void); int ch__mark(void); int ch__mark(void) { return ch__find(); }'
}
case_parts_of_the_heap_have_an_order() {
  local said
  object codeheap/places/find.c 'int ch__find(void); int ch__find(void) { return 1; }'
  object codeheap/look/trap.c 'int ch__find(void); int ch__trap(void); int ch__trap(void) { return ch__find(); }'
  said=$(python3 "$root/tools/lint_graph.py" obj/codeheap/*/*.o) || fail "refused: $said"
  object codeheap/events/vm.c 'int ch__find(void); int ch__event(void); int ch__event(void) { return ch__find(); }'
  said=$(python3 "$root/tools/lint_graph.py" obj/codeheap/*/*.o) && fail 'an upward use is not found'
  [ "$said" = "codeheap/events/vm.c:1: codeheap/events/ must not use codeheap/places/: -ch__find-> codeheap/places/find.c" ] ||
    fail "$said"
}
case_files_that_use_each_other() {
  local said
  three_files 'int ch__pool_has(void); int ch__pool_has(void) { return 0; }'
  said=$("$root/tools/lint_graph.py" obj/*/*.o) || fail "files without a cycle have findings: $said"
  said=$("$root/tools/lint_graph.py" --levels obj/*/*.o)
  echo "$said" | grep -q '^ 2 codeheap/mark.c: codeheap/find.c$' || fail "no level of mark.c in: $said"
  three_files 'int ch__mark(void); int ch__pool_has(void); int ch__pool_has(void) { return ch__mark(); }'
  said=$("$root/tools/lint_graph.py" obj/*/*.o) && fail "nothing found: $said"
  [ "${said%%$'\n'*}" = "codeheap/find.c:1: 3 files use each other: codeheap/find.c -ch__pool_has-> pages/pool.c -ch__mark-> codeheap/mark.c -ch__find-> codeheap/find.c" ] ||
    fail "another cycle: $said"
}
case_pair_among_files_that_use_each_other() {
  local said
  three_files 'int ch__mark(void); int ch__find(void); int ch__pool_has(void); int ch__pool_has(void) { return ch__mark() + ch__find(); }'
  said=$("$root/tools/lint_graph.py" obj/*/*.o) && fail "nothing found: $said"
  [ "${said%%$'\n'*}" = "codeheap/find.c:1: 3 files use each other: codeheap/find.c -ch__pool_has-> pages/pool.c -ch__find-> codeheap/find.c (all: codeheap/find.c codeheap/mark.c pages/pool.c)" ] ||
    fail "another cycle: $said"
}

# A promise, an invariant, a mutant, a test, and a text that names them and nothing else.
write_guarantees() {
  mkdir -p tests/breaks tests/api docs/model
  printf '%s\n' '| P1 | it is so. |' '- **I1, why.** Because.' >docs/design.md
  echo 'mutant BREAKS_IT' >tests/breaks/a.rows
  printf '%s\n' "$spdx" 'TEST(it_is_really_so_polls)' >tests/api/it.c
  printf '%s\n' '### P1: it is so' 'By I1.' '- Tests: `it_is_really_so`. Mutants: `BREAKS_IT`.' '## 2. Rules' >docs/guarantees.md
  echo 'See docs/guarantees.md.' >>README.md
}
offend_guarantees() { write_guarantees && offend docs/guarantees.md "$@"; }
# write_orders LINE: a file of one atomic operation, and the table with its row.
write_orders() {
  printf '%s\n' "$spdx" "$1" >codeheap/mark.c
  printf '%s\n' '| atomic | where | why |' '| `at` | `mark.c` store release | it is read. |' '## Relaxed only' '`n`.' >docs/memory_orders.md
  echo 'See docs/memory_orders.md.' >>README.md
}
case_order_of_each_atomic_has_a_row() {
  write_orders 'atomic_store_explicit(&x->at, 1, memory_order_release);'
  unoffended lint_text.py
  offend codeheap/mark.c 'atomic_store_explicit(&x->to, 1, memory_order_release);' 'has no row of `to` with store release'
  offend codeheap/mark.c 'CH_STORE_RELAXED(&x->to, 1);' 'has no row of `to` with store relaxed'
}
case_order_that_was_weakened_has_no_row() {
  write_orders 'atomic_store_explicit(&x->at, 1, memory_order_seq_cst);'
  found codeheap/mark.c 'has no row of `at` with store seq_cst'
}
case_order_of_a_row_that_is_gone() {
  write_orders 'atomic_store_explicit(&x->n, 1, memory_order_relaxed);'
  found docs/memory_orders.md 'mark.c has no store release of at'
}
case_order_names_no_word_of_the_code() {
  write_orders 'atomic_store_explicit(&x->at, 1, memory_order_release);'
  offend docs/memory_orders.md '`from_another_year` is counted.' 'no file of the library has from_another_year'
}
case_guarantee_names_no_test() { offend_guarantees 'Tests: `it_is_not_so_at_all`.' '`it_is_not_so_at_all` is no test'; }
case_model_names_no_function() {
  mkdir -p docs/model
  offend docs/model/a.pml '/* ch__sweep_none */' 'the library has no ch__sweep_none'
}
case_guarantee_names_no_mutant() { offend_guarantees 'Mutants: `BREAKS_NOTHING`.' '`BREAKS_NOTHING` is no test'; }
case_guarantee_names_no_invariant() { offend_guarantees 'By I7.' 'no invariant I7'; }
case_guarantee_names_no_file() { offend_guarantees 'Model: `docs/model/none.pml`.' '`docs/model/none.pml` is no test'; }
case_guarantee_names_no_call() { offend_guarantees 'Call `ch_nothing`.' '`ch_nothing` is no test'; }
case_guarantee_is_missing() {
  write_guarantees
  echo '| P2 | it is not. |' >>docs/design.md
  found docs/guarantees.md 'P2 has no section'
}
case_guarantees_are_long() { offend_guarantees "$(many 250 'It is.')" 'at most 250'; }
case_guarantees_are_not_linked() {
  write_guarantees
  sed -i '/guarantees/d' README.md
  found README.md 'does not lead to'
}

if [ $# = 0 ]; then
  declare -F | sed -n 's/^declare -f case_\(.*\)/lint_\1 100 0 -/p'
  exit 0
fi
name=${1#lint_}
make_work
cd "$work" || exit 1
mkdir -p os pages unwind sinks codeheap examples docs tools
printf '%b\n' "$spdx" 'int main(void)' '{' ' return 7;' '}' >examples/smallest.c
printf '%b\n' 'One sentence.' '```c' 'int main(void)' '{' ' return 7;' '}' '```' >README.md
printf '%b\n' "$spdx" '/* to start with:' ' *     return 7;' ' */' >codeheap/codeheap.h
"case_$name"
