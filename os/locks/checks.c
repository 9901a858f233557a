/* SPDX-License-Identifier: MIT
 * checks.c: what checked builds watch, and its panics: the locks that the calling thread holds, by
 * rank, and the assertion behind CH_MOVE. Empty in a build without these checks. Takes no lock and
 * allocates nothing: threads make moves in signal handlers, too. */
#include "os/locks/moves.h"
#include "os/locks/ranks.h"
#include "os/text.h"

#include <string.h>

#if CH_CHECK >= 2

static const char *const names[] = {
#define X(name, text) text,
	CH__RANK_LIST(X)
#undef X
};

/* The number of locks of each rank: a lock that was only tried may be the second of its rank. */
static _Thread_local uint8_t locks[CH__RANKS];
static _Thread_local bool is_resting;

__attribute__((noinline)) void ch__rank_check_for(enum ch__rank rank, const char *what)
{
	if (is_resting)
		return;
	unsigned other = rank;
	while (other < CH__RANKS && !locks[other])
		other++;
	if (other == CH__RANKS)
		return;
	char bytes[240];
	struct ch__text text = {bytes, sizeof bytes, 0};
	ch__text_format(&text, "locks out of order: %s is wanted by who holds %s; or %s",
			what ? what : names[rank], names[other], CH__MISPLACED_CALL);
	ch__text_end(&text);
	ch__panic(bytes);
}

__attribute__((noinline)) void ch__rank_note(enum ch__rank rank, bool is_taken)
{
	if (is_resting)
		return;
	CH_ASSERT(is_taken || locks[rank], "a lock is let go by who does not hold it");
	locks[rank] = (uint8_t)(is_taken ? locks[rank] + 1 : locks[rank] - 1);
}

__attribute__((noinline)) void ch__ranks_rest(bool rests)
{
	is_resting = rests;
}

static const char *state_name(const struct ch__moves *table, uint32_t state)
{
	bool is_state = state < CH__MOVE_STATES && table->states[state];
	return is_state ? table->states[state] : "no state";
}

static const char *missing_name(uint32_t missing)
{
	return missing & CH__IN_REGION        ? " outside a region"
	       : missing & CH__UNDER_HEAP     ? " without the heap lock"
	       : missing & CH__UNDER_REGISTRY ? " without the registry lock"
	       : missing & CH__UNDER_PAGES    ? " without the pages lock"
	       : missing & CH__UNDER_BUSY     ? " without the page's busy"
					      : " without the owner's busy";
}

static _Noreturn CH_COLD void refuse(const struct ch__moves *table, uint32_t index,
				     uint32_t generation, uint32_t from, uint32_t to,
				     const char *by, const char *why)
{
	char bytes[200];
	struct ch__text text = {bytes, sizeof bytes, 0};
	ch__text_format(&text, "%s %u", table->noun, index);
	if (generation)
		ch__text_format(&text, ".%u", generation);
	ch__text_format(&text, " may not move from %s to %s%s (%s)", state_name(table, from),
			state_name(table, to), why, by);
	ch__text_end(&text);
	ch__panic(bytes);
}

void ch__move(struct ch__moves *table, uint32_t index, uint32_t generation, uint32_t from,
	      uint32_t to, uint32_t held, const char *by)
{
	bool is_legal = false;
	for (uint32_t row = 0; row < CH__MOVE_ROWS && table->rows[row].by; row++) {
		const struct ch__move *move = &table->rows[row];
		if (move->from != from || move->to != to)
			continue;
		is_legal = true;
		if (strcmp(move->by, by) != 0)
			continue;
		uint32_t missing = move->held & ~held;
		if (missing)
			refuse(table, index, generation, from, to, by, missing_name(missing));
		uint32_t bit = UINT32_C(1) << row;
		if (!(CH_LOAD_RELAXED(&table->made) & bit))
			atomic_fetch_or_explicit(&table->made, bit, memory_order_relaxed);
		return;
	}
	refuse(table, index, generation, from, to, by, is_legal ? ": not by this function" : "");
}

#endif
