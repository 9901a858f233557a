#!/bin/bash
# SPDX-License-Identifier: MIT
# The VMs of docs/embedding.md, each as its user would build it: one file in an empty folder, against the installed library
# that pkg-config names, shared and static. Each checks itself; without one of the calls that the text asks for, each
# fails. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
build=$(realpath -m "$build")
examples=$PWD/examples

# vm FILE PACKAGE LINK [SED]: builds it in a folder of its own, maybe changed, and runs it.
vm() {
  cd "$work" || exit 1
  sed "${4:-}" "$examples/$1.c" >vm.c
  [ -z "${4:-}" ] || ! cmp -s vm.c "$examples/$1.c" || fail "nothing was changed by $4"
  local libs
  libs=$(pkg-config --libs "$2") || fail "pkg-config does not know $2"
  [ "$3" = shared ] || libs=$(pkg-config --static --libs "$2" | sed 's/-l\(codeheap\(-bdw\)\?\)\( \|$\)/-l:lib\1.a /')
  # As a shell splits them: pkg-config quotes a blank in a path.
  eval "$cc -std=c11 -O2 -Wall -Wextra -Werror ${4:+-w} -o vm vm.c $(pkg-config --cflags "$2") $libs" ||
    fail "$1 does not build against the installed $2"
  if ldd vm | grep -q "$build/installed/lib/lib$2.so"; then linked=shared; else linked=static; fi
  [ "$linked" = "$3" ] || fail "$1 is linked $linked"
  ./vm >said 2>&1
}
runs() { # runs FILE PACKAGE LINK
  vm "$@" || fail "$1: $? $(cat said)"
  grep -q 'is freed' said || fail "$1 did not end its story: $(cat said)"
}
breaks() { # breaks FILE PACKAGE SED: a check of the program fails, or freed code traps
  vm "$1" "$2" shared "$3"
  local status=$?
  [ $status = 1 ] || [ $status = 133 ] || [ $status = 139 ] || fail "$1 changed by $3 ends with $status: $(cat said)"
}

case_refcount_shared() { runs embed_refcount codeheap shared; }
case_refcount_static() { runs embed_refcount codeheap static; }
case_refcount_in_what_is_dlopened() { runs embed_refcount codeheap-dl shared; }
case_refcount_frees_at_count_zero() { breaks embed_refcount codeheap 's/CH_RELEASE_COLLECT/CH_RELEASE_NOT_RUNNING/'; }
case_refcount_never_releases() { breaks embed_refcount codeheap 's/OK(ch_owner_release(.*));/(void)0;/'; }
case_refcount_breaks_no_assumption() { breaks embed_refcount codeheap 's/OK(ch_assumption_break(.*));/(void)0;/'; }
case_precise_shared() { runs embed_precise codeheap shared; }
case_precise_static() { runs embed_precise codeheap static; }
case_precise_in_what_is_dlopened() { runs embed_precise codeheap-dl shared; }
case_precise_attaches_no_ref() { breaks embed_precise codeheap 's/OK(ch_ref_attach(.*));/(void)0;/'; }
case_precise_marks_no_owner() { breaks embed_precise codeheap 's/ch_mark_owner(.*);/(void)0;/'; }
case_precise_assumes_nothing() { breaks embed_precise codeheap 's/ch_block_assume(.*) == CH_OK;/true;/'; }
case_threads_shared() { runs embed_threads codeheap shared; }
case_threads_static() { runs embed_threads codeheap static; }
case_threads_in_what_is_dlopened() { runs embed_threads codeheap-dl shared; }
case_threads_attach_no_ref() { breaks embed_threads codeheap 's/OK(ch_ref_attach(.*));/(void)0;/'; }
case_threads_mark_no_owner() { breaks embed_threads codeheap 's/ch_mark_owner(.*);/(void)0;/'; }
case_threads_visit_no_young_ref() { breaks embed_threads codeheap 's/OK(ch_refs_visit(.*));/(void)0;/'; }
case_threads_leave_refs_as_they_were() { breaks embed_threads codeheap 's/^\treturn move(word);/\tmove(word);\n\treturn word;/'; }
case_threads_are_awaited_unparked() { breaks embed_threads codeheap 's/ch_thread_\(un\)\?park();/(void)0;/'; }
case_lazy_pads_no_call() { breaks lazy codeheap 's/\twhile (.*/\twhile (0)/'; }
case_lazy_invalidates_nothing() { breaks lazy codeheap 's/OK(ch_blocks_invalidate(.*));/(void)0;/'; }
case_lazy_returns_what_was_invalidated() { breaks lazy codeheap 's/ || info.state != CH_BLOCK_LIVE//'; }
case_boehm_shared() { runs embed_boehm codeheap-bdw shared; }
case_boehm_static() { runs embed_boehm codeheap-bdw static; }
case_boehm_attaches_no_ref() { breaks embed_boehm codeheap-bdw 's/OK(ch_ref_attach(.*));/(void)0;/'; }
case_boehm_keeps_no_anchor() { breaks embed_boehm codeheap-bdw 's/&made->anchor/\&(void *){0}/'; }
case_boehm_assumes_nothing() { breaks embed_boehm codeheap-bdw 's/ch_block_assume(.*) == CH_OK;/true;/'; }

if [ $# = 0 ]; then
  declare -F | sed -n 's/^declare -f case_\(.*\)/embedding_\1 120 0 -/p' |
    if [ "${CODEHEAP_TEST_GC:-bdw}" = none ]; then grep -v boehm; else cat; fi
  exit 0
fi
export PKG_CONFIG_PATH=$build/installed/lib/pkgconfig LD_LIBRARY_PATH=$build/installed/lib
make_work
"case_${1#embedding_}"
