/* SPDX-License-Identifier: MIT
 * graph_operations.c: the operations of a program: the effect of each on the heap, and the allowed
 * statuses. */
#include "graph_emit.h"
#include "graph_world.h"

#include <string.h>

static const struct graph_operation *next_operation(struct graph_thread *t)
{
	return t->next < t->limit ? t->list[t->next++] : NULL;
}

static struct graph_slot *slot_at(int index)
{
	return &graph_world.slots[index];
}

static uint32_t code_at(int index)
{
	return index < 0 ? 0 : atomic_load(&slot_at(index)->code);
}

static int heap_at(int index)
{
	return index % graph_world.program->heaps;
}

static void note_dying(uint32_t number)
{
	atomic_store(&graph_node(number)->may_be_invalid, true);
}

/* --- owners --- */

static void make_owner(int slot)
{
	const struct graph_program *p = graph_world.program;
	uint32_t none = 0;
	if (atomic_load(&slot_at(slot)->owner))
		return;
	uint32_t fresh = graph_driver_owner(heap_at(slot), slot / p->heaps % p->vms);
	if (fresh && !atomic_compare_exchange_strong(&slot_at(slot)->owner, &none, fresh))
		graph_driver_drop(fresh, true);
}

static void drop_owner(int slot, bool by_release)
{
	uint32_t owner = atomic_exchange(&slot_at(slot)->owner, 0);
	if (owner)
		graph_driver_drop(owner, by_release);
}

/* Blocks that no other thread knows, nor their owner: all may go at once. */
struct young {
	uint32_t owner, all[8], last;
	int count;
};

static void open_young(struct young *y, int slot, int blocks)
{
	for (int i = 0; i < blocks && i < 8; i++) {
		uint32_t number = graph_code_open_leaf(y->owner, i ? 0 : code_at(slot),
						       (enum graph_leaf)((slot + i) % LEAF_KINDS));
		if (!number || !graph_code_commit(number))
			break;
		y->all[y->count++] = number;
		if (ch_owner_set_entry(graph_owner(y->owner)->handle,
				       graph_node(number)->handle) == CH_OK)
			y->last = number;
	}
}

/* A discard may have come between. */
static void run_young(const struct young *y)
{
	uint64_t value = y->last ? graph_emit_call(graph_owner(y->owner)->cell) : 0;
	if (value != y->last && value != GRAPH_FALLBACK)
		graph_fail("young block g%u returned 0x%llx", y->last, (unsigned long long)value);
}

static bool is_there(uint32_t number)
{
	struct ch_info info = {.size = sizeof info};
	return ch_block_info(graph_node(number)->handle, &info) != CH_E_STALE;
}

static void judge_young(const struct young *y)
{
	for (int i = 0; i < y->count; i++) {
		uint32_t data = graph_node(y->all[i])->data;
		if (is_there(y->all[i]))
			graph_fail("block g%u is there after its release as not running",
				   y->all[i]);
		if (data && graph_node(data)->owner == y->owner && is_there(data))
			graph_fail("data g%u is there after its only user g%u is gone", data,
				   y->all[i]);
	}
}

/* Some kept blocks go by their address, the others with the owner. */
static void free_kept(const struct young *y, int slot)
{
	for (int i = 0; i < y->count; i++) {
		uint32_t number = y->all[i];
		if ((slot + i) % LEAF_KINDS != LEAF_KEPT || number % 2)
			continue;
		struct ch_heap *heap = graph_heap_of(graph_node(number))->heap;
		graph_allow(ch_code_free(number % 4 ? heap : NULL, graph_node(number)->exec,
					 CH_RELEASE_NOT_RUNNING),
			    GRAPH_BIT(CH_OK), "the end of kept code");
		if (is_there(number))
			graph_fail("kept block g%u is there after its end by address", number);
	}
}

