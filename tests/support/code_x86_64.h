/* SPDX-License-Identifier: MIT
 * code_x86_64.h: tiny emitters of x86-64 code for the tests: a block under construction and the
 * instructions that the cases need. The emitters choose no sizes and know nothing of the tests.
 *
 * Each emitter appends to the hot part at e->at. Patch sites are padded with single-byte NOPs, so
 * that the changing bytes lie in an aligned 8, and return their exec address. */
#pragma once

#include "tests/support/code_bytes.h"

#define CODE_UNIT uint8_t

enum { CODE_LANDING_BYTES = 0 }; /* no call needs a landing mark */
#define CODE_ROOM(hot) (hot)
#define CODE_CALL_BYTES 0xe8, 0, 0, 0, 0 /* a call, its target apart */
#define CODE_POINT_BYTES 0xa9, 0, 0, 0, 0

enum { EMIT_CC_E = 4, EMIT_CC_NE = 5 };

/* The return address as stored by a function whose frame is at sp. */
static inline uintptr_t code_sign(uintptr_t return_address, uintptr_t sp)
{
	(void)sp;
	return return_address;
}

static inline void emit_nops(struct emitter *e, uint32_t count)
{
	while (count--)
		EMIT(e, 0x90);
}
/* NOPs until the 4 bytes at here + skip lie within an aligned 8. */
static inline void emit_pad(struct emitter *e, uint32_t skip)
{
	while ((((uintptr_t)emit_here(e) + skip) & 7) > 4)
		EMIT(e, 0x90);
}

/* --- instructions --- */

static inline void emit_ret(struct emitter *e)
{
	EMIT(e, 0xc3);
}
/* push rbp; mov rbp, rsp: the default frame shape, needed to run C functions. */
static inline void emit_enter(struct emitter *e)
{
	EMIT(e, 0x55, 0x48, 0x89, 0xe5);
}
/* pop rbp; ret */
static inline void emit_leave(struct emitter *e)
{
	EMIT(e, 0x5d, 0xc3);
}
/* A function with a frame and its usual companions: endbr64; a diverter, test eax; push rbp; mov
 * rbp, rsp; test eax; pop rbp; ret */
static const struct code_moment code_moments[] = {{0, 0, false},  {4, 0, false}, {9, 0, false},
						 {10, 1, false}, {13, 0, true}, {18, 0, true},
						 {19, 0, false}};
static inline void emit_moments(struct emitter *e)
{
	EMIT(e, 0xf3, 0x0f, 0x1e, 0xfa, 0xa9, 0, 0, 0, 0);
	EMIT(e, 0x55, 0x48, 0x89, 0xe5, 0xa9, 0, 0, 0, 0, 0x5d, 0xc3);
}
/* mov eax, value: the result of a block */
static inline void emit_value(struct emitter *e, uint32_t value)
{
	EMIT(e, 0xb8);
	emit_u32(e, value);
}
/* add eax, value */
static inline void emit_add(struct emitter *e, uint32_t value)
{
	EMIT(e, 0x05);
	emit_u32(e, value);
}
/* mov rcx, word. Returns the exec address of the word, for ch_ref_attach. */
static inline const void *emit_ref_word(struct emitter *e, uint64_t word)
{
	EMIT(e, 0x48, 0xb9);
	emit_u64(e, word);
	return emit_here(e) - 8;
}
/* mov rax, function; call rax. Inside emit_enter and emit_leave only; rdi is passed on. */
static inline void emit_call_c(struct emitter *e, const void *function)
{
	EMIT(e, 0x48, 0xb8);
	emit_u64(e, (uint64_t)(uintptr_t)function);
	EMIT(e, 0xff, 0xd0);
}
/* mov rax, cell; jmp [rax]: a tail call through an owner's cell */
static inline void emit_jump_cell(struct emitter *e, const void *const *cell)
{
	EMIT(e, 0x48, 0xb8);
	emit_u64(e, (uint64_t)(uintptr_t)cell);
	EMIT(e, 0xff, 0x20);
}
/* mov rax, guard; cmp dword [rax], 0; jne past `skip` bytes, which do not run when not entrant. */
static inline void emit_guard_test(struct emitter *e, const uint32_t *guard, uint8_t skip)
{
	EMIT(e, 0x48, 0xb8);
	emit_u64(e, (uint64_t)(uintptr_t)guard);
	EMIT(e, 0x83, 0x38, 0x00, 0x75, skip);
}
/* test eax, imm32: the five bytes of a patch point; the library fills in the rest. */
static inline const void *emit_point(struct emitter *e)
{
	EMIT(e, CODE_POINT_BYTES);
	return emit_here(e) - 5;
}

/* --- patch sites: emitted, not attached --- */

static inline const void *emit_site_jmp(struct emitter *e)
{
	emit_pad(e, 1);
	EMIT(e, 0xe9, 0, 0, 0, 0);
	return emit_here(e) - 5;
}
static inline const void *emit_site_jcc(struct emitter *e, uint8_t condition)
{
	emit_pad(e, 2);
	EMIT(e, 0x0f, (uint8_t)(0x80 | condition), 0, 0, 0, 0);
	return emit_here(e) - 6;
}
static inline const void *emit_site_call(struct emitter *e)
{
	emit_pad(e, 1);
	EMIT(e, CODE_CALL_BYTES);
	return emit_here(e) - 5;
}
/* lea rax, [rip + disp32] */
static inline const void *emit_site_lea(struct emitter *e)
{
	emit_pad(e, 3);
	EMIT(e, 0x48, 0x8d, 0x05, 0, 0, 0, 0);
	return emit_here(e) - 7;
}
/* An aligned word; the code before must not fall into the word. */
static inline const void *emit_site_literal(struct emitter *e)
{
	while ((uintptr_t)emit_here(e) % 8)
		EMIT(e, 0xcc);
	emit_u64(e, 0);
	return emit_here(e) - 8;
}


/* The word at `from`, reached by distance, is the result; the word + 1 goes to `to`. */
static inline void emit_count(struct emitter *e, const void *from, const void *to)
{
	EMIT(e, 0x8b, 0x05);
	emit_u32(e, (uint32_t)((uintptr_t)from - (uintptr_t)emit_here(e) - 4));
	EMIT(e, 0x8d, 0x48, 0x01, 0x89, 0x0d);
	emit_u32(e, (uint32_t)((uintptr_t)to - (uintptr_t)emit_here(e) - 4));
	emit_ret(e);
}
