/* SPDX-License-Identifier: MIT
 * cases.c: the allocator of codeheap_sljit.h, called as sljit calls an allocator. */
#include "codeheap_sljit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ch_heap *codeheap_sljit_heap;

static void must(bool holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "%s (%s)\n", what, ch_why());
		_Exit(1);
	}
}

static uint64_t open_blocks(void)
{
	struct ch_stats stats = {.size = sizeof stats};
	must(!ch_heap_stats(codeheap_sljit_heap, &stats), "counts");
	return stats.blocks_open_now;
}

/* Makes code of one byte. A byte behind the room makes the commit fail. */
static void *made(bool is_refused)
{
	uint8_t *write = SLJIT_MALLOC_EXEC(64, NULL);
	must(write, "no room");
	uint8_t *exec = write + SLJIT_EXEC_OFFSET(write);
	*write = 0xc3;
	if (is_refused)
		memset(write + codeheap_sljit_code.hot_bytes, 0x90, 4);
	SLJIT_UPDATE_WX_FLAGS(write, exec + 1, 1);
	return exec;
}

int main(void)
{
	must(!ch_heap_create(NULL, &codeheap_sljit_heap), "no heap");
	void *refused = made(true);
	must(open_blocks() == 1, "the commit did not fail");
	must(*(volatile uint8_t *)refused != 0xc3, "code that was not committed runs");
	void *good = made(false);
	SLJIT_FREE_EXEC(refused, NULL);
	must(open_blocks() == 0, "the block of the refused code stays");
	SLJIT_FREE_EXEC(good, NULL);
	return ch_heap_destroy(codeheap_sljit_heap) != CH_OK;
}
