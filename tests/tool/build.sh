#!/bin/bash
# SPDX-License-Identifier: MIT
# The build as packagers have it: with link-time optimization, with a compiler whose warnings nobody has seen, in a folder of
# their own, and killed in the middle. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
gc=${CODEHEAP_TEST_GC:-bdw}
make_work
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES BUILD BUILD_ROOT WERROR EXTRA_CFLAGS EXTRA_LDFLAGS

build_here() { make --no-print-directory -j3 SETUP=no GC="$gc" BUILD="$work/build" "$@" >"$work/log" 2>&1; }

# What has a name of its own is whole, whatever the build died in: here in the tool that makes symbols local, which has emptied
# its file; and with it everything that runs beside it.
case_build_that_was_killed_goes_on() {
  local lto=(EXTRA_CFLAGS='-flto=auto -O0 -g0' EXTRA_LDFLAGS=-Wl,-z,now) so=$work/build/libcodeheap-dl.so
  printf '#!/bin/sh\nfor last; do :; done\n: >"$last"\nkill -KILL 0\n' >"$work/killer"
  chmod 755 "$work/killer"
  setsid --wait make --no-print-directory -j3 SETUP=no GC="$gc" BUILD="$work/build" "${lto[@]}" \
    OBJCOPY="$work/killer" "$so" >"$work/log" 2>&1 && fail "nothing was killed"
  [ -f "$work/build/obj/libcodeheap-dl.o.new" ] || { tail -n 5 "$work/log" >&2; fail "it died elsewhere"; }
  find "$work/build" -type f ! -name '*.new' ! -name '*.d' -empty | grep . && fail "these are not whole"
  build_here "${lto[@]}" "$so" "$work/build/examples/min" || { tail -n 20 "$work/log" >&2; fail "the next build failed"; }
  nm -D --defined-only "$so" | grep -q ' ch_heap_create@' || fail "a shared object without symbols"
  # And the libraries of a build that optimizes when it links are machine code.
  readelf -SW "$work/build/libcodeheap.a" | grep 'gnu\.lto' && fail "libcodeheap.a is not for every linker"
  [ "$(uname -m)" != x86_64 ] || "$work/build/examples/min" >/dev/null || fail "the program failed"
  readelf -dW "$work/build/examples/min" | grep -qw NOW || fail "the linker did not get the packager's flags"
}

# The headers of the kernel are no part of musl. Debian's libgcc asks glibc's loader for objects.
case_archive_is_built_with_musl() {
  command -v musl-gcc >/dev/null || { echo 'skip: there is no musl-gcc'; exit 77; }
  local kernel=$work/kernel from
  mkdir "$kernel"
  for from in linux asm-generic "$(gcc -print-multiarch)/asm"; do ln -s "/usr/include/$from" "$kernel/"; done
  build_here CC=musl-gcc GC=none ALLOC=malloc WERROR=1 EXTRA_CFLAGS="-O0 -idirafter $kernel" "$work/build/libcodeheap.a" ||
    { tail -n 20 "$work/log" >&2; fail "the build failed"; }
  echo 'int _dl_find_object(void *at, void *found) { return -1; }' >"$work/loader.c"
  musl-gcc -I. -o "$work/min" examples/min.c "$work/loader.c" "$work/build/libcodeheap.a" || fail "the link failed"
  [ "$("$work/min")" = "$("$CODEHEAP_BUILD/examples/min")" ] || fail "the program says something else"
}

made_with() { make --no-print-directory "$@" vars | sed -n 's/^CFLAGS=//p'; }
case_build_has_warnings_as_errors_in_tests_only() {
  made_with | grep -q -- -Wall || fail "no flags"
  made_with | grep -- -Werror && fail "a warning ends the build of a packager"
  made_with WERROR=1 | grep -q -- -Werror || fail "WERROR=1 does nothing"
  grep -q '^export WERROR=1' .ci/run || fail "the gate lets warnings pass"
}

