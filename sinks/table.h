/* SPDX-License-Identifier: MIT
 * table.h: the table of sinks of a heap, with what its files share. Private to sinks/.
 *
 * Lock: the sinks lock, right of pages, guards page states, shapes and the unwinder's
 * registrations. Ranges are told under each sink's own lock only: writing a file must not stop
 * threads that take pages. `on` and the states of sinks are read without a lock; a state stays
 * allocated until destroy. */
#pragma once

#include "sinks/sinks.h"
#include "sinks/tools.h"

enum { CH__SINKS_COUNT = __builtin_popcount(CH__SINKS_ALL) };
/* In the order in which a new range is told: of tools, a sink with times before sinks without. */
extern const struct ch__sink_ops *const ch__sinks_table[CH__SINKS_COUNT];

struct ch__sinks {
	struct ch__sinks_config config;
	struct ch__lock lock;
	/* As the configuration says. The caller of set orders a change before the threads that must
	 * hear. */
	_Atomic(unsigned) on;
	_Atomic(int) errors[CH__SINKS_COUNT];
	/* Release when open made it; pairs with the acquire of ch__sinks_state_of. */
	_Atomic(void *) state[CH__SINKS_COUNT];
	uint32_t page_count;          /* [const] */
	CH_BY_SINKS uint32_t page_end; /* no page from here on ever had frames */
	CH_BY_SINKS uint8_t shape_count;
	CH_BY_SINKS struct ch__frame_shape shapes[CH__FRAMES];
	_Atomic(struct ch__steps *) steps; /* NULL at first; release, pairs with ch__sinks_steps */
	CH_BY_SINKS struct ch__own *own; /* all live tables */
	CH_BY_SINKS bool is_codeless;    /* a child of fork without code */
	CH_BY_SINKS bool keeps_tables;   /* an unwinder has tables that it cannot give up */
	_Atomic(uint8_t) frames[]; /* as the configuration says; stored under the lock, release */
};

static inline void *ch__sinks_state_of(const struct ch__sinks *s, unsigned i)
{
	return atomic_load_explicit(&s->state[i], memory_order_acquire);
}

/* The state of the sink in slot i, or NULL when the sink is off. Inline, though its files are built
 * to be small: each block that comes or goes asks this of every sink. */
static inline __attribute__((always_inline)) void *
ch__sinks_state_if_on(const struct ch__sinks *s, unsigned i)
{
	bool is_on = ch__sink_is_on(&s->config, ch__sinks_table[i]->bit);
	return is_on ? ch__sinks_state_of(s, i) : NULL;
}

/* Visits each sink that is on and has the entry. */
#define CH__SINKS_EACH(s, i, state, entry)                                                 \
	for (unsigned i = 0; i < CH__SINKS_COUNT; i++)                                     \
		for (void *state = ch__sinks_table[i]->entry ? ch__sinks_state_if_on(s, i) \
							     : NULL;                       \
		     state; state = NULL)

/* Writes the shapes that each heap begins with (frames.c). */
void ch__sinks_fixed_shapes(struct ch__frame_shape *, uint16_t slot_bytes);
