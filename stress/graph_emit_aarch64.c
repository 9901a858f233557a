/* SPDX-License-Identifier: MIT
 * graph_emit_aarch64.c: graph_emit.h for aarch64. The word is_again of a block is at x29 - 16; x16
 * holds addresses for a moment, as in code of linkers and of the library. */
#include "graph_emit.h"

const uint32_t graph_emit_hot_bytes = 560, graph_emit_return_bytes = 24;

/* clang-format off */
__asm__(".text\n"
	".p2align 2\n"
	".globl graph_emit_call\n"
	".type graph_emit_call, @function\n"
	"graph_emit_call:\n"
	"	hint #34\n" /* bti c */
	"	ldr x16, [x0]\n"
	"	mov x0, xzr\n"
	"	br x16\n"
	".size graph_emit_call, . - graph_emit_call\n"
	".globl graph_emit_call_at\n"
	".type graph_emit_call_at, @function\n"
	"graph_emit_call_at:\n"
	"	hint #34\n"
	"	mov x16, x0\n"
	"	mov x0, xzr\n"
	"	br x16\n"
	".size graph_emit_call_at, . - graph_emit_call_at\n"
	".globl graph_emit_payload\n"
	".type graph_emit_payload, @function\n"
	"graph_emit_payload:\n"
	"	hint #34\n"
	"	mov x0, x15\n"
	"	ret\n"
	".size graph_emit_payload, . - graph_emit_payload\n"
	".globl graph_emit_switch\n"
	".type graph_emit_switch, @function\n"
	"graph_emit_switch:\n"
	"	hint #34\n"
	"	sub sp, sp, #160\n"
	"	stp x19, x20, [sp]\n"
	"	stp x21, x22, [sp, #16]\n"
	"	stp x23, x24, [sp, #32]\n"
	"	stp x25, x26, [sp, #48]\n"
	"	stp x27, x28, [sp, #64]\n"
	"	stp x29, x30, [sp, #80]\n"
	"	stp d8, d9, [sp, #96]\n"
	"	stp d10, d11, [sp, #112]\n"
	"	stp d12, d13, [sp, #128]\n"
	"	stp d14, d15, [sp, #144]\n"
	"	mov x16, sp\n"
	"	str x16, [x0]\n"
	"	mov sp, x1\n"
	"	ldp x19, x20, [sp]\n"
	"	ldp x21, x22, [sp, #16]\n"
	"	ldp x23, x24, [sp, #32]\n"
	"	ldp x25, x26, [sp, #48]\n"
	"	ldp x27, x28, [sp, #64]\n"
	"	ldp x29, x30, [sp, #80]\n"
	"	ldp d8, d9, [sp, #96]\n"
	"	ldp d10, d11, [sp, #112]\n"
	"	ldp d12, d13, [sp, #128]\n"
	"	ldp d14, d15, [sp, #144]\n"
	"	add sp, sp, #160\n"
	"	ret\n"
	".size graph_emit_switch, . - graph_emit_switch\n"
	".globl graph_emit_begin\n"
	".hidden graph_emit_begin\n"
	".type graph_emit_begin, @function\n"
	"graph_emit_begin:\n"
	"	mov x0, x19\n"
	"	blr x20\n"
	"	brk #1\n"
	".size graph_emit_begin, . - graph_emit_begin\n"
	".globl graph_emit_sp\n"
	".type graph_emit_sp, @function\n"
	"graph_emit_sp:\n"
	"	hint #34\n"
	"	mov x0, sp\n"
	"	ret\n"
	".size graph_emit_sp, . - graph_emit_sp\n");
/* clang-format on */
void graph_emit_begin(void);

uintptr_t graph_emit_stack(uint8_t *high, void (*entry)(void *arg), void *arg)
{
	enum { WORDS = 20, X19 = 0, X20 = 1, X30 = 11 };
	uintptr_t *sp = (uintptr_t *)(void *)high - WORDS;

	sp[X19] = (uintptr_t)arg;
	sp[X20] = (uintptr_t)entry;
	sp[X30] = (uintptr_t)graph_emit_begin;
	return (uintptr_t)sp;
}

static void put(struct graph_emitter *e, uint32_t insn)
{
	graph_emit_bytes(e, &insn, sizeof insn);
}
static void put_u64(struct graph_emitter *e, uint64_t word)
{
	graph_emit_bytes(e, &word, sizeof word);
}
/* movz, movk */
static void put_word(struct graph_emitter *e, unsigned reg, uint64_t word, unsigned parts)
{
	for (unsigned part = 0; part < parts; part++)
		put(e, (part ? 0xf2800000 : 0xd2800000) | part << 21 |
			       ((uint32_t)(word >> 16 * part) & 0xffff) << 5 | reg);
}
static void put_address(struct graph_emitter *e, const void *address)
{
	put_word(e, 16, (uint64_t)(uintptr_t)address, 4);
}
static void put_leave(struct graph_emitter *e)
{
	put(e, 0x910003bf); /* mov sp, x29 */
	put(e, 0xa8c17bfd); /* ldp x29, x30, [sp], 16 */
}
static void put_call(struct graph_emitter *e)
{
	put(e, 0xd63f0200); /* blr x16 */
}

