/* SPDX-License-Identifier: MIT
 * code_aarch64.h: tiny emitters of aarch64 code for the tests: a block under construction and the
 * instructions that the cases need. The emitters choose no sizes and know nothing of the tests.
 *
 * Each emitter appends whole words to the hot part at e->at. A block's argument and result are in
 * x0; x9, x16 and x17 change freely. Patch sites return their exec address. */
#pragma once

#include "tests/support/code_bytes.h"

#define CODE_UNIT uint32_t
#define CODE_CALL_BYTES 0, 0, 0, 0x94 /* a call, its target apart */
#define CODE_POINT_BYTES 0x1f, 0x20, 0x03, 0xd5

/* Conditions, by the flags. */
enum { EMIT_CC_E = 0, EMIT_CC_NE = 1 };

/* Where the compiler marks the targets of indirect branches, the library guards its pages, and so
 * each block begins with `bti c`. */
#if defined(__ARM_FEATURE_BTI_DEFAULT)
enum { CODE_LANDING_BYTES = 4 };
#else
enum { CODE_LANDING_BYTES = 0 };
#endif
/* Room for small code that has so many bytes on x86-64. */
#define CODE_ROOM(hot) ((hot) < 512 ? 2 * (hot) + 16 : (hot))

/* The return address as stored by a function whose frame is at sp: PACIA1716, which signs where the
 * processor does. */
static inline uintptr_t code_sign(uintptr_t return_address, uintptr_t sp)
{
	register uintptr_t x17 __asm__("x17") = return_address;
	register uintptr_t x16 __asm__("x16") = sp;
	__asm__("hint #8" : "+r"(x17) : "r"(x16));
	return x17;
}

static inline void emit_nops(struct emitter *e, uint32_t count)
{
	while (count--)
		EMIT(e, 0xd503201f);
}
/* NOPs until the byte at here + skip is a multiple of 8. */
static inline void emit_pad(struct emitter *e, uint32_t skip)
{
	while (((uintptr_t)emit_here(e) + skip) % 8)
		emit_nops(e, 1);
}
/* movz and three movk: xN = word */
static inline void emit_register(struct emitter *e, unsigned n, uint64_t word)
{
	EMIT(e, 0xd2800000 | (uint32_t)(word & 0xffff) << 5 | n,
	     0xf2a00000 | (uint32_t)(word >> 16 & 0xffff) << 5 | n,
	     0xf2c00000 | (uint32_t)(word >> 32 & 0xffff) << 5 | n,
	     0xf2e00000 | (uint32_t)(word >> 48) << 5 | n);
}

/* --- instructions --- */

static inline void emit_ret(struct emitter *e)
{
	EMIT(e, 0xd65f03c0);
}
/* stp x29, x30, [sp, #-16]!; mov x29, sp: the default frame shape, needed to run C functions. */
static inline void emit_enter(struct emitter *e)
{
	EMIT(e, 0xa9bf7bfd, 0x910003fd);
}
/* ldp x29, x30, [sp], #16; ret */
static inline void emit_leave(struct emitter *e)
{
	EMIT(e, 0xa8c17bfd, 0xd65f03c0);
}
/* A function with a frame and its usual companions: bti c; a diverter, nop; paciasp; stp x29, x30;
 * mov x29, sp; nop; ldp x29, x30; autiasp; ret; retaa */
static const struct code_moment code_moments[] = {
	{0, 0, false}, {4, 0, false}, {8, 0, false},  {12, 0, false}, {16, 0, false},
	{20, 0, true}, {24, 0, true}, {28, 0, false}, {32, 0, false}, {36, 0, false}};
