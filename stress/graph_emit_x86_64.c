/* SPDX-License-Identifier: MIT
 * graph_emit_x86_64.c: graph_emit.h for x86-64. The bytes of a site that change lie in one aligned
 * 8; the word is_again of a block is at rbp - 8. */
#include "graph_emit.h"

const uint32_t graph_emit_hot_bytes = 560, graph_emit_return_bytes = 8;

/* clang-format off */
__asm__(".text\n"
	".globl graph_emit_call\n"
	".type graph_emit_call, @function\n"
	"graph_emit_call:\n"
	"	jmp *(%rdi)\n"
	".size graph_emit_call, . - graph_emit_call\n"
	".globl graph_emit_call_at\n"
	".type graph_emit_call_at, @function\n"
	"graph_emit_call_at:\n"
	"	jmp *%rdi\n"
	".size graph_emit_call_at, . - graph_emit_call_at\n"
	".globl graph_emit_payload\n"
	".type graph_emit_payload, @function\n"
	"graph_emit_payload:\n"
	"	movq %r10, %rax\n"
	"	ret\n"
	".size graph_emit_payload, . - graph_emit_payload\n"
	".globl graph_emit_switch\n"
	".type graph_emit_switch, @function\n"
	"graph_emit_switch:\n"
	"	pushq %rbp\n"
	"	pushq %rbx\n"
	"	pushq %r12\n"
	"	pushq %r13\n"
	"	pushq %r14\n"
	"	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n"
	"	popq %r14\n"
	"	popq %r13\n"
	"	popq %r12\n"
	"	popq %rbx\n"
	"	popq %rbp\n"
	"	ret\n"
	".size graph_emit_switch, . - graph_emit_switch\n"
	".globl graph_emit_begin\n"
	".hidden graph_emit_begin\n"
	".type graph_emit_begin, @function\n"
	"graph_emit_begin:\n"
	"	movq %r12, %rdi\n"
	"	call *%r13\n"
	"	ud2\n"
	".size graph_emit_begin, . - graph_emit_begin\n"
	".globl graph_emit_sp\n"
	".type graph_emit_sp, @function\n"
	"graph_emit_sp:\n"
	"	leaq 8(%rsp), %rax\n"
	"	ret\n"
	".size graph_emit_sp, . - graph_emit_sp\n");
/* clang-format on */
void graph_emit_begin(void);

uintptr_t graph_emit_stack(uint8_t *high, void (*entry)(void *arg), void *arg)
{
	/* r15 to r12, rbx, rbp, where to go on; then sp is as before a call. */
	uintptr_t *top = (uintptr_t *)(void *)high - 8;

	top[-1] = (uintptr_t)graph_emit_begin;
	top[-4] = (uintptr_t)arg;
	top[-5] = (uintptr_t)entry;
	return (uintptr_t)(top - 7);
}

#define PUT(e, ...)                                           \
	graph_emit_bytes((e), (const uint8_t[]){__VA_ARGS__}, \
			 (uint32_t)sizeof((const uint8_t[]){__VA_ARGS__}))

static void put_u32(struct graph_emitter *e, uint32_t word)
{
	graph_emit_bytes(e, &word, sizeof word);
}
static void put_u64(struct graph_emitter *e, uint64_t word)
{
	graph_emit_bytes(e, &word, sizeof word);
}
static void put_address(struct graph_emitter *e, const void *address)
{
	PUT(e, 0x48, 0xb8); /* mov rax, address */
	put_u64(e, (uint64_t)(uintptr_t)address);
}
/* NOPs until the four bytes that change lie in one aligned eight. */
static void pad_site(struct graph_emitter *e, uint32_t skip)
{
	while ((((uintptr_t)graph_emit_here(e) + skip) & 7) > 4)
		PUT(e, 0x90);
}

