/* SPDX-License-Identifier: MIT
 * frame_shapes.c: calls code of each fixed shape, and code with steps, from a function of which a
 * debugger is asked for the registers. */
#include "codeheap/codeheap.h"

#include <stdlib.h>

static void ok(enum ch_status status)
{
	if (status)
		abort();
}

__attribute__((noinline)) void shown(void)
{
	__asm__ volatile("" ::: "memory");
}

extern void known(const void *code, void (*callee)(void));
__asm__(".globl known\n.type known, @function\nknown: .cfi_startproc\n"
	".irp r, rbx, r12, r13, r14, r15\n push %\\r\n"
	" .cfi_adjust_cfa_offset 8\n .cfi_rel_offset %\\r, 0\n.endr\n"
	"mov $0x1111, %ebx\n mov $0x1112, %r12d\n mov $0x1113, %r13d\n"
	"mov $0x1114, %r14d\n mov $0x1115, %r15d\n"
	"mov %rdi, %rax\n mov %rsi, %rdi\n call *%rax\n"
	".irp r, r15, r14, r13, r12, rbx\n pop %\\r\n"
	" .cfi_adjust_cfa_offset -8\n .cfi_restore %\\r\n.endr\n"
	"ret\n.cfi_endproc\n.size known, . - known\n");

static const void *make(struct ch_heap *heap, const char *name, const void *bytes, uint32_t n,
			uint8_t frame, const struct ch_frame *steps)
{
	struct ch_open open = {
		.size = sizeof open, .heap = heap, .name = name, .hot_bytes = n, .frame = frame};
	struct ch_code c;
	ok(ch_block_open(&open, &c));
	memcpy(c.write, bytes, n);
	c.used_to = n;
	c.frame = steps;
	ok(ch_block_commit(&c, 1));
	return c.exec;
}

/* Pushes what CH_FRAME_KEEPS_ALL says, sets it to 0, push rax; call rdi; and all back. */
static const unsigned char saving[] = {
	0x55, 0x48, 0x89, 0xe5, 0x53, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x31,
	0xdb, 0x45, 0x31, 0xe4, 0x45, 0x31, 0xed, 0x45, 0x31, 0xf6, 0x45, 0x31, 0xff, 0x50,
	0xff, 0xd7, 0x59, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0x5d, 0xc3};
static const unsigned char leaf[] = {0x31, 0xc0, 0xcc, 0xc3}; /* xor eax, eax; int3; ret */
/* push rbx; xor ebx, ebx; sub rsp, 16; int3; add rsp, 16; pop rbx; int3; ret */
static const unsigned char stepped[] = {0x53, 0x31, 0xdb, 0x48, 0x83, 0xec, 16,  0xcc,
					0x48, 0x83, 0xc4, 16,	0x5b, 0xcc, 0xc3};

int main(void)
{
	static const struct ch_frame_step steps[] = {{1, 16}, {7, 32}, {12, 16}, {13, 8}};
	static const struct ch_frame_save saves[] = {{3, 2, 1}};
	static const struct ch_frame frame = {steps, saves, 4, 1};
	struct ch_heap *heap;
	struct ch_config config;
	ch_config_init(&config);
	config.sinks = CH_SINK_UNWIND | CH_SINK_GDB;
	ok(ch_heap_create(&config, &heap));
	known(make(heap, "saves_all", saving, sizeof saving, CH_FRAME_KEEPS_ALL, NULL), shown);
	known(make(heap, "has_none", leaf, sizeof leaf, CH_FRAME_LEAF, NULL), shown);
	known(make(heap, "has_steps", stepped, sizeof stepped, CH_FRAME_STEPS, &frame), shown);
	return 0;
}
