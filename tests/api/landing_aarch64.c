/* SPDX-License-Identifier: MIT
 * landing_aarch64.c: with BTI the processor lets indirect calls and jumps land at marked places
 * only. Code of the library has such marks; unmarked places trap there, and freed code traps as
 * freed code. Pages are guarded if the library was built with -mbranch-protection=standard and the
 * processor has BTI; the rest of each case holds everywhere. A BRK of another immediate is not the
 * heap's. */
#define _GNU_SOURCE
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

#include <signal.h>
#include <sys/auxv.h>
#include <ucontext.h>

static bool is_guarded(void)
{
	return CODE_LANDING_BYTES && (getauxval(AT_HWCAP2) & HWCAP2_BTI);
}

static uint32_t answer(void)
{
	return 42;
}

/* Jumps by x9. Only `bti j` lets a jump by x9 land. */
uint32_t jump_to(const void *entry);
__asm__(".text\n.p2align 2\n.globl jump_to\n.hidden jump_to\n"
	"jump_to:\nhint #34\nmov x9, x0\nbr x9\n");

/* --- allowed landings --- */

TEST_RIG_BY(indirect_calls_land_on_what_the_library_makes, rig_start(8 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "landing");
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 16, .entry = CH_ENTRY_PATCH};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 7);
	const void *veneer;
	CHECK_EQ(ch_block_veneer(&e.code, (const void *)(uintptr_t)answer, &veneer), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(code_call(e.code.exec), 7);
	CHECK_EQ(code_call(veneer), 42);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
	CHECK_EQ(code_call_owner(owner), 7);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(code_call(e.code.exec), RIG_FALLBACK); /* by the closed entry */
	for (int kind = 0; kind < 2; kind++) {
		struct ch_block block;
		CHECK_EQ(ch_trampoline_make(owner, (enum ch_trampoline)kind,
					    (const void *)(uintptr_t)answer, 0, NULL, NULL, &block),
			 CH_OK);
		CHECK_EQ(code_call(block_info(block).entry), 42);
	}
}

static struct ch_block hit_now;
static struct ch_block hit(void *user, struct ch_branch branch, void *branch_user,
			   struct ch_regs *regs)
{
	(void)user, (void)branch, (void)branch_user, (void)regs;
	return hit_now;
}

static bool see_stub(void *arg, const struct ch_site *site)
{
	if (site->kind == CH_SITE_STUB)
		*(const void **)arg = site->at;
	return true;
}

/* The VM may reach the stub of a CH_LITERAL branch by any register. */
TEST(any_jump_lands_on_a_stub)
{
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = hit};
	struct rig rig = rig_create(NULL, &ops, NULL);
	struct ch_owner owner = rig_owner(&rig, "stubs");
	hit_now = rig_block(owner, 9);
	struct emitter e;
	emit_open(&e, owner, 32, 1);
	struct ch_branch branch = emit_attach(&e, emit_jump_literal(&e), CH_LITERAL, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	const void *stub = NULL;
	CHECK_EQ(ch_block_sites(e.code.block, see_stub, &stub), CH_OK);
	CHECK_EQ(code_call(stub), 9);
	CHECK_EQ(jump_to(stub), 9);
	CHECK_EQ(code_call(e.code.exec), 9);
	CHECK_EQ(ch_branch_link(branch, (struct ch_block){0}), CH_OK);
	CHECK_EQ(code_call(e.code.exec), 9);
	rig_end(&rig);
}

/* --- refused landings --- */

static void call_it(void *entry)
{
	if (code_call(entry) != 5)
		_exit(1);
}

TEST_RIG(guarded_pages_refuse_other_landings)
{
	struct ch_owner owner = rig_owner(&rig, "unmarked");
	struct emitter e;
	emit_open(&e, owner, 32, 0);
	emit_filler(&e, 16);
	const uint8_t *unmarked = emit_here(&e);
	emit_answer(&e, 5);
	CHECK_EQ(emit_commit(&e), CH_OK);
	printf("guarded: %d\n", is_guarded());
	expect_signal(call_it, (void *)(uintptr_t)e.code.exec, 0);
	expect_signal(call_it, (void *)(uintptr_t)unmarked, is_guarded() ? SIGILL : 0);
	/* BRK is a landing place, so freed code traps as freed code. */
	const uint8_t *freed = e.code.exec;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	expect_signal(call_it, (void *)(uintptr_t)freed, SIGTRAP);
}

/* --- a BRK of somebody else --- */

static const struct ch_heap *trapped_heap;
static size_t told;
static char text[600];

static void describe(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal;
	told = ch_trap_describe(trapped_heap, info, ucontext, text, sizeof text);
	mcontext_t *registers = &((ucontext_t *)ucontext)->uc_mcontext;
	registers->pc = registers->regs[30];
}

/* In live code the heap answers for its own immediate only. Freed code traps with the heap's
 * immediate. */
TEST(brk_of_another_immediate_is_not_the_heaps)
{
	struct sigaction action = {.sa_sigaction = describe, .sa_flags = SA_SIGINFO};
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "trapping");
	trapped_heap = rig.heap;
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	static const uint16_t immediates[] = {0, 1, 1000, 0xf000, 0xc0de};
	const uint8_t *last = NULL;
	for (unsigned i = 0; i < 5; i++) {
		struct emitter e;
		emit_open(&e, owner, 32, 0);
		emit_u32(&e, 0xd4200000 | (uint32_t)immediates[i] << 5);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		told = 99;
		last = e.code.exec;
		code_call(last);
		if ((told != 0) != (immediates[i] == 0xc0de))
			FAIL("trap: of brk #%#x in live code it said: %s", immediates[i], text);
	}
	CHECK(strstr(text, "live block `trapping`"));
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	code_call(last);
	CHECK(told && strstr(text, "block `trapping`") && strstr(text, "freed"));
	CHECK(strstr(text, "return address (a guess)"));
	rig_end(&rig);
}
