/* SPDX-License-Identifier: MIT
 * steps.c: the notes of code whose frame is right at each instruction, and the map from the code's
 * bytes to the notes. tests/api/steps_x86_64.cc shows that unwinders follow the notes. */
#include "os/text.h"
#include "tests/support/harness.h"
#include "unwind/steps.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { POOL_BYTES = 1 << 20, POOL_AT = 0x10000 };

static void skip_without_steps(void)
{
	if (!CH_ARCH_HAS_STEPS)
		skip("code with steps is not of this architecture");
}

TEST(map_leads_from_each_word_of_a_block_to_its_note)
{
	struct ch__steps s;
	CHECK(ch__steps_begin(&s, POOL_AT, POOL_BYTES));
	uintptr_t exec = POOL_AT + 512 + 3, note = POOL_AT + 560;
	ch__steps_live(&s, exec, note);
	for (uintptr_t at = POOL_AT; at < POOL_AT + 1024; at++) {
		uintptr_t wanted = at >= (exec & ~(uintptr_t)7) && at < note + 8 ? note : 0;
		if (ch__steps_note(&s, at) != wanted)
			FAIL("at %zu: %zu", (size_t)(at - POOL_AT),
			     (size_t)(ch__steps_note(&s, at) - POOL_AT));
	}
	/* The last word of the pool has a place, too. */
	ch__steps_live(&s, POOL_AT + POOL_BYTES - 16, POOL_AT + POOL_BYTES - 8);
	CHECK_EQ(ch__steps_note(&s, POOL_AT + POOL_BYTES - 1), POOL_AT + POOL_BYTES - 8);
	ch__steps_dead(&s, exec, note - exec);
	CHECK_EQ(ch__steps_note(&s, exec), 0);
	CHECK_EQ(ch__steps_note(&s, note - 1), 0);
	CHECK_EQ(ch__steps_note(&s, note), note);
	ch__steps_dead(&s, note, 1);
	CHECK_EQ(ch__steps_note(&s, note), 0);
	ch__steps_end(&s);
}

TEST(map_goes_with_its_heap)
{
	struct ch__steps s;
	CHECK(ch__steps_begin(&s, POOL_AT, POOL_BYTES));
	void *map = s.map;
	CHECK_EQ(s.map_bytes, POOL_BYTES / 4);
	CHECK_EQ(msync(map, s.map_bytes, MS_ASYNC), 0);
	ch__steps_end(&s);
	CHECK(msync(map, 1, MS_ASYNC) != 0 && errno == ENOMEM);
	ch__os_fail_at(1, false);
	CHECK(!ch__steps_begin(&s, POOL_AT, POOL_BYTES));
	ch__os_fail_at(0, false);
}

static bool has_fault(const struct ch_frame *frame, uint32_t code_bytes)
{
	char words[96];
	struct ch__text fault = {words, sizeof words, 0};
	ch__frame_fault(&fault, frame, code_bytes);
	return ch__text_end(&fault) != 0;
}

/* Checks the last accepted and the first refused value of each bound. */
TEST(frames_are_sound_up_to_their_bounds)
{
	enum { CODE = 100 };
	skip_without_steps();
	const uint8_t reg = ch__arch_steps_kept[0], other = ch__arch_steps_kept[1];
	struct ch_frame_step steps[CH__STEPS_MOST + 1];
	for (uint16_t i = 0; i <= CH__STEPS_MOST; i++)
		steps[i] = (struct ch_frame_step){.at = i, .cfa = 16};
	const struct {
		bool is_sound;
		uint8_t steps_n, saves_n;
		struct ch_frame_step step[2];
		struct ch_frame_save save[2];
	} rows[] = {
		{true, 0, 0, {{0, 0}}, {{0}}},
		{true, 1, 0, {{CODE - 1, 8}}, {{0}}},
		{false, 1, 0, {{CODE, 8}}, {{0}}},
		{false, 1, 0, {{4, 0}}, {{0}}},
		{false, 1, 0, {{4, 12}}, {{0}}},
		{true, 1, 0, {{4, 32760}}, {{0}}},
		{false, 1, 0, {{4, 32768}}, {{0}}},
		{true, 2, 0, {{4, 16}, {5, 8}}, {{0}}},
		{false, 2, 0, {{4, 16}, {4, 8}}, {{0}}},
		{false, 2, 0, {{4, 16}, {3, 8}}, {{0}}},
		{true, 0, 1, {{0, 0}}, {{reg, 2, CODE - 1}}},
		{false, 0, 1, {{0, 0}}, {{reg, 2, CODE}}},
		{false, 0, 1, {{0, 0}}, {{reg, 1, 0}}},
		{false, 0, 1, {{0, 0}}, {{200, 2, 0}}},
		{true, 0, 2, {{0, 0}}, {{reg, 2, 0}, {other, 3, 0}}},
		{false, 0, 2, {{0, 0}}, {{reg, 2, 0}, {reg, 3, 0}}},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ch_frame frame = {rows[i].step, rows[i].save, rows[i].steps_n,
					 rows[i].saves_n};
		if (has_fault(&frame, CODE) == rows[i].is_sound)
			FAIL("row %zu", i);
	}
	struct ch_frame most = {.steps = steps, .steps_n = CH__STEPS_MOST};
	CHECK(!has_fault(&most, CODE));
	most.steps_n++;
	CHECK(has_fault(&most, CODE));
}

