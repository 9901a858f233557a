/* SPDX-License-Identifier: MIT
 * ledger.c: the ledger of published bytes, in checked builds (CH_CHECK >= 2; docs/design.md,
 * section 4): each sync notes the bytes of its range. Private views need no notes: the code there
 * is what a sync carried over. No lock is taken: callers keep the bytes from changing. */
#include "pages/inner.h"
#include "pages/write.h"

#include <stdio.h>

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
