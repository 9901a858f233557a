/* SPDX-License-Identifier: MIT
 * published.h: words that a thread published of its stack and registers stay, whatever signals come
 * before the words are read. This header has no tests. */
#pragma once

#include "codeheap/graph/block.h"
#include "tests/support/harness.h"

#include <string.h>

/* Called by ch__arch_with_registers. The published words are the caller's, and stay so while
 * `between` runs. */
static inline void publish_and_keep(const struct ch_heap *heap, const struct ch__arch_saved *saved,
				    void (*between)(void))
{
	struct ch__thread *self = ch__thread_self(heap);
	ch__thread_publish_saved(self, saved);
	struct ch__shown before = self->shown;
	CHECK_EQ(before.words_count, CH_ARCH_SAVED_WORDS);
	CHECK_EQ(memcmp(before.words, saved->words, sizeof saved->words), 0);
	between();
	CHECK_EQ(self->shown.sp, before.sp);
	CHECK_EQ(self->shown.signal_stack_end, before.signal_stack_end);
	CHECK_EQ(self->shown.vectors_low, before.vectors_low);
	CHECK_EQ(self->shown.vectors_high, before.vectors_high);
	CHECK_EQ(self->shown.words_count, before.words_count);
	CHECK_EQ(memcmp(self->shown.words, before.words, sizeof before.words), 0);
}
