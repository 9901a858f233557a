/* SPDX-License-Identifier: MIT
 * graph_code.c: blocks of code that call the harness and obey its answers. A block knows only its
 * number: the block tells the number at each step, and returns it. So a wrongly entered block gives
 * itself away.
 *
 *         [entry: the library's bytes, or the test of a guard]
 *         a frame, a word is_again = 0
 *   head  step(number, is_again, frame), is_again = 1; point
 *         1: call branch; point; to head       2: leave; jump branch   3: leave; jump if, branch
 *         4: load address, branch; call; ...   5: call [literal]; ...  6: call [cell]; ...
 *         else: return number
 *         [an aligned word, all of whose bytes are the same: graph_code_write]
 *   cold  return number | mark: target of the points once the block was invalidated */
#include "graph_emit.h"
#include "graph_world.h"

#include <stdio.h>
#include <string.h>

enum {
	LEAF_BYTES = 64,
	BIG_BYTES = 2048,
	HUGE_BYTES = 70000, /* several pages */
};

struct emitter {
	struct graph_node *node;
	struct graph_emitter hot;
	const void *exit;
};

uint64_t graph_code_fallback(void)
{
	struct graph_stack *s = graph_self()->stack;
	s->expect.kind = EXPECT_NOTHING;
	graph_run_entered(s);
	return GRAPH_FALLBACK;
}

/* --- parts of a block --- */

static struct emitter emitter_of(struct graph_node *node)
{
	struct ch_code *code = &node->code;
	return (struct emitter){.node = node,
				.hot = {.write = code->write,
					.exec = code->exec,
					.at = code->entry_bytes,
					.room = code->hot_bytes}};
}

static void put_point(struct emitter *e)
{
	graph_allow(ch_patch_point_attach(e->node->handle, graph_emit_point(&e->hot), e->exit,
					  NULL),
		    GRAPH_BIT(CH_OK), "a patch point");
}

static void put_ref(struct emitter *e, uint32_t owner)
{
	uintptr_t word = graph_driver_word(owner);
	if (!word)
		return;
	graph_allow(ch_ref_attach(e->node->handle, graph_emit_ref(&e->hot, word)),
		    GRAPH_BIT(CH_OK), "a ref");
	e->node->ref_owner = owner;
}

static void put_site(struct emitter *e, int arm, enum ch_branch_kind kind)
{
	struct graph_arm *a = &e->node->arms[arm];
	uintptr_t user = (uintptr_t)e->node->number << 8 | (uintptr_t)arm;
	struct ch_branch_site site = {.at = graph_emit_site(&e->hot, kind),
				      .kind = kind,
				      .user = (void *)user,
				      .exit = e->node->veneer};
	graph_allow(ch_branch_attach(e->node->handle, &site, &a->branch), GRAPH_BIT(CH_OK),
		    "a branch");
	a->at = site.at;
}

static void put_call_arm(struct emitter *e, int arm, uint32_t head, uint32_t cell_owner)
{
	if (arm == 1) {
		put_site(e, arm, CH_CALL);
	} else if (arm == 4) {
		put_site(e, arm, CH_LEA);
		graph_emit_call_lea(&e->hot);
	} else if (arm == 5) {
		graph_emit_call_literal(&e->hot);
	} else {
		graph_emit_call_cell(&e->hot, graph_owner(cell_owner)->cell);
	}
	put_point(e);
	graph_emit_goto(&e->hot, head);
}

static bool has_arm(const struct graph_node *node, int arm)
{
	/* An arm through a cell needs its edge. */
	return (node->shape & (1u << (arm - 1))) && (arm != 6 || node->edge_owner);
}

static void put_arms(struct emitter *e, uint32_t head)
{
	for (int arm = 1; arm <= GRAPH_ARMS; arm++) {
		if (!has_arm(e->node, arm))
			continue;
		uint32_t from = graph_emit_unless(&e->hot, arm);
		if (arm == 2 || arm == 3)
			put_site(e, arm, arm == 2 ? CH_JMP : CH_JCC);
		else
			put_call_arm(e, arm, head, e->node->edge_owner);
		graph_emit_otherwise(&e->hot, from);
	}
}

