/* SPDX-License-Identifier: MIT
 * heap.c: the heap of a program with sljit, made before main and checked at the program's end.
 * CODEHEAP_SLJIT_SAYS asks for counts. CODEHEAP_SINKS and the library's other variables hold. */
#include <codeheap/codeheap.h>
#include <stdio.h>
#include <stdlib.h>

extern struct ch_heap *codeheap_sljit_heap;
struct ch_heap *codeheap_sljit_heap;

static void say(void)
{
	struct ch_stats stats = {.size = sizeof stats};
	char report[512];
	if (ch_heap_check(codeheap_sljit_heap, report, sizeof report) ||
	    ch_heap_stats(codeheap_sljit_heap, &stats)) {
		fprintf(stderr, "heap: %s\n", *report ? report : ch_why());
		_Exit(9);
	}
	if (getenv("CODEHEAP_SLJIT_SAYS"))
		fprintf(stderr, "heap: %lu made, %lu alive\n",
			(unsigned long)stats.blocks_committed, (unsigned long)stats.blocks_now);
}

__attribute__((constructor)) static void begin(void)
{
	if (ch_heap_create(NULL, &codeheap_sljit_heap) ||
	    ch_trap_install(codeheap_sljit_heap)) {
		fprintf(stderr, "heap: %s\n", ch_why());
		_Exit(9);
	}
	atexit(say);
}
