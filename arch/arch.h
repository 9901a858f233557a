/* SPDX-License-Identifier: MIT
 * arch.h: the contract of an architecture: traps, caches, CFI facts; sites.h, stubs.h and
 * registers.h go on. One .h, one .c and one .S with the machine's name implement them. `write` is
 * an address in the writable view, `exec` the address the bytes run at; all writers store with one
 * aligned store where another core may be executing the bytes. Nothing here calls the OS, save
 * ch__arch_sync and ch__arch_serialize where only the kernel can reach the instruction caches of
 * all cores.
 *
 * The machine's header, chosen below, has the constants, the functions that are asked for so often
 * that they are inline, and the machine's rules for sites. */
#ifndef CH_ARCH_ARCH_H
#define CH_ARCH_ARCH_H

#include "arch/base.h"

#include <string.h>

/* The list of ports. */
#if defined(__x86_64__)
#include "arch/x86_64.h"
#elif defined(__aarch64__)
#include "arch/aarch64.h"
#elif defined(__riscv) && __riscv_xlen == 64
#include "arch/riscv64.h"
#else
#error "there is no port to this machine: docs/porting.md says how one is made"
#endif

/* Constants of a machine's header:
 *   CH_ARCH_TRAP_UNIT_BYTES    a trap's length, and the distance between two of them
 *   CH_ARCH_STUB_BYTES         the length of a stub, its branch index at its end
 *   CH_ARCH_STUB_CALL_BYTES    a stub's return address, or what stands for it, from its start
 *   CH_ARCH_STUB_LEADS_FAR     1: a site may not reach all of the pool, and its stub leads on
 *   CH_ARCH_LEAD_BYTES         the length of a lead before a stub; 0: code is not written as a file
 *   CH_ARCH_STUB_LITERAL       where the stub, or its lead, has what it leads on by; aligned to 8
 *   CH_ARCH_DIVERTER_BYTES     the length of a diverter
 *   CH_ARCH_VENEER_BYTES       the length of a veneer with its literal
 *   CH_ARCH_RED_ZONE_BYTES     what a function may use below its sp
 *   CH_ARCH_HAS_LINK_REGISTER  1: a call leaves its return address in a register
 *   CH_ARCH_RECORD_AT          where a frame's record begins, from its frame pointer: the caller's
 *                              frame pointer, then the return address
 *   CH_ARCH_CONTEXT_WORDS      general registers of a signal's context, and its pc
 *   CH_ARCH_CONTEXT_AT         where they are in a ucontext; ..._PC, _SP, _FP: which word is which
 *   CH_ARCH_SAVED_WORDS        registers that a called function keeps, and the link register
 *   CH_ARCH_TEMPLATE_BYTES     the length of the longest template of a trampoline
 *   CH_ARCH_ELF_MACHINE        e_machine in ELF files
 *   CH_ARCH_DWARF_FP           the frame pointer, in DWARF's numbers
 *   CH_ARCH_DWARF_SP           sp, likewise
 *   CH_ARCH_DWARF_RETURN       the return address, likewise
 *   CH_ARCH_DWARF_CODE_ALIGN   the unit of distances in code
 *   CH_ARCH_LANDING_BYTES      the length of a landing pad before a patchable entry's diverter
 *   ch__arch_landing           its instruction
 *   ch__arch_cfi_saves         the other registers that a callee keeps, from a frame's record on
 *                              downwards, as DW_CFA_offset says it
 *   ch__arch_cfi_leaf          the frame of code that has none, as at its call
 *   CH_ARCH_HAS_STEPS          1: a rule may find what code says by a frame's pc
 *   CH_ARCH_STEPS_CFA          the caller's sp above sp at the call
 *   ch__arch_steps_kept        the registers that such code may save; CH_ARCH_STEPS_KEPT of them
 *   ch__arch_traps             the bytes of traps at a multiple of 8
 *   CH_ARCH_SITE_LEAST_BYTES   the length of the shortest site
 *   CH_ARCH_POOL_LOG2_MAX      of the largest pool
 *   CH_ARCH_FETCH_FOLLOWS      1: other cores run what was published, not what was there before
 *   CH_ARCH_NONGNU_...         nongnu libunwind: the machine in the names of its functions, its
 *                              numbers of pc, sp and frame pointer, and the words of a cursor */

/* Kinds of sites; the public header has the same values. The machine's header says what each is. */
enum ch__site {
	CH__SITE_JMP,
	CH__SITE_JCC,
	CH__SITE_CALL,
	CH__SITE_LEA,
	CH__SITE_LITERAL, /* aligned 8-byte absolute address */
};