static void end_guest(const struct young *y)
{
	struct ch_info info = {.size = sizeof info};
	for (int i = 0; i < y->count; i++)
		note_dying(y->all[i]);
	graph_allow(ch_vm_detach(graph_owner(y->owner)->guest), GRAPH_BIT(CH_OK), "a guest's end");
	for (int i = 0; i < y->count; i++)
		if (ch_block_info(graph_node(y->all[i])->handle, &info) == CH_OK &&
		    info.state == CH_BLOCK_LIVE)
			graph_fail("block g%u is live after its vm's end", y->all[i]);
}

static void make_young(int slot, int blocks, bool has_guest)
{
	int heap = heap_at(slot);
	struct young y = {.owner = has_guest ? graph_driver_guest(heap)
					     : graph_driver_owner(heap, 0)};
	if (!y.owner)
		return;
	open_young(&y, slot, blocks);
	run_young(&y);
	free_kept(&y, slot);
	atomic_store(&graph_owner(y.owner)->is_released, true);
	if (has_guest) {
		end_guest(&y);
	} else {
		graph_allow(ch_owner_release(graph_owner(y.owner)->handle, CH_RELEASE_NOT_RUNNING),
			    GRAPH_BIT(CH_OK), "release of young code");
		judge_young(&y);
	}
	graph_driver_drop(y.owner, false);
}

/* --- blocks --- */

static uint32_t open_of(uint32_t owner, const struct graph_operation *o)
{
	return graph_code_open(owner, o->operand[0], (unsigned)o->operand[1], o->operand[2],
			       o->operand[3]);
}

static void make_code(const struct graph_operation *o)
{
	uint32_t number = open_of(atomic_load(&slot_at(o->operand[0])->owner), o);
	if (number && graph_code_commit(number))
		graph_code_publish(o->operand[0], number, true);
}

static void make_loose(const struct graph_operation *o)
{
	struct graph_slot *slot = slot_at(o->operand[0]);
	uint32_t none = 0, owner = 0, number = 0;
	if (!atomic_load(&slot->owner))
		owner = graph_driver_loose(heap_at(o->operand[0]));
	if (owner)
		number = open_of(owner, o);
	if (!number || !graph_code_commit(number))
		return;
	graph_driver_loosen(owner, number);
	graph_code_publish(o->operand[0], number, false);
	if (!atomic_compare_exchange_strong(&slot->owner, &none, owner))
		graph_driver_drop(owner, true);
}

static void make_exit(int slot)
{
	uint32_t number = graph_code_open_exit(slot);
	if (number && graph_code_commit(number))
		atomic_store(&slot_at(slot)->exit, number);
}

static void open_into_hand(struct graph_thread *t, const struct graph_operation *o)
{
	if (t->handful == GRAPH_HAND)
		return;
	uint32_t number = open_of(atomic_load(&slot_at(o->operand[0])->owner), o);
	t = graph_self();
	if (number)
		t->hand[t->handful++] = number;
}

static uint32_t take_from_hand(struct graph_thread *t)
{
	if (!t->handful)
		return 0;
	uint32_t number = t->hand[0];
	memmove(t->hand, t->hand + 1, (size_t)--t->handful * sizeof t->hand[0]);
	return number;
}

static int slot_of(const struct graph_node *node)
{
	for (int i = 0; i < GRAPH_SLOTS; i++)
		if (atomic_load(&slot_at(i)->owner) == node->owner)
			return i;
	return -1;
}

static void commit_from_hand(struct graph_thread *t)
{
	uint32_t number = take_from_hand(t);
	if (!number || !graph_code_commit(number))
		return;
	int slot = slot_of(graph_node(number));
	if (slot >= 0)
		graph_code_publish(slot, number, true);
}

static void set_entry(int slot, int which)
{
	uint32_t owner = atomic_load(&slot_at(slot)->owner), number = code_at(slot);
	if (!owner || graph_owner(owner)->loose ||
	    (which && (!number || graph_node(number)->owner != owner)))
		return;
	if (which)
		graph_code_publish(slot, number, true);
	else
		graph_allow(ch_owner_set_entry(graph_owner(owner)->handle, (struct ch_block){0}),
			    GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE), "no entry");
}

