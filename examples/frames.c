/* SPDX-License-Identifier: MIT
 * frames.c: code without a frame pointer, called by code that saves all registers: unwinders find
 * the callers of both. The code without a frame pointer has a frame shape of the VM's own, or says
 * where its caller's frame is at each instruction (CH_FRAME_STEPS). x86-64. */
#include <codeheap/codeheap.h>
#include <codeheap/look.h>

#include <stdio.h>
#include <stdlib.h>

/* push rbx; sub rsp, 16; call rdi; add rsp, 16; pop rbx; ret */
static const unsigned char fixed[] = {0x53, 0x48, 0x83, 0xec, 16, 0xff, 0xd7,
				      0x48, 0x83, 0xc4, 16, 0x5b, 0xc3};
/* The frame from prologue to epilogue, in DWARF's words: the whole rule. */
static const unsigned char fixed_rule[] = {
	0x0c, 7, 32,  /* DW_CFA_def_cfa: the caller's sp is rsp (7) + 32: 16, rbx, return address */
	0x80 | 16, 1, /* DW_CFA_offset: the return address (16) is 1 * 8 below the caller's sp */
	0x80 | 3, 2,  /* rbx (3) is 2 * 8 below it; another register has the caller's value */
};
/* push rbx; mov rbx, rdi; call rbx; pop rbx; ret */
static const unsigned char stepping[] = {0x53, 0x48, 0x89, 0xfb, 0xff, 0xd3, 0x5b, 0xc3};
/* From offset 1 on, behind the push, the caller's sp is 16 above sp, and rbx (3) is saved 2 words
 * under the caller's sp. From offset 7 on, behind the pop, the frame is as at the call again: 8. */
static const struct ch_frame_step stepping_steps[] = {{.at = 1, .cfa = 16}, {.at = 7, .cfa = 8}};
static const struct ch_frame_save stepping_saves[] = {{.reg = 3, .below = 2, .at = 1}};
static const struct ch_frame stepping_frame = {
	.steps = stepping_steps, .saves = stepping_saves, .steps_n = 2, .saves_n = 1};
/* As CH_FRAME_KEEPS_ALL wants it: push rbp; mov rbp, rsp; push rbx, r12, r13, r14, r15. Then
 * push rax; mov rax, rdi; mov rdi, rsi; call rax; pop rcx, r15, r14, r13, r12, rbx, rbp; ret */
static const unsigned char saving[] = {
	0x55, 0x48, 0x89, 0xe5, 0x53, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57,
	0x50, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0xff, 0xd0,
	0x59, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0x5d, 0xc3};

static struct ch_heap *heap;
static const void *callers[16];
static size_t count;

static void ok(enum ch_status status)
{
	if (status == CH_OK)
		return;
	fprintf(stderr, "frames: %s\n", ch_why());
	exit(1);
}

static const void *make(const char *name, const void *bytes, uint32_t n, uint8_t shape,
			const struct ch_frame *frame)
{
	struct ch_code code;
	struct ch_open open = {
		.size = sizeof open, .heap = heap, .hot_bytes = n, .frame = shape, .name = name};
	ok(ch_block_open(&open, &code));
	memcpy(code.write, bytes, n);
	code.used_to = n;
	code.frame = frame; /* CH_FRAME_STEPS */
	ok(ch_block_commit(&code, 1));
	return code.exec;
}

static void look(void)
{
	count = ch_backtrace(heap, CH_BACKTRACE_TABLES, NULL, callers, 16);
}

/* Whether callers[i] is in the code of the given name. */
static int is_in(size_t i, const char *name)
{
	char text[64];
	ch_address_name(heap, callers[i], true, text, sizeof text);
	return strncmp(text, name, strlen(name)) == 0;
}

/* Has the caller call the callee, which calls look(). Whether the walk found both, in order. */
static bool finds(const void *caller, const void *callee, const char *name)
{
	size_t i = 0;
	((void (*)(const void *, void (*)(void)))caller)(callee, look);
	while (i < count && !is_in(i, name))
		i++;
	if (i + 2 < count && is_in(i + 1, "saving"))
		return true;
	fprintf(stderr, "frames: the walk is wrong in frame %zu of %zu\n", i, count);
	return false;
}

int main(void)
{
	uint8_t shape;
	ok(ch_heap_create(NULL, &heap));
	ok(ch_frame_register(heap, fixed_rule, sizeof fixed_rule, &shape));
	const void *of_shape = make("fixed", fixed, sizeof fixed, shape, NULL);
	const void *of_steps =
		make("stepping", stepping, sizeof stepping, CH_FRAME_STEPS, &stepping_frame);
	const void *caller = make("saving", saving, sizeof saving, CH_FRAME_KEEPS_ALL, NULL);
	if (!finds(caller, of_shape, "fixed") || !finds(caller, of_steps, "stepping"))
		return 1;
	printf("look is called by fixed, fixed by saving, saving by main; and by stepping alike\n");
	ok(ch_heap_destroy(heap));
	return 0;
}
