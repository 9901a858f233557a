/* SPDX-License-Identifier: MIT
 * two_views.h: executable memory for tests without a pool: a view that runs, and a view for
 * writing. Like the library this header asks for nothing that hostile processes refuse: no mprotect
 * to executable, no file. The header has no tests. */
#pragma once

#include "arch/arch.h"
#include "tests/support/harness.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns where the bytes run; *write: where to write the bytes. Filled with traps. An emulator has
 * no second view, and would still run translations of old bytes after a write there: then both
 * views are one mapping. */
static inline uint8_t *two_views_map(size_t bytes, uint8_t **write)
{
	enum { MAY_MOVE = 1 }; /* MREMAP_MAYMOVE; an old size of 0 maps the same memory again */
	uint8_t *exec = mmap(NULL, bytes, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(exec != MAP_FAILED);
	long copy = syscall(SYS_mremap, exec, 0L, bytes, (long)MAY_MOVE, 0L);
	*write = copy == -1 ? exec : (uint8_t *)copy;
	CHECK_EQ(mprotect(*write, bytes, PROT_READ | PROT_WRITE | (copy == -1 ? PROT_EXEC : 0)), 0);
	ch__arch_fill_traps(*write, bytes);
	ch__arch_sync(exec, bytes);
	return exec;
}

static inline void two_views_unmap(uint8_t *exec, uint8_t *write, size_t bytes)
{
	CHECK_EQ(munmap(exec, bytes), 0);
	CHECK(write == exec || munmap(write, bytes) == 0);
}
