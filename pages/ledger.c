/* SPDX-License-Identifier: MIT
 * ledger.c: the ledger of published bytes, in checked builds (CH_CHECK >= 2; docs/design.md,
 * section 4): each sync notes the bytes of its range. Private views need no notes: the code there
 * is what a sync carried over. No lock is taken: callers keep the bytes from changing. */
#include "pages/inner.h"
#include "pages/write.h"

#include <stdio.h>

#if CH_CHECK >= 2

/* The notes of the whole pool are one range, touched as the pool is; the runtime page comes first.
 * Where address space is limited there are none: they would take what is left. */
void ch__ledger_open(struct ch__pool *pool, size_t offset, size_t bytes)
{
	const struct ch__views *v = &pool->inner->views;
	if (!offset && !ch__views_are_private(v) && !ch__os_space_is_limited())
		pool->inner->notes = ch__os_notes(v->bytes);
	/* The bytes are traps, and already published. */
	if (pool->inner->notes)
		memcpy(pool->inner->notes + offset, v->write + offset, bytes);
}

void ch__ledger_destroy(struct ch__pool *pool)
{
	if (pool->inner->notes)
		ch__os_unmap(pool->inner->notes, pool->inner->views.bytes);
}

/* Notes the bytes, or returns the first byte that differs from its note, else the end. Threads may
 * write blocks of the same chunk meanwhile. */
__attribute__((no_sanitize("thread"))) static size_t go_over(const struct ch__pool *pool, size_t at,
							     size_t end, bool notes_them)
{
	const struct ch__views *v = &pool->inner->views;
	volatile uint8_t *notes = pool->inner->notes;
	if (!notes_them && ch__views_are_private(v))
		notes = v->exec;
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
