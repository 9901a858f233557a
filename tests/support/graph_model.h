/* SPDX-License-Identifier: MIT
 * graph_model.h: random graphs of code, constants and methods, and the model that says which blocks
 * must live. The three drivers run the same graphs; a driver makes method and constant objects in
 * its heap and collects. A thread that ends builds the graph, so no stack holds anything by chance.
 *
 *   root -> method object -> owner -> entry block
 *   block -> branch, plain edge, exit of a patch point -> block      block -> owner edge -> owner
 *   block -> ref -> constant object -> method object
 *   suspended fiber -> block;   OPEN, newborn and ownerless blocks are roots */
#pragma once

#include "codeheap/graph/handles.h"
#include "tests/support/heap_rig.h"

enum {
	GRAPH_METHODS = 40,
	GRAPH_CONSTANTS = 40,
	GRAPH_BLOCKS = 160,
	GRAPH_FIBERS = 3,
	GRAPH_FIBER_WORDS = 128,
	GRAPH_LINKS = 3,
	GRAPH_NONE = -1,
};

struct graph;
struct graph_driver {
	/* Makes the method object and its owner, or the constant; the driver holds both until the
	 * graph is built. */
	struct ch_owner (*method)(struct graph *, int index);
	uintptr_t (*constant)(struct graph *, int index, int method); /* the word in code */
	void (*built)(struct graph *);              /* from here on roots alone hold objects */
	void (*drop_root)(struct graph *, int method);
	void (*collect)(struct graph *);            /* one full cycle and its sweep */
	/* rig_apart, on a thread that the driver knows */
	void (*apart)(const struct rig *, void (*fn)(const struct rig *, void *), void *arg);
	bool has_refs_of_own; /* code without an owner may have refs */
};

struct graph_block {
	int owner; /* NONE: the block is a root until freed */
	struct ch_block handle;
	struct ch_code code; /* of an OPEN block */
	int links[GRAPH_LINKS], edges[2], owner_edge, constants[2];
	struct ch_branch branches[GRAPH_LINKS];
	enum ch_block_state state;
	bool is_held; /* the block has had an in-edge or an entry */
	bool is_own_root, is_dead, is_reached;
};

struct graph {
	struct rig rig;
	const struct graph_driver *driver;
	void *context; /* the driver's */
	struct test_random random;
	struct ch_owner owners[GRAPH_METHODS];
	int entries[GRAPH_METHODS];
	bool is_root[GRAPH_METHODS], is_owner_reached[GRAPH_METHODS], is_owner_dead[GRAPH_METHODS];
	int constants[GRAPH_CONSTANTS]; /* the method that each constant names */
	uintptr_t words[GRAPH_CONSTANTS]; /* inverted, to hide the words from collectors */
	struct graph_block blocks[GRAPH_BLOCKS];
	struct ch_fiber *fibers[GRAPH_FIBERS];
	uintptr_t *stacks[GRAPH_FIBERS];
	int fiber_blocks[GRAPH_FIBERS][2];
	int cycles;
};

static inline int graph_pick(struct graph *g, uint64_t bound)
{
	return (int)test_random_below(&g->random, bound);
}
static inline bool graph_chance(struct graph *g, unsigned percent)
{
	return test_random_below(&g->random, 100) < percent;
}

/* --- building --- */

