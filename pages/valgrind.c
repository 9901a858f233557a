/* SPDX-License-Identifier: MIT
 * valgrind.c: what Valgrind is told of code memory. It translates code once and does not see stores
 * through another view: changed bytes are discarded at their RX address. Memcheck judges each view
 * by its own: bytes that nothing has are without access in both; the parts of blocks are chunks of
 * one memory pool at their RX addresses, so that a read of freed code is reported with the calls
 * that committed and freed it.
 *
 * A byte of a part has a value from the moment it is reserved, since free bytes hold traps: a VM
 * that reads what it left out between its instructions reads traps, and is not reported.
 *
 * The requests are Valgrind's binary interface, which does not change: its headers are not needed
 * to build. All are behind pool->is_translated: a program outside of Valgrind pays for a test. No
 * lock, no system call. */
#include "pages/inner.h"

/* valgrind.h of 3.19; memcheck's own begin with its two letters. */
enum {
	RUNNING_ON_VALGRIND = 0x1001,
	DISCARD_TRANSLATIONS = 0x1002,
	CREATE_MEMPOOL = 0x1303,
	DESTROY_MEMPOOL = 0x1304,
	MEMPOOL_ALLOC = 0x1305,
	MEMPOOL_FREE = 0x1306,
	STACK_REGISTER = 0x1501,
	STACK_DEREGISTER = 0x1502,
	CHANGE_ERR_DISABLEMENT = 0x1801,
	MEMCHECK = 'M' << 24 | 'C' << 16,
	MAKE_MEM_NOACCESS = MEMCHECK,
	MAKE_MEM_DEFINED = MEMCHECK + 2,
};

static uintptr_t ask(uintptr_t request, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
	const uintptr_t words[6] = {request, a, b, c, d, 0};
	return ch__arch_valgrind_ask(words);
}

bool ch__valgrind_runs(void)
{
	return ask(RUNNING_ON_VALGRIND, 0, 0, 0, 0) != 0;
}

void ch__valgrind_discard(uintptr_t exec, size_t bytes)
{
	ask(DISCARD_TRANSLATIONS, exec, bytes, 0, 0);
}

void ch__valgrind_pool_born(const struct ch__pool *pool)
{
	enum { RED_ZONE_BYTES = 0, IS_DEFINED = 1 };
	ask(CREATE_MEMPOOL, pool->exec_base, RED_ZONE_BYTES, IS_DEFINED, 0);
	/* Without memory for it, live parts are reported as leaks. */
	pool->inner->parts = (uintptr_t *)(void *)ch__os_private(pool->pool_bytes);
	if (pool->inner->parts)
		ask(MAKE_MEM_NOACCESS, (uintptr_t)pool->inner->parts, pool->pool_bytes, 0, 0);
}

void ch__valgrind_pool_dead(const struct ch__pool *pool)
{
	ask(DESTROY_MEMPOOL, pool->exec_base, 0, 0, 0);
	if (pool->inner->parts)
		ch__os_unmap(pool->inner->parts, pool->pool_bytes);
}

/* The search for leaks knows no owners and no cells: a word that has the part's address tells it
 * that the part is held until it dies. It passes over memory without access quickly. */
static void hold(const struct ch__pool *pool, uintptr_t exec, bool is_held)
{
	if (!pool->inner->parts)
		return;
	uintptr_t *word = &pool->inner->parts[(exec - pool->exec_base) / CH__GRANULE_BYTES];
	ask(MAKE_MEM_DEFINED, (uintptr_t)word, sizeof *word, 0, 0);
	*word = is_held ? exec : 0;
	if (!is_held)
		ask(MAKE_MEM_NOACCESS, (uintptr_t)word, sizeof *word, 0, 0);
}

void ch__valgrind_access(const struct ch__pool *pool, uintptr_t exec, size_t bytes, bool has_access)
{
	uintptr_t request = has_access ? MAKE_MEM_DEFINED : MAKE_MEM_NOACCESS;
	ask(request, exec, bytes, 0, 0);
	ask(request, (uintptr_t)ch__pool_read(pool, exec), bytes, 0, 0);
}

void ch__valgrind_part_born(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	ask(MEMPOOL_ALLOC, pool->exec_base, exec, bytes, 0);
	hold(pool, exec, true);
}

void ch__valgrind_part_dead(const struct ch__pool *pool, uintptr_t exec)
{
	ask(MEMPOOL_FREE, pool->exec_base, exec, 0, 0);
	hold(pool, exec, false);
}

uintptr_t ch__valgrind_stack_born(uintptr_t low, uintptr_t high)
{
	return ask(STACK_REGISTER, low, high - 1, 0, 0);
}

void ch__valgrind_stack_dead(uintptr_t number)
{
	ask(STACK_DEREGISTER, number, 0, 0, 0);
}

void ch__valgrind_reports(bool are_wanted)
{
	ask(CHANGE_ERR_DISABLEMENT, are_wanted ? (uintptr_t)-1 : 1, 0, 0, 0);
}

void ch__valgrind_copy(uintptr_t *to, uintptr_t from, size_t words)
{
	ch__valgrind_reports(false);
	for (size_t i = 0; i < words; i++)
		to[i] = ((const volatile uintptr_t *)from)[i];
	ch__valgrind_reports(true);
	ask(MAKE_MEM_DEFINED, (uintptr_t)to, words * sizeof *to, 0, 0);
}
