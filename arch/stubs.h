/* SPDX-License-Identifier: MIT
 * stubs.h: the contract of an architecture for the code that the library writes: stubs and their
 * leads, the trampoline that stubs call, jumps, veneers, and the templates of trampolines. */
#pragma once

#include "arch/arch.h"

void ch__arch_stub_write(uint8_t *write, uintptr_t exec, uintptr_t trampoline, uint32_t index);
/* Returns the branch index of the stub whose call pushed the return address at `read`. */
uint32_t ch__arch_stub_index(const uint8_t *read_return_address);
bool ch__arch_stub_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t trampoline,
			    uint32_t index);
static inline uint64_t *ch__arch_stub_literal(const uint8_t *stub)
{
	return (uint64_t *)CH_ROUND_UP((uintptr_t)stub + CH_ARCH_STUB_LITERAL, 8);
}
/* Stores the target of the stub's jump (if CH_ARCH_STUB_LEADS_FAR) or of the lead's jump (if a stub
 * has a lead; the literal is data then). The first target of a stub is the trampoline; with any
 * other target the stub is a veneer of the branch. One aligned store, legal while other threads run
 * the stub. */
static inline void ch__arch_stub_lead(uint8_t *write, uintptr_t target)
{
	__atomic_store_n(ch__arch_stub_literal(write), target, __ATOMIC_RELEASE);
}
static inline uintptr_t ch__arch_stub_leads_to(const uint8_t *read)
{
	return __atomic_load_n(ch__arch_stub_literal(read), __ATOMIC_ACQUIRE);
}
/* A lead stands before a stub where running code is not patched (procmem). The lead jumps by the
 * literal in the write view, delta bytes away. A lead begins at a multiple of 8. */
static inline ptrdiff_t ch__arch_lead_displacement(ptrdiff_t delta)
{
	return delta + CH_ARCH_STUB_LITERAL - CH_ARCH_LEAD_JUMP_BYTES;
}
static inline bool ch__arch_lead_reaches(ptrdiff_t delta)
{
	return ch__arch_lead_displacement(delta) == (int32_t)ch__arch_lead_displacement(delta);
}
static inline uint64_t ch__arch_lead_code(ptrdiff_t delta)
{
	return ch__arch_lead | (uint64_t)(uint32_t)ch__arch_lead_displacement(delta) << 16;
}
static inline void ch__arch_lead_write(uint8_t *write, ptrdiff_t delta, uintptr_t target)
{
	uint64_t code = ch__arch_lead_code(delta);
	CH_ASSERT((uintptr_t)write % 8 == 0, "a lead's literal is not aligned");
	memcpy(write, &code, sizeof code);
	ch__arch_stub_lead(write, target);
}
static inline bool ch__arch_lead_is_valid(const uint8_t *read, ptrdiff_t delta)
{
	uint64_t code = ch__arch_lead_code(delta);
	return memcmp(read, &code, sizeof code) == 0;
}
/* Writes the trampoline that stubs call: the trampoline enters the stub entry with the context.
 * Returns the trampoline's bytes. */
size_t ch__arch_trampoline_write(uint8_t *write, struct ch__arch_stub_context *);
void ch__arch_stub_context_init(struct ch__arch_stub_context *);
/* A plain jump in a stub slot, with the target in reach. The slot remembers the target when
 * ch__arch_stub_lead makes the slot lead elsewhere. */
bool ch__arch_jump_reaches(uintptr_t exec, uintptr_t target);
void ch__arch_jump_write(uint8_t *write, uintptr_t exec, uintptr_t target);
uintptr_t ch__arch_jump_target(const uint8_t *read, uintptr_t exec);
void ch__arch_veneer_write(uint8_t *write, uintptr_t exec, uintptr_t target);
uintptr_t ch__arch_veneer_target(const uint8_t *read);

/* --- trampolines (enum ch_trampoline): FRAMED has the frame of ch__arch_cfi_framed --- */
enum { CH__TEMPLATES = CH_TRAMPOLINE_TAIL + 1 };
struct ch__arch_template {
	/* At a multiple of 8, like the code of a block. A copy at such an address with its literals
	 * filled in is a trampoline. */
	const uint8_t *begin;
	uint16_t bytes;                 /* code, then the literals */
	uint16_t target_at, payload_at; /* 8-byte literals, from begin; aligned in a copy */
};
_Static_assert(sizeof(struct ch__arch_template) == 16, "each .S writes the table");
_Static_assert(offsetof(struct ch__arch_template, target_at) == 10, "each .S writes it");
_Static_assert(offsetof(struct ch__arch_template, payload_at) == 12, "each .S writes it");
extern const struct ch__arch_template ch__arch_templates[CH__TEMPLATES]; /* by kind; in the .S */
