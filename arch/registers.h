/* SPDX-License-Identifier: MIT
 * registers.h: the contract of an architecture for registers: callee-saved registers, the registers
 * of a signal's context, the address of a trap, steps of a frame-pointer walk. */
#pragma once

#include "arch/arch.h"

/* Saves the callee-saved registers of the caller, and the caller's sp after the call. */
void ch__arch_save_registers(struct ch__arch_saved *);
/* Calls fn with them. If this call is a function's whole body, fn gets that function's caller's. */
void ch__arch_with_registers(void (*fn)(const struct ch__arch_saved *));
/* The same function with two more arguments for fn; returns the value of fn. */
uint32_t ch__arch_call_with_registers(uint32_t (*fn)(const struct ch__arch_saved *, void *, void *),
				      void *, void *) __asm__("ch__arch_with_registers");
/* A general register, or the pc, of a signal's ucontext; i is below CH_ARCH_CONTEXT_WORDS. */
static inline uintptr_t ch__arch_context_word(const void *ucontext, unsigned i)
{
	uintptr_t word;
	const uint8_t *words = (const uint8_t *)ucontext + CH_ARCH_CONTEXT_AT;
	memcpy(&word, words + i * sizeof word, sizeof word);
	return word;
}
static inline uintptr_t ch__arch_context_pc(const void *ucontext)
{
	return ch__arch_context_word(ucontext, CH_ARCH_CONTEXT_PC);
}
static inline uintptr_t ch__arch_context_sp(const void *ucontext)
{
	return ch__arch_context_word(ucontext, CH_ARCH_CONTEXT_SP);
}
static inline uintptr_t ch__arch_context_fp(const void *ucontext)
{
	return ch__arch_context_word(ucontext, CH_ARCH_CONTEXT_FP);
}
/* The return of the signal's handler goes on at this pc. */
static inline void ch__arch_context_go_to(void *ucontext, uintptr_t pc)
{
	uint8_t *words = (uint8_t *)ucontext + CH_ARCH_CONTEXT_AT;
	memcpy(words + CH_ARCH_CONTEXT_PC * sizeof pc, &pc, sizeof pc);
}
/* Where a signal's frame has all other registers: floating point, vectors, extensions. Returns the
 * first address and stores the end; both are equal when the frame has none. */
uintptr_t ch__arch_context_vectors(const void *ucontext, uintptr_t *end);
/* A guess, for messages: the address to which a trapped call would return. The word at sp must be
 * aligned and readable. */
uintptr_t ch__arch_context_return(const void *ucontext);
/* The return address of code interrupted without a frame record, while making the record or after
 * taking it down. Returns 0 when the instruction at the pc shows nothing of the kind. The system
 * page of the pc and two words at sp must be readable. */
uintptr_t ch__arch_unrecorded_return(const void *ucontext);
/* The address of the trap behind a signal with this si_code: the pc, or before the pc. */
uintptr_t ch__arch_trap_address(int signal, int code, const void *ucontext);
/* Whether the bytes of a trap behind a SIGTRAP show a foreign author: not the library's trap. */
bool ch__arch_trap_is_foreign(const uint8_t *read);
/* Removes a pointer signature, if there is one. Inline: the scan calls it for every stack word. */
static inline uintptr_t ch__arch_strip(uintptr_t word);
/* Whether a debugger's software breakpoint stands on the first instruction of a function. Inline:
 * every commit asks. */
static inline bool ch__arch_has_breakpoint(const void *function);
/* One step of a frame-pointer walk: reads the caller's fp and the return address from another
 * frame: sanitizers must not judge the read. */
__attribute__((no_sanitize("address", "thread"))) static inline void
ch__arch_frame_step(uintptr_t fp, uintptr_t *caller_fp, uintptr_t *return_address)
{
	const uintptr_t *record = (const uintptr_t *)(fp + (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT);
	*caller_fp = record[0];
	*return_address = record[1];
}