case_build_lies_in_the_folder_that_was_named() {
  if [ -e .git ] || [ -f MANIFEST ]; then
    build_here dist || { cat "$work/log" >&2; fail "make dist"; }
    [ -n "$(find "$work/build" -name 'libcodeheap-*.tar.gz')" ] || fail "the tarball is elsewhere"
  fi
  make --no-print-directory -n ci BUILD="$work/ci" | grep -qF "BUILD_ROOT='$work/ci'" || fail "make ci builds elsewhere"
  make --no-print-directory -n model SETUP=no BUILD="$work/ci" | grep -qF "CODEHEAP_BUILD=$work/ci " || fail "make model searches elsewhere"
  make --no-print-directory vars BUILD_ROOT="$work/ci" GC=none | grep -qFx "BUILD=$work/ci/gc-none" || fail "a variant is elsewhere"
  timeout -s KILL 60 make --no-print-directory steady RUNS=0 LOAD=0 BUILD="$work/run" >/dev/null 2>"$work/log" || fail "make steady"
  [ ! -s "$work/log" ] || fail "make steady says: $(<"$work/log")"
  TMPDIR="$work/a b" make --no-print-directory -n run-check TIER=core T=nonsense | grep -qF ' TMPDIR=/tmp ' || fail "files of cases lie in a folder with a blank"
  make --no-print-directory vars BUILD="$work/a b" 2>&1 | grep -qF 'a name without a blank' || fail "a blank is not refused"
  [ -d "$work/run/steady" ] || fail "make steady writes elsewhere"
  make --no-print-directory clean BUILD="$work/run" >/dev/null || fail "make clean"
  [ ! -e "$work/run" ] && [ -d "$CODEHEAP_BUILD" ] || fail "make clean takes away another build"
  grep -nE '(^|[^-_/A-Za-z"$])build/' tools/ci.sh tools/steady.sh | grep -v ':[0-9]*:#' && fail "these are not where the others are"
  return 0
}

# CODEHEAP_PERF_MAP_DIR is for tests.
case_nothing_that_make_runs_has_the_switches_of_the_users_programs() {
  local name names
  names=$(grep -rhoE --include='*.c' '"(CODEHEAP_[A-Z_]+|JITDUMPDIR)"' os pages sinks codeheap observe | tr -d '"' | sort -u | grep -vx CODEHEAP_PERF_MAP_DIR)
  [ "$(wc -l <<<"$names")" -ge 6 ] || fail "few switches are found: $names"
  for name in $names; do
    env "$name=none" make --no-print-directory --eval='shown: ; @env' shown >"$work/log" || fail "make"
    grep "^$name=" "$work/log" && fail "a program that make runs has it"
  done
  return 0
}

refuses() { # refuses TEXT make...: it does nothing, and says so
  local said
  said=$(timeout -s KILL 250 make --no-print-directory SETUP=no "${@:2}" 2>&1) && fail "make ${*:2} passes: $said"
  grep -qF -- "$1" <<<"$said" || fail "make ${*:2} says: $said"
}
case_name_that_nothing_has_is_refused() {
  refuses 'no step is nonsense; the steps are: check-timed check' ci ONLY='lint,nonsense' BUILD="$work/ci"
  [ ! -e "$work/ci" ] || fail "a step was run"
  local word
  refuses 'TIER must be all or core' check TIER=cores
  refuses 'no part nonsense' tidy PARTS=nonsense
  for word in JOBS=x SLOWEST=ten STORM_MS=1s 'STORM_MS=1 2'; do
    refuses "$word is not a number" check T=nonsense "$word"
  done
  refuses 'RUNS=x is not a number' steady RUNS=x
  local said
  said=$(tests/orders/run.py NONSENSE 2>&1) && fail "orders passes: $said"
  grep -qF NONSENSE <<<"$said" || fail "orders says: $said"
  said=$(docs/model/run.sh nonsense 2>&1) && fail "the models pass: $said"
  grep -qF nonsense <<<"$said" || grep -q 'spin is missing' <<<"$said" || fail "the models say: $said"
  said=$(tests/breaks/planted.py NONSENSE) && fail "mutants passes: $said"
  grep -qF NONSENSE <<<"$said" || fail "mutants says: $said"
}

[ $# != 0 ] || { list_functions 300; exit; }
"case_$1"
