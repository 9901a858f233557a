/* SPDX-License-Identifier: MIT
 * views_private.c: the backend PROCMEM, whose code is private memory, which no other mapping leads
 * to. What is written at exec + delta is a copy; each sync carries it over. A child of fork shares
 * the memory until one of both writes. It takes no lock.
 *
 * The code is mapped RX for its whole life, and written as the file /proc/self/mem: no address at
 * which code can be written is in the process. A write is one call of the aligned 8 bytes that
 * change, from the first to the last. The kernel may store them byte by byte (`rep movsb`; seen):
 * where a thread may be running them, their page is replaced (P7). */
#include "pages/inner.h"

#include <errno.h>
#include <string.h>

enum { UNIT = 8, LARGE_PAGE_BYTES = 2 << 20 };

/* --- writing --- */

/* Several threads may miss it at once. One that is there and ours stays: another thread may be
 * writing by its number. */
bool ch__private_open(struct ch__views *v)
{
	ch__lock_take(v->opening, CH__RANK_OPENING);
	bool is_open = atomic_load_explicit(v->is_own, memory_order_relaxed) &&
		       ch__os_holds(&v->file);
	if (!is_open) {
		ch__os_let_go(&v->file);
		is_open = ch__os_self_memory(&v->file);
		atomic_store_explicit(v->is_own, is_open, memory_order_relaxed);
	}
	ch__lock_release(v->opening, CH__RANK_OPENING);
	return is_open;
}

/* An inherited file leads to the parent's memory, and the child of a fork without handlers has no
 * other. A host that closes what it did not open may have another file at our number. */
static bool carry_over(struct ch__views *v, uint8_t *to, const uint8_t *from, size_t bytes)
{
	if (CH_UNLIKELY(!atomic_load_explicit(v->is_own, memory_order_relaxed)) &&
	    !ch__private_open(v))
		return false;
	return ch__os_self_write(&v->file, to, from, bytes) ||
	       (v->has_code && ch__private_open(v) && ch__os_self_write(&v->file, to, from, bytes));
}

/* The rest of a page that is replaced is copied: who writes another word of it writes again when
 * one was replaced meanwhile, or is on its way. The exchange is a fence too: either it is counted
 * before a replacement, whose copy then has the word, or it sees that. */
static bool write_file(struct ch__views *v, size_t from, size_t bytes)
{
	uint32_t seen;
	do {
		while ((seen = atomic_load(v->replaced)) % 2)
			ch__os_futex_wait(v->replaced, seen, 0);
		if (!carry_over(v, v->exec + from, v->write + from, bytes))
			return false;
	} while (atomic_fetch_add(v->replaced, 0) != seen);
	return true;
}

/* --- patches of live code --- */

/* At the limit of mappings (vm.max_map_count) the system moves no page. So each heap keeps one page
 * ready to be moved, and some mappings that it gives up for the moment of a move; and before a
 * branch is linked first its page becomes a mapping of its own, which is replaced by another one
 * without a further mapping. All that a link may lack is asked for before it; what undoes it lacks
 * nothing. */

static bool stage(struct ch__views *v)
{
	if (!v->staged)
		v->staged = ch__os_map_apart(v->guard_bytes);
	return v->staged != NULL;
}

static bool fill_spares(struct ch__views *v)
{
	while (v->spares_now < CH__SPARES) {
		void *spare = ch__os_map_spare();
		if (!spare)
			return false;
		v->spares[v->spares_now++] = spare;
	}
	return true;
}

static void drop_spare(struct ch__views *v)
{
	if (v->spares_now)
		ch__os_unmap_spare(v->spares[--v->spares_now]);
}

static _Atomic(uint8_t) *apart_of(const struct ch__views *v, size_t at)
{
	return &v->apart[at / v->guard_bytes];
}

/* Puts a copy of the page of a word over it, in one step to who runs there: who comes while the
 * system changes the mapping waits for it. What others are writing in that page may be in the copy
 * in parts: nothing leads to it, and their own sync carries it over. Under heap: one at a time. */
static bool replace_page(struct ch__views *v, size_t word)
{
	size_t page = word & ~(v->guard_bytes - 1);
	if (!stage(v))
		return false;
	atomic_fetch_add(v->replaced, 1); /* odd: pairs with write_file */
	/* The word first: its file is opened again where it is lost. */
	bool is_replaced = carry_over(v, v->staged + (word - page), v->write + word, UNIT) &&
			   ch__os_self_write(&v->file, v->staged, v->write + page,
					     v->guard_bytes) &&
			   ch__os_move_onto(v->staged, v->guard_bytes, v->exec + page);
	atomic_fetch_add(v->replaced, 1);
	ch__os_futex_wake(v->replaced);
	if (!is_replaced)
		return false;
	atomic_store_explicit(apart_of(v, page), 1, memory_order_relaxed);
	v->staged = NULL;
	(void)stage(v);
	return true;
}

/* Other threads may take the mappings that were given up, in the microseconds until the page is
 * moved; then more are. When all are taken the next try has what others leave. */
