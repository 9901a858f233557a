/* SPDX-License-Identifier: MIT
 * sync.c: the end of the one write path: makes bytes that were stored through the RW view visible
 * to execution at the RX address (ch__pool_sync). Waits for no lock; on x86-64 no system call,
 * unless the views need a further step. */
#include "pages/inner.h"
#include "pages/write.h"

#include <errno.h>

/* Emulators translate code once and look at the code again when its page is mapped, not when
 * another view is stored to. The new mapping equals the old: a thread in the page goes on. */
static bool remap(const struct ch__views *v, const uint8_t *exec, size_t bytes)
{
	size_t mask = v->guard_bytes - 1, from = (size_t)(exec - v->exec) & ~mask;
	size_t to = ((size_t)(exec - v->exec) + bytes + mask) & ~mask;
	return ch__os_map_again(&v->file, from, v->exec + from, to - from);
}

bool ch__views_sync(struct ch__views *v, const uint8_t *exec, size_t bytes)
{
	size_t from = (size_t)(exec - v->exec);
	if (!bytes)
		return true;
	if (v->sync_steps & CH__SYNC_VALGRIND)
		ch__valgrind_ask(CH__ASK_MAKE_DEFINED, (uintptr_t)exec, bytes, 0);
	/* arm64 faults in a sync without access, emulators do not: checked builds load. */
	if (CH_CHECK >= 2) {
		(void)*(const volatile uint8_t *)exec;
		(void)*(const volatile uint8_t *)(exec + bytes - 1);
	}
	if ((v->sync_steps & CH__SYNC_COPY) && !ch__private_write(v, from, from + bytes))
		return false;
	if ((v->sync_steps & CH__SYNC_REMAP) && !remap(v, exec, bytes))
		return false;
	ch__arch_sync(exec, bytes);
	if (v->sync_steps & CH__SYNC_VALGRIND)
		ch__valgrind_ask(CH__ASK_DISCARD, (uintptr_t)exec, bytes, 0);
	return true;
}

void ch__pool_sync_steps(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	int error = errno;
	struct ch__views *v = &pool->inner->views;
	uint32_t page = (uint32_t)((exec - pool->exec_base) >> pool->page_log2);
	size_t from = exec - (uintptr_t)v->exec;
	/* Data is only carried over: a fresh mapping would make the page executable. */
	bool is_data = ch__pool_has(pool, exec) && ch__pool_span_use(pool, page) >= CH__PAGE_RODATA;
	bool follows = !is_data ? ch__views_sync(v, (const uint8_t *)exec, bytes)
				: !ch__views_are_private(v) ||
					  ch__private_write(v, from, from + bytes);
	/* Old code would run. */
	if (!follows)
		ch__panic("the system does not let code be written any more");
	errno = error;
}

bool ch__pool_store(const struct ch__pool *pool, uintptr_t exec, uint64_t word)
{
	struct ch__views *v = &pool->inner->views;
	uint64_t *at = (uint64_t *)(void *)ch__pool_write(pool, exec), old = *at;
	uint64_t bits = old ^ word;
	bool is_one_byte = !bits || bits >> (__builtin_ctzll(bits) & ~7) <= 0xff;
	__atomic_store_n(at, word, __ATOMIC_RELEASE);
	bool is_stored = !ch__views_are_private(v) || is_one_byte ||
			 ch__private_exchange(v, exec - (uintptr_t)v->exec);
	if (!is_stored)
		*at = old;
	ch__pool_sync(pool, exec, sizeof word);
	return is_stored;
}

void ch__pool_poison(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	ch__arch_fill_traps(ch__pool_write(pool, exec), bytes);
	ch__pool_sync(pool, exec, bytes);
}
