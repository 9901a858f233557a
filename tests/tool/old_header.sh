#!/bin/bash
# SPDX-License-Identifier: MIT
# Programs that were compiled with another header than the library's. With an older one, whose structs lack their last
# field, and with each header of a release that tests/old/ keeps, they work. With a newer one they are told by name what the
# library does not know. The binary of each release works, too: tests/old/program-VERSION-x86_64.s is tests/old/program.c as
# the compiler of that release's day made it, with the version of each symbol that it was linked with.
# Without arguments it lists its cases, with a name it runs one. `tests/tool/old_header.sh write` keeps the header of this
# tree and makes the binary of it: for a release, and while 0.2.0 is no release, for each change of the header.
. tests/support/script.sh
make_work
structs="ch_config ch_ops ch_open ch_info ch_stats ch_spot ch_owner_facts ch_profile_options ch_profile_counts ch_profile_view"
version=$(sed -n 's/^#define CH_VERSION_TEXT "\(.*\)"/\1/p' codeheap/codeheap.h)

# The headers with one field less at the end of each struct, or with one more of 8 bytes.
change_header() { # change_header less|more STRUCT...
  local header changed=0
  mkdir -p "$work/codeheap"
  for header in codeheap/{codeheap,look,profile}.h; do
    change "$header" "$@" >"$work/$header"
    cmp -s "$header" "$work/$header" || changed=1
  done
  [ $changed = 1 ] || fail "no header is changed"
}
change() { # change HEADER less|more STRUCT...
  awk -v how="$2" -v structs="${*:3}" '
    BEGIN { split(structs, name, " "); for (i in name) is_sized["struct " name[i] " {"] = 1 }
    # The fields of ch_stats are a list.
    how == "less" && /^#define CH_STATS_LIST/ { in_list = "struct ch_stats {" in is_sized }
    in_list && !/\\$/ { sub(/ X\([a-z_]*\)$/, ""); in_list = 0 }
    $0 in is_sized { inside = !(how == "less" && /ch_stats/); lines = 0 }
    !inside { print; next }
    { line[++lines] = $0 }
    /^};/ {
      inside = 0
      last = lines
      if (how == "less") while (line[--last] !~ /;/) continue
      for (i = 1; i <= lines; i++) {
        if (i == lines && how == "more") print "\tuint64_t of_a_newer_header;"
        if (how == "more" || i != last) print line[i]
      }
    }' "$1"
}

# It opens, commits, looks at and frees some code, and with `others` profiles it; the sizes of its structs are the header's.
others=yes
compile() {
  cat >"$work/program.c" <<'C'
#include <codeheap/codeheap.h>
#ifdef WITH_OTHER_HEADERS
#include <codeheap/look.h>
#include <codeheap/profile.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void ok(enum ch_status status) {
  if (status == CH_OK) return;
  printf("%s\n", ch_why());
  exit(3);
}
static int fallback(void) { return -1; }
int main(void) {
  struct ch_config config;
  struct ch_ops ops = {.size = sizeof ops};
  struct ch_open open = {.size = sizeof open, .hot_bytes = 64};
  struct ch_info info = {.size = sizeof info};
  struct ch_stats stats = {.size = sizeof stats};
  struct ch_spot spot = {.size = sizeof spot};
  static struct ch_code code;
  struct ch_heap *heap;
  struct ch_vm *vm;
  ch_config_init(&config);
  ok(ch_heap_create(&config, &heap));
  ok(ch_vm_attach(heap, &ops, NULL, &vm));
  ok(ch_thread_attach(heap, NULL, NULL));
  ok(ch_owner_create(vm, "older", (const void *)fallback, NULL, &open.owner));
  ok(ch_block_open(&open, &code));
  memset(code.write, 0, 8);
  code.used_to = 8;
  ok(ch_block_commit(&code, 1));
  ok(ch_owner_set_entry(open.owner, code.block));
  ok(ch_block_info(code.block, &info));
  if (info.state != CH_BLOCK_LIVE || info.hot_bytes < 8) return 4;
  ok(ch_heap_stats(heap, &stats));
  if (stats.blocks_now != 1 || stats.owners_now != 1) return 5;
  /* It says no more than that it does not know the size. */
  if (!ch_code_at(heap, info.entry, false, &spot)) return puts("CH_E_ARG: ch_spot.size is not one that it takes "), 3;
  if (spot.block.bits != code.block.bits || spot.state != CH_BLOCK_LIVE) return 6;
#ifdef WITH_OTHER_HEADERS
  struct ch_owner_facts facts = {.size = sizeof facts};
  struct ch_profile_options options = {.size = sizeof options, .by_wall_clock = true};
  struct ch_profile_counts counts = {.size = sizeof counts};
  struct ch_profile_view view = {.size = sizeof view};
  ok(ch_owner_info(open.owner, &facts));
  if (!facts.name || strcmp(facts.name, "older")) return 7;
  ok(ch_profile_start(heap, 100, &options));
  ok(ch_profile_stop(heap, &counts));
  if (counts.threads != 1) return 8;
  ok(ch_profile_write(heap, "/dev/null", &view));
#endif
  ok(ch_owner_release(open.owner, CH_RELEASE_COLLECT));
  ok(ch_heap_collect(heap));
  ok(ch_vm_detach(vm));
  ok(ch_heap_destroy(heap));
  puts("done");
  return 0;
}
C
  "$cc" -std=c11 -Wall ${others:+-DWITH_OTHER_HEADERS} -I"$work" -I. -o "$work/program" "$work/program.c" \
    -L"$build" -lcodeheap-profile -lcodeheap ||
    fail "it does not compile with that header"
}

