/* SPDX-License-Identifier: MIT
 * walk.c: the frame-pointer walk on hand-made stacks, good and broken, and on the real
 * one. */
#include "arch/arch.h"
#include "os/os.h"
#include "os/threads.h"
#include "tests/support/harness.h"
#include "unwind/unwind.h"

#include <string.h>

enum { STACK_WORDS = 64, MOST = 16 };

struct stack {
	_Alignas(16) uintptr_t words[STACK_WORDS];
	uintptr_t out[MOST];
};

/* Returns the frame pointer of a frame with the given record. */
static uintptr_t frame_of(const void *record)
{
	return (uintptr_t)record - (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT;
}

static void put_frame(struct stack *s, unsigned at, unsigned caller, uintptr_t return_address)
{
	s->words[at] = frame_of(&s->words[caller]);
	s->words[at + 1] = return_address;
}

static size_t walk(struct stack *s, uintptr_t record, size_t max)
{
	return ch__walk(0x7000, frame_of((void *)record), (uintptr_t)s->words,
			(uintptr_t)&s->words[STACK_WORDS], s->out, max);
}

static void make_three_frames(struct stack *s)
{
	memset(s, 0, sizeof *s);
	put_frame(s, 2, 10, 0x10000);
	put_frame(s, 10, 30, 0x20000);
	put_frame(s, 30, 0, 0x30000);
	s->words[30] = 0;
}

TEST(walk_yields_frames_innermost_first)
{
	struct stack s;
	make_three_frames(&s);
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 4);
	CHECK_EQ(s.out[0], 0x7000);
	CHECK_EQ(s.out[1], 0x10000);
	CHECK_EQ(s.out[2], 0x20000);
	CHECK_EQ(s.out[3], 0x30000);
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], 2), 2);
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], 0), 0);
	CHECK_EQ(ch__walk(0, frame_of(&s.words[2]), (uintptr_t)s.words,
			  (uintptr_t)&s.words[STACK_WORDS], s.out, MOST),
		 3);
	CHECK_EQ(s.out[0], 0x10000);
}

TEST(walk_stops_at_broken_frames)
{
	struct stack s;
	make_three_frames(&s);
	put_frame(&s, 30, 2, 0x30000); /* a ring */
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 4);
	put_frame(&s, 30, 30, 0x30000); /* a frame that leads to itself */
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 4);
	s.words[10] += 1; /* misaligned */
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 3);
	put_frame(&s, 10, 2, 0x20000); /* falling */
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 3);
}

TEST(walk_ends_at_the_marks_of_an_outermost_frame)
{
	struct stack s;
	make_three_frames(&s);
	put_frame(&s, 10, 30, 1);
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 2);
	put_frame(&s, 10, 30, 0);
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 2);
	put_frame(&s, 10, 30, 2); /* a number, but no mark */
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 4);
	make_three_frames(&s);
	s.words[10] = 0; /* saved frame pointer 0: the return address counts, nothing above */
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 3);
}

TEST(walk_reads_inside_the_stack_only)
{
	struct stack s;
	make_three_frames(&s);
	uintptr_t low = (uintptr_t)s.words, high = (uintptr_t)&s.words[STACK_WORDS];
	CHECK_EQ(walk(&s, low - 8, MOST), 1);
	CHECK_EQ(walk(&s, high - 16, MOST), 1);
	CHECK_EQ(walk(&s, high, MOST), 1);
	CHECK_EQ(walk(&s, 0, MOST), 1);
	CHECK_EQ(walk(&s, UINTPTR_MAX - 7, MOST), 1);
	CHECK_EQ(ch__walk(0x7000, 8, 0, 0, s.out, MOST), 1);
	put_frame(&s, 2, STACK_WORDS - 3, 0x10000); /* the last frame inside */
	put_frame(&s, STACK_WORDS - 3, STACK_WORDS - 1, 0x40000);
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 3);
	put_frame(&s, 2, STACK_WORDS - 2, 0x10000); /* ends at the stack's end */
	s.words[STACK_WORDS - 2] = 0;
	s.words[STACK_WORDS - 1] = 0x50000;
	CHECK_EQ(walk(&s, (uintptr_t)&s.words[2], MOST), 3);
	CHECK_EQ(s.out[2], 0x50000);
}

__attribute__((noinline)) static size_t walk_here(uintptr_t *out, uintptr_t high)
{
	uintptr_t fp = (uintptr_t)__builtin_frame_address(0);
	uintptr_t low = fp + (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT;
	size_t n = ch__walk(0, fp, low, high, out, MOST);
	__asm__ volatile("" ::: "memory");
	return n;
}

__attribute__((noinline)) static size_t walk_below(uintptr_t *out, uintptr_t high, uintptr_t *back)
{
	size_t n = walk_here(out, high);
	*back = (uintptr_t)__builtin_extract_return_addr(__builtin_return_address(0));
	__asm__ volatile("" ::: "memory");
	return n;
}

TEST(walk_of_the_real_stack_meets_the_callers)
{
	const void *low, *high;
	uintptr_t out[MOST], back;
	CHECK(ch__os_stack_bounds(&low, &high));
	CHECK(walk_below(out, (uintptr_t)high, &back) >= 2);
	CHECK_EQ(out[1], back);
}