static inline void graph_attach_some(struct graph *g, int at, struct emitter *e)
{
	struct graph_block *b = &g->blocks[at];
	for (int i = 0; i < 2; i++) {
		b->edges[i] = b->constants[i] = GRAPH_NONE;
		if (graph_chance(g, 40) && (b->owner >= 0 || g->driver->has_refs_of_own)) {
			int c = b->constants[i] = graph_pick(g, GRAPH_CONSTANTS);
			const void *ref = emit_ref_word(e, ~g->words[c]);
			CHECK_EQ(ch_ref_attach(b->handle, ref), CH_OK);
		}
	}
	b->owner_edge = graph_chance(g, 25) ? graph_pick(g, GRAPH_METHODS) : GRAPH_NONE;
	if (b->owner_edge != GRAPH_NONE)
		CHECK_EQ(ch_edge_attach_owner(b->handle, g->owners[b->owner_edge]), CH_OK);
	int to = at ? graph_pick(g, (uint64_t)at) : 0;
	/* A block with an edge to an OPEN block cannot be committed. */
	if (at && graph_chance(g, 20) && g->blocks[to].state != CH_BLOCK_OPEN) {
		b->edges[0] = to;
		CHECK_EQ(ch_edge_attach(b->handle, g->blocks[to].handle), CH_OK);
		g->blocks[to].is_held = true;
	}
	int exit = at ? graph_pick(g, (uint64_t)at) : 0;
	if (at && graph_chance(g, 20) && g->blocks[exit].state == CH_BLOCK_LIVE) {
		b->edges[1] = exit;
		CHECK_EQ(ch_patch_point_attach(b->handle, emit_point(e),
					       block_info(g->blocks[exit].handle).exec, NULL),
			 CH_OK);
		g->blocks[exit].is_held = true;
	}
}

static inline void graph_make_block(struct graph *g, int at)
{
	struct graph_block *b = &g->blocks[at];
	b->owner = graph_chance(g, 12) ? GRAPH_NONE : graph_pick(g, GRAPH_METHODS);
	struct emitter e;
	struct ch_open open = {.hot_bytes = 200, .branch_room = GRAPH_LINKS};
	const void *exit = NULL;
	if (b->owner == GRAPH_NONE)
		open.heap = g->rig.heap;
	else
		open.owner = g->owners[b->owner];
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	b->handle = e.code.block;
	/* A block without an owner has no vm to ask. */
	if (b->owner == GRAPH_NONE)
		CHECK_EQ(ch_block_veneer(&e.code, (const void *)(uintptr_t)rig_fallback, &exit),
			 CH_OK);
	graph_attach_some(g, at, &e);
	for (int i = 0; i < GRAPH_LINKS; i++) {
		struct ch_branch_site site = {
			.at = emit_site_jmp(&e), .kind = CH_JMP, .exit = exit};
		b->links[i] = GRAPH_NONE;
		CHECK_EQ(ch_branch_attach(b->handle, &site, &b->branches[i]), CH_OK);
	}
	b->state = graph_chance(g, 6) ? CH_BLOCK_OPEN : CH_BLOCK_LIVE;
	b->is_own_root = b->owner == GRAPH_NONE && b->state == CH_BLOCK_LIVE;
	b->is_held = b->owner == GRAPH_NONE;
	if (b->state == CH_BLOCK_LIVE)
		CHECK_EQ(emit_commit(&e), CH_OK);
	e.code.used_to = e.at;
	b->code = e.code;
}

static inline void graph_link(struct graph *g)
{
	for (int at = 0; at < GRAPH_BLOCKS; at++)
		for (int i = 0; i < GRAPH_LINKS; i++) {
			struct graph_block *b = &g->blocks[at];
			int to = graph_pick(g, GRAPH_BLOCKS);
			if (b->state != CH_BLOCK_LIVE || !graph_chance(g, 45) ||
			    g->blocks[to].state != CH_BLOCK_LIVE)
				continue;
			CHECK_EQ(ch_branch_link(b->branches[i], g->blocks[to].handle), CH_OK);
			b->links[i] = to;
			g->blocks[to].is_held = true;
		}
	for (int at = 0; at < GRAPH_BLOCKS; at++) {
		struct graph_block *b = &g->blocks[at];
		if (b->owner == GRAPH_NONE || b->state != CH_BLOCK_LIVE || !graph_chance(g, 50))
			continue;
		CHECK_EQ(ch_owner_set_entry(g->owners[b->owner], b->handle), CH_OK);
		g->entries[b->owner] = at;
		b->is_held = true;
	}
}