static void link_arm(const struct graph_operation *o)
{
	uint32_t from = code_at(o->operand[0]);
	int beside = o->operand[2] < 0 ? -1 : graph_code_beside(o->operand[0], o->operand[2]);
	uint32_t to = code_at(beside);
	if (!from || o->operand[1] < 1 || o->operand[1] > GRAPH_ARMS || (!to && beside >= 0))
		return;
	struct graph_node *node = graph_node(from);
	if (!node->arms[o->operand[1]].at)
		return;
	struct ch_block target = {0};
	if (to) {
		graph_code_candidate(node, o->operand[1], to);
		target = graph_node(to)->handle;
	}
	if (graph_allow(ch_branch_link(node->arms[o->operand[1]].branch, target),
			GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE) | GRAPH_BIT(CH_E_STATE),
			"a link") == CH_OK &&
	    to)
		atomic_store(&graph_node(to)->is_held, true);
}

static void call_trampoline(const struct graph_operation *o)
{
	uint32_t number = graph_code_trampoline(o->operand[0], o->operand[1]);
	if (!number)
		return;
	struct graph_node *node = graph_node(number);
	graph_code_publish(o->operand[0], number, true);
	graph_run_owner(node->owner);
}

/* --- invalidation --- */

static void note_dead(struct graph_node *node)
{
	const void *nobody = NULL;
	if (atomic_load(&node->frames) > 0 && !atomic_exchange(&node->is_invalid, true))
		GRAPH_COUNT(graph_invalidations_on_stack, 1);
	atomic_store(&node->is_invalid, true);
	atomic_compare_exchange_strong(&node->killer, &nobody, (const void *)graph_self());
}

void graph_invalidate(const uint32_t *numbers, int count)
{
	struct ch_block handles[GRAPH_FRAMES] = {{0}};
	for (int i = 0; i < count; i++) {
		note_dying(numbers[i]);
		handles[i] = graph_node(numbers[i])->handle;
	}
	graph_allow(ch_blocks_invalidate(handles, (size_t)count, NULL), GRAPH_BIT(CH_OK),
		    "an invalidation");
	for (int i = 0; i < count; i++)
		note_dead(graph_node(numbers[i]));
}

static void kill_three(const struct graph_operation *o)
{
	uint32_t numbers[3];
	int count = 0;
	for (int i = 0; i < 3; i++)
		if ((numbers[count] = code_at(graph_code_beside(o->operand[0], o->operand[i]))))
			count++;
	if (count)
		graph_invalidate(numbers, count);
}

/* Invalidates the blocks of this stack from `first` on, heap by heap. */
static void kill_frames(int first)
{
	struct graph_stack *s = graph_self()->stack;
	for (int heap = 0; heap < graph_world.program->heaps; heap++) {
		uint32_t numbers[GRAPH_FRAMES];
		int count = 0;
		for (int i = first < 0 ? 0 : first; i < s->depth; i++)
			if (graph_owner(s->frames[i].node->owner)->heap == heap)
				numbers[count++] = s->frames[i].node->number;
		if (count)
			graph_invalidate(numbers, count);
	}
}

static uint32_t make_fact(int heap, int vm)
{
	uint32_t fact = atomic_fetch_add(&graph_world.fact_count, 1);
	if (fact >= GRAPH_FACT_RECORDS) {
		atomic_store(&graph_world.fact_count, GRAPH_FACT_RECORDS);
		return 0;
	}
	struct graph_fact *f = &graph_world.facts[fact];
	f->heap = heap;
	f->vm = vm;
	graph_allow(ch_assumption_create(graph_world.heaps[heap].vms[vm], &f->handle),
		    GRAPH_BIT(CH_OK), "an assumption's creation");
	return fact;
}

