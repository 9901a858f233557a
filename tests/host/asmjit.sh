#!/bin/bash
# SPDX-License-Identifier: MIT
# AsmJit's JitRuntime on the heap (hosts/asmjit), built against the installed library. Each case is one of its program's,
# in a process of its own. Without arguments it lists its cases, with a name it runs one.
set -u
build=${CODEHEAP_BUILD:-build}
if [ $# = 0 ]; then
  sed -n 's/^CASE(\(.*\))$/asmjit_\1 120 0 -/p' hosts/asmjit/cases_*.cc
  exit 0
fi
case $1 in
  asmjit_*) exec "$build/asmjit/cases" "${1#asmjit_}" ;;
  *) exit 2 ;;
esac