void graph_emit_landing(struct graph_emitter *e)
{
	(void)e;
}
void graph_emit_guard(struct graph_emitter *e, const uint32_t *guard, uint32_t fallback)
{
	put_address(e, guard);
	PUT(e, 0x83, 0x38, 0x00, 0x74, 0x06, 0xb8); /* cmp dword [rax], 0; je over; mov eax */
	put_u32(e, fallback);
	PUT(e, 0xc3);
}
void graph_emit_enter(struct graph_emitter *e)
{
	PUT(e, 0x55, 0x48, 0x89, 0xe5);
}
void graph_emit_locals(struct graph_emitter *e)
{
	PUT(e, 0x6a, 0x00, 0x6a, 0x00);
}
const void *graph_emit_ref(struct graph_emitter *e, uint64_t word)
{
	PUT(e, 0x48, 0xb9); /* mov rcx */
	put_u64(e, word);
	return graph_emit_here(e) - 8;
}
void graph_emit_step(struct graph_emitter *e, uint32_t number, const void *step)
{
	PUT(e, 0xbf); /* mov edi */
	put_u32(e, number);
	/* mov esi, [rbp - 8]; mov dword [rbp - 8], 1; mov rdx, rbp */
	PUT(e, 0x8b, 0x75, 0xf8, 0xc7, 0x45, 0xf8, 1, 0, 0, 0, 0x48, 0x89, 0xea);
	put_address(e, step);
	PUT(e, 0xff, 0xd0);
}
const void *graph_emit_point(struct graph_emitter *e)
{
	PUT(e, 0xa9, 0, 0, 0, 0);
	return graph_emit_here(e) - 5;
}
uint32_t graph_emit_unless(struct graph_emitter *e, int answer)
{
	PUT(e, 0x83, 0xf8, (uint8_t)answer, 0x0f, 0x85, 0, 0, 0, 0); /* cmp; jne */
	return e->at;
}
void graph_emit_otherwise(struct graph_emitter *e, uint32_t from)
{
	uint32_t over = e->at - from;

	memcpy(e->write + from - 4, &over, sizeof over);
}

const void *graph_emit_site(struct graph_emitter *e, enum ch_branch_kind kind)
{
	switch (kind) {
	case CH_JMP:
		PUT(e, 0xc9);
		pad_site(e, 1);
		PUT(e, 0xe9, 0, 0, 0, 0);
		return graph_emit_here(e) - 5;
	case CH_JCC:
		PUT(e, 0xc9, 0x48, 0x85, 0xe4); /* leave; test rsp, rsp */
		pad_site(e, 2);
		PUT(e, 0x0f, 0x85, 0, 0, 0, 0, 0xcc);
		return graph_emit_here(e) - 7;
	case CH_CALL:
		pad_site(e, 1);
		PUT(e, 0xe8, 0, 0, 0, 0);
		return graph_emit_here(e) - 5;
	case CH_LEA:
		pad_site(e, 3);
		PUT(e, 0x48, 0x8d, 0x05, 0, 0, 0, 0);
		return graph_emit_here(e) - 7;
	default:
		while ((uintptr_t)graph_emit_here(e) % 8)
			PUT(e, 0xcc);
		uint32_t far = e->at - e->literal_use;
		memcpy(e->write + e->literal_use - 4, &far, sizeof far);
		put_u64(e, 0);
		return graph_emit_here(e) - 8;
	}
}
const uint8_t *graph_emit_target(const uint8_t *at, enum ch_branch_kind kind)
{
	static const uint8_t displacement_at[] = {
		[CH_JMP] = 1, [CH_JCC] = 2, [CH_CALL] = 1, [CH_LEA] = 3};
	const uint8_t *address;
	int32_t far;

	if (kind == CH_LITERAL) {
		memcpy(&address, at, sizeof address);
		return address;
	}
	at += displacement_at[kind];
	memcpy(&far, at, sizeof far);
	return at + 4 + far;
}
/* jmp [a literal, in the write view]; a stub that does not lead on leads behind its lead. */
const uint8_t *graph_emit_lead(const uint8_t *stub)
{
	enum { LEAD_BYTES = 8, JUMP_BYTES = 6 };
	const uint8_t *further;
	int32_t far;

	if (stub[0] != 0xff || stub[1] != 0x25)
		return stub;
	memcpy(&far, stub + 2, sizeof far);
	memcpy(&further, stub + JUMP_BYTES + far, sizeof further);
	return further == stub + LEAD_BYTES ? stub : further;
}
void graph_emit_call_lea(struct graph_emitter *e)
{
	PUT(e, 0xff, 0xd0);
}
void graph_emit_call_literal(struct graph_emitter *e)
{
	PUT(e, 0xff, 0x15, 0, 0, 0, 0);
	e->literal_use = e->at;
}
void graph_emit_call_cell(struct graph_emitter *e, const void *const *cell)
{
	put_address(e, cell);
	PUT(e, 0xff, 0x10);
}
void graph_emit_goto(struct graph_emitter *e, uint32_t to)
{
	PUT(e, 0xe9);
	put_u32(e, to - (e->at + 4));
}
void graph_emit_return(struct graph_emitter *e, uint32_t value)
{
	PUT(e, 0xb8);
	put_u32(e, value);
	PUT(e, 0xc9, 0xc3); /* leave; ret */
}
void graph_emit_pad(struct graph_emitter *e)
{
	memset(e->write + e->at, 0x90, e->room - e->at);
	e->at = e->room;
}