static void put_body(struct emitter *e)
{
	struct graph_node *node = e->node;
	graph_emit_enter(&e->hot);
	graph_emit_locals(&e->hot);
	if (node->ref_owner) {
		uint32_t owner = node->ref_owner;
		node->ref_owner = 0;
		put_ref(e, owner);
	}
	uint32_t head = e->hot.at;
	graph_emit_step(&e->hot, node->number, (const void *)(uintptr_t)graph_run_step);
	put_point(e);
	put_arms(e, head);
	graph_emit_return(&e->hot, node->number);
	static const uint8_t none[8];
	if (e->hot.literal_use)
		put_site(e, 5, CH_LITERAL);
	graph_emit_bytes(&e->hot, none, -e->hot.at & 7);
	node->written = e->hot.at;
	graph_emit_bytes(&e->hot, none, sizeof none);
}

/* --- opening --- */

int graph_code_beside(int slot, int other)
{
	int heaps = graph_world.program->heaps;
	int beside = other - other % heaps + slot % heaps;
	return beside < GRAPH_SLOTS ? beside : slot;
}

/* Returns NULL where there is no owner, or no room. Code without an owner is alone. */
static struct graph_node *new_node(uint32_t owner)
{
	if (!owner || graph_owner(owner)->loose)
		return NULL;
	uint32_t number = atomic_fetch_add(&graph_world.node_count, 1);
	if (number >= GRAPH_NODES) {
		atomic_store(&graph_world.node_count, GRAPH_NODES);
		return NULL;
	}
	struct graph_node *node = graph_node(number);
	node->number = number;
	node->owner = owner;
	return node;
}

static struct graph_node *open_node(uint32_t owner, struct ch_open *open)
{
	struct graph_node *node = new_node(owner);
	if (!node)
		return NULL;
	char name[16];
	snprintf(name, sizeof name, "g%u", node->number);
	open->size = sizeof *open;
	open->owner = graph_owner(owner)->handle;
	if (!open->owner.bits)
		open->heap = graph_heap_of(node)->heap;
	open->name = name;
	open->user = node;
	unsigned allowed = GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_FULL) | GRAPH_BIT(CH_E_STALE);
	/* More than the whole pool. */
	if (open->hot_bytes > HUGE_BYTES)
		allowed |= GRAPH_BIT(CH_E_ARG);
	enum ch_status status = graph_allow(ch_block_open(open, &node->code), allowed, "open");
	if (status == CH_E_FULL)
		GRAPH_COUNT(graph_full_pools, 1);
	if (status != CH_OK) {
		atomic_store(&node->state, NODE_LOST);
		return NULL;
	}
	node->handle = node->code.block;
	node->branch_room = open->branch_room;
	node->exec = node->code.exec;
	node->cold = node->code.cold_exec;
	atomic_store(&node->state, NODE_OPEN);
	GRAPH_COUNT(graph_blocks, 1);
	return node;
}

/* --- data --- */

/* All words of the data are its number. */
static uint32_t make_data(uint32_t owner)
{
	static const uint32_t bytes[] = {8, 40, 1000, 5000, HUGE_BYTES};
	unsigned which = atomic_load(&graph_world.node_count);
	struct ch_open open = {.hot_bytes = bytes[which % 29 ? which % 4 : 4],
			       .kind = which & 4 ? CH_KIND_RODATA : CH_KIND_DATA};
	struct graph_node *node = open_node(owner, &open);
	if (!node)
		return 0;
	node->is_data = true;
	node->is_constant = open.kind == CH_KIND_RODATA;
	for (uint32_t at = 0; at < open.hot_bytes; at += sizeof node->number)
		memcpy(node->code.write + at, &node->number, sizeof node->number);
	node->code.used_to = open.hot_bytes;
	return graph_code_commit(node->number) ? node->number : 0;
}

/* Holds the data of another block, if there is some, or makes data. */
static void hold_data(struct graph_node *node, uint32_t other)
{
	uint32_t data = graph_node(other)->data;
	if (!data && graph_owner(node->owner)->handle.bits)
		data = make_data(node->owner);
	if (data && graph_allow(ch_edge_attach(node->handle, graph_node(data)->handle),
				GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE), "an edge to data") ==
			    CH_OK) {
		node->data = data;
		atomic_store(&graph_node(data)->is_held, true);
	}
}

