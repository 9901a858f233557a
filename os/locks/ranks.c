/* SPDX-License-Identifier: MIT
 * ranks.c: the locks that the calling thread holds, by rank, and the panic for locks out of order.
 * Empty in a build without these checks. */
#include "os/locks/ranks.h"

#include "os/text.h"

#if CH_CHECK >= 2

static const char *const names[] = {
#define X(name, text) text,
	CH__RANK_LIST(X)
#undef X
};

/* The number of locks of each rank: a lock that was only tried may be the second of its rank. */
static _Thread_local uint8_t held[CH__RANKS];
static _Thread_local bool is_resting;

static _Noreturn CH_COLD void refuse(const char *what, const char *has)
{
	char bytes[240];
	struct ch__text text = {bytes, sizeof bytes, 0};
	ch__text_format(&text, "locks out of order: %s is wanted by who holds %s; or %s", what, has,
			CH__MISPLACED_CALL);
	ch__text_end(&text);
	ch__panic(bytes);
}

__attribute__((noinline)) void ch__rank_check_for(enum ch__rank rank, const char *what)
{
	if (is_resting)
		return;
	for (unsigned other = rank; other < CH__RANKS; other++)
		if (held[other])
			refuse(what ? what : names[rank], names[other]);
}

__attribute__((noinline)) void ch__rank_note(enum ch__rank rank, bool is_taken)
{
	if (is_resting)
		return;
	CH_ASSERT(is_taken || held[rank], "a lock is let go by who does not hold it");
	held[rank] = (uint8_t)(is_taken ? held[rank] + 1 : held[rank] - 1);
}

__attribute__((noinline)) void ch__ranks_rest(bool rests)
{
	is_resting = rests;
}

#endif