void graph_emit_landing(struct graph_emitter *e)
{
	put(e, 0xd503245f); /* bti c */
}
void graph_emit_guard(struct graph_emitter *e, const uint32_t *guard, uint32_t fallback)
{
	put_address(e, guard);
	put(e, 0xb9400210);          /* ldr w16, [x16] */
	put(e, 0x34000010 | 4 << 5); /* cbz w16, over */
	put_word(e, 0, fallback, 2);
	put(e, 0xd65f03c0); /* ret */
}
void graph_emit_enter(struct graph_emitter *e)
{
	put(e, 0xa9bf7bfd); /* stp x29, x30, [sp, -16]! */
	put(e, 0x910003fd); /* mov x29, sp */
}
void graph_emit_locals(struct graph_emitter *e)
{
	put(e, 0xa9bf7fff); /* stp xzr, xzr, [sp, -16]! */
}
const void *graph_emit_ref(struct graph_emitter *e, uint64_t word)
{
	if (((uintptr_t)graph_emit_here(e) & 7) != 0)
		put(e, 0xd503201f);  /* nop */
	put(e, 0x58000009 | 2 << 5); /* ldr x9, the word */
	put(e, 0x14000000 | 3);      /* b over it */
	put_u64(e, word);
	return graph_emit_here(e) - 8;
}
void graph_emit_step(struct graph_emitter *e, uint32_t number, const void *step)
{
	put_word(e, 0, number, 2);
	put(e, 0xb85f03a1); /* ldur w1, [x29, -16] */
	put_word(e, 2, 1, 1);
	put(e, 0xb81f03a2); /* stur w2, [x29, -16] */
	put(e, 0xaa1d03e2); /* mov x2, x29 */
	put_address(e, step);
	put_call(e);
}
const void *graph_emit_point(struct graph_emitter *e)
{
	put(e, 0xd503201f);
	return graph_emit_here(e) - 4;
}
uint32_t graph_emit_unless(struct graph_emitter *e, int answer)
{
	put(e, 0xf100001f | (uint32_t)answer << 10); /* cmp x0 */
	put(e, 0x54000001);                          /* b.ne */
	return e->at;
}
void graph_emit_otherwise(struct graph_emitter *e, uint32_t from)
{
	uint32_t insn = 0x54000001 | (e->at - (from - 4)) >> 2 << 5;

	memcpy(e->write + from - 4, &insn, sizeof insn);
}

const void *graph_emit_site(struct graph_emitter *e, enum ch_branch_kind kind)
{
	switch (kind) {
	case CH_JMP:
		put_leave(e);
		put(e, 0x14000000);
		return graph_emit_here(e) - 4;
	case CH_JCC:
		put_leave(e);
		put(e, 0xf10003ff); /* cmp sp, 0 */
		put(e, 0x54000040); /* b.eq over the branch: never */
		put(e, 0x14000000);
		put(e, 0xd4200020); /* brk 1 */
		return graph_emit_here(e) - 12;
	case CH_CALL:
		put(e, 0x94000000);
		return graph_emit_here(e) - 4;
	case CH_LEA:
		if (((uintptr_t)graph_emit_here(e) & 7) != 0)
			put(e, 0xd503201f);
		put(e, 0x58000010 | 2 << 5); /* ldr x16, the literal; b over it */
		put(e, 0x14000000 | 3);
		put_u64(e, 0);
		return graph_emit_here(e) - 16;
	default:
		if (((uintptr_t)graph_emit_here(e) & 7) != 0)
			put(e, 0xd4200020);
		uint32_t insn = 0x58000010 | (e->at - e->literal_use) >> 2 << 5;
		memcpy(e->write + e->literal_use, &insn, sizeof insn);
		put_u64(e, 0);
		return graph_emit_here(e) - 8;
	}
}
const uint8_t *graph_emit_target(const uint8_t *at, enum ch_branch_kind kind)
{
	const uint8_t *address;
	uint32_t insn;

	at += kind == CH_LEA ? 8 : kind == CH_JCC ? 4 : 0;
	if (kind == CH_LEA || kind == CH_LITERAL) {
		memcpy(&address, at, sizeof address);
		return address;
	}
	memcpy(&insn, at, sizeof insn);
	return at + ((int32_t)(insn << 6) >> 6) * 4;
}
const uint8_t *graph_emit_lead(const uint8_t *stub)
{
	return stub; /* each site reaches all of these pools */
}
void graph_emit_call_lea(struct graph_emitter *e)
{
	put_call(e);
}
void graph_emit_call_literal(struct graph_emitter *e)
{
	e->literal_use = e->at;
	put(e, 0); /* ldr x16, the literal */
	put_call(e);
}
void graph_emit_call_cell(struct graph_emitter *e, const void *const *cell)
{
	put_address(e, cell);
	put(e, 0xf9400210); /* ldr x16, [x16] */
	put_call(e);
}
void graph_emit_goto(struct graph_emitter *e, uint32_t to)
{
	put(e, 0x14000000 | (((to - e->at) >> 2) & 0x3ffffff));
}
void graph_emit_return(struct graph_emitter *e, uint32_t value)
{
	put_word(e, 0, value, 2);
	put_leave(e);
	put(e, 0xd65f03c0);
}
void graph_emit_pad(struct graph_emitter *e)
{
	while (e->at + 4 <= e->room)
		put(e, 0xd503201f);
}
