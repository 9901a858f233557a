/* SPDX-License-Identifier: MIT
 * graph_run.c: judges running blocks. A block tells its number at each step, and is judged: is the
 * block in its place, may the block be entered, did the block leave when it had to. A stack of
 * frames beside each stack of the machine knows which blocks are there.
 *
 * A block can leave by its exit, and the callers after it, without a word to the harness. So frames
 * above the segment count as certainly on the stack only while a block among them calls back
 * (pinned). A pinned block must not be freed. */
#include "graph_emit.h"
#include "graph_world.h"

#include <string.h>
#include <unistd.h>

static void pin_to(struct graph_stack *s, int count)
{
	while (s->pinned < count)
		atomic_fetch_add(&s->frames[s->pinned++].node->frames, 1);
	while (s->pinned > count)
		atomic_fetch_sub(&s->frames[--s->pinned].node->frames, 1);
}

/* Drops frames below an address. */
void graph_run_unwind(struct graph_stack *s, uintptr_t below)
{
	int depth = s->depth;
	while (depth > 0 && s->frames[depth - 1].at < below)
		depth--;
	if (s->pinned > depth)
		pin_to(s, depth);
	s->depth = depth;
}

void graph_run_entered(struct graph_stack *s)
{
	uint32_t owner = s->entering;
	s->entering = 0;
	if (owner)
		graph_driver_unuse(owner);
}

/* --- a block begins --- */

static const char *text_of(const struct graph_node *node)
{
	return node->is_trampoline ? "trampoline"
	       : node->is_exit     ? "exit"
	       : node->is_leaf     ? "young block"
				   : "block";
}

static void judge_place(const struct graph_node *node, uintptr_t pc)
{
	if (pc <= (uintptr_t)node->exec || pc > (uintptr_t)node->exec + node->hot_bytes)
		graph_fail("%s g%u runs at %p, its place is %p", text_of(node), node->number,
			   (void *)pc, (const void *)node->exec);
	if (atomic_load(&node->notices))
		graph_fail("%s g%u runs after the notice that it was freed", text_of(node),
			   node->number);
	if (atomic_load(&graph_node(node->data)->notices))
		graph_fail("%s g%u runs after the notice that its data g%u was freed",
			   text_of(node), node->number, node->data);
	graph_code_judge_data(node);
	graph_code_judge_written(node);
}

static void judge_entrance(struct graph_thread *t, struct graph_stack *s, struct graph_node *node)
{
	struct expect expect = s->expect;
	s->expect.kind = EXPECT_NOTHING;
	graph_run_entered(s);
	/* Who keeps the address of code without an owner may enter it. */
	if (atomic_load(&node->killer) == t && !graph_world.is_child &&
	    !(expect.kind == EXPECT_OWNER && graph_owner(node->owner)->loose))
		graph_fail("block g%u was entered by the thread that had invalidated it",
			   node->number);
	switch (expect.kind) {
	case EXPECT_NOTHING:
		graph_fail("block g%u was entered by nobody", node->number);
	case EXPECT_OWNER:
		if (node->owner != expect.number)
			graph_fail("the cell of owner %u led to block g%u of owner %u",
				   expect.number, node->number, node->owner);
		break;
	case EXPECT_ARM:
		if (!graph_code_is_candidate(graph_node(expect.number), (int)expect.arm,
					     node->number))
			graph_fail("arm %u of block g%u led to block g%u, which it was never "
				   "linked to",
				   expect.arm, expect.number, node->number);
		break;
	case EXPECT_NODE:
		if (node->number != expect.number)
			graph_fail("the entry of block g%u led to block g%u", expect.number,
				   node->number);
		break;
	}
	GRAPH_COUNT(graph_entered, 1);
}

static void arrive(struct graph_thread *t, struct graph_stack *s, struct graph_node *node,
		   bool is_again, uintptr_t at)
{
	/* After a tail jump the new block has the frame of the old block. */
	graph_run_unwind(s, is_again ? at : at + 1);
	struct graph_frame *top = s->depth ? &s->frames[s->depth - 1] : NULL;
	if (is_again) {
		if (!top || top->at != at || top->node != node)
			graph_fail("block g%u goes on in a frame that is not its own",
				   node->number);
		if (top->was_invalid)
			graph_fail("block g%u went on behind its patch point after its thread had "
				   "invalidated it",
				   node->number);
		s->expect.kind = EXPECT_NOTHING;
	} else {
		judge_entrance(t, s, node);
		if (s->depth == GRAPH_FRAMES)
			graph_fail("the harness nests too deep");
		s->frames[s->depth++] = (struct graph_frame){at, node, false};
	}
	pin_to(s, s->depth);
}

