#!/bin/bash
# SPDX-License-Identifier: MIT
# The programs that the fuzzer kept: each call of each answers as the model says. Without arguments it lists its cases,
# with a name it runs one.
set -u
build=${CODEHEAP_BUILD:-build}

case ${1:-} in
  '') echo 'programs_of_the_fuzzer_agree_with_the_model 240 0 -' ;;
  programs_of_the_fuzzer_agree_with_the_model)
    count=$(ls fuzz/corpus | wc -l)
    [ "$count" -ge 50 ] || { echo "only $count programs in fuzz/corpus" >&2; exit 1; }
    "$build/fuzz/replay" fuzz/corpus/* 2>"$build/fuzz/replay.log" || { tail -n 2 "$build/fuzz/replay.log" >&2; exit 1; }
    [ "$(grep -c '^fuzz/corpus/' "$build/fuzz/replay.log")" = "$count" ] || { echo 'not every program was run' >&2; exit 1; }
    "$build/fuzz/replay" fuzz/corpus 2>/dev/null && { echo 'a folder is taken for a program' >&2; exit 1; }
    exit 0
    ;;
  *) echo "no case $1" >&2; exit 2 ;;
esac
