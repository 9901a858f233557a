/* SPDX-License-Identifier: MIT
 * riscv64.h: constants and inline functions of the four contracts for riscv64.
 *
 * One aligned word of a site changes, a jal, or the lui of x0 that a jal replaces; or an aligned
 * literal of 8 bytes changes. Kinds of sites: JMP jal x0; JCC a branch over the next instruction, a
 * jal x0, which changes; CALL jal ra; LEA auipc, ld of a literal, then a jal x0 over the literal.
 * ch_regs.gpr: x0 to x31; extended is f0 to f31, fcsr. Payload of a trampoline: t2. */
#pragma once

#include "arch/base.h"

#include <sys/cachectl.h>

enum {
	CH_ARCH_TRAP_UNIT_BYTES = 2,  /* c.ebreak traps at every halfword */
	CH_ARCH_STUB_BYTES = 24,      /* auipc, ld, jr, branch index, literal */
	CH_ARCH_STUB_CALL_BYTES = 12, /* t1 in place of a return address: stub + 12 */
	CH_ARCH_STUB_LEADS_FAR = 1,   /* jal reaches 1 MiB; the stub's literal leads on */
	CH_ARCH_LEAD_BYTES = 0,
	CH_ARCH_LEAD_JUMP_BYTES = 0,
	CH_ARCH_STUB_LITERAL = 12,
	CH_ARCH_FIELD_ALIGN = 4,
	CH_ARCH_LEA_HAS_LITERAL = 1,
	CH_ARCH_DIVERTER_BYTES = 4, /* lui x0, imm20 <-> jal x0, imm20 */
	CH_ARCH_VENEER_BYTES = 24,  /* auipc, ld, jr, pad, literal */
	CH_ARCH_VENEER_REACH_LOG2 = 31, /* of auipc and jalr */
	CH_ARCH_RED_ZONE_BYTES = 0,
	CH_ARCH_HAS_LINK_REGISTER = 1, /* ra */
	CH_ARCH_RECORD_AT = -16,       /* the record ends where s0 points */
	CH_ARCH_CONTEXT_WORDS = 32,    /* the pc in the place of x0, x1 to x31 */
	CH_ARCH_CONTEXT_AT = 176,
	CH_ARCH_CONTEXT_PC = 0,
	CH_ARCH_CONTEXT_SP = 2,
	CH_ARCH_CONTEXT_FP = 8,
	CH_ARCH_SAVED_WORDS = 25, /* s0 to s11, ra, fs0 to fs11 */
	CH_ARCH_TEMPLATE_BYTES = 64,
	CH_ARCH_ELF_MACHINE = 243, /* EM_RISCV */
	CH_ARCH_DWARF_FP = 8,
	CH_ARCH_DWARF_SP = 2,
	CH_ARCH_DWARF_RETURN = 1,
	CH_ARCH_DWARF_CODE_ALIGN = 1,
	CH_ARCH_LANDING_BYTES = 0, /* an indirect jump lands anywhere */
	CH_ARCH_POOL_LOG2 = 28,
	CH_ARCH_POOL_LOG2_MAX = 30, /* stubs lead anywhere */
	CH_ARCH_FETCH_FOLLOWS = 1,  /* publishing has each hart execute fence.i, and waits */
};
#define CH_ARCH_CFI_RECORD_END 0x0c, CH_ARCH_DWARF_FP, 16 + CH_ARCH_RECORD_AT /* DW_CFA_def_cfa */
static const uint64_t ch__arch_lead = 0;
static const uint32_t ch__arch_landing = 0;
static const uint64_t ch__arch_traps = UINT64_C(0x9002900290029002); /* c.ebreak */
/* s1 to s11, then fs0 to fs11, downwards */
static const uint8_t ch__arch_cfi_saves[] = {
	0x89, 3,  0x92, 4,  0x93, 5,  0x94, 6,  0x95, 7,  0x96, 8,  0x97, 9,  0x98, 10,
	0x99, 11, 0x9a, 12, 0x9b, 13, 0xa8, 14, 0xa9, 15, 0xb2, 16, 0xb3, 17, 0xb4, 18,
	0xb5, 19, 0xb6, 20, 0xb7, 21, 0xb8, 22, 0xb9, 23, 0xba, 24, 0xbb, 25};
/* DW_CFA_def_cfa: sp; the return address stays in ra */
static const uint8_t ch__arch_cfi_leaf[] = {0x0c, 2, 0};
/* DW_CFA_advance_loc behind each instruction that changes sp, ra or s0, then what it changes:
 * def_cfa_offset, offset of ra, offset of s0; restore of ra, restore of s0, def_cfa_offset */
static const uint8_t ch__arch_cfi_framed[] = {0x44, 0x0e, 16, 0x44, 0x81, 1,    0x44, 0x88, 2,
					      0x58, 0xc1, 0x44, 0xc8, 0x44, 0x0e, 0};
/* No register of a DWARF expression has the pc of a frame that a signal interrupted. */
enum { CH_ARCH_HAS_STEPS = 0, CH_ARCH_STEPS_CFA = 0, CH_ARCH_STEPS_KEPT = 1 };
static const uint8_t ch__arch_steps_kept[] = {1};
#define CH_ARCH_NONGNU_NAME "riscv"
enum { CH_ARCH_NONGNU_PC = 64, CH_ARCH_NONGNU_CURSOR_WORDS = 4096 };

/* fence.i is for one core, and a thread may move: the kernel reaches all cores. Not by
 * __builtin___clear_cache, which clang makes a call of libgcc's empty function. */
static inline void ch__arch_sync(const uint8_t *exec, size_t bytes)
{
	void *begin = (void *)(uintptr_t)exec;
	/* Old code would run. */
	if (CH_UNLIKELY(__riscv_flush_icache(begin, (char *)begin + bytes, 0) != 0))
		ch__panic("the system does not let code be published any more");
}

__attribute__((always_inline)) static inline uintptr_t ch__arch_strip(uintptr_t word)
{
	return word;
}

static inline bool ch__arch_has_breakpoint(const void *function)
{
	const volatile uint16_t *halves = (const volatile uint16_t *)function;
	/* c.ebreak, or the first half of ebreak, which system calls and CSR instructions share */
	return halves[0] == 0x9002 || (halves[0] == 0x0073 && halves[1] == 0x0010);
}

static inline uintptr_t ch__arch_thread_pointer(void)
{
	uintptr_t pointer;
	__asm__ volatile("mv %0, tp" : "=r"(pointer));
	return pointer;
}

static inline void ch__arch_pause(void)
{
	__asm__ volatile(".word 0x0100000f"); /* pause, which older processors take for a fence */
}
