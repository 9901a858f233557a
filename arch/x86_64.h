/* SPDX-License-Identifier: MIT
 * x86_64.h: constants and inline functions of the four contracts for x86-64.
 *
 * The bytes of a site that change lie in one naturally aligned 8, within one instruction (AMD APM
 * 2, 7.6.1). Kinds of sites: JMP E9 rel32; JCC 0F 8x rel32; CALL E8 rel32; LEA lea reg, [rip +
 * disp32]. ch_regs.gpr: rax rcx rdx rbx rsp rbp rsi rdi r8 to r15, in encoding order;
 * extended is an xsave or fxsave image. Payload of a trampoline: r10. */
#pragma once

#include "arch/base.h"

enum {
	CH_ARCH_TRAP_UNIT_BYTES = 1, /* INT3 traps at every offset */
	CH_ARCH_STUB_BYTES = 8,      /* call rel32 + 24-bit branch index */
	CH_ARCH_STUB_CALL_BYTES = 5, /* a return address into a stub is stub + 5 */
	CH_ARCH_STUB_LEADS_FAR = 0,  /* a site reaches the whole pool by itself */
	CH_ARCH_LEAD_BYTES = 16,     /* jmp [literal of the write view], traps, literal */
	CH_ARCH_LEAD_JUMP_BYTES = 6,
	CH_ARCH_STUB_LITERAL = 8,
	CH_ARCH_FIELD_ALIGN = 1,
	CH_ARCH_LEA_HAS_LITERAL = 0,
	CH_ARCH_DIVERTER_BYTES = 5, /* test eax, imm32 <-> jmp rel32 */
	CH_ARCH_VENEER_BYTES = 16,  /* jmp [rip + 2], pad, literal */
	CH_ARCH_VENEER_REACH_LOG2 = 31,
	CH_ARCH_RED_ZONE_BYTES = 128,
	CH_ARCH_HAS_LINK_REGISTER = 0, /* a call leaves its return address on the stack */
	CH_ARCH_RECORD_AT = 0,
	CH_ARCH_CONTEXT_WORDS = 17, /* in the kernel's order: REG_R8 to REG_RIP */
	CH_ARCH_CONTEXT_AT = 40,
	CH_ARCH_CONTEXT_PC = 16,
	CH_ARCH_CONTEXT_SP = 15,
	CH_ARCH_CONTEXT_FP = 10,
	CH_ARCH_SAVED_WORDS = 6,
	CH_ARCH_TEMPLATE_BYTES = 40,
	CH_ARCH_ELF_MACHINE = 62, /* EM_X86_64 */
	CH_ARCH_DWARF_FP = 6,
	CH_ARCH_DWARF_SP = 7,
	CH_ARCH_DWARF_RETURN = 16,
	CH_ARCH_DWARF_CODE_ALIGN = 1,
	CH_ARCH_LANDING_BYTES = 0, /* indirect-branch tracking is not in force for a VM's code */
	CH_ARCH_POOL_LOG2 = 28,
	CH_ARCH_POOL_LOG2_MAX = 30, /* a jump reaches all of the pool and its runtime */
	CH_ARCH_FETCH_FOLLOWS = 1,
};
/* jmp qword [rip + displacement], two traps */
static const uint64_t ch__arch_lead = UINT64_C(0xcccc0000000025ff);
static const uint32_t ch__arch_landing = 0;
static const uint64_t ch__arch_traps = UINT64_C(0xcccccccccccccccc); /* INT3 */
/* DW_CFA_def_cfa_expression, of 103 bytes. The CFA is rbp + 16 where rbp is less than 1 GiB above
 * rsp. Elsewhere rbp may be still, or again, the caller's, and be anything. So the bytes at pc
 * decide: at push rbp, ret and endbr64 the CFA is rsp + 8, at mov rbp, rsp it is rsp + 16, at a
 * diverter it is as behind the diverter. At other bytes it is rbp + 16, since a frame may lie on
 * another stack than rsp. A call that never returns may be the last instruction, so no byte is read
 * that may be in a page without memory. Another function's push may stand behind such a call, so
 * rbp is asked first. No jump leads behind the last operation: LLDB 14 takes that for an error. */