static inline void graph_invalidate(struct graph *g, int at)
{
	struct graph_block *b = &g->blocks[at];
	if (b->is_dead || b->state != CH_BLOCK_LIVE)
		return;
	size_t count;
	CHECK_EQ(ch_blocks_invalidate(&b->handle, 1, &count), CH_OK);
	CHECK_EQ(count, 1);
	b->state = CH_BLOCK_NOTENTRANT;
	if (b->owner >= 0 && g->entries[b->owner] == at)
		g->entries[b->owner] = GRAPH_NONE;
	for (int from = 0; from < GRAPH_BLOCKS; from++)
		for (int i = 0; i < GRAPH_LINKS; i++)
			if (from == at || g->blocks[from].links[i] == at)
				g->blocks[from].links[i] = GRAPH_NONE;
}

static inline void graph_suspend(struct graph *g)
{
	for (int f = 0; f < GRAPH_FIBERS; f++) {
		uintptr_t *stack = calloc(GRAPH_FIBER_WORDS, sizeof *stack);
		CHECK(stack);
		g->stacks[f] = stack;
		for (int i = 0; i < 2; i++) {
			int at = g->fiber_blocks[f][i] = graph_pick(g, GRAPH_BLOCKS);
			struct ch_info info = block_info(g->blocks[at].handle);
			/* A return address may lie just behind the block's last byte, where the
			 * next part begins: it holds the block, not the neighbour. */
			uint32_t skip = graph_chance(g, 30) ? info.hot_bytes : 7;
			uintptr_t word = (uintptr_t)info.exec + skip;
			stack[GRAPH_FIBER_WORDS / 2 + 9 * i] = word;
		}
		CHECK_EQ(ch_fiber_attach(g->rig.heap, stack, stack + GRAPH_FIBER_WORDS,
					 &g->fibers[f]),
			 CH_OK);
		ch_fiber_suspend(g->fibers[f], stack + GRAPH_FIBER_WORDS / 2 - 4);
	}
}

static inline void graph_build(const struct rig *rig, void *arg)
{
	struct graph *g = arg;
	(void)rig;
	for (int m = 0; m < GRAPH_METHODS; m++) {
		g->owners[m] = g->driver->method(g, m);
		g->entries[m] = GRAPH_NONE;
		g->is_root[m] = graph_chance(g, 25);
	}
	for (int c = 0; c < GRAPH_CONSTANTS; c++) {
		g->constants[c] = graph_chance(g, 70) ? graph_pick(g, GRAPH_METHODS) : GRAPH_NONE;
		g->words[c] = ~g->driver->constant(g, c, g->constants[c]);
	}
	for (int at = 0; at < GRAPH_BLOCKS; at++)
		graph_make_block(g, at);
	graph_link(g);
	for (int at = 0; at < GRAPH_BLOCKS; at++)
		if (graph_chance(g, 10))
			graph_invalidate(g, at);
	graph_suspend(g);
	g->driver->built(g);
}

/* --- the model --- */

static inline void graph_reach(struct graph *g, int at);

static inline void graph_reach_owner(struct graph *g, int owner)
{
	if (owner == GRAPH_NONE || g->is_owner_dead[owner] || g->is_owner_reached[owner])
		return;
	g->is_owner_reached[owner] = true;
	if (g->entries[owner] != GRAPH_NONE)
		graph_reach(g, g->entries[owner]);
}

static inline void graph_reach(struct graph *g, int at)
{
	if (at == GRAPH_NONE || g->blocks[at].is_reached)
		return;
	struct graph_block *b = &g->blocks[at];
	if (b->is_dead)
		FAIL("the model reaches block %d, which is dead", at);
	b->is_reached = true;
	for (int i = 0; i < GRAPH_LINKS; i++)
		graph_reach(g, b->links[i]);
	for (int i = 0; i < 2; i++) {
		graph_reach(g, b->edges[i]);
		if (b->constants[i] != GRAPH_NONE)
			graph_reach_owner(g, g->constants[b->constants[i]]);
	}
	graph_reach_owner(g, b->owner_edge);
}