TEST(note_has_what_the_frame_says_and_nothing_behind_it)
{
	skip_without_steps();
	uint8_t note[CH__NOTE_MOST_BYTES + 8];
	const uint8_t reg = ch__arch_steps_kept[1];
	const struct ch_frame_step steps[] = {{1, 16}, {4, 32}};
	const struct ch_frame_save saves[] = {{reg, 3, 5}};
	struct ch_frame frame = {steps, saves, 2, 1};
	for (int from_the_first = 0; from_the_first < 2; from_the_first++) {
		struct ch_frame_step first[] = {{0, 24}, {4, 32}};
		if (from_the_first)
			frame.steps = first;
		memset(note, 0xee, sizeof note);
		uint32_t bytes = ch__frame_note(note, &frame, 48);
		uint16_t words[20] = {48, 0, 0xffff, 0xffff, 5, 24};
		unsigned n = 6;
		for (unsigned i = 2; i < CH_ARCH_STEPS_KEPT; i++)
			words[n++] = 0xffff, words[n++] = 0xffff;
		if (!from_the_first)
			words[n++] = 0, words[n++] = CH_ARCH_STEPS_CFA;
		for (unsigned i = 0; i < 2; i++)
			words[n++] = frame.steps[i].at, words[n++] = frame.steps[i].cfa;
		CHECK_EQ(bytes, 2 * (n + 2));
		CHECK_EQ(memcmp(note, words, 2 * n), 0);
		CHECK(note[2 * n] == 0xff && note[2 * n + 1] == 0xff);
		CHECK_EQ(note[bytes], 0xee);
	}
}

/* The bytes behind an operation's first that belong to it. */
static size_t operands_of(uint8_t op)
{
	switch (op) {
	case 0x03: /* addr */
		return 8;
	case 0x28: /* bra */
	case 0x2f: /* skip */
		return 2;
	case 0x09: /* const1s */
	case 0x15: /* pick */
	case 0x23: /* plus_uconst */
	case 0x94: /* deref_size */
		return 1;
	default:
		break;
	}
	bool is_breg = op >= 0x70 && op < 0x90, is_plain = op == 0x06 || (op >= 0x12 && op < 0x70);
	if (!is_breg && !is_plain && op != 0x96)
		FAIL("an operation that the test does not know: %02x", op);
	return is_breg;
}

/* Readers differ about a jump to the end: lldb gives up there. */
TEST(rules_of_steps_have_no_jump_to_their_end)
{
	skip_without_steps();
	struct ch__steps s;
	unsigned rules = 0, jumps = 0;
	CHECK(ch__steps_begin(&s, POOL_AT, POOL_BYTES));
	for (size_t at = 0; at < s.program_bytes; rules++) {
		if (s.program[at] >> 6 == 2) { /* DW_CFA_offset, of the return address */
			at += 2;
			continue;
		}
		at += s.program[at] == 0x16 ? 2 : 1; /* val_expression of a register; the CFA's */
		size_t bytes = (s.program[at] & 0x7fu) | (size_t)s.program[at + 1] << 7;
		size_t end = at + 2 + bytes, next;
		for (at += 2; at < end; at = next) {
			uint8_t op = s.program[at];
			int16_t distance;
			next = at + 1 + operands_of(op);
			if (op != 0x28 && op != 0x2f)
				continue;
			memcpy(&distance, s.program + at + 1, sizeof distance);
			jumps++;
			CHECK(next + (size_t)distance < end);
		}
		CHECK_EQ(at, end);
	}
	CHECK_EQ(rules, 2 + CH_ARCH_STEPS_KEPT);
	CHECK(jumps > 0);
	ch__steps_end(&s);
}