/* Registers at a branch site, laid out as struct ch_regs of the public header. */
struct ch__arch_regs {
	uint64_t gpr[32]; /* in the order of the machine's header */
	uint64_t pc;      /* where to go on */
	uint64_t sp;      /* sp at the site */
	void *extended; /* floating point and vectors, as the machine's header says */
};
_Static_assert(offsetof(struct ch__arch_regs, pc) == 256, "each .S stores here");
_Static_assert(offsetof(struct ch__arch_regs, sp) == 264, "each .S stores here");
_Static_assert(offsetof(struct ch__arch_regs, extended) == 272, "each .S stores here");
_Static_assert(sizeof(struct ch__arch_regs) == 280, "each .S reserves it");

/* What a stub's trampoline hands to the stub entry; embedded in the heap. hit() returns with
 * regs->pc set. */
struct ch__arch_stub_context {
	void (*hit)(struct ch__arch_stub_context *, struct ch__arch_regs *,
		    uintptr_t return_address);
	/* Read where the entry of the machine saves by them (x86_64.S). */
	uint64_t extended_bytes; /* size of the xsave image, multiple of 64; 0 = fxsave, 512 */
	uint64_t extended_mask;  /* state components that xsave keeps */
	uint64_t shadow_stack;   /* 1 = who has one leaves by dropping an entry and jumping */
};
_Static_assert(offsetof(struct ch__arch_stub_context, hit) == 0, "each .S loads it");

/* Callee-saved registers, the link register, and sp of a thread that parks. */
struct ch__arch_saved {
	uintptr_t words[CH_ARCH_SAVED_WORDS];
	uintptr_t sp;
};

/* --- traps --- */
static inline uint8_t ch__arch_trap_byte(const uint8_t *at)
{
	return (uint8_t)(ch__arch_traps >> (uintptr_t)at % sizeof ch__arch_traps * 8);
}

/* Any range: each address gets the byte that a unit of the trap has there. */
static inline void ch__arch_fill_traps(uint8_t *write, size_t bytes)
{
	if (CH_ARCH_TRAP_UNIT_BYTES == 1) {
		memset(write, (uint8_t)ch__arch_traps, bytes);
		return;
	}
	for (; bytes && (uintptr_t)write % sizeof ch__arch_traps; bytes--, write++)
		*write = ch__arch_trap_byte(write);
	for (; bytes >= sizeof ch__arch_traps; bytes -= sizeof ch__arch_traps) {
		memcpy(write, &ch__arch_traps, sizeof ch__arch_traps);
		write += sizeof ch__arch_traps;
	}
	memcpy(write, &ch__arch_traps, bytes);
}

/* From the ninth byte on a range of traps repeats itself. */
static inline bool ch__arch_are_traps(const uint8_t *read, size_t bytes)
{
	size_t first = bytes < sizeof ch__arch_traps ? bytes : sizeof ch__arch_traps;
	for (size_t i = 0; i < first; i++)
		if (read[i] != ch__arch_trap_byte(read + i))
			return false;
	return memcmp(read + first, read, bytes - first) == 0;
}

/* --- caches --- */
/* Publishes bytes written through another view. No system call, save where only the kernel reaches
 * the instruction caches of all cores. */
static inline void ch__arch_sync(const uint8_t *exec, size_t bytes);

/* The calling thread executes nothing that it fetched before: another core's stores to code that
 * it could see are what it runs from here on. */
void ch__arch_serialize(void);

/* --- cores and pages --- */
/* What a loop that waits for another core does. */
static inline void ch__arch_pause(void);
/* Another value in each thread that lives, never 0. Asked anew each time: a compiler takes the
 * address of a thread's variable for the same throughout a function, callbacks included. */
static inline uintptr_t ch__arch_thread_pointer(void);
/* No system has smaller ones: memory is of one kind within. */
enum { CH_ARCH_SMALLEST_PAGE = 4096 };

/* --- Valgrind: six words, the request and its arguments; 0 where no Valgrind runs, and then no
 * effect --- */
uintptr_t ch__arch_valgrind_ask(const uintptr_t words[6]) CH_COLD;

/* --- self-test: a function without arguments that returns the value; returns its bytes --- */
size_t ch__arch_constant_function_write(uint8_t *write, uint32_t value);

/* --- CFI of the frame shapes of each heap, for CIEs that sinks build --- */
enum { CH_ARCH_DWARF_DATA_ALIGN = -8 };
/* The return address is not signed: a VM that signs registers a shape of its own. */
static const uint8_t ch__arch_cfi_frame_pointer[] = {
	0x0c, CH_ARCH_DWARF_FP, 16 + CH_ARCH_RECORD_AT, /* DW_CFA_def_cfa: the record's end */
	0x80 | CH_ARCH_DWARF_RETURN, 1,                 /* DW_CFA_offset: at cfa - 8 */
	0x80 | CH_ARCH_DWARF_FP, 2,                     /* at cfa - 16 */
};

#endif