static void doubt(int slot)
{
	const struct graph_program *p = graph_world.program;
	for (int heap = 0; heap < p->heaps; heap++)
		for (int vm = 0; vm < p->vms; vm++) {
			_Atomic(uint32_t) *at =
				&graph_world.fact_slots[heap * GRAPH_VMS + vm][slot % GRAPH_FACTS];
			uint32_t old = atomic_exchange(at, make_fact(heap, vm));
			struct graph_fact *f = &graph_world.facts[old];
			if (!old)
				continue;
			atomic_store(&f->is_breaking, true);
			graph_allow(ch_assumption_break(f->handle, NULL), GRAPH_BIT(CH_OK),
				    "a break");
			atomic_store(&f->is_broken, true);
		}
}

/* Whether a discard of this vm (-1: all) is one of vm i, too. */
static bool is_among(int i, int vm)
{
	return i != GRAPH_NO_VM && (vm < 0 || vm == i);
}

static void discard(int heap, int vm)
{
	const struct graph_program *p = graph_world.program;
	struct graph_heap *h = &graph_world.heaps[heap % p->heaps];
	uint64_t began = graph_tick();
	vm = vm < 0 ? -1 : vm % p->vms;
	for (int i = 0; i < GRAPH_ALL_VMS; i++)
		if (is_among(i, vm))
			atomic_fetch_add(&h->discards[i], 1);
	graph_allow(ch_vm_discard(h->heap, vm < 0 ? NULL : h->vms[vm], NULL, NULL),
		    GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_BUSY), "a discard");
	GRAPH_COUNT(graph_discards, 1);
	for (int i = 0; i < GRAPH_ALL_VMS; i++) {
		uint64_t last = atomic_load(&h->discarded_at[i]);
		while (is_among(i, vm) && last < began &&
		       !atomic_compare_exchange_weak(&h->discarded_at[i], &last, began))
			continue;
	}
}

/* --- looking --- */

/* An OPEN block may have no handle in its record yet. */
static void judge_user(const struct graph_node *node, struct ch_block block)
{
	if (!node ||
	    (atomic_load(&node->state) == NODE_COMMITTED && node->handle.bits != block.bits))
		graph_fail("block g%u is said to be where another block is",
			   node ? node->number : 0);
}

static bool visit_site(void *arg, const struct ch_site *site)
{
	(void)arg;
	if (!site->at)
		graph_fail("a site has no address");
	return true;
}

static bool visit_block(void *arg, const struct ch_info *info)
{
	(void)arg;
	if (!info->block.bits)
		graph_fail("a visited block has no handle");
	judge_user(info->user, info->block);
	return true;
}

static void look_at_block(const struct graph_node *node)
{
	struct ch_spot spot = {.size = sizeof spot};
	struct ch_info info = {.size = sizeof info};
	/* The place of a dead block may have a new block. */
	if (ch_block_info(node->handle, &info) != CH_OK)
		return;
	if (info.user != node)
		graph_fail("the handle of block g%u is of another block", node->number);
	if (atomic_load(&node->state) == NODE_COMMITTED && info.state != CH_BLOCK_OPEN &&
	    info.exec != node->exec)
		graph_fail("block g%u moved", node->number);
	if (ch_code_at(NULL, node->exec, false, &spot))
		judge_user(spot.user, spot.block);
}

static void look_at_stack(struct graph_thread *t)
{
	const void *pcs[64];
	struct ch_spot spot = {.size = sizeof spot};
	struct graph_stack *s = t->stack;
	struct ch_heap *heap = graph_world.heaps[0].heap;
	size_t count =
		t->is_in_handler ? 0 : ch_backtrace(heap, CH_BACKTRACE_FRAMES, NULL, pcs, 64);
	for (size_t i = 0; i < count; i++)
		if (ch_code_at(heap, pcs[i], true, &spot))
			judge_user(spot.user, spot.block);
	/* A block on the stack can always be looked up. */
	for (int i = 0; i < s->pinned; i++) {
		const struct graph_node *node = s->frames[i].node;
		if (!ch_code_at(graph_heap_of(node)->heap, node->exec, false, &spot) ||
		    spot.block.bits != node->handle.bits || spot.user != node)
			graph_fail("block g%u is on the stack, and its address is not its",
				   node->number);
	}
	memset(pcs, 0, sizeof pcs);
	__asm__ volatile("" ::"r"(pcs) : "memory");
}

