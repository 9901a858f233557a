/* SPDX-License-Identifier: MIT
 * ledger.c: the ledger of published bytes, in checked builds (CH_CHECK >= 2). No x86-64 and no
 * emulator shows that a flush of the instruction cache was left out. So each sync notes the bytes
 * of its range, and when code becomes reachable, or is given back as traps, the written bytes must
 * be the noted bytes. Private views need no notes: the code there is what a sync carried over. No
 * lock is taken: callers keep the bytes from changing. */
#include "pages/inner.h"
#include "pages/write.h"

#include <stdio.h>
#include <string.h>

#if CH_CHECK >= 2

/* The runtime page, or a chunk. Notes are NULL before the first memory, or for want of memory. */
struct part {
	uint8_t **notes;
	size_t from, end;
};

static struct part part_at(const struct ch__pool *pool, size_t offset)
{
	if (offset < pool->runtime_bytes)
		return (struct part){&pool->inner->notes[0], 0, pool->runtime_bytes};
	size_t chunk = (offset - pool->runtime_bytes) >> pool->chunk_log2;
	size_t from = pool->runtime_bytes + (chunk << pool->chunk_log2);
	return (struct part){&pool->inner->notes[1 + chunk], from,
			     from + ch__pool_chunk_bytes(pool)};
}

void ch__ledger_open(struct ch__pool *pool, size_t offset, size_t bytes)
{
	struct part part = part_at(pool, offset);
	if (!*part.notes && !ch__views_are_private(&pool->inner->views))
		*part.notes = ch__os_notes(part.end - part.from);
	/* The bytes are traps, and already published. */
	if (*part.notes)
		memcpy(*part.notes + (offset - part.from), pool->inner->views.write + offset,
		       bytes);
}

void ch__ledger_destroy(struct ch__pool *pool)
{
	struct part part = {.end = 0};
	while (part.end < pool->inner->views.bytes) {
		part = part_at(pool, part.end);
		if (*part.notes)
			ch__os_unmap(*part.notes, part.end - part.from);
	}
}

/* Notes the bytes, or returns the first byte that differs from its note, else the end. Threads may
 * write blocks of the same chunk meanwhile. */
__attribute__((no_sanitize("thread"))) static size_t go_over(const struct ch__pool *pool, size_t at,
							     size_t end, bool notes_them)
{
	const struct ch__views *v = &pool->inner->views;
	while (at < end) {
		struct part part = part_at(pool, at);
		size_t stop = end < part.end ? end : part.end;
		volatile uint8_t *notes = *part.notes;
		if (!notes_them && ch__views_are_private(v))
			notes = v->exec + part.from;
		for (; notes && at < stop; at++) {
			uint8_t byte = ((const volatile uint8_t *)v->write)[at];
			if (notes_them)
				notes[at - part.from] = byte;
			else if (notes[at - part.from] != byte)
				return at;
		}
		at = stop;
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
