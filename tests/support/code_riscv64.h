/* SPDX-License-Identifier: MIT
 * code_riscv64.h: tiny emitters of riscv64 code for the tests: a block under construction and the
 * instructions that the cases need. The emitters choose no sizes and know nothing of the tests.
 *
 * Each emitter appends to the hot part at e->at and returns the exec address of a patch site.
 * Compressed instructions come in pairs, so that sites, which are never compressed, are aligned. t1
 * and t3 belong to the library at sites; t0 is the scratch register of this file. */
#pragma once

#include "tests/support/code_bytes.h"

#define CODE_UNIT uint32_t

enum { CODE_LANDING_BYTES = 0 }; /* no call needs a landing mark */
#define CODE_ROOM(hot) (hot)
#define CODE_CALL_BYTES 0xef, 0, 0, 0 /* a call, its target apart */
#define CODE_POINT_BYTES 0x37, 0, 0, 0

/* Conditions on a0 against 0. */
enum { EMIT_CC_E = 0, EMIT_CC_NE = 1 };

enum {
	RV_RA = 1,
	RV_SP = 2,
	RV_T0 = 5,
	RV_T1 = 6,
	RV_S0 = 8,
	RV_A0 = 10,
	RV_A1 = 11,
	RV_LOADED = 29
}; /* t4: loaded by emit_site_lea */

/* --- encodings --- */

static inline uint32_t rv_lui(unsigned rd, uint32_t high)
{
	return 0x37 | rd << 7 | (high & 0xfffff000);
}
static inline uint32_t rv_auipc(unsigned rd, uint32_t high)
{
	return 0x17 | rd << 7 | (high & 0xfffff000);
}
static inline uint32_t rv_addi(unsigned rd, unsigned rs, int32_t low)
{
	return 0x13 | rd << 7 | rs << 15 | (uint32_t)low << 20;
}
static inline uint32_t rv_addiw(unsigned rd, unsigned rs, int32_t low)
{
	return 0x1b | rd << 7 | rs << 15 | (uint32_t)low << 20;
}
static inline uint32_t rv_ld(unsigned rd, unsigned rs, int32_t offset)
{
	return 0x3003 | rd << 7 | rs << 15 | (uint32_t)offset << 20;
}
static inline uint32_t rv_lw(unsigned rd, unsigned rs, int32_t offset)
{
	return 0x2003 | rd << 7 | rs << 15 | (uint32_t)offset << 20;
}
static inline uint32_t rv_sd(unsigned source, unsigned rs, int32_t offset)
{
	return 0x3023 | rs << 15 | source << 20 | ((uint32_t)offset & 31) << 7 |
	       (uint32_t)offset >> 5 << 25;
}
static inline uint32_t rv_jalr(unsigned rd, unsigned rs)
{
	return 0x67 | rd << 7 | rs << 15;
}
/* jal, within 1 MiB */
static inline uint32_t rv_jal(unsigned rd, int32_t distance)
{
	uint32_t d = (uint32_t)distance;
	return 0x6f | rd << 7 | (d >> 20 & 1) << 31 | (d >> 1 & 0x3ff) << 21 | (d >> 11 & 1) << 20 |
	       (d >> 12 & 0xff) << 12;
}
/* beq (0) or bne (1), within 4 KiB */
static inline uint32_t rv_branch(unsigned condition, unsigned a, unsigned b, int32_t distance)
{
	uint32_t d = (uint32_t)distance;
	return 0x63 | condition << 12 | a << 15 | b << 20 | (d >> 12 & 1) << 31 |
	       (d >> 5 & 0x3f) << 25 | (d >> 1 & 15) << 8 | (d >> 11 & 1) << 7;
}

/* The return address as stored by a function whose frame is at sp. */
static inline uintptr_t code_sign(uintptr_t return_address, uintptr_t sp)
{
	(void)sp;
	return return_address;
}

static inline void emit_nops(struct emitter *e, uint32_t count)
{
	while (count--)
		EMIT(e, rv_addi(0, 0, 0));
}
/* NOPs until the byte at here + skip is a multiple of 8. */
static inline void emit_pad(struct emitter *e, uint32_t skip)
{
	while (((uintptr_t)emit_here(e) + skip) % 8)
		emit_nops(e, 1);
}
/* rd = the 64-bit word behind, and a jump over the word. Returns the word's exec address. */
static inline const void *emit_word_load(struct emitter *e, unsigned rd, uint64_t word)
{
	emit_pad(e, 12);
	EMIT(e, rv_auipc(rd, 0), rv_ld(rd, rd, 12), rv_jal(0, 12));
	emit_u64(e, word);
	return emit_here(e) - 8;
}

/* --- instructions --- */

static inline void emit_ret(struct emitter *e)
{
	EMIT(e, rv_jalr(0, RV_RA));
}
/* A frame with s0: the default frame shape, needed to run C functions. */
static inline void emit_enter(struct emitter *e)
{
	EMIT(e, 0xe4061141,
	     0x0800e022); /* addi sp, sp, -16; sd ra, 8(sp) | sd s0; addi s0, sp, 16 */
}
static inline void emit_leave(struct emitter *e)
{
	EMIT(e, 0x640260a2, 0x80820141); /* ld ra, 8(sp); ld s0 | addi sp, sp, 16; ret */
}
/* li rd, value */
static inline void emit_li(struct emitter *e, unsigned rd, uint32_t value)
{
	int32_t low = (int32_t)(value << 20) >> 20;
	EMIT(e, rv_lui(rd, value - (uint32_t)low), rv_addiw(rd, rd, low));
}
/* Two functions with a frame, the second compressed: a diverter, lui x0; addi sp; sd ra; sd s0;
 * addi s0; lui x0; ld ra; ld s0; addi sp; ret */
