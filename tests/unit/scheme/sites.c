/* SPDX-License-Identifier: MIT
 * sites.c: calls, jumps and frames made by the emitter of the Scheme JIT, and the heap's changes of
 * the code: links of each kind of site, patch points, refs, and where an unlinked site goes on. */
#include "tests/support/emitter_rig.h"

/* ---- control ---- */

static uint64_t add_three(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	/* A callee may use every register that is not preserved. */
	__asm__ volatile("" ::: "memory");
	return a + 2 * b + 3 * c + 5 * d;
}

/* Not inlined: the walk starts from the code's frame. */
__attribute__((noinline)) static uint64_t caller_frame(void)
{
	const uint64_t *own = __builtin_frame_address(0);
	return own[0];
}

TEST(emitter_calls_functions)
{
	static const void *table[] = {NULL, (const void *)(uintptr_t)add_three};

	start();
	begin();
	emit_imm(e, FPTR, 0x1234);
	for (int way = 0; way < 2; way++) {
		emit_imm(e, R0, (uint64_t)table);
		emit_move(e, FPTR, R0);
		emit_imm(e, ARG0, 1);
		emit_imm(e, ARG1, 10);
		emit_imm(e, ARG2, 100);
		emit_imm(e, ARG3, 1000);
		if (way)
			emit_call_at(e, FPTR, 8);
		else
			emit_call(e, (const void *)(uintptr_t)add_three);
		emit_store(e, CTX, OUT(way), R0);
	}
	emit_store(e, CTX, OUT(2), FPTR);
	emit_call(e, (const void *)(uintptr_t)caller_frame);
	emit_store(e, CTX, OUT(3), R0);
	emit_store(e, CTX, OUT(4), FRAME);
	run();
	CHECK_EQ(state.out[0], 5321);
	CHECK_EQ(state.out[1], 5321);
	CHECK_EQ(state.out[2], (uintptr_t)table);
	CHECK_EQ(state.out[3], state.out[4]);
}

/* A tail call leaves the frame first, and so returns to the caller of the code. */
TEST(emitter_jumps_to_functions)
{
	static const void *table[] = {NULL, NULL, (const void *)(uintptr_t)add_three};

	start();
	for (int way = 0; way < 2; way++) {
		emit_start(e, 0);
		emit_enter(e);
		emit_imm(e, ARG1, 20);
		emit_imm(e, ARG0, 2);
		emit_imm(e, ARG2, 200);
		emit_imm(e, ARG3, 2000);
		emit_leave(e);
		emit_imm(e, R3, (uint64_t)table);
		if (way)
			emit_tail(e, (const void *)(uintptr_t)add_three);
		else
			emit_jump_at(e, R3, 16);
		place();
		CHECK_EQ(call(), 10642);
	}
}

TEST(emitter_compares_the_stack_pointer)
{
	char here;

	start();
	for (int i = 0; i < 2; i++) {
		begin();
		emit_op_load(e, DO_CMP, SP, CTX, IN(0));
		store_condition(IF_BELOW, 0);
		store_condition(IF_ABOVE, 1);
		state.in[0] = (uintptr_t)&here + (i ? 1 << 20 : -(1 << 20));
		run();
		CHECK_EQ(state.out[0], i);
		CHECK_EQ(state.out[1], !i);
	}
}

/* ---- what the heap does to code ---- */

static struct ch_block next_block;
static int hits;

static struct ch_block answer(struct ch_branch branch, void *user, struct ch_regs *regs)
{
	struct ch_block none = {0};

	CHECK_EQ(branch.bits, branches[(intptr_t)user & 7].bits);
	CHECK_EQ((uintptr_t)emit_site_context(regs), (uintptr_t)&state);
	CHECK_EQ((uintptr_t)emit_site_frame(regs), 0xf00);
	hits++;
	if (next_block.bits)
		return next_block;
	emit_site_go_on(regs, (const void *)state.in[4], 0xa2);
	return none;
}

/* Makes code that no site reaches by a link: ARG2 goes to out[slot], extra to out[slot + 1]. */
static struct ch_block leaf(int slot, uint64_t extra)
{
	emit_start(e, 0);
	emit_imm(e, R3, extra);
	emit_store(e, CTX, OUT(slot), ARG2);
	emit_store(e, CTX, OUT(slot + 1), R3);
	end();
	return place();
}