void graph_code_judge_data(const struct graph_node *node)
{
	const struct graph_node *data = graph_node(node->data);
	uint32_t last = data->code.used_to / (uint32_t)sizeof data->number - 1;
	uint32_t *words = (uint32_t *)(uintptr_t)data->exec;
	if (!node->data)
		return;
	for (uint32_t i = 0; i <= last; i += last ? last : 1) {
		uint32_t word = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
		if (word != data->number)
			graph_fail("block g%u runs, and word %u of its data g%u is 0x%x",
				   node->number, i, data->number, word);
		if (!data->is_constant)
			__atomic_store_n(&words[i], word, __ATOMIC_RELAXED);
	}
}

/* --- the word that is written --- */

static const uint64_t ones = UINT64_C(0x0101010101010101);
enum { WRITTEN_BY_CHILD = 0x80 };

void graph_code_write(struct graph_node *node)
{
	uint64_t byte = 1 + (uint64_t)graph_self()->index;
	if (graph_world.is_child)
		byte |= WRITTEN_BY_CHILD;
	uint64_t word = byte * ones;
	/* Where a page changes as a whole, mappings may be too many. */
	if (node->written &&
	    graph_allow(ch_code_write(byte % 2 ? graph_heap_of(node)->heap : NULL,
					  node->exec + node->written, &word, sizeof word,
					  CH_WRITE_WORD),
			    GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_OS), "a write") == CH_OK)
		atomic_store(&node->is_written, true);
}

void graph_code_judge_written(const struct graph_node *node)
{
	if (!node->written)
		return;
	bool is_written = atomic_load(&node->is_written);
	const uint64_t *at = (const uint64_t *)(const void *)(node->exec + node->written);
	uint64_t word = __atomic_load_n(at, __ATOMIC_RELAXED), byte = word & 0xff;
	if (word != byte * ones || (is_written && !byte) ||
	    (!graph_world.is_child && byte >= WRITTEN_BY_CHILD))
		graph_fail("block g%u runs, and its word is 0x%llx", node->number,
			   (unsigned long long)word);
}

/* --- code --- */

static void put_cold(struct emitter *e)
{
	struct ch_code *code = &e->node->code;
	struct graph_emitter cold = {
		.write = code->cold_write, .exec = code->cold_exec, .room = code->cold_bytes};
	graph_emit_return(&cold, e->node->number | GRAPH_EXIT_MARK);
	code->cold_used = cold.at;
	e->exit = code->cold_exec;
}

/* The edge first: the edge holds the block whose address the points take. */
static void hold_others(struct emitter *e, int x, int y)
{
	struct graph_node *node = e->node;
	struct graph_owner *owner = graph_owner(node->owner);
	unsigned ok = GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE);
	uint32_t other = atomic_load(&graph_world.slots[y].code);
	if ((node->shape & GRAPH_EDGE) && other &&
	    graph_allow(ch_edge_attach(node->handle, graph_node(other)->handle), ok, "an edge") ==
		    CH_OK) {
		node->edge = other;
		atomic_store(&graph_node(other)->is_held, true);
	}
	other = atomic_load(&graph_world.slots[x].exit);
	if ((node->shape & GRAPH_SHARED_EXIT) && other &&
	    graph_allow(ch_edge_attach(node->handle, graph_node(other)->handle), ok,
			"an edge to an exit") == CH_OK) {
		node->shared_exit = other;
		atomic_store(&graph_node(other)->is_held, true);
		e->exit = graph_node(other)->exec;
	}
	other = atomic_load(&graph_world.slots[x].owner);
	if ((node->shape & GRAPH_CELL) && other && graph_owner(other)->handle.bits &&
	    graph_allow(ch_edge_attach_owner(node->handle, graph_owner(other)->handle), ok,
			"an edge to an owner") == CH_OK)
		node->edge_owner = other;
	if (node->shape & GRAPH_REF)
		node->ref_owner = atomic_load(&graph_world.slots[y].owner);
	int vm = owner->heap * GRAPH_VMS + owner->vm % GRAPH_VMS;
	other = atomic_load(&graph_world.fact_slots[vm][(unsigned)y % GRAPH_FACTS]);
	if ((node->shape & GRAPH_FACT) && other &&
	    graph_allow(ch_block_assume(node->handle, graph_world.facts[other].handle), ok,
			"an assumption") == CH_OK)
		node->fact = other;
}

