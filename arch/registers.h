/* SPDX-License-Identifier: MIT
 * registers.h: the contract of an architecture for registers: those that a call saves, those of a
 * signal's context, what a trap's context says, frames. */
#ifndef CH_ARCH_REGISTERS_H
#define CH_ARCH_REGISTERS_H

#include "arch/arch.h"

/* Callee-saved registers as the caller sees them, and the caller's sp after the call. */
void ch__arch_save_registers(struct ch__arch_saved *);
/* Calls fn with them. A function whose whole body is this call passes its own caller's. */
void ch__arch_with_registers(void (*fn)(const struct ch__arch_saved *));
/* The same, with two arguments more; returns what fn does. */
uint32_t ch__arch_call_with_registers(uint32_t (*fn)(const struct ch__arch_saved *, void *, void *),
				       void *, void *);
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
/* Where a signal's frame has all registers beside those: floating point, vectors, extensions; the
 * first address, and *end. Equal: nowhere. */
uintptr_t ch__arch_context_vectors(const void *ucontext, uintptr_t *end);
/* Where a call that trapped came from: a guess, for messages. */
uintptr_t ch__arch_context_return(const void *ucontext);
/* Where code returns to that was interrupted at an instruction at which it has no frame record: it
 * is about to make one, or has taken it down. 0: the instruction says nothing of the kind. Readable
 * are the system page in which the pc lies, and two words at sp. */
uintptr_t ch__arch_unrecorded_return(const void *ucontext);
/* The address whose trap raised the signal, which came with this code: the pc, or before it. */
uintptr_t ch__arch_trap_address(int signal, int code, const void *ucontext);
/* Whether the trap at an address, which raised SIGTRAP, says by its bytes that it is another's. */
bool ch__arch_trap_is_foreign(const uint8_t *read);
/* Removes a pointer signature, where there is one. Inline: it is asked of every stack word. */
static inline uintptr_t ch__arch_strip(uintptr_t word);
/* Whether a debugger's software breakpoint stands on the first instruction of a function. Inline,
 * since it is asked at every commit. */
static inline bool ch__arch_has_breakpoint(const void *function);
/* One step of a frame-pointer walk: the caller's fp and return address. Another frame's words:
 * sanitizers must not judge the read. */
__attribute__((no_sanitize("address", "thread"))) static inline void
ch__arch_frame_step(uintptr_t fp, uintptr_t *caller_fp, uintptr_t *return_address)
{
	const uintptr_t *record = (const uintptr_t *)(fp + (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT);
	*caller_fp = record[0];
	*return_address = record[1];
}

#endif