static const struct code_moment code_moments[] = {
	{0, 0, false},  {4, 0, false},  {8, 0, false},  {12, 0, false}, {16, 0, false},
	{20, 0, true},  {24, 0, true},  {28, 0, true},  {32, 0, false}, {36, 0, false},
	{40, 0, false}, {44, 0, false}, {46, 0, false}, {48, 0, false}, {50, 0, false},
	{52, 0, true},  {56, 0, true},  {58, 0, true},  {60, 0, false}, {62, 0, false}};
static inline void emit_moments(struct emitter *e)
{
	EMIT(e, rv_lui(0, 0x5000), rv_addi(RV_SP, RV_SP, -16), rv_sd(RV_RA, RV_SP, 8),
	     rv_sd(RV_S0, RV_SP, 0), rv_addi(RV_S0, RV_SP, 16), rv_lui(0, 0x5000),
	     rv_ld(RV_RA, RV_SP, 8), rv_ld(RV_S0, RV_SP, 0), rv_addi(RV_SP, RV_SP, 16),
	     rv_jalr(0, RV_RA));
	EMIT(e, rv_lui(0, 0x5000), 0xe4061141, 0x0800e022, rv_lui(0, 0x5000), 0x640260a2,
	     0x80820141);
}
/* li a0, value: the result of a block */
static inline void emit_value(struct emitter *e, uint32_t value)
{
	emit_li(e, RV_A0, value);
}
/* a0 += value, 32 bits wide */
static inline void emit_add(struct emitter *e, uint32_t value)
{
	emit_li(e, RV_T0, value);
	EMIT(e, 0x3b | RV_A0 << 7 | RV_A0 << 15 | RV_T0 << 20); /* addw a0, a0, t0 */
}
/* a1 = word. Returns the exec address of the word, for ch_ref_attach. */
static inline const void *emit_ref_word(struct emitter *e, uint64_t word)
{
	return emit_word_load(e, RV_A1, word);
}
/* A call to a C function, a0 passed on. Inside emit_enter and emit_leave only. */
static inline void emit_call_c(struct emitter *e, const void *function)
{
	emit_word_load(e, RV_T0, (uint64_t)(uintptr_t)function);
	EMIT(e, rv_addi(RV_T1, RV_T0, 0), rv_jalr(RV_RA, RV_T1));
}
/* A tail call through an owner's cell */
static inline void emit_jump_cell(struct emitter *e, const void *const *cell)
{
	emit_word_load(e, RV_T0, (uint64_t)(uintptr_t)cell);
	EMIT(e, rv_ld(RV_T1, RV_T0, 0), rv_jalr(0, RV_T1));
}
/* When *guard is not 0, jumps over `skip` bytes, which do not run when not entrant. */
static inline void emit_guard_test(struct emitter *e, const uint32_t *guard, uint8_t skip)
{
	emit_word_load(e, RV_T0, (uint64_t)(uintptr_t)guard);
	EMIT(e, rv_lw(RV_T0, RV_T0, 0), rv_branch(EMIT_CC_NE, RV_T0, 0, 4 + skip));
}
/* lui x0: the instruction of a patch point; the library fills in the rest. */
static inline const void *emit_point(struct emitter *e)
{
	EMIT(e, rv_lui(0, 0));
	return emit_here(e) - 4;
}

/* --- patch sites: emitted, not attached --- */

static inline const void *emit_site_jmp(struct emitter *e)
{
	EMIT(e, rv_jal(0, 0));
	return emit_here(e) - 4;
}
/* Taken when a0 is 0 (E) or not 0 (NE): the opposite branch over a jump. */
static inline const void *emit_site_jcc(struct emitter *e, uint8_t condition)
{
	EMIT(e, rv_branch(condition ^ 1u, RV_A0, 0, 8), rv_jal(0, 0));
	return emit_here(e) - 8;
}
static inline const void *emit_site_call(struct emitter *e)
{
	EMIT(e, rv_jal(RV_RA, 0));
	return emit_here(e) - 4;
}
/* t4 = an address */
static inline const void *emit_site_lea(struct emitter *e)
{
	return (const uint8_t *)emit_word_load(e, RV_LOADED, 0) - 12;
}
/* An aligned word; the code before must not fall into the word. */
static inline const void *emit_site_literal(struct emitter *e)
{
	while ((uintptr_t)emit_here(e) % 8)
		EMIT(e, 0x90029002); /* c.ebreak twice */
	emit_u64(e, 0);
	return emit_here(e) - 8;
}


/* The word at `from`, reached by distance, is the result; the word + 1 goes to `to`. */
static inline void emit_count(struct emitter *e, const void *from, const void *to)
{
	uint32_t distance = (uint32_t)((uintptr_t)from - (uintptr_t)emit_here(e));
	emit_u32(e, ((distance + 0x800) & 0xfffff000) | 5 << 7 | 0x17); /* auipc t0 */
	emit_u32(e, distance << 20 | 5 << 15 | 2 << 12 | 10 << 7 | 0x03); /* lw a0, (t0) */
	distance = (uint32_t)((uintptr_t)to - (uintptr_t)emit_here(e));
	emit_u32(e, ((distance + 0x800) & 0xfffff000) | 6 << 7 | 0x17); /* auipc t1 */
	emit_u32(e, 1u << 20 | 10 << 15 | 7 << 7 | 0x13); /* addi t2, a0, 1 */
	emit_u32(e, (distance >> 5 & 0x7f) << 25 | 7 << 20 | 6 << 15 | 2 << 12 |
			    (distance & 0x1f) << 7 | 0x23); /* sw t2, (t1) */
	emit_ret(e);
}