static uint32_t room_for(unsigned shape)
{
	static const uint32_t more[] = {0, 200, BIG_BYTES, HUGE_BYTES};
	return graph_emit_hot_bytes + 2 * sizeof ones + more[shape >> GRAPH_SIZE_SHIFT & 3];
}

static unsigned branches_of(unsigned shape)
{
	unsigned count = 0;
	for (unsigned arm = 0; arm < 5; arm++)
		count += shape >> arm & 1;
	return count;
}

uint32_t graph_code_open(uint32_t of, int slot, unsigned shape, int x, int y)
{
	/* What only an owner's code has. */
	if (!graph_owner(of)->handle.bits)
		shape &= ~(unsigned)(GRAPH_REF | GRAPH_IMMORTAL | 3 << GRAPH_ENTRY_SHIFT);
	enum ch_entry entry = (enum ch_entry)(shape >> GRAPH_ENTRY_SHIFT & 3);
	bool may_collect = graph_world.program->driver != GRAPH_HOST && (shape & 1);
	struct ch_open open = {.hot_bytes = room_for(shape),
			       .cold_bytes = graph_emit_return_bytes,
			       .branch_room = branches_of(shape),
			       .entry = entry > CH_ENTRY_GUARD ? CH_ENTRY_NONE : entry,
			       .flags = (shape & GRAPH_IMMORTAL ? CH_OPEN_IMMORTAL : 0) |
					(may_collect ? CH_OPEN_MAY_COLLECT : 0)};
	struct graph_node *node = open_node(of, &open);
	if (!node)
		return 0;
	node->shape = shape;
	/* No vm answers for its branches. */
	if (!graph_owner(of)->handle.bits &&
	    graph_allow(ch_block_veneer(&node->code, (const void *)(uintptr_t)graph_code_fallback,
					&node->veneer),
			GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_FULL), "a veneer") != CH_OK) {
		graph_code_abort(node->number);
		return 0;
	}
	struct emitter e = emitter_of(node);
	put_cold(&e);
	hold_others(&e, graph_code_beside(slot, x), graph_code_beside(slot, y));
	if (graph_world.program->data && (shape & GRAPH_EDGE))
		hold_data(node, (x ^ y) & 1 ? node->edge : 0);
	if (open.entry != CH_ENTRY_PATCH)
		graph_emit_landing(&e.hot);
	if (open.entry == CH_ENTRY_GUARD)
		graph_emit_guard(&e.hot, node->code.guard, GRAPH_FALLBACK);
	put_body(&e);
	/* Pads behind the code, for blocks of all sizes. */
	if (shape >> GRAPH_SIZE_SHIFT & 3)
		graph_emit_pad(&e.hot);
	node->code.used_to = e.hot.at;
	return node->number;
}

uint32_t graph_code_open_exit(int slot)
{
	struct ch_open open = {.hot_bytes = graph_emit_return_bytes};
	struct graph_node *node = open_node(atomic_load(&graph_world.slots[slot].owner), &open);
	if (!node)
		return 0;
	struct emitter e = emitter_of(node);
	node->is_exit = true;
	graph_emit_return(&e.hot, node->number | GRAPH_EXIT_MARK);
	node->code.used_to = e.hot.at;
	return node->number;
}

static void put_lines(const struct graph_node *node, uint32_t from)
{
	const struct ch_line lines[] = {{node->exec, node->number}, {node->exec + from, 0}};
	graph_allow(ch_block_lines(node->handle, "/graph.c", lines, 2), GRAPH_BIT(CH_OK), "lines");
}

uint32_t graph_code_open_leaf(uint32_t owner, uint32_t other, enum graph_leaf kind)
{
	static const unsigned flags[LEAF_KINDS] = {[LEAF_KEPT] = CH_OPEN_KEPT,
						   [LEAF_IN_PLACE] = CH_OPEN_IN_PLACE};
	struct ch_open open = {.hot_bytes = LEAF_BYTES, .flags = flags[kind]};
	struct graph_node *node = open_node(owner, &open);
	if (!node)
		return 0;
	struct emitter e = emitter_of(node);
	node->is_leaf = true;
	if (graph_world.program->data)
		hold_data(node, other);
	graph_emit_landing(&e.hot);
	graph_emit_enter(&e.hot);
	if (kind == LEAF_WITH_LINES)
		put_lines(node, e.hot.at);
	graph_emit_return(&e.hot, node->number);
	node->code.used_to = e.hot.at;
	return node->number;
}

