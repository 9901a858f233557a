#!/bin/bash
# SPDX-License-Identifier: MIT
# xbyak's generators on the heap (hosts/xbyak), built against the installed library. Each case is one of its program's, in a
# process of its own. Without arguments it lists its cases, with a name it runs one.
set -u
build=${CODEHEAP_BUILD:-build}
if [ $# = 0 ]; then
  grep -o '\bX([a-z_]*_[a-z_]*)' hosts/xbyak/cases.cc | sed 's/X(\(.*\))/xbyak_\1 120 0 -/'
  exit 0
fi
program=$(cd "$build/xbyak" && pwd)/cases || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" && "$program" "${1#xbyak_}" || exit
[ "$1" != xbyak_freed_code_is_named_by_its_trap ] || grep -q '`gone`.*freed' trap.txt || {
  echo "xbyak: $(cat trap.txt)" >&2
  exit 1
}
