/* SPDX-License-Identifier: MIT
 * stubs.h: the contract of an architecture for the code that the library writes: stubs and their
 * leads, the trampoline that stubs enter, jumps, veneers, and the trampolines of a VM. */
#pragma once

#include "arch/arch.h"

void ch__arch_stub_write(uint8_t *write, uintptr_t exec, uintptr_t trampoline, uint32_t index);
/* Returns the branch index of the stub with the return address at `read`. */
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
/* Writes the trampoline that stubs enter: the trampoline enters the stub entry with the context.
 * Returns the trampoline's bytes. */
size_t ch__arch_trampoline_write(uint8_t *write, struct ch__arch_stub_context *);
void ch__arch_stub_context_init(struct ch__arch_stub_context *);
/* A plain jump in a stub slot, with the target in reach. The slot remembers the target when
 * ch__arch_stub_lead makes the slot lead elsewhere. */
bool ch__arch_jump_reaches(uintptr_t exec, uintptr_t target);
void ch__arch_jump_write(uint8_t *write, uintptr_t exec, uintptr_t target);
uintptr_t ch__arch_jump_target(const uint8_t *read, uintptr_t exec);
void ch__arch_veneer_write(uint8_t *write, uintptr_t target);
uintptr_t ch__arch_veneer_target(const uint8_t *read);

/* --- trampolines (enum ch_trampoline): FRAMED has the frame of ch__arch_cfi_framed --- */
enum { CH__TEMPLATES = CH_TRAMPOLINE_TAIL + 1 };
/* Writes at a multiple of 8; returns the bytes, at most CH_ARCH_TEMPLATE_BYTES. */
size_t ch__arch_template_write(enum ch_trampoline, uint8_t *write, uintptr_t target,
			       uint64_t payload);

/* For the .c of each machine: code of whole 8 bytes, and the two literals behind that it loads.
 * Returns the bytes of both. */
static inline size_t ch__arch_put_literals(uint8_t *write, const void *code, size_t bytes,
					   uint64_t first, uint64_t second)
{
	uint64_t literals[2] = {first, second};
	memcpy(write, code, bytes);
	memcpy(write + bytes, literals, sizeof literals);
	return bytes + sizeof literals;
}