runs() {
  compile
  said=$(LD_LIBRARY_PATH=$build "$work/program") || fail "it ended with $?: $said"
  [ "$said" = done ] || fail "it said: $said"
}

refuses() { # refuses STRUCT
  change_header more "$1"
  compile
  said=$(LD_LIBRARY_PATH=$build "$work/program")
  [ $? = 3 ] || fail "it was not refused with a newer $1: $said"
  [[ $said == "CH_E_ARG: $1.size is "*" takes "* ]] || fail "of a newer $1 it was told: $said"
}

case_program_of_an_older_header_works() {
  for one in $structs; do change_header less "$one"; runs; done
  # shellcheck disable=SC2086
  change_header less $structs
  runs
}
case_program_of_a_newer_header_is_refused_by_name() {
  for one in $structs; do refuses "$one"; done
}
case_programs_of_the_headers_of_releases_work() {
  for header in tests/old/*.h; do
    [ -e "$header" ] || continue
    mkdir -p "$work/codeheap"
    cp "$header" "$work/codeheap/codeheap.h"
    others=
    runs
  done
}

# Comments apart.
case_kept_header_of_this_version_is_the_header() {
  local kept=tests/old/codeheap-$version.h
  [ -e "$kept" ] || fail "there is no $kept: tests/tool/old_header.sh write"
  diff <("$cc" -E -P "$kept") <("$cc" -E -P codeheap/codeheap.h) ||
    fail "< $kept, > codeheap/codeheap.h: tests/tool/old_header.sh write, unless $version is released"
}

link_binary() { # link_binary ASSEMBLER: with today's libraries
  "$cc" -o "$work/binary" "$1" -L"$build" -lcodeheap-profile -lcodeheap
}
# The symbols of the interface that a program needs, each with the version that it needs.
needed_by() { readelf -W --dyn-syms "$1" | awk '$7 == "UND" && $8 ~ /^ch_/ {print $8}' | sort; }
case_binary_of_each_release_works() {
  local program header name found=0
  for program in tests/old/program-*-x86_64.s; do
    found=$((found + 1))
    link_binary "$program" || fail "$program does not link with the libraries of today"
    said=$(LD_LIBRARY_PATH=$build timeout -s KILL 60 "$work/binary") || fail "$program ended with $?: $said"
    [ "$said" = done ] || fail "$program said: $said"
    # It is bound to the versions that it was linked with, and no function of its header is left out.
    diff <(sed -n 's/^\t\.symver \(.*\), .*@\(.*\)/\1@\2/p' "$program" | sort) <(needed_by "$work/binary") ||
      fail "$program: < the versions that it was linked with, > those that it needs"
    header=${program/program/codeheap}
    for name in $("$cc" -E -P "${header%-x86_64.s}.h" | grep -o '\bch_[a-z_]*(' | sort -u); do
      [ "$name" = "ch_config_init(" ] || grep -q "\.symver ${name%(}," "$program" || fail "$program does not call $name"
    done
    # A version that the libraries lack is noticed.
    sed 's/\(\.symver ch_why,.*@\).*/\1LIBCODEHEAP_9.9/' "$program" >"$work/other.s"
    link_binary "$work/other.s" 2>"$work/said" && fail "it links with a version that no library has"
    grep -q 'ch_why@LIBCODEHEAP_9\.9' "$work/said" || fail "of a version that is not there: $(cat "$work/said")"
  done
  [ "$found" -gt 0 ] || fail "no binary is kept"
}

write() {
  local program=tests/old/program-$version-x86_64.s
  cp codeheap/codeheap.h "tests/old/codeheap-$version.h"
  "$cc" -std=gnu11 -Os -fPIC -fno-asynchronous-unwind-tables -fcf-protection=none -I. -S -o "$work/program.s" tests/old/program.c || exit 1
  link_binary "$work/program.s" || exit 1
  { echo '# SPDX-License-Identifier: MIT'
    echo "# tests/old/program.c with the headers of $version, by \`tests/tool/old_header.sh write\`."
    needed_by "$work/binary" | sed 's/\(.*\)@\(.*\)/\t.symver \1, \1@\2/'
    cat "$work/program.s"; } >"$program"
  echo "wrote $program and tests/old/codeheap-$version.h"
}

if [ $# = 0 ]; then
  # The binaries are of x86-64.
  [[ $("$cc" -dumpmachine) == x86_64-* ]] && left='$' || left='binary'
  list_functions 120 | grep -v "^$left"
  exit 0
fi
[ "$1" = write ] && { write; exit; }
"case_$1"
