/* SPDX-License-Identifier: MIT
 * sync.c: the end of the one write path: makes bytes that were stored through the RW view visible
 * to execution at the RX address (ch__pool_sync), and the ledger that watches this. Waits for no
 * lock, on procmem for an exchange of a page; on x86-64 no system call, unless the views need a
 * further step. */
#include "pages/inner.h"

#include <stdio.h>

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

/* The ledger of published bytes, in checked builds (docs/design.md, section 4): each sync notes the
 * bytes of its range. Private views need no notes: the code there is what a sync carried over. No
 * lock is taken: callers keep the bytes from changing. */
#if CH_CHECK >= 2

/* Notes the bytes, or returns the first byte that differs from its note, else the end. Threads may
 * write blocks of the same chunk meanwhile. */
__attribute__((no_sanitize("thread"))) static size_t go_over(const struct ch__pool *pool, size_t at,
							     size_t end, bool notes_them)
{
	const struct ch__views *v = &pool->inner->views;
	volatile uint8_t *notes = pool->inner->notes;
	if (ch__views_are_private(v))
		notes = notes_them ? NULL : v->exec;
	for (; notes && at < end; at++) {
		uint8_t byte = ((const volatile uint8_t *)v->write)[at];
		if (notes_them)
			notes[at] = byte;
		else if (notes[at] != byte)
			return at;
	}
	return end;
}

void ch__ledger_note(const struct ch__pool *pool, size_t at, size_t bytes)
{
	(void)go_over(pool, at, at + bytes, true);
}

void ch__ledger_check(const struct ch__pool *pool, size_t at, size_t bytes, const char *what)
{
	static char reason[160];
	if (!pool->inner->views.has_code)
		return;
	/* The range has free bytes, too, which memcheck would report. */
	ch__valgrind_reports(false);
	size_t lacks = go_over(pool, at, at + bytes, false) - at;
	ch__valgrind_reports(true);
	if (lacks == bytes)
		return;
	snprintf(reason, sizeof reason,
		 "ledger: %s: the byte at +%zu of %zu was written and not published", what, lacks,
		 bytes);
	ch__panic(reason);
}

#endif
