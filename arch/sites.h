/* SPDX-License-Identifier: MIT
 * sites.h: the contract of an architecture for what is patched in the VM's code: sites of branches,
 * instructions, diverters. `write` and `exec` as in arch.h. */
#ifndef CH_ARCH_SITES_H
#define CH_ARCH_SITES_H

#include "arch/arch.h"

/* Whether a well-formed site of the kind starts at read (exec gives its alignment); reads the bytes
 * of a site of the kind. */
bool ch__arch_site_is_valid(enum ch__site kind, const uint8_t *read, uintptr_t exec);
bool ch__arch_site_reaches(enum ch__site kind, uintptr_t exec, uintptr_t target);
void ch__arch_site_write(enum ch__site kind, uint8_t *write, uintptr_t exec, uintptr_t target);
uintptr_t ch__arch_site_target(enum ch__site kind, const uint8_t *read, uintptr_t exec);
size_t ch__arch_site_bytes(enum ch__site kind);

/* Whether one instruction of the VM's at exec may become another one of so many bytes, within one
 * aligned 8, while others run it. */
bool ch__arch_may_change(uintptr_t exec, const uint8_t *from, const uint8_t *to, size_t bytes);

/* --- diverter: a patch point or a patchable entry: falls through, or once armed jumps to its
 * target, which is the same in each call --- */
void ch__arch_diverter_write(uint8_t *write, uintptr_t exec, uintptr_t target);
/* Whether the instruction of an unarmed diverter stands there, whatever it leads to. */
bool ch__arch_diverter_is_there(const uint8_t *read);
bool ch__arch_diverter_reaches(uintptr_t exec, uintptr_t target);
/* Whether an unarmed one stands there, which leads to the target if its bytes say where. */
bool ch__arch_diverter_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t target);
void ch__arch_diverter_arm(uint8_t *write, uintptr_t exec, uintptr_t target);
bool ch__arch_diverter_is_armed(const uint8_t *read);
/* Of an armed one. */
uintptr_t ch__arch_diverter_target(const uint8_t *read, uintptr_t exec);
/* What an entry begins with where an indirect call may land at marked places only. */
static inline void ch__arch_landing_write(uint8_t *write)
{
	memcpy(write, &ch__arch_landing, CH_ARCH_LANDING_BYTES);
}
static inline bool ch__arch_landing_is_there(const uint8_t *read)
{
	return memcmp(read, &ch__arch_landing, CH_ARCH_LANDING_BYTES) == 0;
}

#endif
