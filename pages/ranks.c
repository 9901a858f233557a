/* SPDX-License-Identifier: MIT
 * ranks.c: what the calling thread holds, by ranks, and the panic of who takes locks out of order.
 * Empty in a build without these checks. */
#include "pages/ranks.h"

#include "arch/mutant.h"

#include <stdio.h>

#if CH_CHECK >= 2

static const char *const names[] = {
#define X(name, text) text,
	CH__RANK_LIST(X)
#undef X
};

/* How many of each rank: a lock that was only tried may be the second of its rank. */
static _Thread_local uint8_t held[CH__RANKS];
static _Thread_local bool is_resting;

__attribute__((noinline)) void ch__rank_check(enum ch__rank rank)
{
	if (is_resting || CH_MUTANT(CH__MUTANT_RANKS_UNSEEN))
		return;
	for (unsigned other = rank; other < CH__RANKS; other++) {
		char text[160];
		if (!held[other])
			continue;
		snprintf(text, sizeof text,
			 "locks out of order: %s is wanted by who holds %s, or a call was left by "
			 "longjmp or cancellation",
			 names[rank], names[other]);
		ch__panic(text);
	}
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