static void look_at_owner(const struct graph_owner *owner)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	if (graph_allow(ch_owner_info(owner->handle, &facts),
			GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE), "an owner") == CH_OK &&
	    facts.user != owner)
		graph_fail("the handle of an owner is of another owner");
}

__attribute__((noinline)) static void look(struct graph_thread *t, const struct graph_operation *o)
{
	char text[256];
	struct ch_heap *heap = graph_world.heaps[heap_at(o->operand[0])].heap;
	uint32_t number = code_at(o->operand[0]),
		 owner = atomic_load(&slot_at(o->operand[0])->owner);
	struct ch_stats stats = {.size = sizeof stats};
	if (o->operand[1] == 0 && ch_heap_stats(heap, &stats) != CH_OK)
		graph_fail("no statistics");
	else if (o->operand[1] == 1 && number)
		look_at_block(graph_node(number));
	else if (o->operand[1] == 2 && number)
		graph_allow(ch_block_sites(graph_node(number)->handle, visit_site, NULL),
			    GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE), "sites");
	else if (o->operand[1] == 3)
		graph_allow(ch_block_each(heap, NULL, visit_block, NULL), GRAPH_BIT(CH_OK),
			    "each block");
	else if (o->operand[1] == 4 && owner)
		look_at_owner(graph_owner(owner));
	else if (o->operand[1] == 5 && number)
		ch_address_name(heap, graph_node(number)->exec, false, text, sizeof text);
	else if (o->operand[1] >= 6)
		look_at_stack(t);
}

static void check_heap(int heap)
{
	char report[300];
	if (ch_heap_check(graph_world.heaps[heap_at(heap)].heap, report, sizeof report) != CH_OK)
		graph_fail("heap check while others run: %s", report);
}

static void set_sinks(const struct graph_operation *o)
{
	static const unsigned sets[] = {CH_SINK_UNWIND, CH_SINK_UNWIND | CH_SINK_PERF_MAP,
					CH_SINK_UNWIND | CH_SINK_PERF_MAP | CH_SINK_GDB,
					CH_SINK_UNWIND | CH_SINK_GDB};
	graph_allow(ch_sink_set(graph_world.heaps[heap_at(o->operand[0])].heap,
				sets[o->operand[1] & 3]),
		    GRAPH_BIT(CH_OK), "sinks");
}

/* --- flow --- */

/* Operations that run code or leave the stack make no sense on the stack of a handler. */
static bool is_flow(int kind)
{
	return kind == GRAPH_enter || kind == GRAPH_take || kind == GRAPH_jump ||
	       kind == GRAPH_fiber || kind == GRAPH_yield || kind == GRAPH_raise ||
	       kind == GRAPH_fork || kind == GRAPH_tramp || kind == GRAPH_young;
}

static void jump(void)
{
	struct graph_stack *s = graph_self()->stack;
	s->segment = 0;
	s->expect.kind = EXPECT_NOTHING;
	graph_run_unwind(s, UINTPTR_MAX);
	longjmp(s->base, 1);
}

