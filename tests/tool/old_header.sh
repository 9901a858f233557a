#!/bin/bash
# SPDX-License-Identifier: MIT
# Programs that were compiled with another header than the library's: with an older one, whose structs lack their last
# field, and with each header of a release that tests/old/ keeps, they work; with a newer one they are told by name what the
# library does not know. Without arguments it lists its cases, with a name it runs one.
set -u
build=${CODEHEAP_BUILD:-build}
cc=${CC:-gcc}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
structs="ch_config ch_ops ch_open ch_info"

fail() { echo "$*" >&2; exit 1; }

# The header with one field less at the end of each struct, or with one more of 8 bytes.
change_header() { # change_header less|more STRUCT...
  mkdir -p "$work/codeheap"
  awk -v how="$1" -v structs="${*:2}" '
    BEGIN { split(structs, name, " "); for (i in name) is_sized["struct " name[i] " {"] = 1 }
    $0 in is_sized { inside = 1; lines = 0 }
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
    }' codeheap/codeheap.h >"$work/codeheap/codeheap.h"
  ! cmp -s codeheap/codeheap.h "$work/codeheap/codeheap.h" || fail "the header is not changed"
}

# It opens, commits, calls and frees some code; $1: the sizes of its structs, as the header has them.
compile() {
  cat >"$work/program.c" <<'C'
#include <codeheap/codeheap.h>
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
  ok(ch_owner_release(open.owner, CH_RELEASE_COLLECT));
  ok(ch_heap_collect(heap));
  ok(ch_vm_detach(vm));
  ok(ch_heap_destroy(heap));
  puts("done");
  return 0;
}
C
  "$cc" -std=c11 -Wall -I"$work" -I. -o "$work/program" "$work/program.c" -L"$build" -lcodeheap ||
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
    runs
  done
}

if [ $# = 0 ]; then
  declare -F | sed -n 's/^declare -f case_\(.*\)/\1 120 0 -/p'
  exit 0
fi
"case_$1"
