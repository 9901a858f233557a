/* SPDX-License-Identifier: MIT
 * sized.h: the structs of the public headers that begin with their size, and so may grow. A program
 * that was compiled with an older header gives a smaller one: what it lacks is 0, the default of
 * every field, and what it has no room for is not written. A larger one, of a newer header, asks
 * for what this library does not know, and is refused by name. Fields are added at the end only,
 * and the last one ends the struct: nobody knows what an older program has in its padding.
 *
 * Structs without a size, which come in arrays or are read on hot paths, have spare words at their
 * end that new fields take, and that are 0 until then. A word that is not 0 is a field of a newer
 * header, and is refused by name, too.
 *
 * Each has a least size, below which nobody could have meant it: with the first fields, which every
 * version has. */
#ifndef CH_CODEHEAP_BASE_SIZED_H
#define CH_CODEHEAP_BASE_SIZED_H

#include "codeheap/base/why.h"

#include <string.h>

/* Bytes of a struct up to a field, and with it. */
#define CH__UP_TO(type, field) (offsetof(type, field) + sizeof(((const type *)0)->field))

static inline enum ch_status ch__sized_check(const char *name, const void *sized, size_t least,
					     size_t most)
{
	size_t size;
	memcpy(&size, sized, sizeof size);
	if (CH_LIKELY(size >= least && size <= most))
		return CH_OK;
	return ch__because(CH_E_ARG, "%s.size is %zu: libcodeheap " CH_VERSION_TEXT
				     " takes %zu to %zu", name, size, least, most);
}

/* Of the spare words of a struct. */
static inline enum ch_status ch__spare_check(const char *name, const uint64_t *words, size_t bytes)
{
	uint64_t all = 0;
	for (size_t i = 0; i < bytes / sizeof *words; i++)
		all |= words[i];
	if (CH_LIKELY(!all))
		return CH_OK;
	return ch__because(CH_E_ARG, "%s.spare is not 0: libcodeheap " CH_VERSION_TEXT
				     " knows no such field", name);
}

/* Fills a whole one with what the caller's has, which was checked, and zeros. */
static inline void ch__sized_take(void *to, size_t whole, const void *from)
{
	size_t size;
	memcpy(&size, from, sizeof size);
	memcpy(to, from, size);
	memset((char *)to + size, 0, whole - size);
	memcpy(to, &whole, sizeof whole);
}

/* Fills the caller's, all but its size, of a whole one. */
static inline void ch__sized_give(void *to, const void *from)
{
	size_t size;
	memcpy(&size, to, sizeof size);
	memcpy((char *)to + sizeof size, (const char *)from + sizeof size, size - sizeof size);
}

#endif