static void run_change(struct graph_thread *t, const struct graph_operation *o)
{
	switch (o->kind) {
	case GRAPH_owner:
		make_owner(o->operand[0]);
		break;
	case GRAPH_drop:
		drop_owner(o->operand[0], o->operand[1]);
		break;
	case GRAPH_code:
		make_code(o);
		break;
	case GRAPH_loose:
		make_loose(o);
		break;
	case GRAPH_exit:
		make_exit(o->operand[0]);
		break;
	case GRAPH_open:
		open_into_hand(t, o);
		break;
	case GRAPH_commit:
		commit_from_hand(t);
		break;
	case GRAPH_abort: {
		uint32_t number = take_from_hand(t);
		if (number)
			graph_code_abort(number);
		break;
	}
	case GRAPH_young:
		make_young(o->operand[0], o->operand[1], o->operand[2]);
		break;
	case GRAPH_tramp:
		call_trampoline(o);
		break;
	case GRAPH_entry:
		set_entry(o->operand[0], o->operand[1]);
		break;
	case GRAPH_link:
		link_arm(o);
		break;
	}
}

static void run_end(struct graph_thread *t, const struct graph_operation *o)
{
	struct graph_stack *s = t->stack;
	switch (o->kind) {
	case GRAPH_kill:
		kill_three(o);
		break;
	case GRAPH_suicide:
		if (s->depth)
			kill_frames(s->depth - 1);
		break;
	case GRAPH_slaughter:
		kill_frames(0);
		break;
	case GRAPH_doubt:
		doubt(o->operand[0]);
		break;
	case GRAPH_collect:
		graph_driver_collect(heap_at(o->operand[0]));
		break;
	case GRAPH_discard:
		discard(o->operand[0], o->operand[1]);
		break;
	}
}

static void run_other(struct graph_thread *t, const struct graph_operation *o)
{
	uint32_t owner;
	switch (o->kind) {
	case GRAPH_enter:
		owner = atomic_load(&slot_at(o->operand[0])->owner);
		if (owner)
			graph_run_owner(owner);
		break;
	case GRAPH_jump:
		jump();
		break;
	case GRAPH_fiber:
		graph_fiber_go(o->operand[0]);
		break;
	case GRAPH_yield:
		graph_fiber_yield();
		break;
	case GRAPH_forsake:
		graph_fiber_forsake(o->operand[0]);
		break;
	case GRAPH_raise:
		graph_signal_raise();
		break;
	case GRAPH_shoot:
		graph_signal_shoot(o->operand[0]);
		break;
	case GRAPH_fork:
		graph_fork(o->operand[0]);
		break;
	case GRAPH_park:
		graph_driver_sleep((unsigned)o->operand[0]);
		break;
	case GRAPH_write:
		if (t->stack->depth > t->stack->segment)
			graph_code_write(t->stack->frames[t->stack->depth - 1].node);
		break;
	case GRAPH_look:
		look(t, o);
		break;
	case GRAPH_check:
		check_heap(o->operand[0]);
		break;
	case GRAPH_sinks:
		set_sinks(o);
		break;
	case GRAPH_poll:
		ch_thread_poll();
		break;
	}
}

static void run_one(struct graph_thread *t, const struct graph_operation *o)
{
	GRAPH_COUNT(graph_operations, 1);
	if (o->kind <= GRAPH_link)
		run_change(t, o);
	else if (o->kind >= GRAPH_kill && o->kind <= GRAPH_discard)
		run_end(t, o);
	else
		run_other(t, o);
}

int graph_operations_run(void)
{
	for (;;) {
		graph_driver_safepoint();
		struct graph_thread *t = graph_self();
		struct graph_stack *s = t->stack;
		const struct graph_operation *o = next_operation(t);
		bool is_in_block = s->depth > s->segment && !t->is_in_handler;
		if (!o) {
			/* A fiber stays as is for the next thread. */
			if (!s->is_fiber || t->limit < t->end || t->is_in_handler)
				return GRAPH_GO_LEAVE;
			graph_fiber_yield();
		} else if (o->kind == GRAPH_leave) {
			return GRAPH_GO_LEAVE;
		} else if (o->kind == GRAPH_take && is_in_block && s->depth < GRAPH_FRAMES - 2) {
			s->taking = o;
			return o->operand[0];
		} else if (!(t->is_in_handler && is_flow(o->kind))) {
			run_one(t, o);
		}
	}
}