#define CH_ARCH_CFI_RECORD_END                                                                     \
	0x0f, 103,                                                                                 \
	0x76, 0, 0x77, 0, 0x1c, 0x4e, 0x25, 0x28, 5, 0,                       /* far from rsp? */  \
	0x76, 8, 0x2f, 86, 0,                                                 /* rbp + 16 */       \
	0x80, 0,                                                              /* pc: look there */ \
	0x12, 0x0a, 0xff, 0x0f, 0x1a, 0x12, 0x30, 0x29, 0x28, 0xee, 0xff,     /* begins a page? */ \
	0x14, 0x94, 1, 0x12, 0x08, 0x55, 0x29,                                /* push, */          \
	0x14, 0x08, 0xc3, 0x29, 0x21, 0x28, 51, 0,                            /* or ret? */        \
	0x14, 0x0a, 0xfe, 0x0f, 0x2a, 0x28, 0xd7, 0xff,                       /* ends a page? */   \
	0x15, 2, 0x23, 1, 0x94, 2, 0x12, 0x0a, 0x0f, 0x1e, 0x29, 0x28, 29, 0, /* endbr64? */       \
	0x12, 0x0a, 0x89, 0xe5, 0x29,                                         /* mov, */           \
	0x14, 0x0a, 0x8b, 0xec, 0x29, 0x21, 0x28, 20, 0,                      /* either form? */   \
	0x14, 0x08, 0xa9, 0x2e, 0x28, 0xb4, 0xff,                             /* no diverter? */   \
	0x13, 0x13, 0x13, 0x23, 5, 0x2f, 0xb3, 0xff,                          /* look behind it */ \
	0x77, 0, 0x2f, 2, 0, 0x77, 8, 0x23, 8                                 /* rsp + 8, or + 16 */
/* rbx, r12 to r15, pushed in this order */
static const uint8_t ch__arch_cfi_saves[] = {0x83, 3, 0x8c, 4, 0x8d, 5, 0x8e, 6, 0x8f, 7};
/* DW_CFA_def_cfa: rsp + 8; the return address at cfa - 8 */
static const uint8_t ch__arch_cfi_leaf[] = {0x0c, 7, 8, 0x80 | CH_ARCH_DWARF_RETURN, 1};
/* DW_CFA_advance_loc behind the push, def_cfa_offset, offset; behind the pop the frame as before */
static const uint8_t ch__arch_cfi_framed[] = {0x45, 0x0e, 16, 0x86, 2, 0x51, 0x0e, 8, 0xc6};
/* A DWARF expression can name the pc of a frame: the number of the return address. */
enum { CH_ARCH_HAS_STEPS = 1, CH_ARCH_STEPS_CFA = 8, CH_ARCH_STEPS_KEPT = 6 };
static const uint8_t ch__arch_steps_kept[] = {3, 6, 12, 13, 14, 15};
#define CH_ARCH_NONGNU_NAME "x86_64"
enum { CH_ARCH_NONGNU_PC = 16, CH_ARCH_NONGNU_CURSOR_WORDS = 127 };

/* Caches snoop stores by physical address: only the compiler must not move the stores. */
static inline void ch__arch_sync(const uint8_t *exec, size_t bytes)
{
	(void)exec;
	(void)bytes;
	__asm__ volatile("" ::: "memory");
}

/* Of the state components that the system enables, a stub hit keeps all but protection keys, which
 * belong to the thread, not to the code. */
static inline uint64_t ch__arch_kept_state(uint64_t enabled)
{
	enum { XSAVE_PKRU = 9 };
	return enabled & ~(UINT64_C(1) << XSAVE_PKRU);
}

__attribute__((always_inline)) static inline uintptr_t ch__arch_strip(uintptr_t word)
{
	return word;
}

static inline bool ch__arch_has_breakpoint(const void *function)
{
	return *(const volatile uint8_t *)function == 0xcc; /* INT3 */
}

static inline uintptr_t ch__arch_thread_pointer(void)
{
	uintptr_t pointer;
	__asm__ volatile("mov %%fs:0, %0" : "=r"(pointer));
	return pointer;
}

static inline void ch__arch_pause(void)
{
	__builtin_ia32_pause();
}