/* --- a block goes on --- */

static void depart(struct graph_thread *t, struct graph_stack *s, struct graph_node *node, int arm)
{
	struct graph_frame *top = &s->frames[s->depth - 1];
	top->was_invalid = atomic_load(&node->killer) == t;
	s->leaver = node->number;
	s->expect.kind = EXPECT_NOTHING;
	if (arm == 6)
		s->expect = (struct expect){EXPECT_OWNER, node->edge_owner, 0};
	else if (arm)
		s->expect = (struct expect){EXPECT_ARM, node->number, (uint32_t)arm};
	pin_to(s, s->segment);
}

static int next_of_script(struct graph_thread *t)
{
	return t->script_at < t->script_length ? t->script[t->script_at++] : 0;
}

int64_t graph_run_step(uint32_t number, uint32_t is_again, uintptr_t frame)
{
	struct graph_thread *t = graph_self();
	struct graph_stack *s = t->stack;
	if (number == 0 || number >= GRAPH_NODES)
		graph_fail("a block says that its number is %u", number);
	struct graph_node *node = graph_node(number);
	judge_place(node, (uintptr_t)__builtin_return_address(0));
	arrive(t, s, node, is_again, frame);
	int arm = t->script ? next_of_script(t) : graph_operations_run();
	/* Another thread may have taken over; the stack is the same. */
	t = graph_self();
	if (arm && !node->arms[arm].at && !(arm == 6 && node->edge_owner))
		arm = GRAPH_GO_LEAVE;
	depart(t, s, node, arm);
	return arm;
}

/* --- an unlinked branch is taken --- */

static struct ch_block answer(struct graph_node *source, int arm, uint32_t number)
{
	if (!number)
		return (struct ch_block){0};
	graph_code_candidate(source, arm, number);
	atomic_store(&graph_node(number)->is_held, true);
	return graph_node(number)->handle;
}

static uint32_t compile_for(int slot)
{
	uint32_t owner = atomic_load(&graph_world.slots[slot].owner),
		 number = graph_code_open(owner, slot, GRAPH_JMP, slot, slot);
	if (!number || !graph_code_commit(number))
		return 0;
	graph_code_publish(slot, number, false);
	return number;
}

static uint32_t choose(const struct graph_operation *o, int slot)
{
	switch (o->operand[1]) {
	case GRAPH_OLD:
		return atomic_load(&graph_world.slots[slot].code);
	case GRAPH_NEW:
		return compile_for(slot);
	case GRAPH_DEAD:
		return atomic_load(&graph_world.slots[slot].recent);
	default:
		return 0;
	}
}

static void run_inside(int operations)
{
	struct graph_thread *t = graph_self();
	if (!operations)
		return;
	/* Gives threads time to come to the same stub. */
	graph_driver_sleep(20);
	size_t limit = t->limit, wanted = t->next + (size_t)operations;
	if (wanted < limit)
		t->limit = wanted;
	graph_operations_run();
	/* A fiber on a new thread has the new thread's limit. */
	if (graph_self() == t)
		t->limit = limit;
}

struct ch_block graph_run_hit(void *vm_user, struct ch_branch branch, void *branch_user,
			      struct ch_regs *regs)
{
	(void)vm_user;
	struct graph_thread *t = graph_self();
	struct graph_stack *s = t->stack;
	struct graph_node *source = graph_node((uint32_t)((uintptr_t)branch_user >> 8));
	int arm = (int)((uintptr_t)branch_user & 0xff);
	struct expect expect = s->expect;
	if (source->arms[arm].branch.bits != branch.bits)
		graph_fail("the stub of arm %d of block g%u is of another branch", arm,
			   source->number);
	if (expect.kind != EXPECT_ARM || expect.number != source->number ||
	    expect.arm != (uint32_t)arm)
		graph_fail("the stub of arm %d of block g%u was taken, not of arm %u of g%u", arm,
			   source->number, expect.arm, expect.number);
	GRAPH_COUNT(graph_branch_hits, 1);
	regs->pc = (uintptr_t)graph_code_fallback;
	const struct graph_operation *o = s->taking;
	if (t->script || !o)
		return (struct ch_block){0};
	atomic_store(&source->arms[arm].asker, t);
	/* The branch's block is on the stack, by the return address of the stub. */
	pin_to(s, s->depth);
	int segment = s->segment;
	s->segment = s->depth;
	run_inside(o->operand[3]);
	s->segment = segment;
	/* Asked again, it answers at once. */
	s->taking = o;
	uint32_t number =
		choose(o, graph_code_beside((int)graph_owner(source->owner)->heap, o->operand[2]));
	struct ch_block block = answer(source, arm, number);
	if (atomic_load(&source->arms[arm].asker) != t)
		GRAPH_COUNT(graph_stub_races, 1);
	s->expect = expect;
	pin_to(s, s->segment);
	return block;
}

