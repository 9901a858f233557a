/* SPDX-License-Identifier: MIT
 * fields.h: sites, for the .c of each machine. What changes of a site is its field: an aligned
 * literal of 8 bytes, or 4 bytes of an instruction within one aligned 8, which the .c reads and
 * writes. */
#pragma once

#include "arch/sites.h"

static const uint8_t field_at[CH_LITERAL + 1]; /* from the site's first byte, by kind */
static bool is_instruction_of(enum ch_branch_kind kind, const uint8_t *read);
/* For a field of an instruction; exec is the field's address. */
static bool field_reaches(uintptr_t exec, uintptr_t target);
static void write_field(enum ch_branch_kind kind, uint8_t *write, uintptr_t exec, uintptr_t target);
static uintptr_t field_target(const uint8_t *read, uintptr_t exec);

static bool has_literal(enum ch_branch_kind kind)
{
	return kind == CH_LITERAL || (kind == CH_LEA && CH_ARCH_LEA_HAS_LITERAL);
}

static unsigned field_bytes(enum ch_branch_kind kind)
{
	return has_literal(kind) ? 8 : 4;
}

size_t ch__arch_site_bytes(enum ch_branch_kind kind)
{
	return field_at[kind] + field_bytes(kind);
}

bool ch__arch_site_is_valid(enum ch_branch_kind kind, const uint8_t *read, uintptr_t exec)
{
	if ((unsigned)kind > CH_LITERAL)
		return false;
	uintptr_t at = exec + field_at[kind];
	return at % CH_ARCH_FIELD_ALIGN == 0 && at % 8 + field_bytes(kind) <= 8 &&
	       (kind == CH_LITERAL || is_instruction_of(kind, read));
}

bool ch__arch_site_reaches(enum ch_branch_kind kind, uintptr_t exec, uintptr_t target)
{
	return has_literal(kind) || field_reaches(exec + field_at[kind], target);
}

void ch__arch_site_write(enum ch_branch_kind kind, uint8_t *write, uintptr_t exec, uintptr_t target)
{
	write += field_at[kind];
	if (has_literal(kind))
		__atomic_store_n((uint64_t *)(void *)write, target, __ATOMIC_RELEASE);
	else
		write_field(kind, write, exec + field_at[kind], target);
}

uintptr_t ch__arch_site_target(enum ch_branch_kind kind, const uint8_t *read, uintptr_t exec)
{
	read += field_at[kind];
	if (has_literal(kind))
		return __atomic_load_n((const uint64_t *)(const void *)read, __ATOMIC_ACQUIRE);
	return field_target(read, exec + field_at[kind]);
}