/* Each condition, both ways, first by its stub and then linked. */
TEST(emitter_makes_conditional_sites)
{
	struct ch_info info = {.size = sizeof info};

	start();
	on_hit = answer;
	struct ch_block target = leaf(2, 77), home;
	CHECK_EQ(ch_block_info(target, &info), CH_OK);
	state.in[4] = (uint64_t)info.entry;
	for (size_t c = 0; c < COUNT(all_conditions); c++) {
		begin();
		emit_imm(e, FPTR, 0xf00);
		emit_imm(e, ARG2, 0xa1);
		emit_load(e, R0, CTX, IN(0));
		emit_op_load(e, DO_CMP, R0, CTX, IN(1));
		emit_site(e, SITE_JUMP_IF, all_conditions[c], 0, -1);
		emit_imm(e, R3, 11);
		emit_store(e, CTX, OUT(3), R3);
		end();
		home = place();
		for (int linked = 0; linked < 2; linked++)
			for (size_t i = 0; i < COUNT(words); i++) {
				uint64_t x = words[i], y = words[(i * 7 + 3) % COUNT(words)];
				int64_t a = (int64_t)x, b = (int64_t)y;
				int wanted[] = {a == b, a != b, a<b, a <= b, a> b, a >= b,
						x<y, x >= y, x> y};
				state.in[0] = x;
				state.in[1] = i & 1 ? x : y;
				if (i & 1) {
					int same[] = {1, 0, 0, 1, 0, 1, 0, 1, 0};
					memcpy(wanted, same, sizeof same);
				}
				state.out[2] = hits = 0;
				call();
				CHECK_EQ(state.out[3], wanted[c] ? 77 : 11);
				CHECK_EQ(hits, !linked && wanted[c]);
				CHECK_EQ(state.out[2], !wanted[c] ? 0 : linked ? 0xa1 : 0xa2);
				if (i + 1 == COUNT(words) && !linked)
					CHECK_EQ(ch_branch_link(branches[0], target), CH_OK);
			}
	}
	CHECK_EQ(ch_block_info(home, &info), CH_OK);
	CHECK_EQ(info.branches_now, 1);
}

/* A jump with its own exit, and a call. The call keeps frame pointer and return address, through a
 * stub and linked. */
TEST(emitter_makes_sites_of_jumps_and_calls)
{
	start();
	on_hit = answer;
	emit_start(e, 0);
	emit_enter(e);
	emit_imm(e, R0, 5);
	emit_store(e, CTX, OUT(1), R0);
	emit_leave(e);
	emit_return(e);
	struct ch_block callee = place(), home = callee;
	next_block = callee;
	for (int linked = 0; linked < 2; linked++) {
		if (!linked) {
			begin();
			int exit = emit_label(e);
			emit_imm(e, FPTR, 0xf00);
			emit_site(e, SITE_CALL, IF_EQ, 0, -1);
			emit_store(e, CTX, OUT(2), R0);
			emit_site(e, SITE_JUMP, IF_EQ, 1, exit);
			emit_in(e, COLD);
			emit_bind(e, exit);
			emit_imm(e, R3, 3);
			emit_store(e, CTX, OUT(3), R3);
			end();
			emit_in(e, HOT);
			home = place();
		}
		memset(state.out, 0, sizeof state.out);
		hits = 0;
		call();
		CHECK_EQ(hits, !linked);
		CHECK_EQ(state.out[1], 5);
		CHECK_EQ(state.out[2], 5);
		CHECK_EQ(state.out[3], 3);
	}
	struct ch_block last = leaf(4, 9);
	CHECK_EQ(ch_branch_link(branches[1], last), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, home), CH_OK);
	memset(state.out, 0, sizeof state.out);
	call();
	CHECK_EQ(state.out[5], 9);
	CHECK_EQ(state.out[3], 0);
}

/* The block is invalidated from inside: the patch point behind the call leads to the exit. */
static struct ch_block inside;
static void invalidate_inside(void)
{
	if (state.in[0])
		CHECK_EQ(ch_blocks_invalidate(&inside, 1, NULL), CH_OK);
}

TEST(emitter_makes_patch_points)
{
	start();
	begin();
	int exit = emit_label(e);
	emit_record(e, R1, 3);
	emit_store(e, CTX, OUT(1), R1);
	emit_call(e, (const void *)(uintptr_t)invalidate_inside);
	emit_patch_point(e, exit);
	emit_imm(e, R3, 1);
	emit_store(e, CTX, OUT(0), R3);
	end();
	emit_in(e, COLD);
	emit_bind(e, exit);
	emit_record(e, R3, 4);
	emit_store(e, CTX, OUT(0), R3);
	end();
	emit_in(e, HOT);
	inside = place();
	call();
	CHECK_EQ(state.out[0], 1);
	CHECK_EQ(state.out[1], (uintptr_t)&records[3]);
	state.in[0] = 1;
	call();
	CHECK_EQ(state.out[0], (uintptr_t)&records[4]);
	CHECK_EQ(call(), 0xfa11);
}

/* A collection reports the ref and moves it; afterwards the code loads the moved ref. */
TEST(emitter_makes_refs_that_move)
{
	start();
	begin();
	emit_ref(e, R1, 0x123456789ab0);
	emit_store(e, CTX, OUT(0), R1);
	emit_imm(e, R0, 1);
	end();
	place();
	call();
	CHECK_EQ(state.out[0], 0x123456789ab0);
	CHECK_EQ(ch_heap_collect(heap), CH_OK);
	CHECK_EQ(seen_ref, 0x123456789ab0);
	call();
	CHECK_EQ(state.out[0], 0x123456789ab1);
}

TEST(emitter_says_when_it_is_full)
{
	emit_start(e, 0);
	for (int i = 0; i < SECTION_ROOM / 4; i++)
		emit_imm(e, R1, 0x7fff12345678);
	CHECK(e->overflowed);
	CHECK(e->used[HOT] <= SECTION_ROOM);
	emit_start(e, 0);
	CHECK(!e->overflowed);
	for (int i = 0; i < MAX_REFS; i++)
		emit_ref(e, R1, (uint64_t)i << 20);
	emit_end(e);
	CHECK(!e->overflowed);
	emit_start(e, 0);
	for (int i = 0; i <= MAX_LITERALS; i++)
		emit_ref(e, R1, (uint64_t)i << 20);
	emit_end(e);
	CHECK(e->overflowed);
}