static inline void graph_compute(struct graph *g)
{
	memset(g->is_owner_reached, 0, sizeof g->is_owner_reached);
	for (int at = 0; at < GRAPH_BLOCKS; at++)
		g->blocks[at].is_reached = false;
	for (int m = 0; m < GRAPH_METHODS; m++)
		if (g->is_root[m])
			graph_reach_owner(g, m);
	for (int at = 0; at < GRAPH_BLOCKS; at++) {
		const struct graph_block *b = &g->blocks[at];
		bool is_newborn = b->state == CH_BLOCK_LIVE && !b->is_held && g->cycles < 2;
		if (!b->is_dead && (b->state == CH_BLOCK_OPEN || is_newborn || b->is_own_root))
			graph_reach(g, at);
	}
	for (int f = 0; f < GRAPH_FIBERS; f++)
		for (int i = 0; g->fibers[f] && i < 2; i++)
			/* Nothing returns to an OPEN block, but OPEN blocks are roots anyway. */
			graph_reach(g, g->fiber_blocks[f][i]);
}

static inline void graph_bury(struct graph *g)
{
	g->cycles++;
	for (int m = 0; m < GRAPH_METHODS; m++)
		g->is_owner_dead[m] |= !g->is_owner_reached[m];
	for (int at = 0; at < GRAPH_BLOCKS; at++) {
		struct graph_block *b = &g->blocks[at];
		b->is_dead |= !b->is_reached;
		if (b->is_dead && b->owner >= 0 && g->entries[b->owner] == at)
			g->entries[b->owner] = GRAPH_NONE;
	}
}

static inline void graph_compare(const struct graph *g)
{
	uint64_t live = 0;
	for (int at = 0; at < GRAPH_BLOCKS; at++) {
		const struct graph_block *b = &g->blocks[at];
		if (rig_is_there(b->handle) == b->is_dead)
			FAIL("cycle %d: block %d (state %d) is %s, the model says otherwise",
			     g->cycles, at, b->state, b->is_dead ? "there" : "gone");
		live += !b->is_dead;
	}
	CHECK_EQ(rig_stats(&g->rig).blocks_now, live);
	rig_check(&g->rig);
}

static inline void graph_cycle(struct graph *g)
{
	graph_compute(g);
	g->driver->collect(g);
	graph_bury(g);
	graph_compare(g);
}

/* From here on, only a path from a root holds the block. */
static inline void graph_free_own(struct graph *g, int at)
{
	struct graph_block *b = &g->blocks[at];
	b->is_own_root = false;
	CHECK_EQ(ch_code_free(graph_chance(g, 50) ? g->rig.heap : NULL, block_info(b->handle).exec,
			      CH_RELEASE_COLLECT),
		 CH_OK);
}

/* Runs a random graph to its end: no root, no fiber, no open block, nothing left. */
static inline void graph_run(struct graph *g)
{
	g->driver->apart(&g->rig, graph_build, g);
	for (int i = 0; i < 4; i++)
		graph_cycle(g);
	for (int round = 0; round < 3; round++) {
		for (int m = 0; m < GRAPH_METHODS; m++)
			if (g->is_root[m] && (round == 2 || graph_chance(g, 40))) {
				g->is_root[m] = false;
				g->driver->drop_root(g, m);
			}
		for (int at = 0; at < GRAPH_BLOCKS; at++)
			if (g->blocks[at].is_own_root && (round == 2 || graph_chance(g, 40)))
				graph_free_own(g, at);
		for (int at = 0; at < GRAPH_BLOCKS; at++)
			if (graph_chance(g, 10))
				graph_invalidate(g, at);
		CHECK_EQ(ch_fiber_detach(g->fibers[round]), CH_OK);
		g->fibers[round] = NULL;
		graph_cycle(g);
	}
	for (int at = 0; at < GRAPH_BLOCKS; at++)
		if (g->blocks[at].state == CH_BLOCK_OPEN) {
			CHECK_EQ(ch_block_abort(&g->blocks[at].code), CH_OK);
			g->blocks[at].is_dead = true;
		}
	graph_cycle(g);
	graph_cycle(g);
	CHECK_EQ(rig_stats(&g->rig).blocks_now, 0);
	for (int f = 0; f < GRAPH_FIBERS; f++)
		free(g->stacks[f]);
}
