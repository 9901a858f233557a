#!/bin/bash
# SPDX-License-Identifier: MIT
# make tidy: what compilers and checkers can see without a run. Prints findings as file:line: text and how many; exits 1 if
# there is one. From the Makefile: TIDY_FLAGS of every source, TIDY_LIB, TIDY_HOSTS, TIDY_OUTSIDE and TIDY_TESTS the sources.
#   contracts     clang -Wthread-safety over the library (arch/base.h), mutants of tests/breaks that it must see, contracts broken on purpose
#   clang-tidy    library and hosts, by .clang-tidy; hosts that others wrote with TIDY_OUTSIDE_FLAGS, too
#   cppcheck      library, hosts, tests; each exception has its reason in tools/tidy/cppcheck.suppress
#   -fanalyzer    library: gcc's walk along all paths, which knows malloc, files and NULL
set -u
parts=${*:-contracts clang-tidy cppcheck analyzer}
jobs=${JOBS:-2}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
declare -i status=0

run_contracts() {
  local f
  # Both allocators of side memory.
  for f in $TIDY_LIB; do
    echo "clang-14 $TIDY_FLAGS -fPIC -DCH_ALLOC_MALLOC=0 $f"
    [ "$f" != os/meta.c ] || echo "clang-14 $TIDY_FLAGS -fPIC -DCH_ALLOC_MALLOC=1 $f"
  done | python3 tools/tidy/contracts.py tools/tidy/mutants.list || return 1
  clang-14 $TIDY_FLAGS -Wthread-safety -fsyntax-only -Xclang -verify tools/tidy/broken_contracts.c
}
# How far the walk along the paths of one function goes: a quarter of what clang takes by itself, in a third of the time.
walk='-Xclang -analyzer-config -Xclang max-nodes=60000'
# clang_tidy_of FLAGS SOURCE...
clang_tidy_of() {
  flags=$1 walk=$walk xargs -P "$jobs" -n 4 sh -c \
    'clang-tidy-14 --quiet "$@" -- $TIDY_FLAGS $flags $walk 2>"$0/$$.stderr" || grep -h error: "$0/$$.stderr"' "$work" <<<"${*:2}"
}
run_clang_tidy() {
  local found=0
  clang_tidy_of -DCH_ALLOC_MALLOC=0 $TIDY_LIB $TIDY_HOSTS || found=1
  [ -z "$TIDY_OUTSIDE" ] || clang_tidy_of "$TIDY_OUTSIDE_FLAGS" $TIDY_OUTSIDE || found=1
  return $found
}
# It reads no headers of others: what decides there is said here.
run_cppcheck() {
  cppcheck --quiet -j "$jobs" --std=c11 --language=c --platform=unix64 --enable=warning,performance,portability \
    --suppressions-list=tools/tidy/cppcheck.suppress --error-exitcode=1 --template='{file}:{line}: {id}: {message}' \
    -I. -DCH_ALLOC_MALLOC=0 -DCH_CHECK=1 -DCH_TESTING=0 -DCH_TEST_BDW=1 -D__x86_64__ -D__linux__ -D__GNUC__=12 '-DElfW(x)=Elf64_##x' \
    -DPY_VERSION_HEX=0x030b0000 '-DPy_RETURN_NONE=return Py_None' $TIDY_LIB $TIDY_HOSTS $TIDY_OUTSIDE $TIDY_TESTS 2>&1
}
run_analyzer() {
  printf '%s\n' $TIDY_LIB | xargs -P "$jobs" -n 4 sh -c \
    'for f; do
       gcc $TIDY_FLAGS -O1 -DCH_ALLOC_MALLOC=0 -fanalyzer -c -o /dev/null $f >"$0/$$.gcc" 2>&1; code=$?
       grep -E "warning:|error:" "$0/$$.gcc" || [ $code = 0 ] || { cat "$0/$$.gcc"; exit 1; }
     done' "$work"
}

export TIDY_FLAGS
for part in $parts; do
  started=$SECONDS
  case $part in
    contracts) run_contracts ;;
    clang-tidy) run_clang_tidy ;;
    cppcheck) run_cppcheck ;;
    analyzer) run_analyzer ;;
    *) echo "tidy: no part $part" >&3; exit 2 ;;
  esac 3>&2 >"$work/$part" 2>&1
  # Who ends with an error and says nothing has not looked.
  code=$?
  grep '^note:' "$work/$part"
  grep -vE '^note:|^[0-9]+ warnings? generated|^Suppressed |^Use -header-filter' "$work/$part" | grep -E . >"$work/found"
  n=$(grep -cE ': ' "$work/found")
  [ $code = 0 ] || [ "$n" != 0 ] || n=1
  cat "$work/found"
  echo "tidy: $part: $n findings, $((SECONDS - started)) s"
  [ "$n" = 0 ] || status=1
done
exit $status
