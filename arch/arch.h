/* SPDX-License-Identifier: MIT
 * arch.h: the contract of an architecture: traps, caches, CFI facts. sites.h, stubs.h and
 * registers.h are its other parts. One .h, one .c and one .S with the machine's name implement all
 * four. `write` is an address in the writable view, `exec` the address at which the bytes run.
 * Where another core may be executing the bytes, a writer changes them with one aligned store.
 * Nothing here calls the OS, except ch__arch_sync and ch__arch_serialize where only the kernel can
 * reach the instruction caches of all cores.
 *
 * The machine's header, chosen below, has the constants, the functions that are inline because
 * callers need them very often, and the machine's rules for sites. */
#pragma once

#include "arch/base.h"
#include "codeheap/codeheap.h"

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
 *   CH_ARCH_TRAP_UNIT_BYTES    a trap's length, and the distance between two traps
 *   CH_ARCH_STUB_BYTES         the length of a stub with its branch index
 *   CH_ARCH_STUB_CALL_BYTES    a stub's return address, or a substitute, from the stub's start
 *   CH_ARCH_STUB_LEADS_FAR     1: a site may not reach all of the pool, and the stub leads on
 *   CH_ARCH_LEAD_BYTES         the length of a lead before a stub; 0: no procmem backend
 *   CH_ARCH_LEAD_JUMP_BYTES    the length of its jump
 *   ch__arch_lead              its first 8 bytes; the distance is added from the third byte on
 *   CH_ARCH_STUB_LITERAL       from here on the first multiple of 8 in the stub, or in its lead, is
 *                              the target's literal
 *   CH_ARCH_FIELD_ALIGN        of the 4 bytes of a site's instruction that change
 *   CH_ARCH_LEA_HAS_LITERAL    1: a site CH_LEA loads a literal, which changes
 *   CH_ARCH_DIVERTER_BYTES     the length of a diverter
 *   CH_ARCH_VENEER_BYTES       the length of a veneer with its literal
 *   CH_ARCH_VENEER_REACH_LOG2  log2 of the distance from which code calls a veneer
 *   CH_ARCH_RED_ZONE_BYTES     the bytes below sp that a function may use
 *   CH_ARCH_HAS_LINK_REGISTER  1: a call leaves its return address in a register
 *   CH_ARCH_RECORD_AT          where a frame's record begins, from its frame pointer: the caller's
 *                              frame pointer, then the return address
 *   CH_ARCH_CONTEXT_WORDS      general registers of a signal's context, and its pc
 *   CH_ARCH_CONTEXT_AT         where a ucontext has them; ..._PC, _SP, _FP: the index of the word
 *   CH_ARCH_SAVED_WORDS        callee-saved registers, and the link register
 *   CH_ARCH_TEMPLATE_BYTES     the length of the longest template of a trampoline
 *   CH_ARCH_ELF_MACHINE        e_machine in ELF files
 *   CH_ARCH_DWARF_FP           the frame pointer, in DWARF's numbers
 *   CH_ARCH_DWARF_SP           sp, likewise
 *   CH_ARCH_DWARF_RETURN       the return address, likewise
 *   CH_ARCH_DWARF_CODE_ALIGN   the unit of distances in code
 *   CH_ARCH_LANDING_BYTES      the length of a landing pad before a patchable entry's diverter
 *   ch__arch_landing           the landing pad's instruction
 *   CH_ARCH_CFI_RECORD_END     CFI of the CFA of code with a frame pointer: the record's end
 *   ch__arch_cfi_saves         the other callee-saved registers, from a frame's record downwards,
 *                              as operands of DW_CFA_offset
 *   ch__arch_cfi_leaf          CFI of code without a frame, as at the call
 *   ch__arch_cfi_framed        what the template of a trampoline with a frame changes, from where
 *   CH_ARCH_HAS_STEPS          1: a CFI expression can read a frame's pc, and so find a note
 *   CH_ARCH_STEPS_CFA          bytes from sp at a function's first instruction to the caller's sp
 *   ch__arch_steps_kept        the CH_ARCH_STEPS_KEPT registers that code with steps may save
 *   ch__arch_traps             the bytes of traps at a multiple of 8
 *   CH_ARCH_POOL_LOG2          log2 of the bytes of a pool whose size the VM does not name
 *   CH_ARCH_POOL_LOG2_MAX      log2 of the bytes of the largest pool
 *   CH_ARCH_FETCH_FOLLOWS      1: after a sync other cores run the new bytes, not the old ones
 *   CH_ARCH_NONGNU_...         nongnu libunwind: the machine in the names of its functions, its
 *                              number of the pc, and the words of a cursor */

