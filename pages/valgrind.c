/* SPDX-License-Identifier: MIT
 * valgrind.c: tells Valgrind of code memory (docs/unwinders.md, section 7). Memcheck judges each
 * view apart.
 *
 * A byte of a part has a value from its reservation on, since free bytes hold traps: a VM that
 * reads gaps between its instructions reads traps, and memcheck reports nothing.
 *
 * All requests are behind pool->is_translated: outside of Valgrind a program pays for a test. No
 * lock. */
#include "pages/inner.h"

void ch__valgrind_pool_born(const struct ch__pool *pool)
{
	enum { RED_ZONE_BYTES = 0, IS_DEFINED = 1 };
	ch__valgrind_ask(CH__ASK_CREATE_MEMPOOL, pool->exec_base, RED_ZONE_BYTES, IS_DEFINED);
	/* Without this memory, live parts are reported as leaks. */
	pool->inner->parts = (uintptr_t *)(void *)ch__os_private(pool->pool_bytes);
	if (pool->inner->parts)
		ch__valgrind_ask(CH__ASK_MAKE_NOACCESS, (uintptr_t)pool->inner->parts,
				 pool->pool_bytes, 0);
}

void ch__valgrind_pool_dead(const struct ch__pool *pool)
{
	ch__valgrind_ask(CH__ASK_DESTROY_MEMPOOL, pool->exec_base, 0, 0);
	if (pool->inner->parts)
		ch__os_unmap(pool->inner->parts, pool->pool_bytes);
}

/* The search for leaks knows no owners and no cells: a word with the part's address says that the
 * part is held until its death. The search passes quickly over memory without access. */
static void hold(const struct ch__pool *pool, uintptr_t exec, bool is_held)
{
	if (!pool->inner->parts)
		return;
	uintptr_t *word = &pool->inner->parts[(exec - pool->exec_base) / CH__GRANULE_BYTES];
	ch__valgrind_ask(CH__ASK_MAKE_DEFINED, (uintptr_t)word, sizeof *word, 0);
	*word = is_held ? exec : 0;
	if (!is_held)
		ch__valgrind_ask(CH__ASK_MAKE_NOACCESS, (uintptr_t)word, sizeof *word, 0);
}

void ch__valgrind_access(const struct ch__pool *pool, uintptr_t exec, size_t bytes, bool has_access)
{
	enum ch__valgrind_request request =
		has_access ? CH__ASK_MAKE_DEFINED : CH__ASK_MAKE_NOACCESS;
	ch__valgrind_ask(request, exec, bytes, 0);
	ch__valgrind_ask(request, (uintptr_t)ch__pool_read(pool, exec), bytes, 0);
}

/* Nothing at exec may be read before it is published, but for data, which the VM writes at exec. */
void ch__valgrind_part_open(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	uint32_t page = (uint32_t)((exec - pool->exec_base) >> pool->page_log2);
	ch__valgrind_access(pool, exec, bytes, true);
	if (ch__pool_span_use(pool, page) == CH__SPAN_CODE)
		ch__valgrind_ask(CH__ASK_MAKE_NOACCESS, exec, bytes, 0);
}

void ch__valgrind_part_born(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	ch__valgrind_ask(CH__ASK_MEMPOOL_ALLOC, pool->exec_base, exec, bytes);
	hold(pool, exec, true);
}

void ch__valgrind_part_dead(const struct ch__pool *pool, uintptr_t exec)
{
	ch__valgrind_ask(CH__ASK_MEMPOOL_FREE, pool->exec_base, exec, 0);
	hold(pool, exec, false);
}
