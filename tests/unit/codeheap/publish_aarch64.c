/* SPDX-License-Identifier: MIT
 * publish_aarch64.c: publishing code cleans and invalidates the caches of all the code's bytes.
 * This program replaces the compiler's function for the flush, and notes the flushed ranges. */
#include "tests/support/flush_notes.h"

enum { LINE_BYTES = 16 }; /* the architecture's smallest line */

void __clear_cache(void *from, void *to);
void __clear_cache(void *from, void *to)
{
	uintptr_t low = (uintptr_t)from & ~(uintptr_t)(LINE_BYTES - 1), high = (uintptr_t)to;
	for (uintptr_t at = low; at < high; at += LINE_BYTES)
		__asm__ volatile("dc cvau, %0" ::"r"(at) : "memory");
	__asm__ volatile("dsb ish" ::: "memory");
	for (uintptr_t at = low; at < high; at += LINE_BYTES)
		__asm__ volatile("ic ivau, %0" ::"r"(at) : "memory");
	__asm__ volatile("dsb ish\n\tisb" ::: "memory");
	note_flush((uintptr_t)from, high);
}

TEST(each_byte_that_is_published_is_cleaned_and_invalidated)
{
	expect_a_new_block_is_noted();
}

TEST(each_byte_that_is_published_is_cleaned_and_invalidated_where_views_need_no_step)
{
	expect_a_published_block_is_noted();
}
