#!/bin/bash
# SPDX-License-Identifier: MIT
# xbyak's generators on the heap (hosts/xbyak), built against the installed library. Each case is one of its program's, in a
# process of its own. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
if [ $# = 0 ]; then
  sed -n 's/^CASE(\(.*\))$/xbyak_\1 120 0 -/p' hosts/xbyak/cases.cc
  echo xbyak_code_of_a_refused_instruction_is_not_committed 120 0 -
  exit 0
fi
program=$(cd "$build/xbyak" && pwd)/cases || exit 1
make_work
if [ "$1" = xbyak_code_of_a_refused_instruction_is_not_committed ]; then
  cat >"$work/quiet.cc" <<'EOF'
#include "codeheap_xbyak.h"
struct maker : Xbyak::CodeGenerator {
	maker(codeheap_xbyak *memory, bool is_whole) : Xbyak::CodeGenerator(4096, nullptr, memory)
	{
		Xbyak::Label label;
		jmp(label, T_NEAR);
		if (is_whole)
			L(label);
		ret();
	}
};
int main()
{
	ch_heap *heap;
	if (ch_heap_create(nullptr, &heap) != CH_OK)
		return 1;
	codeheap_xbyak memory(heap, "quiet");
	maker broken(&memory, false);
	if (memory.commit(broken) != CH_E_STATE || Xbyak::GetError() != Xbyak::ERR_LABEL_IS_NOT_FOUND)
		return 2;
	Xbyak::ClearError();
	maker whole(&memory, true);
	return memory.commit(whole) == CH_OK ? 0 : 3;
}
EOF
  lib=$(cd "$build/installed/lib" && pwd)
  g++ -std=c++17 -Wall -Wextra -Werror -fno-exceptions -fno-rtti -DXBYAK_NO_EXCEPTION -Ihosts/xbyak -I"$lib/../include" \
    -o "$work/quiet" "$work/quiet.cc" -L"$lib" -lcodeheap -Wl,-rpath,"$lib" && "$work/quiet"
  exit
fi
cd "$work" && "$program" "${1#xbyak_}" || exit
[ "$1" != xbyak_freed_code_is_named_by_its_trap ] || grep -q '`gone`.*freed' trap.txt || {
  echo "xbyak: $(cat trap.txt)" >&2
  exit 1
}
