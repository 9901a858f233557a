/* SPDX-License-Identifier: MIT
 * views_private.c: the backend PROCMEM: private memory, and as its write view a copy that each sync
 * carries over (docs/design.md, section 4). Lock: `opening` alone. */
#include "pages/inner.h"

enum { UNIT = 8, LARGE_PAGE_BYTES = 2 << 20 };

/* Several threads may miss the file at once. A file of the calling process stays: another thread
 * may be writing by its number. */
bool ch__private_open(struct ch__views *v)
{
	if (!ch__lock_try(v->opening, CH__RANK_OPENING))
		return false;
	bool is_open = CH_LOAD_RELAXED(v->is_own) && ch__os_holds(&v->file);
	if (!is_open) {
		ch__os_let_go(&v->file);
		/* With each file: what dumps and restores a process (CRIU) loses the advice. */
		is_open = ch__os_advise((void *)v->is_own, ch__os_page_bytes(), CH__OS_WIPE) &&
			  ch__os_self_memory(&v->file);
		CH_STORE_RELAXED(v->is_own, is_open);
	}
	ch__lock_release(v->opening, CH__RANK_OPENING);
	return is_open;
}

/* An inherited file leads to the parent's memory, and the child of a fork without handlers has no
 * other file. A host that closes unknown files may have a file of its own at the number. */
static bool carry_over(struct ch__views *v, uint8_t *to, const uint8_t *from, size_t bytes)
{
	if (CH_LIKELY(CH_LOAD_RELAXED(v->is_own)) && ch__os_self_write(&v->file, to, from, bytes))
		return true;
	if (ch__private_open(v))
		return ch__os_self_write(&v->file, to, from, bytes);
	/* By a file of the call's own. The thread that opens the common file may stand in a stopped
	 * world, in which the collector moves refs: nobody waits for that thread. */
	struct ch__os_held file;
	bool is_done = ch__os_self_memory(&file) && ch__os_self_write(&file, to, from, bytes);
	ch__os_let_go(&file);
	return is_done;
}

static bool has_same(const struct ch__views *v, size_t at)
{
	return *(const volatile uint64_t *)(const volatile void *)(v->exec + at) ==
	       *(const volatile uint64_t *)(const volatile void *)(v->write + at);
}

/* An exchange that has begun may have copied the page before the caller's store. The fetch_add
 * orders the caller's stores before the read of the word. The exchanging thread must get to run. */
static void await_exchange(const struct ch__views *v)
{
	enum { NAP_NS = 1000000 };
	uint32_t count;
	while ((count = atomic_fetch_add_explicit(v->exchanges, 0, memory_order_seq_cst)) & 1)
		ch__os_futex_wait(v->exchanges, count, NAP_NS);
}

bool ch__private_write(struct ch__views *v, size_t from, size_t to)
{
	await_exchange(v);
	from &= ~(size_t)(UNIT - 1);
	to = CH_ROUND_UP(to, UNIT);
	/* Where all words are the same, a write costs no call, and in a child of fork no page.
	 * Memcheck would report reads at exec before the commit. */
	ch__valgrind_reports(false);
	while (from < to && has_same(v, from))
		from += UNIT;
	while (to > from && has_same(v, to - UNIT))
		to -= UNIT;
	ch__valgrind_reports(true);
	return from == to || carry_over(v, v->exec + from, v->write + from, to - from);
}

/* The memory is born executable at another place, where nothing jumps to: its own place holds the
 * write view's bytes from the first moment. */
bool ch__private_take_back(struct ch__views *v, size_t offset, size_t bytes)
{
	size_t align = v->has_large_pages && bytes % LARGE_PAGE_BYTES == 0 ? LARGE_PAGE_BYTES
									   : v->guard_bytes;
	uint8_t *born = ch__os_reserve(bytes, align, 0, ch__os_anywhere);
	if (!born)
		return false;
	if (ch__os_map_private(born, bytes, CH__OS_RX)) {
		if (align == LARGE_PAGE_BYTES)
			ch__os_suggest(born, bytes, CH__OS_LARGE_PAGES);
		/* Memcheck would report reads of the range's unused bytes. */
		ch__valgrind_reports(false);
		bool is_full = carry_over(v, born, v->write + offset, bytes);
		ch__valgrind_reports(true);
		if (is_full && ch__os_move_over(born, bytes, v->exec + offset))
			return true;
	}
	ch__os_unreserve(born, bytes);
	return false;
}

/* mremap puts the new page over the old page in one step, and threads that run in the page wait for
 * the step. Publishing to the page may happen at any time. */
bool ch__private_exchange(struct ch__views *v, size_t offset)
{
	atomic_fetch_add_explicit(v->exchanges, 1, memory_order_seq_cst);
	bool is_there = ch__private_take_back(v, offset & ~(v->guard_bytes - 1), v->guard_bytes);
	atomic_fetch_add_explicit(v->exchanges, 1, memory_order_release);
	ch__os_futex_wake(v->exchanges);
	return is_there;
}

bool ch__private_map(struct ch__views *v)
{
	v->is_own = ch__os_private(ch__os_page_bytes());
	if (!v->is_own)
		return false;
	v->exchanges = v->is_own + 1;
	/* Two words on, and so aligned to 8: a checked build's lock holds an address. */
	v->opening = (struct ch__lock *)(void *)(v->is_own + 2);
	if (!ch__private_open(v))
		return false;
	if (!ch__os_map_private(v->write, v->bytes, CH__OS_RW))
		return false;
	if (v->has_large_pages)
		ch__os_suggest(v->write, v->bytes, CH__OS_LARGE_PAGES);
	return true;
}
