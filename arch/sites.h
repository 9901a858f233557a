/* SPDX-License-Identifier: MIT
 * sites.h: the contract of an architecture for bytes of the VM's code that are patched: sites of
 * branches, instructions, diverters. arch.h explains `write` and `exec`. */
#pragma once

#include "arch/arch.h"

/* Whether a well-formed site of the kind starts at read (exec gives the alignment). Reads the bytes
 * of a site of the kind. */
bool ch__arch_site_is_valid(enum ch_branch_kind kind, const uint8_t *read, uintptr_t exec);
bool ch__arch_site_reaches(enum ch_branch_kind kind, uintptr_t exec, uintptr_t target);
void ch__arch_site_write(enum ch_branch_kind kind, uint8_t *write, uintptr_t exec,
			 uintptr_t target);
uintptr_t ch__arch_site_target(enum ch_branch_kind kind, const uint8_t *read, uintptr_t exec);
__attribute__((const)) size_t ch__arch_site_bytes(enum ch_branch_kind kind);

/* Whether the VM's instruction at exec may become another one of the same length, within one
 * aligned 8 bytes, while other threads run it. */
bool ch__arch_may_change(uintptr_t exec, const uint8_t *from, const uint8_t *to, size_t bytes);

/* --- diverter: a patch point or patchable entry, which falls through, or once armed jumps to the
 * target. All calls for a diverter pass the same target. --- */
void ch__arch_diverter_write(uint8_t *write, uintptr_t exec, uintptr_t target);
/* Whether an unarmed diverter stands there, with any target. */
bool ch__arch_diverter_is_there(const uint8_t *read);
/* An armed diverter is a site JMP. */
static inline bool ch__arch_diverter_reaches(uintptr_t exec, uintptr_t target)
{
	return ch__arch_site_reaches(CH_JMP, exec, target);
}
/* Whether an unarmed diverter stands there and leads to the target, if its bytes hold a target. */
bool ch__arch_diverter_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t target);
void ch__arch_diverter_arm(uint8_t *write, uintptr_t exec, uintptr_t target);
bool ch__arch_diverter_is_armed(const uint8_t *read);
/* For an armed diverter only. */
static inline uintptr_t ch__arch_diverter_target(const uint8_t *read, uintptr_t exec)
{
	return ch__arch_site_target(CH_JMP, read, exec);
}
/* A landing pad: entries begin so where indirect calls may land at marked places only. */
static inline void ch__arch_landing_write(uint8_t *write)
{
	memcpy(write, &ch__arch_landing, CH_ARCH_LANDING_BYTES);
}
static inline bool ch__arch_landing_is_there(const uint8_t *read)
{
	return memcmp(read, &ch__arch_landing, CH_ARCH_LANDING_BYTES) == 0;
}