/* --- entering from the harness --- */

bool graph_run_may_be_invalid(const struct graph_node *node)
{
	const struct graph_heap *h = graph_heap_of(node);
	return atomic_load(&node->may_be_invalid) ||
	       (node->fact && atomic_load(&graph_world.facts[node->fact].is_breaking)) ||
	       atomic_load(&h->discards[graph_owner(node->owner)->vm]);
}

static void judge_value(const struct graph_stack *s, uint64_t value, uint32_t owner)
{
	uint32_t number = (uint32_t)value & ~(uint32_t)GRAPH_EXIT_MARK;
	if (value == GRAPH_FALLBACK)
		return;
	if (!number || number >= GRAPH_NODES || value > (GRAPH_NODES | GRAPH_EXIT_MARK))
		graph_fail("code of owner %u returned 0x%llx", owner, (unsigned long long)value);
	struct graph_node *node = graph_node(number);
	if (value & GRAPH_EXIT_MARK) {
		GRAPH_COUNT(graph_exits, 1);
		if (!node->is_exit && !graph_run_may_be_invalid(node))
			graph_fail("block g%u left by its exit, and nobody invalidated it", number);
	} else if (number != s->leaver && !node->is_trampoline && !node->is_leaf) {
		graph_fail("code of owner %u returned %u, %s at %p of owner %u; g%u left last; its "
			   "entry is %p",
			   owner, number, text_of(node), (const void *)node->exec, node->owner,
			   s->leaver, __atomic_load_n(graph_owner(owner)->cell, __ATOMIC_RELAXED));
	}
}

struct entering {
	int segment, depth;
	uint32_t leaver;
	struct expect expect;
};

static struct entering begin(struct graph_stack *s, struct expect expect)
{
	struct entering e = {s->segment, s->depth, s->leaver, s->expect};
	s->segment = s->depth;
	s->leaver = 0;
	s->expect = expect;
	return e;
}

static void end(struct graph_stack *s, struct entering e)
{
	if (s->pinned > e.depth)
		pin_to(s, e.depth);
	s->depth = e.depth;
	s->segment = e.segment;
	s->leaver = e.leaver;
	s->expect = e.expect;
}

void graph_run_owner(uint32_t owner)
{
	struct graph_stack *s = graph_self()->stack;
	if (s->depth >= GRAPH_FRAMES - 2 || !graph_driver_use(owner))
		return;
	struct entering e = begin(s, (struct expect){EXPECT_OWNER, owner, 0});
	s->entering = owner;
	uint64_t value = graph_emit_call(graph_owner(owner)->cell);
	graph_run_entered(s);
	judge_value(s, value, owner);
	end(s, e);
}

void graph_run_node(struct graph_node *node, const int *script, int length)
{
	struct graph_thread *t = graph_self();
	struct graph_stack *s = t->stack;
	t->script = script;
	t->script_at = 0;
	t->script_length = length;
	struct entering e = begin(s, (struct expect){EXPECT_NODE, node->number, 0});
	uint64_t value = graph_emit_call_at(node->entry);
	judge_value(s, value, node->owner);
	if (value == GRAPH_FALLBACK || (uint32_t)value == 0)
		graph_fail("block g%u must live, and its entry leads to nothing", node->number);
	end(s, e);
	t->script = NULL;
}

/* --- freed --- */

void graph_run_freed(void *vm_user, void *block_user)
{
	(void)vm_user;
	struct graph_node *node = block_user;
	if (node < graph_world.nodes || node >= graph_world.nodes + GRAPH_NODES)
		graph_fail("a notice of no block");
	if (graph_owner(node->owner)->loose)
		graph_fail("a notice of block g%u, which has no owner", node->number);
	if (atomic_fetch_add(&node->notices, 1))
		graph_fail("two notices of block g%u", node->number);
	if (!graph_world.is_child && atomic_load(&node->frames) > 0)
		graph_fail("block g%u was freed while it was on a stack", node->number);
	GRAPH_COUNT(graph_blocks_freed, 1);
}

/* --- a thread's list --- */

void graph_run_thread(void)
{
	(void)setjmp(graph_self()->stack->base);
	struct graph_thread *t = graph_self();
	struct graph_stack *s = t->stack;
	while (t->next < t->limit) {
		s->segment = 0;
		graph_run_unwind(s, UINTPTR_MAX);
		graph_operations_run();
	}
	graph_run_unwind(s, UINTPTR_MAX);
}
