/* SPDX-License-Identifier: MIT
 * life.h: what the files of this part are to each other. */
#ifndef CH_CODEHEAP_LIFE_LIFE_H
#define CH_CODEHEAP_LIFE_LIFE_H

#include "codeheap/graph/block.h"

/* ch_block_open of a heap that the owner's handle names, for any frame number: open is valid. */
enum ch_status ch__block_open(struct ch_heap *, struct ch__thread *, const struct ch_open *,
			      struct ch_code *);
/* In two: at this size gcc takes a string instruction, which is slower than stores. */
static inline void ch__code_clear(struct ch_code *code)
{
	memset(code, 0, 64);
	memset((uint8_t *)code + 64, 0, sizeof *code - 64);
}
/* ch_block_commit; a block in a slot is told to the unwinder before it can be reached. */
enum ch_status ch__block_commit(struct ch_heap *, struct ch__thread *, struct ch_code *,
				size_t count, bool in_slots);
/* CH_E_BROKEN: the head of a part was written over. */
enum ch_status ch__overrun_in_front(const struct ch_heap *, const struct ch__block *,
				    const char *part) CH_COLD;
/* CH_E_BROKEN: the word behind a part is not what the heap has there. Takes heap and freezes where
 * it looks so. */
enum ch_status ch__overrun_judge(struct ch_heap *, const struct ch__block *, uint32_t end,
				 const char *part) CH_COLD;
/* Bytes that a block had become traps, and go back to their page; they may be none. */
void ch__part_cut(struct ch_heap *, uint32_t offset, uint32_t bytes) CH_REQUIRES(ch__role_region);
/* The calling thread, which a call attaches that needs it, and refuses where it is parked; and the
 * cold half. */
enum ch_status ch__thread_need_cold(struct ch_heap *, struct ch__thread **self) CH_COLD;
static inline enum ch_status ch__thread_need(struct ch_heap *heap, struct ch__thread **self)
{
	*self = ch__thread_self(heap);
	return CH_LIKELY(*self && !(*self)->park_depth) ? CH_OK : ch__thread_need_cold(heap, self);
}
bool ch__fork_register(void);
/* Writes the trampoline of a heap that nobody else knows. */
void ch__runtime_begin(struct ch_heap *) CH_REQUIRES(ch__role_heap);
/* What the environment says overrides the configuration; the set of sinks is resolved. CH_E_ARG: a
 * value is unknown, and if it is the environment's, stderr has a line of it. */
enum ch_status ch__wishes_read(struct ch_config *, unsigned *wanted);
/* Of a heap that was made: which of the sinks it could not have, and why. */
void ch__wishes_tell_off(const struct ch_heap *, unsigned wanted);

static inline uint32_t ch__round_up(uint64_t bytes)
{
	return (uint32_t)((bytes + CH__GRANULE_BYTES - 1) & ~(uint64_t)(CH__GRANULE_BYTES - 1));
}

#endif
