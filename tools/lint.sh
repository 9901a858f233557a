#!/bin/bash
# SPDX-License-Identifier: MIT
# make lint: the rules that text, symbols and compilers can show. Prints each finding as file:line: text, and how many;
# exits 1 if there is one. CODEHEAP_BUILD is the folder of a finished build, CODEHEAP_OBJECTS its library objects,
# CODEHEAP_GUEST_HEADERS the headers that say what the core exports to guests.
set -u
build=${CODEHEAP_BUILD:-build}
findings=$(mktemp)
trap 'rm -f "$findings" "$findings".*' EXIT
found() { echo "$*" >>"$findings"; }
line_in() { # line_in FILE NAME: file:line of the name's first occurrence
  local n
  n=$(grep -nw -m1 -- "$2" "$1" 2>/dev/null | cut -d: -f1)
  echo "$1:${n:-1}"
}

# run_checker COMMAND...: each line that it prints is a finding, but for notes. It exits 1 where it found something: one that
# crashed or failed without a word is a finding too, not a silent pass.
run_checker() {
  local text status
  text=$("$@")
  status=$?
  grep '^note:' <<<"$text"
  grep -v '^note:' <<<"$text" | grep . >>"$findings" || [ $status = 0 ] || found "$1:1: failed without a finding"
  [ $status -le 1 ] || found "$1:1: ended with $status"
}

# ---- text, the table of adversaries, mutants
run_checker tools/lint_text.py
run_checker tools/lint_adversaries.py
run_checker tests/breaks/rows.py
run_checker tests/breaks/scripts.py

# ---- breaks that were judged equivalent stand where the list says
run_checker tests/breaks/unplanned.py lint

# ---- contracts broken on purpose compile: make tidy's clang says nothing of contracts where a file does not
gcc -std=gnu11 -I. -fsyntax-only tools/tidy/broken_contracts.c 2>&1 | grep -E ': (fatal )?error:' >>"$findings"

# ---- the cases of make orders compile: no other step has them
for file in tests/orders/*.c; do
  gcc -std=gnu11 -I. -DCH_TESTING=1 -DCH_TEST_BDW=0 "-DCH_TEST_CODE=\"tests/support/code_$(uname -m).h\"" -fsyntax-only \
    -Werror=implicit-function-declaration "$file" 2>&1 | grep -E ': (fatal )?error:' >>"$findings"
done

# ---- what clang has to say of the tests, which `make check` compiles with gcc: the Makefile, which has the flags, asked it
grep -E ': (fatal error|error|warning):' "$build/clang-of-tests" >>"$findings"

# ---- the manual page lists what the headers declare
run_checker tools/man_functions.py

# ---- the document's figures are of these rooms; that they are fresh is for `make ci`
run_checker tools/measure.py --shape

# ---- exported symbols are the public headers' and those of GDB's JIT interface, and every one is called by a test
debugger_names="__jit_debug_descriptor __jit_debug_register_code"
main_h="codeheap/codeheap.h codeheap/collector.h codeheap/look.h" profile_h=codeheap/profile.h bdw_h=codeheap/codeheap_bdw.h
# What the core exports to guests besides; watched locks are those of DEBUG=1.
guest_names=$(tools/public_names.sh --guests $CODEHEAP_GUEST_HEADERS | if [ "${DEBUG:-}" = 1 ]; then cat; else grep -v '^ch__rank_'; fi)
compare() { # compare LIBRARY NM-FLAGS OTHER-NAMES HEADERS...
  local lib=$1 flags=$2 others=$3 name h
  shift 3
  for h in "$@"; do [ -f "$h" ] || return; done
  [ -f "$lib" ] || { found "$lib:1: not built"; return; }
  { tools/public_names.sh "$@"; printf '%s\n' $others; } | grep . | sort -u >"$findings.declared"
  ${CROSS:-}nm $flags --defined-only "$lib" 2>/dev/null | awk 'NF == 3 && $2 != "A" { sub(/@.*/, "", $3); print $3 }' |
    sort -u >"$findings.exported"
  for name in $(comm -13 "$findings.declared" "$findings.exported"); do
    found "$lib:1: exports $name, which no public header declares with CH_API"
  done
  for name in $(comm -23 "$findings.declared" "$findings.exported"); do
    found "$(line_in "$1" "$name"): $name is declared, but $lib does not export it"
  done
}
for lib in libcodeheap libcodeheap-dl $([ "${GC:-bdw}" = none ] || echo libcodeheap-bdw); do
  headers=$main_h
  [ $lib != libcodeheap-bdw ] || headers="$main_h $bdw_h"
  compare "$build/$lib.so" -D "$debugger_names $guest_names" $headers
  compare "$build/$lib.a" -g "$debugger_names $guest_names" $headers
