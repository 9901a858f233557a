/* SPDX-License-Identifier: MIT
 * moves.c: the legal moves of pages and of chunks, and the assertion behind CH_MOVE. Empty in a
 * build without these checks. It takes no lock and allocates nothing: threads move in signal
 * handlers, too. */
#include "pages/moves.h"

#include "pages/inner.h"

#include <string.h>

#if CH_CHECK >= 2

#define PAGES_AND_BUSY (CH__UNDER_PAGES | CH__UNDER_BUSY)

static const char *const page_states[] = {"FREE", "OPEN", "PARTLY", "FULL", "SPAN"};
struct ch__moves ch__page_moves = {
	.noun = "page",
	.states = page_states,
	.states_count = 5,
	.rows =
		{
			{"ch__pool_take_page", CH__PAGE_FREE, CH__PAGE_OPEN, PAGES_AND_BUSY},
			{"ch__pool_take_page", CH__PAGE_PARTLY, CH__PAGE_OPEN, PAGES_AND_BUSY},
			{"ch__pool_take_page_in_need", CH__PAGE_FULL, CH__PAGE_OPEN,
			 PAGES_AND_BUSY},
			{"ch__pool_retire_page", CH__PAGE_OPEN, CH__PAGE_FULL, PAGES_AND_BUSY},
			{"ch__pool_retire_page", CH__PAGE_OPEN, CH__PAGE_PARTLY, PAGES_AND_BUSY},
			{"ch__pool_retire_page", CH__PAGE_OPEN, CH__PAGE_FREE, PAGES_AND_BUSY},
			{"ch__pool_note_freed", CH__PAGE_FULL, CH__PAGE_PARTLY, PAGES_AND_BUSY},
			{"ch__pool_note_freed", CH__PAGE_FULL, CH__PAGE_FREE, PAGES_AND_BUSY},
			{"ch__pool_note_freed", CH__PAGE_PARTLY, CH__PAGE_FREE, PAGES_AND_BUSY},
			{"ch__pool_take_span", CH__PAGE_FREE, CH__PAGE_SPAN, CH__UNDER_PAGES},
			{"ch__pool_release_span", CH__PAGE_SPAN, CH__PAGE_FREE, CH__UNDER_PAGES},
			/* It was retired: its pages are executable again. */
			{"ch__pool_retry_retired", CH__PAGE_SPAN, CH__PAGE_FREE, CH__UNDER_PAGES},
		},
};

/* A chunk that was given up may have lingered; the child of a fork has memory for COMMITTED ones
 * only. */
static const char *const chunk_states[] = {"EMPTY", "COMMITTED", "LINGERING"};
struct ch__moves ch__chunk_moves = {
	.noun = "chunk",
	.states = chunk_states,
	.states_count = 3,
	.rows =
		{
			{"commit_chunk", CH__CHUNK_EMPTY, CH__CHUNK_COMMITTED, CH__UNDER_PAGES},
			{"commit_chunk", CH__CHUNK_LINGERING, CH__CHUNK_COMMITTED, CH__UNDER_PAGES},
			{"give_up_chunk", CH__CHUNK_COMMITTED, CH__CHUNK_EMPTY, CH__UNDER_PAGES},
			{"give_up_chunk", CH__CHUNK_COMMITTED, CH__CHUNK_LINGERING,
			 CH__UNDER_PAGES},
			{"give_up_chunk", CH__CHUNK_LINGERING, CH__CHUNK_EMPTY, CH__UNDER_PAGES},
			{"close_empty_chunks", CH__CHUNK_LINGERING, CH__CHUNK_EMPTY,
			 CH__UNDER_PAGES},
		},
};

/* --- the assertion --- */

struct text {
	char bytes[200];
	size_t length;
};

static void add(struct text *text, const char *more)
{
	while (*more && text->length + 1 < sizeof text->bytes)
		text->bytes[text->length++] = *more++;
	text->bytes[text->length] = 0;
}

static void add_number(struct text *text, uint32_t number)
{
	char digits[11];
	size_t at = sizeof digits - 1;
	digits[at] = 0;
	do
		digits[--at] = (char)('0' + number % 10);
	while (number /= 10);
	add(text, digits + at);
}

static const char *state_name(const struct ch__moves *table, uint32_t state)
{
	return state < table->states_count ? table->states[state] : "no state";
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
	struct text text = {.length = 0};
	add(&text, table->noun);
	add(&text, " ");
	add_number(&text, index);
	if (generation) {
		add(&text, ".");
		add_number(&text, generation);
	}
	add(&text, " may not move from ");
	add(&text, state_name(table, from));
	add(&text, " to ");
	add(&text, state_name(table, to));
	add(&text, why);
	add(&text, " (");
	add(&text, by);
	add(&text, ")");
	ch__panic(text.bytes);
}

void ch__move(struct ch__moves *table, uint32_t index, uint32_t generation, uint32_t from,
	      uint32_t to, uint32_t held, const char *by)
{
	if (CH_MUTANT(CH__MUTANT_MOVES_UNCHECKED))
		return;
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
		if (!(atomic_load_explicit(&table->made, memory_order_relaxed) & bit))
			atomic_fetch_or_explicit(&table->made, bit, memory_order_relaxed);
		return;
	}
	refuse(table, index, generation, from, to, by, is_legal ? ": not by this function" : "");
}

#endif
