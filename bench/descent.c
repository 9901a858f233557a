/* SPDX-License-Identifier: MIT
 * descent.c: a stack of frames of code and C in turn, for rows about walks. */
#include "bench/bench.h"

#include <string.h>

static void (*code)(void);
static int depth;
static void (*at_the_bottom)(void);

/* Called by code; calls code. */
__attribute__((noinline)) static void descend(void)
{
	if (depth-- > 0)
		code();
	else
		at_the_bottom();
	__asm__ volatile("" ::: "memory");
}

void bench_descent_make(struct bench_heap *bench)
{
	/* push rbp; mov rbp, rsp; mov rax, descend; call rax; pop rbp; ret */
	uint8_t bytes[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8, 0,    0,    0,
			   0,    0,    0,    0,    0,    0xff, 0xd0, 0x5d, 0xc3};
	void (*callee)(void) = descend;
	memcpy(bytes + 6, &callee, sizeof callee);
	bench_ok(ch_code_add(bench->heap, bytes, sizeof bytes, "descend", &code), "code_add");
}

void bench_descend(int frames, void (*bottom)(void))
{
	at_the_bottom = bottom;
	depth = frames;
	descend();
}
