#!/bin/bash
# SPDX-License-Identifier: MIT
# Code of a heap in a process whose C++ runtime unwinds by LLVM's libunwind: the test programs of libgcc's unwinder run
# again with LLVM's loaded first. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
make_work

llvm() {
  local f
  for f in /usr/lib/*/libunwind.so.1 /usr/lib/llvm-*/lib/libunwind.so.1; do
    [ -e "$f" ] && { readlink -f "$f"; return; }
  done
  fail "no LLVM libunwind: install libunwind-14"
}

preloaded=
under_llvm() { # under_llvm PROGRAM CASE
  preloaded=${preloaded:-$(llvm)} || exit 1
  LD_PRELOAD=$preloaded "$build/tests/$1" "$2" </dev/null
}

each_case() { # each_case PROGRAM
  local name rest count=0
  while read -r name rest; do
    under_llvm "$1" "$name" >"$work/out" 2>&1
    case $? in
      0) count=$((count + 1)) ;;
      77) ;; # cancellation unwinds by libgcc
      *) fail "$1 $name: $(tail -3 "$work/out")" ;;
    esac
  done < <("$build/tests/$1")
  [ $count -gt 0 ] || fail "$1 has no cases"
}

# That it is LLVM's at all: the C++ runtime's and the library's symbols are bound to it.
case_llvm_unwinds_here() {
  LD_DEBUG=bindings LD_DEBUG_OUTPUT=$work/bindings under_llvm api_exceptions exception_passes_blocks_of_every_shape ||
    fail "an exception did not pass"
  grep -qE 'libstdc\+\+.*to .*libunwind\.so\.1.*_Unwind_RaiseException' "$work"/bindings.* ||
    fail "the C++ runtime raises by another unwinder"
  grep -qE 'api_exceptions .*to .*libunwind\.so\.1.*__unw_add_dynamic_fde' "$work"/bindings.* ||
    fail "the library does not know LLVM's call"
}

# Without the sink LLVM finds no frame, so that what passes elsewhere passes by what it was told.
case_llvm_knows_nothing_untold() {
  CODEHEAP_SINKS=none under_llvm api_exceptions exception_passes_blocks_of_every_shape >/dev/null 2>&1
  [ $? = 134 ] || fail "the exception did not end at code that LLVM was not told of: $?"
}

case_llvm_exceptions() { each_case api_exceptions; }
case_llvm_pages() { each_case unit_unwind_libgcc; }
case_llvm_storm() { each_case adversary_unwind; }
# Not those that step: LLVM 14 takes the pc of a signal's frame for a return address, one byte too low.
case_llvm_trampolines() {
  local name
  for name in released_trampoline_is_withdrawn_and_poisoned freed_slot_serves_again_and_its_neighbours_stay \
    ten_thousand_trampolines_come_and_go unwinder_passes_one_trampoline_while_others_come_and_go \
    trampoline_is_told_to_sinks_and_withdrawn; do
    under_llvm api_trampolines $name >"$work/out" 2>&1 || fail "api_trampolines $name: $(tail -3 "$work/out")"
  done
}

[ $# != 0 ] || { list_functions 120; exit; }
"case_$1"