/* --- the end of being open --- */

static void note_commit(struct graph_node *node)
{
	struct ch_info info = {.size = sizeof info};
	/* The block may be gone or not entrant already: then its entry is of no use. */
	if (ch_block_info(node->handle, &info) == CH_OK) {
		if (!node->is_trampoline && info.hot_bytes < node->hot_bytes)
			graph_fail("block g%u has %u hot bytes, and uses %u", node->number,
				   info.hot_bytes, node->hot_bytes);
		node->hot_bytes = info.hot_bytes;
		node->cold_bytes = info.cold_bytes;
		node->cold = info.cold_exec;
		node->entry = node->is_trampoline ? info.entry : node->exec;
	}
	atomic_store(&node->cycles_at, graph_cycles(graph_owner(node->owner)->heap));
	atomic_store(&node->committed_at, graph_tick());
	atomic_store(&node->state, NODE_COMMITTED);
}

bool graph_code_commit(uint32_t number)
{
	struct graph_node *node = graph_node(number);
	node->hot_bytes = node->code.used_to;
	node->entry = node->exec;
	if (graph_allow(ch_block_commit(&node->code, 1), GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE),
			"commit") != CH_OK) {
		atomic_store(&node->state, NODE_LOST);
		return false;
	}
	note_commit(node);
	return true;
}

void graph_code_abort(uint32_t number)
{
	struct graph_node *node = graph_node(number);
	graph_allow(ch_block_abort(&node->code), GRAPH_BIT(CH_OK), "abort");
	atomic_store(&node->state, NODE_LOST);
}

uint32_t graph_code_trampoline(int slot, int kind)
{
	uint32_t owner = atomic_load(&graph_world.slots[slot].owner);
	struct graph_node *node = new_node(owner);
	if (!node)
		return 0;
	char name[16];
	snprintf(name, sizeof name, "g%u", node->number);
	node->is_trampoline = true;
	enum ch_status status = graph_allow(
		ch_trampoline_make(graph_owner(owner)->handle,
				   kind ? CH_TRAMPOLINE_TAIL : CH_TRAMPOLINE_FRAMED,
				   (const void *)(uintptr_t)graph_emit_payload, node->number,
				   name, node, &node->handle),
		GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_FULL) | GRAPH_BIT(CH_E_STALE), "trampoline");
	struct ch_info info = {.size = sizeof info};
	if (status != CH_OK)
		atomic_store(&node->state, NODE_LOST);
	if (status != CH_OK || ch_block_info(node->handle, &info) != CH_OK)
		return 0;
	node->exec = info.exec;
	GRAPH_COUNT(graph_blocks, 1);
	note_commit(node);
	return node->number;
}

void graph_code_publish(int slot, uint32_t number, bool as_entry)
{
	struct graph_slot *s = &graph_world.slots[slot];
	struct graph_node *node = graph_node(number);
	if (as_entry &&
	    graph_allow(ch_owner_set_entry(graph_owner(node->owner)->handle, node->handle),
			GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE) | GRAPH_BIT(CH_E_STATE),
			"an entry") == CH_OK)
		atomic_store(&node->is_held, true);
	atomic_store(&s->recent, atomic_exchange(&s->code, number));
}

/* --- targets of an arm --- */

void graph_code_candidate(struct graph_node *node, int arm, uint32_t number)
{
	struct graph_arm *a = &node->arms[arm];
	if (graph_code_is_candidate(node, arm, number))
		return;
	uint32_t at = atomic_fetch_add(&a->candidates, 1);
	if (at < GRAPH_CANDIDATES)
		atomic_store(&a->candidate[at], number);
}

bool graph_code_is_candidate(struct graph_node *node, int arm, uint32_t number)
{
	struct graph_arm *a = &node->arms[arm];
	uint32_t count = atomic_load(&a->candidates);
	if (count > GRAPH_CANDIDATES)
		return true;
	for (uint32_t i = 0; i < count; i++)
		if (atomic_load(&a->candidate[i]) == number)
			return true;
	return false;
}
