/* SPDX-License-Identifier: MIT
 * stubs_x86_64.c: a site that cannot be patched by one store, or cannot reach a stub, is refused at
 * the attach. Accepted sites are tested in stubs.c. What a stub keeps of vectors. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

static enum ch_status attach_at(struct emitter *e, const uint8_t *at, enum ch_branch_kind kind,
				const void *exit)
{
	struct ch_branch branch;
	struct ch_branch_site site = {.at = at, .kind = kind, .exit = exit};
	return ch_branch_attach(e->code.block, &site, &branch);
}

EVERY_DRIVER(s34_site_across_an_aligned_word_is_refused)
{
	struct method m;
	struct emitter e;
	stage_start(stage);
	method_new(stage, &m, "A");
	method_open(&e, &m);
	for (uint32_t skip = 0; skip < 8; skip++) {
		e.at = 0;
		emit_nops(&e, 8 + skip);
		const uint8_t *jmp = emit_here(&e);
		EMIT(&e, 0xe9, 0, 0, 0, 0);
		emit_nops(&e, 8);
		bool fits = (((uintptr_t)jmp + 1) & 7) <= 4;
		if (!fits)
			CHECK_EQ(attach_at(&e, jmp, CH_JMP, NULL), CH_E_SITE);
		e.at = 0;
		emit_nops(&e, 8 + skip);
		EMIT(&e, 0x0f, 0x84, 0, 0, 0, 0);
		fits = (((uintptr_t)jmp + 2) & 7) <= 4;
		if (!fits)
			CHECK_EQ(attach_at(&e, jmp, CH_JCC, NULL), CH_E_SITE);
	}
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

EVERY_DRIVER(s46_conditional_branch_out_of_reach_is_refused)
{
	struct method m;
	struct emitter e;
	stage_start(stage);
	method_new(stage, &m, "A");
	method_open(&e, &m);
	const uint8_t *near = emit_site_jcc(&e, EMIT_CC_E);
	const uint8_t *far = near + (UINT64_C(3) << 30);
	CHECK_EQ(attach_at(&e, near, CH_JCC, far), CH_E_REACH);
	CHECK_EQ(attach_at(&e, near, CH_JMP, NULL), CH_E_SITE);
	/* A short branch cannot reach a stub. */
	const uint8_t *shorty = emit_here(&e);
	EMIT(&e, 0x74, 0x00, 0x90, 0x90, 0x90, 0x90);
	CHECK_EQ(attach_at(&e, shorty, CH_JCC, NULL), CH_E_SITE);
	CHECK_EQ(attach_at(&e, near, CH_JCC, NULL), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

static struct ch_block clear_halves(struct stage *stage, struct ch_branch branch, void *user,
				    struct ch_regs *regs)
{
	(void)branch, (void)user, (void)regs;
	__asm__ volatile("vzeroupper");
	return ((struct method *)stage->user)->block;
}

/* Code of compilers clears the upper halves before it returns, and nothing between these lines
 * does but the callback. */
EVERY_DRIVER(stub_of_a_heap_keeps_the_upper_halves_of_vectors)
{
	static uint8_t in[16], out[16];
	static struct method a, b;
	if (!__builtin_cpu_supports("avx"))
		skip("this processor has no AVX");
	stage_start(stage);
	stage->hit = clear_halves;
	stage->user = &b;
	method_jumper(stage, &a, "A");
	method_constant(stage, &b, "B", 2);
	memset(in, 0x5a, sizeof in);
	__asm__ volatile("vinsertf128 $1, %0, %%ymm15, %%ymm15" ::"m"(in) : "xmm15");
	uint64_t value = method_call(&a, NULL);
	__asm__ volatile("vextractf128 $1, %%ymm15, %0\n"
			 "vzeroupper"
			 : "=m"(out));
	CHECK_EQ(value, 2);
	CHECK_EQ(stage->hits, 1);
	CHECK(memcmp(in, out, sizeof in) == 0);
}
