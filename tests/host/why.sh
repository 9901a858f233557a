#!/bin/bash
# SPDX-License-Identifier: MIT
# README's table of what happens, by what the program that makes it (hosts/why) prints. Without arguments it lists its cases,
# with a name it runs one.
. tests/support/script.sh
if [ $# = 0 ]; then
  echo "why_table_of_the_readme_is_what_the_runs_print 300 0 -"
  exit 0
fi
make_work
case $1 in
  why_table_of_the_readme_is_what_the_runs_print)
    [ -r /proc/self/syscall ] || { echo "skip: the kernel does not say which call a process is in"; exit 77; }
    "$build/why/why" >"$work/printed" </dev/null || fail "the program ended with $?"
    # The lines of the table that has the program's own heading.
    awk -v head="$(head -n 1 "$work/printed")" '$0 == head { inside = 1 } !/^\|/ { inside = 0 } inside' README.md >"$work/said"
    diff "$work/said" "$work/printed" || fail "< README, > the runs; build/why/why prints the table"
    ;;
  *) exit 2 ;;
esac
