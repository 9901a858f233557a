/* SPDX-License-Identifier: MIT
 * valgrind.c: the requests of Valgrind's binary interface, which does not change: the build needs
 * no headers of Valgrind. */
#include "os/valgrind.h"

#include "arch/arch.h"

uintptr_t ch__valgrind_ask(enum ch__valgrind_request request, uintptr_t a, uintptr_t b, uintptr_t c)
{
	const uintptr_t words[6] = {request, a, b, c};
	return ch__arch_valgrind_ask(words);
}

bool ch__valgrind_runs(void)
{
	return ch__valgrind_ask(CH__ASK_RUNS, 0, 0, 0) != 0;
}

__attribute__((no_sanitize("address", "thread", "undefined"))) void
ch__valgrind_copy(uintptr_t *to, uintptr_t from, size_t words)
{
	ch__valgrind_reports(false);
	for (size_t i = 0; i < words; i++)
		to[i] = ((const volatile uintptr_t *)from)[i];
	ch__valgrind_reports(true);
	ch__valgrind_ask(CH__ASK_MAKE_DEFINED, (uintptr_t)to, words * sizeof *to, 0);
}

void ch__valgrind_reports(bool are_wanted)
{
	ch__valgrind_ask(CH__ASK_CHANGE_REPORTS, are_wanted ? (uintptr_t)-1 : 1, 0, 0);
}
