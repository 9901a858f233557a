/* SPDX-License-Identifier: MIT
 * aarch64.h: constants and inline functions of the four contracts for aarch64.
 *
 * One aligned word of a site changes, and both the old and the new word are B, BL, NOP or BRK (Arm
 * ARM B2.6.5); or an aligned literal of 8 bytes changes, which is data. Kinds of sites: JMP B; JCC
 * B.cond, CBZ or TBZ over the next instruction, a B, which changes; CALL BL; LEA LDR of a literal,
 * then a B over the literal. ch_regs.gpr: x0 to x30, sp; extended is q0 to q31, fpsr, fpcr.
 * Payload of a trampoline: x15. */
#pragma once

#include "arch/base.h"

enum {
	CH_ARCH_TRAP_UNIT_BYTES = 4,  /* BRK; a jump between two is an alignment fault */
	CH_ARCH_STUB_BYTES = 28,      /* bti jc, ldr x16, adr x17, br x16, literal, branch index */
	CH_ARCH_STUB_CALL_BYTES = 16, /* a return address into a stub, x17, is stub + 16 */
	CH_ARCH_STUB_LEADS_FAR = 1,   /* B reaches 128 MiB; the stub's literal leads on */
	CH_ARCH_LEAD_BYTES = 0,
	CH_ARCH_LEAD_JUMP_BYTES = 0,
	CH_ARCH_STUB_LITERAL = 16,  /* the index comes first where that aligns the literal */
	CH_ARCH_FIELD_ALIGN = 4,
	CH_ARCH_LEA_HAS_LITERAL = 1,
	CH_ARCH_DIVERTER_BYTES = 4, /* nop <-> b */
	CH_ARCH_VENEER_BYTES = 24,  /* bti c; ldr x16, literal; br x16; the aligned literal */
	CH_ARCH_VENEER_REACH_LOG2 = 27, /* of BL */
	CH_ARCH_RED_ZONE_BYTES = 0,
	CH_ARCH_HAS_LINK_REGISTER = 1, /* a call leaves its return address in x30 */
	CH_ARCH_RECORD_AT = 0,
	CH_ARCH_CONTEXT_WORDS = 33, /* x0 to x30, sp, pc */
	CH_ARCH_CONTEXT_AT = 184,
	CH_ARCH_CONTEXT_PC = 32,
	CH_ARCH_CONTEXT_SP = 31,
	CH_ARCH_CONTEXT_FP = 29,
	CH_ARCH_SAVED_WORDS = 20, /* x19 to x30, d8 to d15 */
	CH_ARCH_TEMPLATE_BYTES = 48,
	CH_ARCH_ELF_MACHINE = 183, /* EM_AARCH64 */
	CH_ARCH_DWARF_FP = 29,
	CH_ARCH_DWARF_SP = 31,
	CH_ARCH_DWARF_RETURN = 30,
	CH_ARCH_DWARF_CODE_ALIGN = 4,
	CH_ARCH_LANDING_BYTES = 4, /* bti c, which may not change */
	CH_ARCH_POOL_LOG2 = 26,     /* B reaches all of such a pool and its runtime */
	CH_ARCH_POOL_LOG2_MAX = 30, /* stubs lead anywhere */
	CH_ARCH_FETCH_FOLLOWS = 0,  /* only after each core has synchronized its context */
};
#define CH_ARCH_CFI_RECORD_END 0x0c, CH_ARCH_DWARF_FP, 16 + CH_ARCH_RECORD_AT /* DW_CFA_def_cfa */
static const uint64_t ch__arch_lead = 0;
static const uint32_t ch__arch_landing = 0xd503245f; /* for a call, and a jump by x16 or x17 */
/* BRK #0xc0de, an immediate that no debugger, kernel or compiler uses. */
static const uint64_t ch__arch_traps = UINT64_C(0xd4381bc0d4381bc0);
/* Pairs, the first register of a pair at the lower address: x19 to x28; then d8 to d15, which only
 * DW_CFA_offset_extended can name. */
static const uint8_t ch__arch_cfi_saves[] = {
	0x93, 4,  0x94, 3,  0x95, 6,  0x96, 5,  0x97, 8,  0x98, 7,  0x99, 10, 0x9a, 9,
	0x9b, 12, 0x9c, 11,
	5, 72, 14, 5, 73, 13, 5, 74, 16, 5, 75, 15, 5, 76, 18, 5, 77, 17, 5, 78, 20, 5, 79, 19};
/* DW_CFA_def_cfa: sp; the return address stays in x30 */
static const uint8_t ch__arch_cfi_leaf[] = {0x0c, 31, 0};
/* DW_CFA_advance_loc behind the stp, def_cfa_offset, offsets; behind the ldp the frame as before */
static const uint8_t ch__arch_cfi_framed[] = {0x42, 0x0e, 16, 0x9d, 2, 0x9e, 1,
					      0x45, 0x0e, 0,  0xdd, 0xde};
/* No register of a DWARF expression has the pc of a frame that a signal interrupted. */
enum { CH_ARCH_HAS_STEPS = 0, CH_ARCH_STEPS_CFA = 0, CH_ARCH_STEPS_KEPT = 1 };
static const uint8_t ch__arch_steps_kept[] = {30};
#define CH_ARCH_NONGNU_NAME "aarch64"
enum { CH_ARCH_NONGNU_PC = 32, CH_ARCH_NONGNU_CURSOR_WORDS = 250 };

/* By exec, not by write: data caches work by physical address, instruction caches may not. */
static inline void ch__arch_sync(const uint8_t *exec, size_t bytes)
{
	__builtin___clear_cache((char *)(uintptr_t)exec, (char *)(uintptr_t)exec + bytes);
}

/* XPACLRI, a no-op where the processor signs nothing. */
__attribute__((always_inline)) static inline uintptr_t ch__arch_strip(uintptr_t word)
{
	register uintptr_t x30 __asm__("x30") = word;
	__asm__("hint #7" : "+r"(x30));
	return x30;
}

static inline bool ch__arch_has_breakpoint(const void *function)
{
	return *(const volatile uint32_t *)function == 0xd4200000; /* BRK #0, which gdb writes */
}

static inline uintptr_t ch__arch_thread_pointer(void)
{
	uintptr_t pointer;
	__asm__ volatile("mrs %0, tpidr_el0" : "=r"(pointer));
	return pointer;
}

static inline void ch__arch_pause(void)
{
	__asm__ volatile("yield" ::: "memory");
}