static bool replace_in_need(struct ch__views *v, size_t word)
{
	enum { NAPS = 1000, NAP_NS = 1000000 };
	_Atomic(uint32_t) never = 0;
	for (int naps = 0; naps < NAPS;) {
		drop_spare(v);
		bool is_replaced = replace_page(v, word);
		if (!is_replaced && v->spares_now)
			continue;
		(void)fill_spares(v);
		if (is_replaced)
			return true;
		ch__os_futex_wait(&never, 0, NAP_NS);
		naps++;
	}
	return false;
}

bool ch__private_patch_ready(struct ch__views *v, size_t at)
{
	if (v->sync_steps & CH__SYNC_VALGRIND)
		return true;
	return (atomic_load_explicit(apart_of(v, at), memory_order_relaxed) ||
		replace_page(v, at & ~(size_t)(UNIT - 1))) &&
	       stage(v) && fill_spares(v);
}

static unsigned bytes_that_differ(const struct ch__views *v, size_t word)
{
	unsigned count = 0;
	for (size_t at = word; at < word + UNIT; at++)
		count += v->exec[at] != v->write[at];
	return count;
}

static bool is_same(const struct ch__views *v, size_t at)
{
	return *(const volatile uint64_t *)(const volatile void *)(v->exec + at) ==
	       *(const volatile uint64_t *)(const volatile void *)(v->write + at);
}

/* Less of the range, in words; false: all of it is there already, which costs no call, and in a
 * child of fork no page. */
static bool trim(const struct ch__views *v, size_t *from, size_t *to)
{
	*from &= ~(size_t)(UNIT - 1);
	*to = (*to + UNIT - 1) & ~(size_t)(UNIT - 1);
	while (*from < *to && is_same(v, *from))
		*from += UNIT;
	while (*to > *from && is_same(v, *to - UNIT))
		*to -= UNIT;
	return *from < *to;
}

bool ch__private_write(struct ch__views *v, size_t from, size_t to)
{
	if (!trim(v, &from, &to))
		return true;
	return write_file(v, from, to - from);
}

bool ch__private_write_live(struct ch__views *v, size_t from, size_t to)
{
	if (!trim(v, &from, &to))
		return true;
	/* A patch is one word: where more is not there yet, nobody can run. Under Valgrind one
	 * thread runs at a time, and nobody may read the free bytes of a page. */
	if (to - from != UNIT || bytes_that_differ(v, from) == 1 ||
	    (v->sync_steps & CH__SYNC_VALGRIND))
		return write_file(v, from, to - from);
	if (replace_page(v, from))
		return true;
	return replace_in_need(v, from);
}

/* --- memory --- */

/* Born executable somewhere else, where nothing jumps to; at its place it holds traps from the
 * first. */
bool ch__private_take_back(struct ch__views *v, size_t offset, size_t bytes)
{
	size_t align = v->has_large_pages && bytes % LARGE_PAGE_BYTES == 0 ? LARGE_PAGE_BYTES
									   : v->guard_bytes;
	uint8_t *born = ch__os_reserve(bytes, align, 0, ch__os_anywhere);
	if (!born)
		return false;
	for (size_t at = offset; at < offset + bytes; at += v->guard_bytes)
		atomic_store_explicit(apart_of(v, at), 0, memory_order_relaxed);
	if (ch__os_map_private(born, bytes, CH__OS_RX)) {
		if (align == LARGE_PAGE_BYTES)
			ch__os_large_pages(born, bytes);
		if (carry_over(v, born, v->write + offset, bytes) &&
		    ch__os_move_over(born, bytes, v->exec + offset))
			return true;
	}
	int error = errno;
	ch__os_unreserve(born, bytes);
	errno = error;
	return false;
}

bool ch__private_commit(struct ch__views *v, size_t offset, size_t bytes)
{
	if (!ch__os_populate(v->write + offset, bytes))
		return false;
	ch__arch_fill_traps(v->write + offset, bytes);
	if (ch__private_take_back(v, offset, bytes))
		return true;
	int error = errno;
	bool is_dropped = ch__os_drop(v->write + offset, bytes);
	(void)is_dropped;
	errno = error;
	return false;
}

bool ch__private_decommit(struct ch__views *v, size_t offset, size_t bytes)
{
	return ch__os_map_private(v->exec + offset, bytes, CH__OS_NONE) &&
	       ch__os_drop(v->write + offset, bytes);
}

/* --- life --- */

bool ch__private_map(struct ch__views *v)
{
	v->is_own = ch__os_words_wiped_by_fork();
	if (!v->is_own)
		return false;
	v->replaced = v->is_own + 1;
	v->apart = ch__os_private(v->bytes / v->guard_bytes);
	if (!v->apart)
		return false;
	v->opening = (struct ch__lock *)(void *)(v->is_own + 2);
	if (!ch__private_open(v))
		return false;
	if (!ch__os_map_private(v->write, v->bytes, CH__OS_RW))
		return false;
	if (v->has_large_pages)
		ch__os_large_pages(v->write, v->bytes);
	return ch__private_commit(v, 0, v->runtime_bytes);
}

void ch__private_destroy(struct ch__views *v)
{
	while (v->spares_now)
		drop_spare(v);
	if (v->staged)
		ch__os_unmap_apart(v->staged, v->guard_bytes);
	if (v->apart)
		ch__os_unmap((void *)v->apart, v->bytes / v->guard_bytes);
	v->staged = NULL;
	v->apart = NULL;
	if (v->is_own)
		ch__os_words_free(v->is_own);
	v->is_own = NULL;
}