_Static_assert(offsetof(struct ch_regs, pc) == 256, "each .S stores here");
_Static_assert(offsetof(struct ch_regs, sp) == 264, "each .S stores here");
_Static_assert(offsetof(struct ch_regs, extended) == 272, "each .S stores here");
_Static_assert(sizeof(struct ch_regs) == 280, "each .S reserves it");

/* A stub's trampoline passes the context, which is embedded in the heap, to the stub entry. hit()
 * returns with regs->pc set. */
struct ch__arch_stub_context {
	void (*hit)(struct ch__arch_stub_context *, struct ch_regs *, uintptr_t return_address);
	/* Only x86_64.S reads the fields below. */
	uint64_t extended_bytes; /* size of the xsave image, multiple of 64; 0 = fxsave, 512 */
	uint64_t extended_mask;  /* state components that xsave keeps */
};
_Static_assert(offsetof(struct ch__arch_stub_context, hit) == 0, "each .S loads it");

/* Callee-saved registers, the link register, and sp of a thread that parks. */
struct ch__arch_saved {
	uintptr_t words[CH_ARCH_SAVED_WORDS];
	uintptr_t sp;
};

static inline uint8_t ch__arch_trap_byte(const uint8_t *at)
{
	return (uint8_t)(ch__arch_traps >> (uintptr_t)at % sizeof ch__arch_traps * 8);
}

/* Takes any range: each address gets the byte that a trap at a multiple of its unit has there. */
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

/* The bytes of traps repeat every 8 bytes. */
static inline bool ch__arch_are_traps(const uint8_t *read, size_t bytes)
{
	size_t first = bytes < sizeof ch__arch_traps ? bytes : sizeof ch__arch_traps;
	for (size_t i = 0; i < first; i++)
		if (read[i] != ch__arch_trap_byte(read + i))
			return false;
	return memcmp(read + first, read, bytes - first) == 0;
}

/* Publishes bytes written through another view. Makes a system call only where nothing but the
 * kernel reaches the instruction caches of all cores. */
static inline void ch__arch_sync(const uint8_t *exec, size_t bytes);

/* From here on the calling thread executes no instruction that was fetched before: where another
 * core's stores to code are visible to the thread, the thread runs the new bytes. */
void ch__arch_serialize(void);

/* For the body of a loop that waits for another core. */
static inline void ch__arch_pause(void);
/* Differs between all threads that live; never 0. Each call reads the register anew: a compiler may
 * keep the address of a thread-local variable for a whole function, callbacks included. */
static inline uintptr_t ch__arch_thread_pointer(void);
/* No system has smaller pages: all bytes of such a page have the same access. */
enum { CH_ARCH_SMALLEST_PAGE = 4096 };

/* --- Valgrind: six words, the request and its arguments; returns 0, without effect, where no
 * Valgrind runs --- */
uintptr_t ch__arch_valgrind_ask(const uintptr_t words[6]) CH_COLD;

/* --- self-test: writes a function that returns the value; returns the function's bytes --- */
size_t ch__arch_constant_function_write(uint8_t *write, uint32_t value);

/* --- CFI of the frame shapes of each heap, for CIEs that sinks build --- */
enum { CH_ARCH_DWARF_DATA_ALIGN = -8 };
/* The return address is not signed: a VM that signs return addresses registers its own shape. */
static const uint8_t ch__arch_cfi_frame_pointer[] = {
	CH_ARCH_CFI_RECORD_END,
	0x80 | CH_ARCH_DWARF_RETURN, 1, /* DW_CFA_offset: at cfa - 8 */
	0x80 | CH_ARCH_DWARF_FP, 2,     /* at cfa - 16 */
};
