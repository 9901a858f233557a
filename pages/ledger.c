/* SPDX-License-Identifier: MIT
 * ledger.c: the ledger of what was published to execution, in checked builds (CH_CHECK >= 2). No
 * x86-64 and no emulator shows that a flush of the instruction cache was left out: so each sync
 * notes the bytes that it covered, and where code becomes reachable, or is given back as traps, the
 * bytes that are written there must be those that were noted. Private views need no notes: what
 * runs is what a sync carried over. It takes no lock: callers hold what keeps the bytes as they
 * are. */
#include "pages/inner.h"

#include <stdio.h>
#include <string.h>

#if CH_CHECK >= 2

/* Of the runtime page, or of a chunk: where its notes are, from which offset on and how far. NULL:
 * there was no memory for them, or the chunk has none itself. */
static uint8_t *part_of(const struct ch__pool *pool, size_t offset, size_t *from, size_t *bytes)
{
	const struct ch__pool_inner *inner = pool->inner;
	if (offset < pool->runtime_bytes) {
		*from = 0;
		*bytes = pool->runtime_bytes;
		return inner->ledger[0];
	}
	size_t chunk = (offset - pool->runtime_bytes) >> pool->chunk_log2;
	*from = pool->runtime_bytes + (chunk << pool->chunk_log2);
	*bytes = ch__pool_chunk_bytes(pool);
	return inner->ledger[1 + chunk];
}

void ch__ledger_open(struct ch__pool *pool, size_t offset, size_t bytes)
{
	if (ch__views_are_private(&pool->inner->views))
		return;
	size_t from, whole,
		part = offset < pool->runtime_bytes
			       ? 0
			       : 1 + ((offset - pool->runtime_bytes) >> pool->chunk_log2);
	if (!pool->inner->ledger[part])
		pool->inner->ledger[part] = ch__os_notes(bytes);
	uint8_t *notes = part_of(pool, offset, &from, &whole);
	/* Traps, which the views' commit has published. */
	if (notes)
		memcpy(notes, pool->inner->views.write + offset, bytes);
}

void ch__ledger_close(struct ch__pool *pool, size_t offset)
{
	size_t from, bytes;
	uint8_t *notes = part_of(pool, offset, &from, &bytes);
	if (!notes)
		return;
	ch__os_unmap(notes, bytes);
	pool->inner->ledger[from ? 1 + ((from - pool->runtime_bytes) >> pool->chunk_log2) : 0] =
		NULL;
}

void ch__ledger_destroy(struct ch__pool *pool)
{
	ch__ledger_close(pool, 0);
	for (uint32_t chunk = 0; chunk < pool->chunk_count; chunk++)
		ch__ledger_close(pool, pool->runtime_bytes + ((size_t)chunk << pool->chunk_log2));
}

/* Threads that compile write to the same chunk, each to its own blocks. */
__attribute__((no_sanitize("thread"))) void ch__ledger_note(const struct ch__pool *pool, size_t at,
							    size_t bytes)
{
	size_t end = at + bytes, from, part_bytes;
	while (at < end) {
		uint8_t *notes = part_of(pool, at, &from, &part_bytes);
		size_t stop = end < from + part_bytes ? end : from + part_bytes;
		const uint8_t *write = pool->inner->views.write;
		for (; notes && at < stop; at++)
			((volatile uint8_t *)notes)[at - from] =
				((const volatile uint8_t *)write)[at];
		at = stop;
	}
}

__attribute__((no_sanitize("thread"))) static bool is_noted(const struct ch__pool *pool, size_t at,
							    size_t end, size_t *lacks)
{
	const struct ch__views *v = &pool->inner->views;
	size_t from, part_bytes;
	while (at < end) {
		const uint8_t *notes = part_of(pool, at, &from, &part_bytes);
		size_t stop = end < from + part_bytes ? end : from + part_bytes;
		if (ch__views_are_private(v))
			notes = v->exec + from;
		for (; notes && at < stop; at++)
			if (((const volatile uint8_t *)notes)[at - from] !=
			    ((const volatile uint8_t *)v->write)[at]) {
				*lacks = at;
				return false;
			}
		at = stop;
	}
	return true;
}

void ch__ledger_check(const struct ch__pool *pool, size_t at, size_t bytes, const char *what)
{
	static char reason[160];
	size_t lacks = 0;
	if (!pool->inner->views.has_code)
		return;
	/* Among them are free bytes, which memcheck would report. */
	if (pool->is_translated)
		ch__valgrind_reports(false);
	bool all = is_noted(pool, at, at + bytes, &lacks);
	if (pool->is_translated)
		ch__valgrind_reports(true);
	if (all)
		return;
	snprintf(reason, sizeof reason,
		 "ledger: %s: the byte at +%zu of %zu was written and not published", what,
		 lacks - at, bytes);
	ch__panic(reason);
}

#endif
