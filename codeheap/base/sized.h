/* SPDX-License-Identifier: MIT
 * sized.h: the structs of the public headers that may grow, by their size or by spare words (the
 * head of codeheap.h). Fields are added at the end only, and the last field ends a struct without
 * padding: an older program may have anything in padding. Each struct with a size has a least size:
 * the first fields, present in every version. A size is of whole words, as sizeof is: so it cuts no
 * pointer in two. */
#pragma once

#include "codeheap/base/why.h"

/* Bytes of a struct from its start to the end of a field. */
#define CH__UP_TO(type, field) (offsetof(type, field) + sizeof(((const type *)0)->field))
/* Asserts which field ends a struct. */
#define CH__ENDS_WITH(type, field)                                            \
	((void)sizeof(struct {                                                 \
		_Static_assert(CH__UP_TO(struct type, field) == sizeof(struct type), \
			       "padding that a field would take");             \
		int none;                                                      \
	}))
enum { CH__SIZED_BY = sizeof(uint64_t) };
/* Checks the size of the caller's struct: the fields up to `least` are present in every version. */
#define CH__SIZED_CHECK(type, at, least, last) \
	(CH__ENDS_WITH(type, last),            \
	 ch__sized_check(#type, (at), CH_ROUND_UP(CH__UP_TO(struct type, least), CH__SIZED_BY), \
			 sizeof(struct type)))
/* Checks the spare words of a struct, which end it. */
#define CH__SPARE_CHECK(type, at) \
	(CH__ENDS_WITH(type, spare), ch__spare_check(#type, (at)->spare, sizeof (at)->spare))

static inline enum ch_status ch__sized_check(const char *name, const void *sized, size_t least,
					     size_t most)
{
	size_t size;
	memcpy(&size, sized, sizeof size);
	if (CH_LIKELY(size >= least && size <= most && size % CH__SIZED_BY == 0))
		return CH_OK;
	return ch__because(CH_E_ARG, "%s.size is %zu: libcodeheap " CH_VERSION_TEXT
				     " takes %zu to %zu, by %d", name, size, least, most,
			   CH__SIZED_BY);
}

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

/* Fills a whole struct from the caller's, which was checked; missing fields are 0. */
static inline void ch__sized_take(void *to, size_t whole, const void *from)
{
	size_t size;
	memcpy(&size, from, sizeof size);
	memcpy(to, from, size);
	memset((char *)to + size, 0, whole - size);
	memcpy(to, &whole, sizeof whole);
}

/* Fills the caller's struct, all but its size, from a whole struct. */
static inline void ch__sized_give(void *to, const void *from)
{
	size_t size;
	memcpy(&size, to, sizeof size);
	memcpy((char *)to + sizeof size, (const char *)from + sizeof size, size - sizeof size);
}