done
compare "$build/libcodeheap-profile.so" -D '' $profile_h
compare "$build/libcodeheap-profile.a" -g '' $profile_h

# ---- guests call of the core what it exports
{ tools/public_names.sh $main_h; printf '%s\n' $guest_names; } | sort -u >"$findings.exported"
for name in $(${CROSS:-}nm -u "$build/libcodeheap-profile.a" 2>/dev/null | awk '$2 ~ /^ch_/ { print $2 }' | sort -u | comm -23 - "$findings.exported"); do
  found "$build/libcodeheap-profile.a:1: needs $name, which the core does not export"
done
for h in $main_h $profile_h $bdw_h; do
  [ -f "$h" ] || continue
  for name in $(tools/public_names.sh "$h"); do
    grep -rqE --include='*.[ch]' --include='*.cc' "\b$name *\(" tests/{unit,api,adversary,bdw,tool,support} 2>/dev/null || found "$(line_in "$h" "$name"): no test calls $name"
  done
done

# ---- internal globals carry their file's prefix
public=$(tools/public_names.sh $main_h $profile_h $bdw_h 2>/dev/null)
for o in $CODEHEAP_OBJECTS; do
  for name in $(${CROSS:-}nm -g --defined-only "$o" | awk 'NF == 3 { print $3 }'); do
    case " "$public" " in *[[:space:]]"$name"[[:space:]]*) continue ;; esac
    case "$name" in ch__* | __jit_debug_descriptor | __jit_debug_register_code | malloc_conf_2_conf_harder) ;; *) found "${o#"$build"/obj/}:1: global symbol $name does not start with ch__" ;; esac
  done
done

# ---- nothing that only tests use; the core starts no thread and no timer
run_checker tools/lint_release.py $CODEHEAP_OBJECTS

# ---- no file uses one that uses it, over whatever others
run_checker tools/lint_graph.py $CODEHEAP_OBJECTS

# ---- signal-safe units refer to nothing that may lock or allocate
sed "s|^arch/ARCH|arch/${CODEHEAP_ARCH:-$(uname -m)}|" tools/signal_safe.list >"$findings.safe"
safe=$(sed -n 's/^\([a-z_0-9/]*\.o\).*/\1/p' "$findings.safe")
always="memset memcpy memmove memcmp _GLOBAL_OFFSET_TABLE_ __clzdi2 __ctzdi2 __popcountdi2"
of_machine=$(sed -n 's/^allow //p' "tools/machines/${CODEHEAP_ARCH:-$(uname -m)}.list")
for o in $safe; do
  [ ! -f "$build/obj/$o" ] || always="$always $(${CROSS:-}nm --defined-only "$build/obj/$o" | awk 'NF == 3 { print $3 }' | tr '\n' ' ')"
done
for o in $safe; do
  at=$(line_in tools/signal_safe.list "$o")
  [ -f "$build/obj/$o" ] || { found "$at: there is no $build/obj/$o"; continue; }
  allowed=" $always $(sed -n "s|^$o *||p" "$findings.safe") "
  for name in $(${CROSS:-}nm -u "$build/obj/$o" | awk '{ print $2 }'); do
    # shellcheck disable=SC2254
    case $name in ${of_machine:-/}) continue ;; esac
    case "$allowed" in *" $name "*) ;; *) found "$at: $o refers to $name, which its list does not allow" ;; esac
  done
  for name in $([ "${CODEHEAP_ARCH:-x86_64}" != x86_64 ] || sed -n "s|^$o *||p" "$findings.safe"); do
    nm -u "$build/obj/$o" | grep -qw -- "$name" || found "$at: $o does not refer to $name"
  done
  ${CROSS:-}readelf -rW "$build/obj/$o" | grep -qE 'TLSDESC|TLSGD|TLSLD' && found "$at: $o has TLS that may allocate"
done

# ---- the same function by function, where units have other duties too
run_checker tools/signal_reach.py "$build" tools/signal_reach.list "${CODEHEAP_ARCH:-$(uname -m)}"

# ---- public headers stand alone in both languages, with both compilers
for h in $main_h $profile_h $bdw_h; do
  [ -f $h ] || { found "$h:1: missing"; continue; }
  for cc in gcc clang-14; do
    for std in c11 c++17; do
      case $std in c11) lang=c ;; *) lang=c++ ;; esac
      $cc -x $lang -std=$std -I. -Wall -Wextra -Wundef -Wshadow -Wpedantic -Werror -fsyntax-only \
        -include $h - </dev/null >"$findings.cc" 2>&1 ||
        found "$h:1: does not compile alone as $std with $cc: $(grep -m1 error "$findings.cc")"
    done
  done
done

sort -u "$findings"
count=$(sort -u "$findings" | wc -l)
echo "lint: $count findings"
[ "$count" = 0 ]
