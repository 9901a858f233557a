#!/bin/bash
# SPDX-License-Identifier: MIT
# libffi's closures in the heap (hosts/libffi), built against the installed library. Each case is one of its program's, in a
# process of its own. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
if [ $# = 0 ]; then
  echo "libffi_gdb_unwinds_each_instruction 240 0 -"
  sed -n 's/^CASE(\(.*\))$/libffi_\1 120 0 -/p' hosts/libffi/cases.c hosts/libffi/cases_unwind.cc
  exit 0
fi

# From a frame that is about to call the closure, instruction by instruction into libffi: at each one of the closure's code
# gdb shows the code's name and its caller.
gdb_unwinds_each_instruction() {
  make_work
  cat >"$work/commands" <<'GDB'
set pagination off
set disable-randomization off
break caught_from
run
set $code = (unsigned long)fn
while $pc != $code
  stepi
end
while $pc >= $code && $pc < $code + 24
  echo AT\n
  bt 3
  stepi
end
kill
GDB
  CODEHEAP_SINKS=unwind,gdb gdb -nx --batch -x "$work/commands" --args "$build/libffi/cases" \
    exception_passes_a_closure >"$work/said" 2>&1 </dev/null
  skip_where_ptrace_is_refused "$work/said"
  python3 - "$work/said" <<'PYTHON' || fail "$(tail -40 "$work/said")"
import re, sys
walks = open(sys.argv[1]).read().split("AT\n")[1:]
assert len(walks) >= 3, "few instructions"
for walk in walks:
    frames = re.findall(r"^#(\d) +(?:0x[0-9a-f]+ in )?(\w+)", walk, re.M)
    assert [f[1] for f in frames[:3]] == ["throws", "caught_from", "exception_passes_a_closure"], walk
PYTHON
}

case $1 in
  libffi_gdb_unwinds_each_instruction) gdb_unwinds_each_instruction ;;
  libffi_*) exec "$build/libffi/cases" "${1#libffi_}" ;;
  *) exit 2 ;;
esac