static inline void emit_moments(struct emitter *e)
{
	EMIT(e, 0xd503245f, 0xd503201f, 0xd503233f, 0xa9bf7bfd, 0x910003fd, 0xd503201f, 0xa8c17bfd,
	     0xd50323bf, 0xd65f03c0, 0xd65f0bff);
}
/* movz w0; movk w0: the result of a block */
static inline void emit_value(struct emitter *e, uint32_t value)
{
	EMIT(e, 0x52800000 | (value & 0xffff) << 5, 0x72a00000 | value >> 16 << 5);
}
/* movz w9; movk w9; add w0, w0, w9 */
static inline void emit_add(struct emitter *e, uint32_t value)
{
	EMIT(e, 0x52800009 | (value & 0xffff) << 5, 0x72a00009 | value >> 16 << 5, 0x0b090000);
}
/* ldr x9, word; b over the word. Returns the exec address of the word, for ch_ref_attach. */
static inline const void *emit_ref_word(struct emitter *e, uint64_t word)
{
	EMIT(e, 0x58000049, 0x14000003);
	emit_u64(e, word);
	return emit_here(e) - 8;
}
/* x16 = function; blr x16. Inside emit_enter and emit_leave only; x0 is passed on. */
static inline void emit_call_c(struct emitter *e, const void *function)
{
	emit_register(e, 16, (uint64_t)(uintptr_t)function);
	EMIT(e, 0xd63f0200);
}
/* x16 = cell; ldr x16, [x16]; br x16: a tail call through an owner's cell */
static inline void emit_jump_cell(struct emitter *e, const void *const *cell)
{
	emit_register(e, 16, (uint64_t)(uintptr_t)cell);
	EMIT(e, 0xf9400210, 0xd61f0200);
}
/* x16 = guard; ldar w16, [x16]; cbnz past `skip` bytes, which do not run when not entrant. */
static inline void emit_guard_test(struct emitter *e, const uint32_t *guard, uint8_t skip)
{
	emit_register(e, 16, (uint64_t)(uintptr_t)guard);
	EMIT(e, 0x88dffe10, 0x35000010 | (4u + skip) / 4 << 5);
}
/* nop: the word of a patch point */
static inline const void *emit_point(struct emitter *e)
{
	emit_nops(e, 1);
	return emit_here(e) - 4;
}

/* --- patch sites: emitted, not attached --- */

static inline const void *emit_site_jmp(struct emitter *e)
{
	EMIT(e, 0x14000000);
	return emit_here(e) - 4;
}
/* b.CONDITION's opposite over the B that changes */
static inline const void *emit_site_jcc(struct emitter *e, uint8_t condition)
{
	EMIT(e, 0x54000040 | (condition ^ 1u), 0x14000000);
	return emit_here(e) - 8;
}
static inline const void *emit_site_call(struct emitter *e)
{
	EMIT(e, 0x94000000);
	return emit_here(e) - 4;
}
/* ldr x9, +8; b +12; the literal */
static inline const void *emit_site_lea(struct emitter *e)
{
	emit_pad(e, 0);
	EMIT(e, 0x58000049, 0x14000003, 0, 0);
	return emit_here(e) - 16;
}
/* An aligned word; the code before must not fall into the word. */
static inline const void *emit_site_literal(struct emitter *e)
{
	while ((uintptr_t)emit_here(e) % 8)
		EMIT(e, 0xd4200000);
	emit_u64(e, 0);
	return emit_here(e) - 8;
}


/* adrp, add: x(number) = the address. */
static inline void emit_address_near(struct emitter *e, uint32_t number, uintptr_t address)
{
	uintptr_t pages = (address >> 12) - ((uintptr_t)emit_here(e) >> 12);
	emit_u32(e, 0x90000000 | (uint32_t)(pages & 3) << 29 |
			    (uint32_t)(pages >> 2 & 0x7ffff) << 5 | number);
	emit_u32(e, 0x91000000 | (uint32_t)(address & 0xfff) << 10 | number << 5 | number);
}
/* The word at `from`, reached by distance, is the result; the word + 1 goes to `to`. */
static inline void emit_count(struct emitter *e, const void *from, const void *to)
{
	emit_address_near(e, 9, (uintptr_t)from);
	emit_u32(e, 0xb9400120); /* ldr w0, [x9] */
	emit_address_near(e, 10, (uintptr_t)to);
	emit_u32(e, 0x1100040b); /* add w11, w0, 1 */
	emit_u32(e, 0xb900014b); /* str w11, [x10] */
	emit_ret(e);
}
