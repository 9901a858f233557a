/* SPDX-License-Identifier: MIT
 * slots.h: stubs and jumps of a machine whose stubs lead far, for the .c of such a machine. The .c
 * has put_slot_code: code that begins at `address` and jumps by the literal at literal_at(address).
 *
 *   slot   code, CH_ARCH_STUB_CALL_BYTES | literal | last word
 *          or, where that aligns the literal, code | last word | literal
 *
 * The last word is the branch index of a stub, or the distance of a jump. */
#pragma once

#include "arch/stubs.h"

#include <string.h>

enum { SLOT_CODE_WORDS = CH_ARCH_STUB_CALL_BYTES / 4 };
static void put_slot_code(uint32_t code[SLOT_CODE_WORDS], uintptr_t address);

static unsigned literal_at(uintptr_t address)
{
	const uint8_t *slot = (const uint8_t *)address;
	return (unsigned)((const uint8_t *)ch__arch_stub_literal(slot) - slot);
}

static unsigned last_word_at(uintptr_t address)
{
	unsigned behind_code = CH_ARCH_STUB_CALL_BYTES, literal = literal_at(address);
	return literal == behind_code ? behind_code + 8 : behind_code;
}

/* A thread may just have run the slot, which code published, where the thread sanitizer sees
 * nothing. */
__attribute__((no_sanitize("thread"))) static uint32_t last_word(const uint8_t *slot)
{
	uint32_t word;
	memcpy(&word, slot + last_word_at((uintptr_t)slot), sizeof word);
	return word;
}

static void put_slot(uint8_t *write, uintptr_t leads_to, uint32_t last)
{
	uint32_t code[SLOT_CODE_WORDS];
	put_slot_code(code, (uintptr_t)write);
	memcpy(write, code, sizeof code);
	ch__arch_stub_lead(write, leads_to);
	memcpy(write + last_word_at((uintptr_t)write), &last, sizeof last);
}

void ch__arch_stub_write(uint8_t *write, uintptr_t exec, uintptr_t trampoline, uint32_t index)
{
	(void)exec;
	put_slot(write, trampoline, index);
}

uint32_t ch__arch_stub_index(const uint8_t *read_return_address)
{
	return last_word(read_return_address - CH_ARCH_STUB_CALL_BYTES);
}

bool ch__arch_stub_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t trampoline,
			    uint32_t index)
{
	uint32_t code[SLOT_CODE_WORDS];
	put_slot_code(code, exec);
	return memcmp(read, code, sizeof code) == 0 && ch__arch_stub_leads_to(read) == trampoline &&
	       last_word(read) == index;
}

/* The last word keeps the target's distance while the slot leads elsewhere. */
bool ch__arch_jump_reaches(uintptr_t exec, uintptr_t target)
{
	int64_t distance = (int64_t)(target - exec);
	return distance == (int32_t)distance;
}

void ch__arch_jump_write(uint8_t *write, uintptr_t exec, uintptr_t target)
{
	CH_ASSERT(ch__arch_jump_reaches(exec, target), "jump out of reach");
	put_slot(write, target, (uint32_t)(target - exec));
}

uintptr_t ch__arch_jump_target(const uint8_t *read, uintptr_t exec)
{
	return exec + (uintptr_t)(intptr_t)(int32_t)last_word(read);
}
